"""Which sequences make the next step: a token budget, two lanes, and no one left behind.

Sequences of any length are packed up to the budget. A short one may pass a long one that no longer fits, but
only so often; then the step closes behind what it has and the long one leads the next. The interactive lane goes
first, and a step serves one lane only, so that an interactive text never pays for bulk in its own step; a bulk
lane that was held back long enough gets one step. Equal sequences count once, since they are computed once.
What is cut over several steps comes back to the front of its lane after each, behind a short one that was passed too
often; the other lane may go between. An interactive text that lacks blocks gets those of bulk texts under way, which
begin anew.
Cancelled and expired work is dropped here, before it costs anything. Not thread-safe: the loop holds the lock.
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import islice

from forebay.core.config import EngineLimits
from forebay.core.request import Lane
from forebay.engine.prefill import Fresh, Prefill
from forebay.engine.sequence import Job, Sequence

# How many sequences that do not fit are looked past for one that does.
_LOOKAHEAD = 64

# An interactive text waits at most for the bulk step under way; so long may it take, where it has more than so many
# tokens. Shorter steps would cost throughput.
_BULK_SECONDS = 0.03
_LEAST_BULK_TOKENS = 512


@dataclass(slots=True)
class Step:
    """The sequences of one forward pass, all of one route, and the jobs dropped while they were chosen."""

    budget: int
    sequences: list[Sequence] = field(default_factory=list)
    num_tokens: int = 0
    dropped: dict[Job, None] = field(default_factory=dict)  # a set that keeps its order
    starts: dict[tuple[bytes, int], int] = field(default_factory=dict)  # of what is computed to its end, by key
    fresh: Fresh = field(default_factory=dict)


class Scheduler:
    """The queue. ``num_sequences`` and ``num_tokens`` tell what waits in it. ``prefill`` is a causal model's."""

    def __init__(self, limits: EngineLimits, prefill: Prefill | None = None) -> None:
        self._limits = limits
        self._prefill = prefill
        self._queues: dict[Lane, deque[Sequence]] = {lane: deque() for lane in Lane}
        self._bulk_tokens = limits.max_step_tokens
        self._speed: float | None = None  # tokens a second
        self._held_since: float | None = None  # since when interactive steps have held back the bulk lane
        self.num_sequences = 0
        self.num_tokens = 0

    def add(self, sequences: Seq[Sequence], lane: Lane) -> None:
        """Queue a job's sequences, short ones first and equal ones side by side."""
        self._queues[lane].extend(sorted(sequences, key=lambda seq: (len(seq.ids), seq.key)))
        self._count(sequences)

    def add_back(self, sequences: Seq[Sequence]) -> None:
        """Queue what a step has begun but not completed, before all others of its lane but one that is due.

        A long one waits all the same: it would need blocks that these hold, or compute their common prefix again.
        """
        for seq in reversed(sequences):
            seq.start = seq.end
            queue = self._queues[seq.job.lane]
            is_behind = bool(queue) and self._is_due(queue[0]) and len(queue[0].ids) <= self._limits.max_step_tokens
            queue.insert(int(is_behind), seq)
        self._count(sequences)

    def _count(self, sequences: Seq[Sequence]) -> None:
        self.num_sequences += len(sequences)
        self.num_tokens += sum(len(seq.ids) - seq.start for seq in sequences)

    def note_speed(self, num_tokens: int, seconds: float) -> None:
        """Size the bulk lane's steps by time, from how long the last step took; for devices where steps are slow."""
        if num_tokens < _LEAST_BULK_TOKENS // 2 or seconds <= 0:
            return  # what a step costs by itself would count for too much
        speed = num_tokens / seconds
        self._speed = speed if self._speed is None else self._speed + (speed - self._speed) / 4
        wish = max(_LEAST_BULK_TOKENS, int(self._speed * _BULK_SECONDS))
        self._bulk_tokens = min(wish, self._limits.max_step_tokens)

    def schedule(self, now: float) -> Step:
        """Take the next step's sequences out of the queue; an empty step means that nothing waits."""
        step = Step(self._limits.max_step_tokens)
        for lane in self._order(now):
            step.budget = self._bulk_tokens if lane is Lane.BULK else self._limits.max_step_tokens
            self._fill(step, self._queues[lane], now)
            if not step.sequences and lane is Lane.INTERACTIVE and self._queues[lane] and self._set_bulk_back():
                self._fill(step, self._queues[lane], now)
            if step.sequences:
                self._note_served(lane, now)
                break
        return step

    def purge(self) -> None:
        """Forget the sequences whose callers have gone, so that they no longer count."""
        for queue in self._queues.values():
            waiting = list(queue)
            queue.clear()
            for seq in waiting:
                if seq.job.is_over:
                    self._forget(seq, len(seq.ids) - seq.start)
                    self._release(seq)
                else:
                    queue.append(seq)

    def drain(self) -> list[Job]:
        """Empty the queue and return the jobs that had work in it, each once."""
        jobs = {id(seq.job): seq.job for queue in self._queues.values() for seq in queue}
        for queue in self._queues.values():
            for seq in queue:
                self._release(seq)
            queue.clear()
        self.num_sequences = self.num_tokens = 0
        return list(jobs.values())

    def _order(self, now: float) -> list[Lane]:
        is_starved = self._held_since is not None and now - self._held_since > self._limits.max_lane_wait
        return [Lane.BULK, Lane.INTERACTIVE] if is_starved else [Lane.INTERACTIVE, Lane.BULK]

    def _note_served(self, lane: Lane, now: float) -> None:
        """Start or stop the clock of the bulk lane; steps may take longer than its wait, so it never leads twice."""
        if lane is Lane.BULK or not self._queues[Lane.BULK]:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now

    def _is_due(self, seq: Sequence) -> bool:
        return seq.passes > self._limits.max_passes

    def _set_bulk_back(self) -> bool:
        """Take the blocks of bulk texts under way; of each only so often, so that it comes to an end."""
        begun = [seq for seq in islice(self._queues[Lane.BULK], _LOOKAHEAD) if seq.table and not self._is_due(seq)]
        for seq in begun:
            assert self._prefill is not None, "who holds blocks is cut"
            seq.passes += 1
            self.num_tokens += seq.start
            self._prefill.set_back(seq)
        return bool(begun)

    def _fill(self, step: Step, queue: deque[Sequence], now: float) -> None:
        skipped: list[Sequence] = []
        while queue and len(skipped) < _LOOKAHEAD:
            seq = queue.popleft()
            num_waiting = len(seq.ids) - seq.start
            if self._is_dead(seq, step, now):
                self._forget(seq, num_waiting)
                self._release(seq)
            elif (num_tokens := self._take(seq, step)) is not None:
                step.num_tokens += num_tokens
                step.sequences.append(seq)
                self._forget(seq, num_waiting)
            else:
                skipped.append(seq)
                seq.passes += 1
                if self._is_due(seq):
                    break
        queue.extendleft(reversed(skipped))

    def _take(self, seq: Sequence, step: Step) -> int | None:
        """Return what the sequence adds to the step's tokens, None where it does not fit."""
        is_first = not step.sequences
        if not is_first and seq.route != step.sequences[0].route:
            return None
        start = step.starts.get(seq.key)
        if start is not None and (self._prefill is None or self._prefill.ride(seq, start)):
            return 0
        num_tokens = self._plan(seq, step.budget - step.num_tokens, step.fresh, is_first=is_first)
        if num_tokens is not None and not seq.is_cut:
            step.starts[seq.key] = seq.start
        return num_tokens

    def _plan(self, seq: Sequence, left: int, fresh: Fresh, *, is_first: bool) -> int | None:
        if self._prefill is not None:
            return self._prefill.plan(seq, left, fresh, is_first=is_first)
        # a sequence longer than the budget gets a step of its own
        return len(seq.ids) if is_first or len(seq.ids) <= left else None

    def _is_dead(self, seq: Sequence, step: Step, now: float) -> bool:
        job = seq.job
        if job.is_over or job in step.dropped:
            return True
        if job.deadline is not None and job.deadline <= now:
            step.dropped[job] = None
            return True
        return False

    def _forget(self, seq: Sequence, num_tokens: int) -> None:
        self.num_sequences -= 1
        self.num_tokens -= num_tokens

    def _release(self, seq: Sequence) -> None:
        if self._prefill is not None:
            self._prefill.release(seq)
