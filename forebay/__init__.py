"""Forebay: inference for models that never generate a token. Public names are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay.version import __version__

if TYPE_CHECKING:
    from forebay.api.async_engine import AsyncEngine
    from forebay.api.hybrid import HybridScores, hybrid_scores
    from forebay.api.model import PoolingModel
    from forebay.api.plugin import IOProcessor, Parsed
    from forebay.core.config import EngineLimits, ModelOptions, PoolerConfig
    from forebay.core.errors import ForebayError
    from forebay.core.outputs import (
        ClassificationOutput,
        EmbeddingOutput,
        EncodeOutput,
        SparseOutput,
        TokenClassificationOutput,
        TokenEmbeddingOutput,
    )
    from forebay.core.params import PoolingParams, TextParams
    from forebay.core.request import Reply, Request
    from forebay.core.tasks import Task

__all__ = [
    "AsyncEngine",
    "ClassificationOutput",
    "EmbeddingOutput",
    "EncodeOutput",
    "EngineLimits",
    "ForebayError",
    "HybridScores",
    "IOProcessor",
    "ModelOptions",
    "Parsed",
    "PoolerConfig",
    "PoolingModel",
    "PoolingParams",
    "Reply",
    "Request",
    "SparseOutput",
    "Task",
    "TextParams",
    "TokenClassificationOutput",
    "TokenEmbeddingOutput",
    "__version__",
    "hybrid_scores",
]

_HOMES = {
    "AsyncEngine": "api.async_engine",
    "ClassificationOutput": "core.outputs",
    "EmbeddingOutput": "core.outputs",
    "EncodeOutput": "core.outputs",
    "EngineLimits": "core.config",
    "ForebayError": "core.errors",
    "HybridScores": "api.hybrid",
    "IOProcessor": "api.plugin",
    "ModelOptions": "core.config",
    "Parsed": "api.plugin",
    "PoolerConfig": "core.config",
    "PoolingModel": "api.model",
    "PoolingParams": "core.params",
    "Reply": "core.request",
    "Request": "core.request",
    "SparseOutput": "core.outputs",
    "Task": "core.tasks",
    "TextParams": "core.params",
    "TokenClassificationOutput": "core.outputs",
    "TokenEmbeddingOutput": "core.outputs",
    "hybrid_scores": "api.hybrid",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay' has no attribute '{name}'")
    return getattr(import_module(f"forebay.{_HOMES[name]}"), name)
