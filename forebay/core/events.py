"""What the engine tells whoever watches it: plain facts, one type a kind of event.

An observer is any function of one event. It is called on the engine's own threads and must be quick.
"""

from collections.abc import Callable
from dataclasses import dataclass

from forebay.core.request import Timings


@dataclass(frozen=True, slots=True)
class StepDone:
    """One forward pass over a flat batch. Seconds are wall time; ``budget`` is the step's token budget.

    ``prefix_tokens`` were found computed by an earlier step; ``held_blocks`` of the causal model's ``num_blocks`` are
    held by sequences.
    """

    num_sequences: int
    num_tokens: int
    budget: int
    pack_seconds: float
    forward_seconds: float
    queued_sequences: int
    queued_tokens: int
    prefix_tokens: int = 0
    held_blocks: int = 0
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class RequestDone:
    """A request was answered; ``num_failed`` of its items carry an error."""

    num_items: int
    num_tokens: int
    num_truncated: int
    num_failed: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """A request ended without an answer; ``kind`` is the error's code (cancelled, deadline_exceeded, …)."""

    kind: str
    num_items: int


Event = StepDone | RequestDone | RequestDropped
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Observe nothing."""
