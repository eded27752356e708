"""How far a sequence of a causal model gets in a step: what it reads of a known prefix, and where it is cut.

A sequence that a step can hold is never cut. A longer one is, and holds blocks for all of its tokens from its first
chunk on: so what has begun can always go on. It waits while there are too few; one that the whole pool could not hold
is computed in one step, with no blocks. Others hold blocks only so that their prefix may be found later, and go
without where there are none.
What a sequence of the step being planned will have computed counts as known to those planned after it: in each layer
all keys and values of a step are stored before anything attends. Not thread-safe: the loop holds the lock.
"""

from collections.abc import Callable

from forebay.core.config import EngineLimits
from forebay.engine.blocks import BlockPool, hash_chain
from forebay.engine.sequence import Sequence

# A sequence is cut only where the step has at least this share of its budget left.
_LEAST_CHUNK = 4

Fresh = dict[bytes, int]
"""Blocks that the step being planned will have filled, by what they hold."""


class Prefill:
    """Plans chunks. ``count_spare`` tells how many first tokens of a sequence need no states for its outputs.

    The pool holds a text of ``longest`` tokens, but keeps no more than it would without such texts.
    """

    def __init__(self, limits: EngineLimits, count_spare: Callable[[Sequence], int], longest: int = 0) -> None:
        self._budget = limits.max_step_tokens
        self._cuts = limits.enable_chunked_prefill
        self._caches = limits.enable_prefix_caching
        self._count_spare = count_spare
        steps, cached = 2 * limits.max_step_tokens, limits.prefix_cache_tokens if self._caches else 0
        working = max(steps, longest) if self._cuts else steps
        size, num_kept = (-(-num_tokens // limits.block_size) for num_tokens in (working + cached, steps + cached))
        self.pool = BlockPool(size, limits.block_size, num_kept)

    def plan(self, seq: Sequence, left: int, fresh: Fresh, *, is_first: bool) -> int | None:
        """Set the sequence's next chunk and return its tokens; None where it has to wait.

        ``left`` is what the step's budget has left, ``is_first`` tells that the step is still empty; ``fresh`` are the
        step's own blocks, to which those that this chunk fills are added.
        """
        num_tokens = self._plan(seq, left, fresh, is_first=is_first)
        if num_tokens is not None and seq.table and self._caches:
            for block, key in zip(seq.table[: seq.end // self.pool.block_size], self._chain(seq), strict=False):
                fresh.setdefault(key, block)
        return num_tokens

    def _plan(self, seq: Sequence, left: int, fresh: Fresh, *, is_first: bool) -> int | None:
        if seq.table:
            return self._go_on(seq, left, is_first=is_first)
        known = self._find(seq, fresh)
        if self._cuts and self._count_left(seq, known) > self._budget:
            return self._begin(seq, known, left, is_first=is_first)
        if self._count_left(seq, known) > left and not is_first:
            return None
        return self._hold_if_free(seq, known, left, is_first=is_first)

    def ride(self, seq: Sequence, start: int) -> bool:
        """Let a sequence share the row of an equal one, which computes all from ``start`` on, where that is enough."""
        if seq.table or (start and self._count_spare(seq) < start):
            return False
        seq.begin([], start, len(seq.ids))
        return True

    def restart(self, seq: Sequence) -> None:
        """Begin anew after a failure: nothing that others computed is read."""
        self.release(seq)
        if self._cuts and len(seq.ids) > self._budget:
            self._begin(seq, [], self._budget, is_first=True)

    def advance(self, seq: Sequence) -> None:
        """Plan the next chunk of a sequence that has a step of its own."""
        self._go_on(seq, self._budget, is_first=True)

    def set_back(self, seq: Sequence) -> None:
        """Take the blocks of a sequence that is under way; what it has computed may be found again, while it lasts."""
        if self._caches:
            self.pool.keep(seq.table[: seq.start // self.pool.block_size], self._chain(seq))
        self.release(seq)

    def keep(self, seq: Sequence) -> None:
        """Let others find what a finished sequence has computed."""
        if self._caches:
            self.pool.keep(seq.table, self._chain(seq))

    def release(self, seq: Sequence) -> None:
        """Free a sequence's blocks and forget its progress."""
        self.pool.free(seq.table)
        seq.restart()

    def _count_left(self, seq: Sequence, known: list[int]) -> int:
        return len(seq.ids) - len(known) * self.pool.block_size

    def _chain(self, seq: Sequence) -> list[bytes]:
        if seq.chain is None:
            seq.chain = hash_chain(seq.ids, self.pool.block_size, f"{len(seq.route)} {seq.route}{seq.job.salt}")
        return seq.chain

    def _find(self, seq: Sequence, fresh: Fresh) -> list[int]:
        """The blocks of a known prefix; never of all tokens, since the last one's state is made anew."""
        num_blocks = min(self._count_spare(seq), len(seq.ids) - 1) // self.pool.block_size if self._caches else 0
        return self.pool.find(self._chain(seq)[:num_blocks], fresh) if num_blocks > 0 else []

    def _hold_if_free(self, seq: Sequence, known: list[int], left: int, *, is_first: bool) -> int | None:
        """Take all that is not known in this step, and hold blocks only so that others may find it."""
        table = None
        if self._caches and len(seq.ids) >= self.pool.block_size:
            table = self.pool.take(known, self.pool.count_blocks(len(seq.ids)) - len(known))
        if table is not None:
            seq.begin(table, len(known) * self.pool.block_size, len(seq.ids))
        elif known and len(seq.ids) > left:  # without what is known it is too long
            if self._cuts and len(seq.ids) > self._budget:
                return self._begin(seq, [], left, is_first=is_first)
            return len(seq.ids) if is_first else None
        return seq.end - seq.start

    def _begin(self, seq: Sequence, known: list[int], left: int, *, is_first: bool) -> int | None:
        """Begin a sequence that no step can hold."""
        num_blocks = self.pool.count_blocks(len(seq.ids))
        if num_blocks > self.pool.size:
            return len(seq.ids) if is_first else None
        if left < self._least(is_first=is_first):
            return None
        table = self.pool.take(known, num_blocks - len(known))
        if table is None:
            return None
        start = len(known) * self.pool.block_size
        seq.begin(table, start, min(len(seq.ids), start + left))
        return seq.end - seq.start

    def _go_on(self, seq: Sequence, left: int, *, is_first: bool) -> int | None:
        num_tokens = len(seq.ids) - seq.start
        if num_tokens > left:
            if left < self._least(is_first=is_first):
                return None
            num_tokens = left
        seq.end = seq.start + num_tokens
        return num_tokens

    def _least(self, *, is_first: bool) -> int:
        return 1 if is_first else max(1, self._budget // _LEAST_CHUNK)
