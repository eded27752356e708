"""What is under way: a Job is a request's work and its answer to be, a Sequence one of its tokenized items.

The only mutable values of the walk. Both belong to the engine's thread once submitted.
"""

import time
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import ForebayError
from forebay.core.params import PoolingParams
from forebay.core.request import Lane, Matrix, Reading, Reply, Row, SparseVector, Timings
from forebay.core.tasks import Task
from forebay.engine.join import JOINS, Join, Part
from forebay.engine.query import Query

_READING_KEY = 1 << 40


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
        self.salt = ""
        self._tasks: tuple[Task, ...] = ()
        self._rows: list[tuple[Row, ...] | None] = []
        self._errors: dict[int, ForebayError] = {}
        self._num_left = 0
        self._num_parts: list[int] = []
        self._parts: dict[int, dict[int, Part]] = {}
        self._join: Join = "mean"
        self._truncated: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def fill(
        self,
        tokens: "Tokens",
        truncated: NDArray[np.bool_],
        traits: "SequenceTraits",
        against: Seq[Matrix] | None = None,
    ) -> None:
        """Take the tokenized items; called once, before the job is submitted. ``truncated`` is [items].

        ``against`` has the query vectors that each item is compared with, where only scores are asked for.
        """
        self.sequences = [
            Sequence(ids, traits.params, traits.route, prompt_len, self, owner, place)
            for place, (ids, prompt_len, owner) in enumerate(
                zip(tokens.ids, tokens.prompt_lens.tolist(), tokens.owners.tolist(), strict=True)
            )
        ]
        for seq, type_ids in zip(self.sequences, tokens.type_ids or (), strict=False):
            seq.set_types(type_ids)
        self.salt = traits.salt
        for seq, reading in zip(self.sequences, tokens.readings or (), strict=False):
            seq.set_reading(reading)
        if against is not None:
            queries = {id(matrix): Query(matrix) for matrix in against}
            for seq in self.sequences:
                seq.query = queries[id(against[seq.index])]
        self._tasks = traits.params.outputs
        self._join = traits.join
        self._rows = [None] * len(truncated)
        self._num_left = len(self.sequences)
        self._num_parts = [0] * len(truncated)
        for seq in self.sequences:
            self._num_parts[seq.index] += 1
        self._truncated = truncated

    @property
    def is_over(self) -> bool:
        """True once the caller has the answer, an error, or has gone away."""
        return self.future.done()

    def deliver(self, seq: "Sequence", rows: tuple[Row, ...]) -> bool:
        """Take one sequence's result, a row for each output asked for; True when it was the last."""
        if self._num_parts[seq.index] == 1:
            self._rows[seq.index] = rows
        else:
            self._deliver_part(seq, rows)
        return self._count_down()

    def _deliver_part(self, seq: "Sequence", rows: tuple[Row, ...]) -> None:
        """Keep one window's output until those of all windows of the text are there."""
        (vector,) = rows
        assert not isinstance(vector, SparseVector), "only embeddings and scores are split"
        parts = self._parts.setdefault(seq.index, {})
        has_vectors = seq.reading is None or bool(seq.reading.is_kept.any())
        parts[seq.place] = Part(vector, len(seq.ids) if has_vectors else 0)
        if len(parts) == self._num_parts[seq.index]:
            in_order = [part for _, part in sorted(self._parts.pop(seq.index).items())]
            self._rows[seq.index] = (JOINS[self._join](in_order),)

    def fail(self, index: int, error: ForebayError) -> bool:
        """Take the error of one of an item's sequences; True when it was the last."""
        self._errors[index] = error
        return self._count_down()

    def abort(self, error: ForebayError) -> bool:
        """Give the caller an error for the whole request; False if it is over already."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return False
        self.future.set_exception(error)
        return True

    def release(self) -> None:
        """Give up the queries that its sequences are compared with."""
        for seq in self.sequences:
            seq.query = None

    def _count_down(self) -> bool:
        self._num_left -= 1
        return self._num_left == 0

    def _count_tokens(self) -> NDArray[np.int32]:
        counts = [0] * len(self._rows)
        for seq in self.sequences:
            counts[seq.index] += len(seq.ids)
        return np.array(counts, np.int32)

    def reply(self) -> Reply:
        """The finished job as its caller sees it."""
        self.release()
        now = time.monotonic()
        started = self.started_at if self.started_at is not None else now
        return Reply(
            outputs={
                task: [None if rows is None else rows[place] for rows in self._rows]
                for place, task in enumerate(self._tasks)
            },
            num_tokens=self._count_tokens(),
            truncated=self._truncated,
            errors=self._errors,
            timings=Timings(self.tokenize_seconds, started - self.submitted_at, now - started),
        )


class Tokens(Protocol):
    """Tokenized items: m sequences, each with its ids, the length of its prompt and the item that it belongs to."""

    @property
    def ids(self) -> Seq[NDArray[np.int32]]:
        """Token ids of each."""
        ...

    @property
    def prompt_lens(self) -> NDArray[np.int64]:
        """First tokens that pooling leaves out, [m]."""
        ...

    @property
    def owners(self) -> NDArray[np.int64]:
        """Items, [m]."""
        ...

    @property
    def type_ids(self) -> Seq[NDArray[np.int32]] | None:
        """Token types of each; None where all are 0."""
        ...

    @property
    def readings(self) -> Seq[Reading] | None:
        """How each is read for late interaction; None where all is read plainly."""
        ...


@dataclass(frozen=True, slots=True)
class SequenceTraits:
    """What all sequences of a request share; ``join`` makes one output of a long text's windows.

    Prefixes are found by sequences with the same ``salt`` alone.
    """

    params: PoolingParams
    route: str
    join: Join = "mean"
    salt: str = ""


@dataclass(slots=True, eq=False)
class Sequence:
    """One tokenized item, or one window of it: ``ids`` int32 [L]; ``index`` is the item's place,
    ``place`` the sequence's own in the job.

    ``passes`` counts how often a shorter one was served before it; ``prompt_len`` is the number of its first tokens
    that pooling leaves out. ``type_ids`` int32 [L], None where all are 0; ``reading`` is set in late interaction, where
    ``query`` may be what its vectors are compared with. Sequences of one route with equal ``key`` are computed once.

    A step computes the tokens ``start`` to ``end``: all of them, where the model is not causal. Those before are in
    the blocks of ``table``, where it holds any; ``carried`` is what pooling took of earlier chunks, a value an output.
    """

    ids: NDArray[np.int32]
    params: PoolingParams
    route: str
    prompt_len: int
    job: Job
    index: int
    place: int = 0
    passes: int = 0
    key: tuple[bytes, int] = field(init=False)
    type_ids: NDArray[np.int32] | None = field(init=False, default=None)
    reading: Reading | None = field(init=False, default=None)
    query: Query | None = None
    start: int = 0
    end: int = field(init=False)
    num_read: int = 0  # tokens at its start that were found computed
    table: list[int] = field(default_factory=list)
    chain: list[bytes] | None = None
    carried: list[Any] | None = None

    def __post_init__(self) -> None:
        self.key = (self.ids.tobytes(), self.prompt_len)
        self.end = len(self.ids)

    @property
    def is_cut(self) -> bool:
        """True where more than one step computes it."""
        return self.carried is not None or not self.is_last_chunk

    @property
    def is_last_chunk(self) -> bool:
        """True where this step completes it."""
        return self.end == len(self.ids)

    @property
    def step_key(self) -> tuple[object, ...]:
        """Sequences of one step with equal keys are computed once."""
        return (id(self),) if self.is_cut else (*self.key, self.start)

    def begin(self, table: list[int], start: int, end: int) -> None:
        """Hold blocks; the first ``start`` tokens are in them already."""
        self.table, self.num_read, self.start, self.end = table, start, start, end

    def restart(self) -> None:
        """Forget all progress."""
        self.table, self.num_read, self.start, self.end, self.carried = [], 0, 0, len(self.ids), None

    def set_types(self, type_ids: NDArray[np.int32]) -> None:
        """Give the tokens types, which make it another sequence; the negative number keeps the two kinds apart."""
        self.type_ids = type_ids
        self.key = (self.ids.tobytes() + type_ids.tobytes(), -1 - self.prompt_len)

    def set_reading(self, reading: Reading) -> None:
        """Say how it is read, which makes it another sequence; the large number keeps the two kinds apart."""
        self.reading = reading
        rule = np.array([reading.num_attended], np.int32).tobytes() + reading.is_kept.tobytes()
        self.key = (self.ids.tobytes() + rule, _READING_KEY + self.prompt_len)

    @property
    def num_attended(self) -> int:
        """How many of its first tokens the others see."""
        return len(self.ids) if self.reading is None else self.reading.num_attended
