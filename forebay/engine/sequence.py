"""What is under way: a Job is a request's work and its answer to be, a Sequence one of its tokenized items.

The only mutable values of the walk. Both belong to the engine's thread once submitted.
"""

import time
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import ForebayError
from forebay.core.params import PoolingParams
from forebay.core.request import Lane, Reply, Row, Timings
from forebay.core.tasks import Task


class Job:
    """The work of one request. Its ``future`` gets the Reply once every item has a row or an error."""

    def __init__(self, future: "Future[Reply]", *, lane: Lane, deadline: float | None, tokenize_seconds: float) -> None:
        self.future = future
        self.lane = lane
        self.deadline = deadline
        self.tokenize_seconds = tokenize_seconds
        self.submitted_at = time.monotonic()
        self.started_at: float | None = None
        self.sequences: list[Sequence] = []
        self._tasks: tuple[Task, ...] = ()
        self._rows: list[tuple[Row, ...] | None] = []
        self._errors: dict[int, ForebayError] = {}
        self._num_left = 0
        self._truncated: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def fill(
        self,
        ids: Seq[NDArray[np.int32]],
        truncated: NDArray[np.bool_],
        prompt_lens: NDArray[np.int64],
        traits: "SequenceTraits",
    ) -> None:
        """Take the tokenized items; called once, before the job is submitted."""
        self.sequences = [
            Sequence(row, traits.params, traits.route, prompt_len, self, index)
            for index, (row, prompt_len) in enumerate(zip(ids, prompt_lens.tolist(), strict=True))
        ]
        self._tasks = traits.params.outputs
        self._rows = [None] * len(ids)
        self._num_left = len(ids)
        self._truncated = truncated

    @property
    def is_over(self) -> bool:
        """True once the caller has the answer, an error, or has gone away."""
        return self.future.done()

    def deliver(self, index: int, rows: tuple[Row, ...]) -> bool:
        """Take one item's result, a row for each output asked for; True when it was the last."""
        self._rows[index] = rows
        return self._count_down()

    def fail(self, index: int, error: ForebayError) -> bool:
        """Take one item's error; True when it was the last."""
        self._errors[index] = error
        return self._count_down()

    def abort(self, error: ForebayError) -> bool:
        """Give the caller an error for the whole request; False if it is over already."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return False
        self.future.set_exception(error)
        return True

    def _count_down(self) -> bool:
        self._num_left -= 1
        return self._num_left == 0

    def reply(self) -> Reply:
        """The finished job as its caller sees it."""
        now = time.monotonic()
        started = self.started_at if self.started_at is not None else now
        return Reply(
            outputs={
                task: [None if rows is None else rows[place] for rows in self._rows]
                for place, task in enumerate(self._tasks)
            },
            num_tokens=np.fromiter((len(seq.ids) for seq in self.sequences), np.int32, len(self.sequences)),
            truncated=self._truncated,
            errors=self._errors,
            timings=Timings(self.tokenize_seconds, started - self.submitted_at, now - started),
        )


@dataclass(frozen=True, slots=True)
class SequenceTraits:
    """What all sequences of a request share."""

    params: PoolingParams
    route: str


@dataclass(slots=True, eq=False)
class Sequence:
    """One tokenized item: ``ids`` int32 [L]; ``passes`` counts how often a shorter one was served before it.

    ``prompt_len`` is the number of its first tokens that pooling leaves out. Sequences of one route with equal
    ``key`` are computed once.
    """

    ids: NDArray[np.int32]
    params: PoolingParams
    route: str
    prompt_len: int
    job: Job
    index: int
    passes: int = 0
    key: tuple[bytes, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.ids.tobytes(), self.prompt_len)
