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

__all__ = [
    "AsyncEngine",
    "EmbeddingOutput",
    "EngineLimits",
    "ForebayError",
    "ModelOptions",
    "PoolerConfig",
    "PoolingModel",
    "PoolingParams",
    "Reply",
    "Request",
    "TextParams",
    "__version__",
]

_HOMES = {
    "AsyncEngine": "api.async_engine",
    "EmbeddingOutput": "core.request",
    "EngineLimits": "core.config",
    "ForebayError": "core.errors",
    "ModelOptions": "core.config",
    "PoolerConfig": "core.config",
    "PoolingModel": "api.model",
    "PoolingParams": "core.params",
    "Reply": "core.request",
    "Request": "core.request",
    "TextParams": "core.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay' has no attribute '{name}'")
    return getattr(import_module(f"forebay.{_HOMES[name]}"), name)
