"""Tasks and score types: what a pooler makes, and how two texts are compared.

The one table of the vocabulary. It knows no tensors and no models.
"""

from collections.abc import Sequence
from enum import StrEnum

from forebay.core.errors import InvalidRequest


class Task(StrEnum):
    """What a pooler makes of the hidden states."""

    EMBED = "embed"
    CLASSIFY = "classify"
    TOKEN_EMBED = "token_embed"
    TOKEN_CLASSIFY = "token_classify"
    SPARSE = "sparse"
    EMBED_AND_TOKEN_CLASSIFY = "embed&token_classify"
    PLUGIN = "plugin"


class ScoreType(StrEnum):
    """How two texts are compared."""

    BI_ENCODER = "bi-encoder"
    CROSS_ENCODER = "cross-encoder"
    LATE_INTERACTION = "late-interaction"


SCORE_TYPE_OF_TASK: dict[Task, ScoreType] = {
    Task.EMBED: ScoreType.BI_ENCODER,
    Task.CLASSIFY: ScoreType.CROSS_ENCODER,
    Task.TOKEN_EMBED: ScoreType.LATE_INTERACTION,
}

# Which optional parameters a task understands; the others are refused, not ignored.
ALLOWED_PARAMS: dict[Task, frozenset[str]] = {
    Task.EMBED: frozenset({"dimensions", "truncate_dim", "use_activation"}),
    Task.CLASSIFY: frozenset({"use_activation"}),
    Task.TOKEN_EMBED: frozenset({"dimensions", "use_activation", "chunk_size", "pool_factor"}),
    Task.TOKEN_CLASSIFY: frozenset({"use_activation"}),
    Task.SPARSE: frozenset({"max_active_dims"}),
    Task.PLUGIN: frozenset(),
}

# Tasks that stand for several outputs of one forward.
COMPOSED_TASKS: dict[Task, tuple[Task, ...]] = {
    Task.EMBED_AND_TOKEN_CLASSIFY: (Task.EMBED, Task.TOKEN_CLASSIFY),
}

# The order in which a model's default task is looked for.
DEFAULT_ORDER = (Task.EMBED, Task.CLASSIFY, Task.SPARSE, Task.TOKEN_EMBED, Task.TOKEN_CLASSIFY, Task.PLUGIN)

REMOVED_TASKS: dict[str, str] = {
    "score": "use 'classify' on a cross-encoder",
    "encode": "use 'token_embed' for one vector a token, or 'token_classify' for scores a token",
    "reward": "use 'classify' for one score a text, or 'token_classify' for scores a step",
}

# Characters of a caller's word that a message repeats.
SHOWN = 40


def parse_outputs(names: Sequence[str]) -> tuple[Task, ...]:
    """Return the outputs that a list of tasks asks for: composed tasks taken apart, each once, in order."""
    tasks = [parse_task(name) for name in names]
    return tuple(dict.fromkeys(part for task in tasks for part in COMPOSED_TASKS.get(task, (task,))))


def parse_task(name: str) -> Task:
    """Return the task called ``name``; a removed or unknown name is refused with its successor."""
    if name in REMOVED_TASKS:
        raise InvalidRequest(f"the task '{name}' was removed: {REMOVED_TASKS[name]}", field="task")
    try:
        return Task(name)
    except ValueError:
        known = ", ".join(f"'{task}'" for task in Task)
        raise InvalidRequest(f"unknown task '{name[:SHOWN]}'; expected one of {known}", field="task") from None
