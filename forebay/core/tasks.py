"""Tasks and score types: what a pooler makes, and how two texts are compared.

The one table of the vocabulary. It knows no tensors and no models.
"""

from enum import StrEnum

from forebay.core.errors import InvalidRequest


class Task(StrEnum):
    """What a pooler makes of the hidden states."""

    EMBED = "embed"
    CLASSIFY = "classify"
    TOKEN_EMBED = "token_embed"
    TOKEN_CLASSIFY = "token_classify"
    EMBED_AND_TOKEN_CLASSIFY = "embed&token_classify"
    PLUGIN = "plugin"


class ScoreType(StrEnum):
    """How two texts are compared."""

    BI_ENCODER = "bi-encoder"
    CROSS_ENCODER = "cross-encoder"
    LATE_INTERACTION = "late-interaction"


REMOVED_TASKS: dict[str, str] = {
    "score": "use 'classify' on a cross-encoder; scores of pairs come from the score and rerank operations",
    "encode": "use 'token_embed' for one vector a token, or 'token_classify' for scores a token",
    "reward": "use 'classify' for one score a text, or 'token_classify' for scores a step",
}


def parse_task(name: str) -> Task:
    """Return the task called ``name``; a removed or unknown name is refused with its successor."""
    if name in REMOVED_TASKS:
        raise InvalidRequest(f"the task '{name}' was removed: {REMOVED_TASKS[name]}", field="task")
    try:
        return Task(name)
    except ValueError:
        known = ", ".join(f"'{task}'" for task in Task)
        raise InvalidRequest(f"unknown task '{name}'; expected one of {known}", field="task") from None
