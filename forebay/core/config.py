"""All configuration, frozen once resolved: what to load, what the engine may use, how to serve."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.core.errors import InvalidRequest
from forebay.core.params import check_types
from forebay.core.tasks import parse_task

DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]

Runner = Literal["auto", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]
WindowScores = Literal["max", "mean"]

SEQUENCE_POOLING = ("CLS", "LAST", "MEAN", "MEAN_SQRT_LEN", "WEIGHTED", "MAX")
TOKEN_POOLING = ("ALL", "STEP")

REMOVED_POOLER_FIELDS: dict[str, str] = {
    "normalize": "use 'use_activation'",
    "softmax": "use 'use_activation'",
    "activation": "use 'use_activation'",
}


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """A user's overrides of single decisions about pooling; None leaves the checkpoint's own.

    ``task`` is the default task. ``seq_pooling_type`` names a method (CLS, LAST, MEAN, MEAN_SQRT_LEN, WEIGHTED, MAX),
    several joined by "+" for their concatenation; ``tok_pooling_type`` is ALL or STEP; ``pooling_type`` sets
    whichever of the two it names. ``use_activation`` False gives raw vectors and logits. ``dimensions`` is the
    default slice. ``enable_chunked_processing`` embeds a text that is longer than the model reads by windows, up
    to ``max_embed_len`` tokens, and joins their vectors; a cross-encoder reads a long document so, and ``chunk_scores``
    (max, the default, or mean) joins the scores. Each window repeats the last ``chunk_overlap`` tokens of the one
    before. Scores are (logit - ``logit_mean``) / ``logit_sigma``
    before their activation. STEP keeps the rows of tokens with id ``step_tag_id``; ``returned_token_ids`` keeps
    only these columns of the scores.
    """

    task: str | None = None
    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None
    chunk_overlap: int | None = None
    chunk_scores: WindowScores | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "PoolerConfig":
        """Build from a mapping (a JSON object of the command line); unknown and removed names are refused."""
        if not isinstance(values, Mapping):
            raise _refuse(f"pooler config: found {type(values).__name__}, expected an object of its fields")
        for name in values:
            if name in REMOVED_POOLER_FIELDS:
                raise _refuse(f"'{name}' was removed from the pooler config: {REMOVED_POOLER_FIELDS[name]}")
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise _refuse(f"unknown pooler config field '{name}'; known: {known}")
        ids = values.get("returned_token_ids")
        config = cls(**{**values, "returned_token_ids": tuple(ids) if isinstance(ids, list) else ids})
        config.check()
        return config

    def check(self) -> None:
        """Raise InvalidRequest where fields have wrong types or values, or contradict each other."""
        for name, kinds in _POOLER_KINDS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
                expected = " or ".join(kind.__name__ for kind in kinds)
                raise _refuse(f"pooler config: {name} is of type {type(value).__name__}, expected {expected}")
        if any(not isinstance(id_, int) or isinstance(id_, bool) for id_ in self.returned_token_ids or ()):
            raise _refuse("pooler config: returned_token_ids must be a list of token ids")
        if self.task is not None:
            parse_task(self.task)
        self._check_methods()
        if self.logit_sigma == 0:
            raise _refuse("pooler config: logit_sigma is 0, and scores are divided by it; give another number")
        if self.max_embed_len is not None and not (self.enable_chunked_processing and self.max_embed_len >= 1):
            raise _refuse(
                "pooler config: max_embed_len bounds what enable_chunked_processing reads; set that to true, and "
                "max_embed_len to 1 or more"
            )
        self._check_chunks()

    def _check_chunks(self) -> None:
        for name in ("chunk_overlap", "chunk_scores"):
            if getattr(self, name) is not None and not self.enable_chunked_processing:
                raise _refuse(f"pooler config: {name} is about windows; set enable_chunked_processing to true")
        if self.chunk_overlap is not None and self.chunk_overlap < 0:
            raise _refuse(f"pooler config: chunk_overlap is {self.chunk_overlap}; expected 0 or more tokens")
        if self.chunk_scores not in (None, "max", "mean"):
            raise _refuse(f"pooler config: chunk_scores is '{self.chunk_scores}'; expected 'max' or 'mean'")

    def _check_methods(self) -> None:
        if self.pooling_type is not None and (self.seq_pooling_type or self.tok_pooling_type):
            raise _refuse(
                "pooler config: pooling_type stands for seq_pooling_type or tok_pooling_type; give one of them"
            )
        for method in self.sequence_methods or ():
            if method not in SEQUENCE_POOLING:
                known = ", ".join((*SEQUENCE_POOLING, *TOKEN_POOLING))
                raise _refuse(f"pooler config: unknown pooling type '{method}'; known: {known}")
        if self.token_method not in (None, *TOKEN_POOLING):
            raise _refuse(
                f"pooler config: tok_pooling_type is '{self.token_method}'; known: {', '.join(TOKEN_POOLING)}"
            )
        if (self.token_method == "STEP") != (self.step_tag_id is not None):
            raise _refuse("pooler config: the token method STEP and step_tag_id go together; give both or neither")

    @property
    def sequence_methods(self) -> tuple[str, ...] | None:
        """The names of the wanted sequence methods, None where the user leaves the choice."""
        name = self.seq_pooling_type
        if name is None and self.pooling_type is not None and self.pooling_type.upper() not in TOKEN_POOLING:
            name = self.pooling_type
        return None if name is None else tuple(part.strip().upper() for part in name.split("+"))

    @property
    def token_method(self) -> str | None:
        """The name of the wanted token method, None where the user leaves the choice."""
        name = self.tok_pooling_type
        if name is None and self.pooling_type is not None and self.pooling_type.upper() in TOKEN_POOLING:
            name = self.pooling_type
        return None if name is None else name.upper()


_POOLER_KINDS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "pooling_type": (str,),
    "seq_pooling_type": (str,),
    "tok_pooling_type": (str,),
    "use_activation": (bool,),
    "dimensions": (int,),
    "enable_chunked_processing": (bool,),
    "max_embed_len": (int,),
    "chunk_overlap": (int,),
    "chunk_scores": (str,),
    "logit_mean": (int, float),
    "logit_sigma": (int, float),
    "step_tag_id": (int,),
    "returned_token_ids": (tuple,),
}


def _refuse(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="pooler_config")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which checkpoint, and the user's word on how to run it.

    ``model`` is a local folder, a model id of the hub, or ``default`` for the embedded model. ``dtype`` "auto"
    computes in float32 on CPU and in the checkpoint's dtype (never float16 unasked) on an accelerator.
    ``runner`` and ``convert`` force how a checkpoint becomes a pooling model, where "auto" finds out.
    ``io_processor`` names an installed plugin that serves the task ``plugin``. ``prompts`` turns on the prompts that
    are known of a family of embedders, by its name. ``template`` tells how a reranker that is a language model reads a
    pair: a known family's name, the path of a TOML file, "plain", or "chat" for the checkpoint's own chat template.
    """

    model: str = "default"
    revision: str | None = None
    dtype: DType = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    pooler: PoolerConfig = field(default_factory=PoolerConfig)
    cache_dir: str | None = None
    runner: Runner = "auto"
    convert: Convert = "auto"
    io_processor: str | None = None
    prompts: str | None = None
    template: str | None = None

    def check(self) -> None:
        """Raise InvalidRequest where a field has a wrong type."""
        for name in ("model", "dtype", "device", "runner", "convert"):
            if getattr(self, name) is None:
                raise InvalidRequest(f"{name} is None; expected a name", field=name)
        check_types(self, dict.fromkeys(("model", "dtype", "device", "runner", "convert"), str))
        check_types(self, dict.fromkeys(("revision", "cache_dir", "io_processor", "prompts", "template"), str))
        check_types(self, {"max_model_len": int, "pooler": PoolerConfig})


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine may use.

    ``max_step_tokens`` is the token budget of a step; a single longer sequence gets a step of its own, or is cut over
    several where the model is causal and ``enable_chunked_prefill`` is set. With ``enable_prefix_caching`` a causal
    model finds what texts that began alike have computed, or compute in the same step. It has room for keys and values
    of two steps' tokens, or of the longest text that it reads if that is more, and of ``prefix_cache_tokens`` beside,
    in blocks of ``block_size``; what is kept for others is never more than two steps' and ``prefix_cache_tokens``.
    Other models keep nothing, whatever is set here.
    ``max_queued_tokens`` bounds the tokens that wait; beyond it new requests are refused with Overloaded.
    ``max_passes`` is how often a sequence may be passed by shorter ones, ``max_lane_wait`` for how many seconds
    the interactive lane may hold back the bulk lane.
    """

    max_step_tokens: int = 2048
    max_queued_tokens: int = 8_000_000
    max_passes: int = 8
    max_lane_wait: float = 1.0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    prefix_cache_tokens: int = 4096
    block_size: int = 16


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to serve. ``bulk_items``: requests with at least so many items wait in the bulk lane.

    ``max_body_bytes`` bounds one body and ``max_bodies_bytes`` those of all requests under way.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    api_key: str | None = None
    max_body_bytes: int = 64 << 20
    max_bodies_bytes: int = 256 << 20
    max_items: int = 4096
    bulk_items: int = 64
    request_timeout: float = 600.0
    drain_seconds: float = 30.0
