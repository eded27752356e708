"""What a request may ask of a task, checked once against what the model can do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from forebay.core.errors import InvalidRequest
from forebay.core.tasks import ALLOWED_PARAMS, SHOWN, ScoreType, Task


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a loaded model can do; the border checks requests against it.

    ``tasks`` are the outputs that may be asked for, ``default_task`` the one that is meant where none is named.
    ``dimension`` is the vectors' full size (0 without ``embed``), ``default_dimension`` what a request gets that
    does not ask for ``dimensions``. ``max_len`` counts tokens, special ones included. ``matryoshka`` lists the
    sizes that ``dimensions`` may take where the checkpoint names them; where it does not, any up to ``dimension``
    may be asked. ``labels`` are the names of a classifier's scores, in order. ``is_normalized``
    tells that embeddings are of unit length unless a request asks otherwise. ``score_type`` is how two texts are
    compared, None where the model can't; ``is_mean_score`` tells that MaxSim is divided by the query's tokens;
    ``token_dimension`` is the size of a token's vector unless a request asks otherwise (0 without ``token_embed``);
    ``takes_instruction`` tells that its template has a place for one.
    """

    tasks: tuple[Task, ...]
    default_task: Task
    dimension: int
    default_dimension: int
    max_len: int
    vocab_size: int
    matryoshka: tuple[int, ...] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    is_normalized: bool = False
    score_type: ScoreType | None = None
    is_mean_score: bool = False
    token_dimension: int = 0
    takes_instruction: bool = False


