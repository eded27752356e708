"""Options that several commands share, each declared once, and the model that they load. Knows no command.

A group of options is a dataclass: a command takes one as a parameter, and its command line has every field.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer

from forebay.cli.formats import InputFormat, OutputFormat
from forebay.core.config import Convert, DType, EngineLimits, PoolerConfig, Runner
from forebay.core.errors import InvalidRequest
from forebay.core.params import TextParams

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel

LIMITS = EngineLimits()
OnError = Literal["stop", "skip"]
MODEL_HELP = "A local folder, a model id of the hub, or 'default' for the built-in model."

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
IOProcessorName = Annotated[
    str | None, typer.Option("--io-processor", help="Installed IO processor that serves the task 'plugin'.")
]
Files = Annotated[
    list[str] | None, typer.Argument(metavar="FILES", help="txt, jsonl, csv or parquet; none or '-': stdin.")
]


OnErrorOption = Annotated[
    OnError,
    typer.Option(
        help="What a bad row does (malformed, or too long with --no-truncate): stop ends the run, skip writes its "
        "error in its place and goes on, to exit code 1."
    ),
]


TruncationSide = Annotated[
    Literal["left", "right"] | None, typer.Option(help="The end at which a text that is too long is cut.")
]
Split = Annotated[
    bool | None,
    typer.Option("--split/--no-split", help="Read a text that is too long by windows, and join what they give."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How every command that loads a model can be told to."""

    dtype: Annotated[
        DType,
        typer.Option(help="Compute type; auto: float32 on CPU, else the checkpoint's; int8: native CPU kernels only."),
    ] = "auto"
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")] = None
    runner: Annotated[Runner, typer.Option(help="How the checkpoint is run; auto finds out.")] = "auto"
    convert: Annotated[Convert, typer.Option(help="What a model made for another task is turned into.")] = "auto"
    prompts: Annotated[str | None, typer.Option(help="Family of embedders whose known prompts are used.")] = None
    template: Annotated[
        str | None, typer.Option(help="How an LLM reranker reads a pair: a family, a .toml file, 'chat' or 'plain'.")
    ] = None
    pooler_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='Override pooling, as {"pooling_type": "CLS"}, or read long texts by windows: '
            '{"enable_chunked_processing": true}.',
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool,
        typer.Option(
            "--enable-chunked-prefill/--no-enable-chunked-prefill",
            help="Cut texts that are longer than a step over several (causal models).",
        ),
    ] = LIMITS.enable_chunked_prefill
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Compute what texts that begin alike share only once (causal models).",
        ),
    ] = LIMITS.enable_prefix_caching
    prefix_cache_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens whose keys and values are kept for that, beyond two steps'.")
    ] = LIMITS.prefix_cache_tokens
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of one block of keys and values.")] = LIMITS.block_size

    def limits(self, **others: Any) -> EngineLimits:
        """Return what the engine may use; ``others`` are the fields that not every command has."""
        return EngineLimits(
            enable_chunked_prefill=self.enable_chunked_prefill,
            enable_prefix_caching=self.enable_prefix_caching,
            prefix_cache_tokens=self.prefix_cache_tokens,
            block_size=self.block_size,
            **others,
        )

    def pooler(self) -> PoolerConfig:
        """Read the JSON object of ``--pooler-config``."""
        if self.pooler_config is None:
            return PoolerConfig()
        try:
            values: Any = orjson.loads(self.pooler_config)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"--pooler-config is not JSON ({error.msg}); expected an object as {{}}") from None
        if not isinstance(values, dict):
            raise InvalidRequest(f"--pooler-config is a JSON {type(values).__name__}; expected an object as {{}}")
        return PoolerConfig.parse(values)

    def load(
        self, model: str, *, io_processor: str | None = None, limits: EngineLimits | None = None
    ) -> "PoolingModel":
        """Load a model."""
        from forebay.api.model import PoolingModel

        return PoolingModel(
            model,
            revision=self.revision,
            dtype=self.dtype,
            device=self.device,
            pooler_config=self.pooler(),
            runner=self.runner,
            convert=self.convert,
            io_processor=io_processor,
            prompts=self.prompts,
            template=self.template,
            limits=limits or self.limits(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions(LoadOptions):
    """What every bulk run can be told: files, model, and how texts become tokens."""

    out: Annotated[
        str,
        typer.Option("--out", "-o", help="File to write; its extension tells the format. '-': JSON lines on stdout."),
    ] = "-"
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "default"
    input_format: Annotated[InputFormat | None, typer.Option(help="Instead of what the extension tells.")] = None
    output_format: Annotated[OutputFormat | None, typer.Option(help="Instead of what the extension tells.")] = None
    field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text"
    id_field: Annotated[
        str | None, typer.Option(help="Field or column to copy to the output as 'id' (jsonl, parquet).")
    ] = None
    prompt: Annotated[str | None, typer.Option(help="Text to put before each text.")] = None
    prompt_name: Annotated[str | None, typer.Option(help="One of the model's own prompts.")] = None
    input_type: Annotated[str | None, typer.Option(help="The side of an asymmetric model: query or document.")] = None
    no_truncate: Annotated[bool, typer.Option("--no-truncate", help="Refuse texts that are too long.")] = False
    truncation_side: TruncationSide = None
    split: Split = None
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Lower the model's limit of tokens a text.")] = None
    on_error: OnErrorOption = "stop"
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a stopped run left off.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output or a stopped run.")] = False
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show neither bar nor summary.")] = False

    def make_text_params(self) -> TextParams:
        """Return how texts become tokens; where bad rows are skipped, one that is too long is cut and found then."""
        return TextParams(
            self.prompt,
            self.prompt_name,
            self.input_type,
            truncate=not self.no_truncate or self.on_error == "skip",
            truncation_side=self.truncation_side,
            split=self.split,
            max_tokens=self.max_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions(LoadOptions):
    """What every run that compares texts can be told."""

    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "default"
    out: Annotated[str, typer.Option("--out", "-o", help="JSON lines to write; '-': stdout.")] = "-"
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there.")] = False
    input_format: Annotated[InputFormat | None, typer.Option(help="Instead of what the extension tells.")] = None
    prompt: Annotated[str | None, typer.Option(help="Text to put before each query.")] = None
    prompt_name: Annotated[str | None, typer.Option(help="One of the model's own prompts, for the queries.")] = None
    instruction: Annotated[str | None, typer.Option(help="What the reranker's template asks for.")] = None
    no_truncate: Annotated[bool, typer.Option("--no-truncate", help="Refuse texts that are too long.")] = False
    truncation_side: TruncationSide = None
    split: Split = None
    on_error: OnErrorOption = "stop"
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Lower the model's limit of tokens.")] = None
    max_tokens_per_query: Annotated[int | None, typer.Option(min=1, help="The most tokens of a query.")] = None
    max_tokens_per_doc: Annotated[int | None, typer.Option(min=1, help="The most tokens of a document.")] = None
    raw: Annotated[bool, typer.Option("--raw", help="Write a cross-encoder's logits.")] = False

    def make_score_options(self) -> dict[str, Any]:
        """Return the keyword arguments of ``PoolingModel.score``."""
        return {
            "use_activation": False if self.raw else None,
            "prompt": self.prompt,
            "prompt_name": self.prompt_name,
            "instruction": self.instruction,
            "truncate": not self.no_truncate or self.on_error == "skip",
            "truncation_side": self.truncation_side,
            "split": self.split,
            "max_tokens": self.max_tokens,
            "max_tokens_per_query": self.max_tokens_per_query,
            "max_tokens_per_doc": self.max_tokens_per_doc,
            "show_progress": False,
        }


def takes_options(command: Callable[..., int]) -> Callable[..., int]:
    """Put the fields of a command's dataclass among its options; the command gets them as that one value."""
    signature = inspect.signature(command)
    (group,) = [parameter for parameter in signature.parameters.values() if is_dataclass(parameter.annotation)]
    shared = fields(group.annotation)

    @functools.wraps(command)
    def run(**given: Any) -> int:
        value = group.annotation(**{option.name: given.pop(option.name) for option in shared})
        return command(**given, **{group.name: value})

    own = [parameter for parameter in signature.parameters.values() if parameter is not group]
    more = [
        inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for option in shared
    ]
    run.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]  # Typer reads it
    return run
