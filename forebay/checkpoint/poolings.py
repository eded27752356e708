"""Reads the modules that make one value of many tokens, or fewer of many: Pooling, SpladePooling, LogitScore,
HierarchicalTokenPooling.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.checkpoint.documents import Document, describe, read_document
from forebay.checkpoint.stages import (
    CAUSAL_LOGITS,
    LogitScoreStage,
    PoolingStage,
    SpladePoolingStage,
    TokenPoolingStage,
)

# In the order in which the results of several modes are joined.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


# How NVIDIA's bidirectional Llamas say which rows they pool, in config.json.
BIDIRECTIONAL_TYPE = "llama_bidirec"
_BIDIRECTIONAL_MODES = {"avg": "mean", "cls": "cls", "last": "lasttoken"}


def declared_mode(config: Mapping[str, Any]) -> str | None:
    """Return the mode that a config.json itself names, in the one kind of model that does."""
    if config.get("model_type") != BIDIRECTIONAL_TYPE:
        return None
    name = config.get("pooling", "avg")
    if name not in _BIDIRECTIONAL_MODES:
        document = Document("config.json", config)
        known = ", ".join(_BIDIRECTIONAL_MODES)
        raise document.refuse("pooling", f"is {describe(name)}; Forebay knows {known}")
    return _BIDIRECTIONAL_MODES[name]


def read_pooling(folder: Path, root: Path) -> PoolingStage:
    """Read a Pooling: modes and what they leave out."""
    document = read_document(folder / "config.json", root)
    for name, value in document.values.items():
        if name.startswith("pooling_mode_") and name not in POOLING_FLAGS and value not in (False, None):
            raise document.refuse(name, f"is {describe(value)}, a pooling mode that Forebay does not know")
    include_prompt = document.optional("include_prompt", bool)
    modes = _listed_modes(document) or _flagged_modes(document)
    return PoolingStage(modes, include_prompt is not False, document.label)


def _listed_modes(document: Document) -> tuple[str, ...] | None:
    """Return the modes of the layout since 5.4: one name, or a list of names in the order of the result."""
    value = document.values.get("pooling_mode")
    if value is None:
        return None
    modes = value if isinstance(value, list) and value else [value]
    for mode in modes:
        if mode not in POOLING_FLAGS.values():
            known = ", ".join(POOLING_FLAGS.values())
            raise document.refuse("pooling_mode", f"has {describe(mode)}; Forebay knows {known}")
    return tuple(modes)


def _flagged_modes(document: Document) -> tuple[str, ...]:
    """Return the modes of the older layout: one boolean a mode, joined in a fixed order, none for mean."""
    modes = tuple(mode for flag, mode in POOLING_FLAGS.items() if document.optional(flag, bool))
    return modes or ("mean",)


def read_splade_pooling(folder: Path, root: Path) -> SpladePoolingStage:
    """Read a SpladePooling."""
    document = read_document(folder / "config.json", root)
    return SpladePoolingStage(
        strategy=_choice(document, "pooling_strategy", ("max", "sum")),
        activation=_choice(document, "activation_function", ("relu", "log1p_relu")),
        source=document.label,
    )


def _choice(document: Document, name: str, known: tuple[str, ...]) -> str:
    """Return a field that must be one of the known words; the first is the default."""
    value = document.optional(name, str)
    value = known[0] if value is None else value
    if value not in known:
        raise document.refuse(name, f"is {describe(value)}; Forebay knows {', '.join(known)}")
    return value


def read_logit_score(folder: Path, root: Path) -> LogitScoreStage:
    """Read a LogitScore: the tokens whose logits make the score."""
    document = read_document(folder / "config.json", root)
    if (document.optional("module_input_name", str) or CAUSAL_LOGITS) != CAUSAL_LOGITS:
        raise document.refuse("module_input_name", f"is no '{CAUSAL_LOGITS}', which is all that Forebay reads here")
    ids = document.required("true_token_id", int), document.optional("false_token_id", int)
    if min(id_ for id_ in ids if id_ is not None) < 0:
        raise document.refuse("true_token_id", "or 'false_token_id' is negative, expected the id of a token")
    return LogitScoreStage(*ids, source=document.label)


def read_token_pooling(folder: Path, root: Path) -> TokenPoolingStage:
    """Read a HierarchicalTokenPooling; a file without a word about normalisation is older than that setting."""
    document = read_document(folder / "config.json", root)
    factor = document.values.get("pool_factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor < 1:
        raise document.refuse("pool_factor", f"is {describe(factor)}, expected a number of 1 or more")
    protected = document.optional("num_protected_tokens", int)
    if protected is not None and protected < 0:
        raise document.refuse("num_protected_tokens", f"is {protected}, expected 0 or more")
    tasks = document.values.get("tasks")
    sides = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(sides, list) or not all(side in ("query", "document") for side in sides):
        raise document.refuse("tasks", f"is {describe(tasks)}; Forebay knows 'query' and 'document'")
    return TokenPoolingStage(
        float(factor),
        1 if protected is None else protected,
        document.optional("normalize_embeddings", bool) or False,
        tuple(sides),
        document.label,
    )
