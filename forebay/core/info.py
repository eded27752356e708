"""What is known of a loaded model, said once and shown by the log, ``forebay info`` and ``GET /info``."""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.core.params import Abilities


@dataclass(frozen=True, slots=True)
class Decision:
    """One resolved setting: ``source`` tells who decided (user, a file of the checkpoint, a default)."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model as its users see it. ``prompts`` are the non-empty ones of the checkpoint."""

    name: str
    path: str
    architecture: str
    dtype: str
    device: str
    abilities: Abilities
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str
    num_parameters: int
    decisions: tuple[Decision, ...]
