"""Forebay: inference for models that never generate a token. Public names are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay.version import __version__

if TYPE_CHECKING:
    from forebay.api.async_engine import AsyncEngine
    from forebay.api.model import PoolingModel
    from forebay.core.config import EngineLimits, ModelOptions, PoolerConfig
    from forebay.core.errors import ForebayError
    from forebay.core.params import PoolingParams, TextParams
    from forebay.core.request import EmbeddingOutput, Reply, Request

_HOMES = {
    "AsyncEngine": "forebay.api.async_engine",
    "EmbeddingOutput": "forebay.core.request",
    "EngineLimits": "forebay.core.config",
    "ForebayError": "forebay.core.errors",
    "ModelOptions": "forebay.core.config",
    "PoolerConfig": "forebay.core.config",
    "PoolingModel": "forebay.api.model",
    "PoolingParams": "forebay.core.params",
    "Reply": "forebay.core.request",
    "Request": "forebay.core.request",
    "TextParams": "forebay.core.params",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  (names, all of them strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
