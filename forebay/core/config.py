"""All configuration, frozen once resolved: what to load, what the engine may use, how to serve."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.core.errors import InvalidRequest

DType = Literal["auto", "float32", "bfloat16", "float16"]

REMOVED_POOLER_FIELDS: dict[str, str] = {
    "normalize": "use 'use_activation'",
    "softmax": "use 'use_activation'",
    "activation": "use 'use_activation'",
}


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """A user's overrides of single decisions about pooling; None leaves the checkpoint's own.

    ``pooling_type`` is a method's name (CLS, LAST, MEAN, MAX, MEAN_SQRT_LEN, WEIGHTED), several joined by "+"
    for their concatenation. ``use_activation`` False keeps raw vectors. ``dimensions`` is the default slice.
    """

    pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "PoolerConfig":
        """Build from a mapping (a JSON object of the command line); unknown and removed names are refused."""
        for name in values:
            if name in REMOVED_POOLER_FIELDS:
                raise InvalidRequest(
                    f"'{name}' was removed from the pooler config: {REMOVED_POOLER_FIELDS[name]}",
                    field="pooler_config",
                )
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise InvalidRequest(f"unknown pooler config field '{name}'; known: {known}", field="pooler_config")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which checkpoint, and the user's word on how to run it.

    ``model`` is a local folder, a model id of the hub, or ``default`` for the embedded model. ``dtype`` "auto"
    computes in float32 on CPU and in the checkpoint's dtype (never float16 unasked) on an accelerator.
    """

    model: str = "default"
    revision: str | None = None
    dtype: DType = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    pooler: PoolerConfig = field(default_factory=PoolerConfig)
    cache_dir: str | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine may use.

    ``max_step_tokens`` is the token budget of a step; a single longer sequence gets a step of its own.
    ``max_queued_tokens`` bounds the tokens that wait; beyond it new requests are refused with Overloaded.
    ``max_passes`` is how often a sequence may be passed by shorter ones, ``max_lane_wait`` for how many seconds
    the interactive lane may hold back the bulk lane.
    """

    max_step_tokens: int = 2048
    max_queued_tokens: int = 8_000_000
    max_passes: int = 8
    max_lane_wait: float = 1.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to serve. ``bulk_items``: requests with at least so many items wait in the bulk lane."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    api_key: str | None = None
    max_body_bytes: int = 64 << 20
    max_items: int = 4096
    bulk_items: int = 64
    request_timeout: float = 600.0
    drain_seconds: float = 30.0