@dataclass(frozen=True, slots=True)
class TextParams:
    """How texts become tokens.

    ``prompt`` is text put before each item; ``prompt_name`` picks one of the checkpoint's prompts; ``input_type``
    (``query``, ``document``) picks the prompt and, in asymmetric models, the route that the checkpoint
    has for that side. None of them: the checkpoint's default prompt. ``max_tokens`` lowers the model's limit.

    What is longer is cut at ``truncation_side`` (None: the tokenizer's own), with ``truncate`` False refused, and with
    ``split`` read by windows whose outputs are joined (None: as the model was loaded), up to a length beyond which it
    is cut or refused.

    ``max_tokens_per_query`` and ``max_tokens_per_doc`` limit one side of a comparison, special tokens not counted,
    and ``instruction`` fills that place of a reranker's template.
    """

    prompt: str | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    truncate: bool = True
    truncation_side: Literal["left", "right"] | None = None
    split: bool | None = None
    max_tokens: int | None = None
    add_special_tokens: bool = True
    max_tokens_per_query: int | None = None
    max_tokens_per_doc: int | None = None
    instruction: str | None = None

    def check(self, abilities: Abilities) -> None:
        """Raise InvalidRequest where a field has a wrong type or does not fit the model."""
        check_types(self, _TEXT_TYPES)
        if self.truncation_side not in (None, "left", "right"):
            raise InvalidRequest(
                f"truncation_side is '{self.truncation_side}'; expected 'left' or 'right'", field="truncation_side"
            )
        self._check_prompts(abilities)
        if self.max_tokens is not None and not 1 <= self.max_tokens <= abilities.max_len:
            raise InvalidRequest(
                f"max_tokens is {self.max_tokens}, but this model reads 1 to {abilities.max_len} tokens",
                field="max_tokens",
            )
        for name in _SIDE_LIMITS:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise InvalidRequest(f"{name} is {limit}; expected at least 1, or leave it out", field=name)
        if self.instruction is not None and not abilities.takes_instruction:
            raise InvalidRequest(
                "'instruction' fills a place of a reranker's template, but this model has none; leave it out, or put "
                "it before the query with 'prompt'",
                field="instruction",
            )

    def _check_prompts(self, abilities: Abilities) -> None:
        if self.prompt is not None and self.prompt_name is not None:
            raise InvalidRequest("'prompt' and 'prompt_name' exclude each other; send one", field="prompt_name")
        if self.prompt_name is not None and self.prompt_name not in abilities.prompts:
            known = ", ".join(f"'{name}'" for name in abilities.prompts) or "none"
            raise InvalidRequest(
                f"unknown prompt '{self.prompt_name[:SHOWN]}'; this model has: {known}. "
                "Use 'prompt' to give the text itself",
                field="prompt_name",
            )
        input_types = ("query", "document", *abilities.prompts, *abilities.routes)
        if self.input_type is not None and self.input_type not in input_types:
            known = ", ".join(f"'{name}'" for name in dict.fromkeys(input_types))
            raise InvalidRequest(
                f"unknown input_type '{self.input_type[:SHOWN]}'; this model has: {known}", field="input_type"
            )


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """What is to be made of the hidden states: one output or several, all from the same forward.

    ``dimensions`` slices the vector and then normalises it again where the vector is normalised at all;
    ``truncate_dim`` slices last and normalises no more (sentence-transformers' meaning). ``use_activation``
    overrides what the checkpoint says: normalisation of embeddings, the activation of scores; False gives raw
    numbers. ``chunk_size`` averages token vectors over windows of so many tokens (late chunking).
    ``max_active_dims`` keeps the largest entries of a sparse vector. ``pool_factor`` joins a document's token vectors,
    by likeness, to about one for so many of them. ``side`` ("query", "document") is filled in by the engine.
    """

    outputs: tuple[Task, ...] = (Task.EMBED,)
    dimensions: int | None = None
    truncate_dim: int | None = None
    use_activation: bool | None = None
    chunk_size: int | None = None
    max_active_dims: int | None = None
    pool_factor: int | None = None
    side: Literal["query", "document"] = "document"

    def check(self, abilities: Abilities) -> None:
        """Raise InvalidRequest where a field does not fit the outputs or the model."""
        check_types(self, _POOLING_TYPES)
        if not self.outputs:
            raise InvalidRequest("no output is asked for; name at least one task", field="outputs")
        if Task.PLUGIN in self.outputs and Task.PLUGIN in abilities.tasks:
            raise InvalidRequest("the task 'plugin' takes 'data' for its IO processor, not texts", field="task")
        for task in self.outputs:
            if task not in abilities.tasks:
                known = ", ".join(f"'{task}'" for task in abilities.tasks)
                raise InvalidRequest(f"this model does not support the task '{task}'; it has {known}", field="task")
        self._check_fields()
        for name in ("dimensions", "truncate_dim"):
            self._check_size(name, abilities)
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} is {value}; expected at least 1", field=name)

    def _check_fields(self) -> None:
        allowed = frozenset[str]().union(*(ALLOWED_PARAMS[task] for task in self.outputs))
        for name in _OPTIONAL_PARAMS:
            if getattr(self, name) is not None and name not in allowed:
                tasks = " and ".join(f"'{task}'" for task in self.outputs)
                raise InvalidRequest(
                    f"'{name}' means nothing to {tasks}; understood there: {', '.join(sorted(allowed)) or 'none'}",
                    field=name,
                )
        if self.pool_factor is not None and self.chunk_size is not None:
            raise InvalidRequest(
                "'chunk_size' and 'pool_factor' exclude each other: one joins neighbours, the other what is alike",
                field="pool_factor",
            )
        if self.dimensions is not None and self.truncate_dim is not None:
            raise InvalidRequest(
                "'dimensions' and 'truncate_dim' exclude each other: the first normalises after the slice, "
                "the second does not",
                field="truncate_dim",
            )

    def _check_size(self, name: str, abilities: Abilities) -> None:
        size, full = getattr(self, name), abilities.dimension
        if size is None or size == full:
            return
        if not 1 <= size <= full:
            raise InvalidRequest(
                f"{name} is {size}, but this model's vectors have {full} numbers; ask for 1 to {full}", field=name
            )
        if abilities.matryoshka is not None and size not in abilities.matryoshka:
            known = ", ".join(str(known_size) for known_size in abilities.matryoshka)
            raise InvalidRequest(f"{name} is {size}, but this model was trained for {known} and {full}", field=name)


_SIDE_LIMITS = ("max_tokens_per_query", "max_tokens_per_doc")
_COUNTS = ("chunk_size", "max_active_dims", "pool_factor")
_OPTIONAL_PARAMS = ("dimensions", "truncate_dim", "use_activation", *_COUNTS)
_TEXT_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("prompt", "prompt_name", "input_type", "instruction"), str),
    **dict.fromkeys(("max_tokens", *_SIDE_LIMITS), int),
    **dict.fromkeys(("truncate", "split", "add_special_tokens"), bool),
}
_POOLING_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("dimensions", "truncate_dim", *_COUNTS), int),
    "use_activation": bool,
}


def check_types(params: object, kinds: Mapping[str, type]) -> None:
    """Refuse a field of another type; None is what is left out. A bool is no number here."""
    for name, kind in kinds.items():
        value = getattr(params, name)
        if value is None:
            continue
        is_right = isinstance(value, Integral if kind is int else kind) and (
            kind is bool or not isinstance(value, bool)
        )
        if not is_right:
            raise InvalidRequest(f"{name} is of type {type(value).__name__}; expected {kind.__name__}", field=name)
