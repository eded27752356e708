"""Which blocks of keys and values are whose, and which still hold a prefix that another sequence may read.

Plain bookkeeping: no tensors, no queue. A block is held by one or more sequences, or free; a free one keeps its
content, and may be found again by the hash of all tokens up to its end, until it is taken for something else: those
without findable content first, of these the last freed, whose memory is in use already; then the least recently freed.
No more than ``num_kept`` free blocks keep their content, so that a pool made for one very long text does not fill up.
"""

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def hash_chain(ids: NDArray[np.int32], block_size: int, salt: str = "") -> list[bytes]:
    """Hash each full block of ids with all before it; sequences with other salts share nothing."""
    parent = blake2b(salt.encode(), digest_size=16).digest()
    chain = []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = blake2b(parent + ids[start : start + block_size].tobytes(), digest_size=16).digest()
        chain.append(parent)
    return chain


class BlockPool:
    """Blocks 1 to ``size``, of ``block_size`` tokens each; block 0 belongs to nobody and is never given out."""

    def __init__(self, size: int, block_size: int, num_kept: int | None = None) -> None:
        self.size = size
        self.block_size = block_size
        self._num_kept = size if num_kept is None else num_kept
        self._holders = [0] * (size + 1)
        self._blank = list(range(size, 0, -1))  # free and without content, the next to be taken last
        self._idle: OrderedDict[int, None] = OrderedDict()  # free with content, the least recently freed first
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.size - self._num_free

    @property
    def _num_free(self) -> int:
        return len(self._blank) + len(self._idle)

    def count_blocks(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def find(self, chain: Seq[bytes], fresh: Mapping[bytes, int] | None = None) -> list[int]:
        """The blocks that hold the longest known prefix of a chain; ``fresh`` are held blocks that are known beside."""
        found = []
        for key in chain:
            block = self._block_of.get(key)
            if block is None and fresh is not None:
                block = fresh.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, known: Seq[int], num_more: int) -> list[int] | None:
        """Hold ``known`` blocks, just found, and so many others; None, and nothing is held, where too few are free."""
        num_known_free = sum(not self._holders[block] for block in known)
        if self._num_free - num_known_free < num_more:
            return None
        for block in known:
            self._holders[block] += 1
            self._idle.pop(block, None)
        return [*known, *(self._take_free() for _ in range(num_more))]

    def _take_free(self) -> int:
        if not self._blank:
            self._evict()
        block = self._blank.pop()
        self._holders[block] = 1
        return block

    def _evict(self) -> None:
        """Forget what the least recently freed block holds."""
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        self._blank.append(block)

    def keep(self, table: Seq[int], chain: Seq[bytes]) -> None:
        """Let the first blocks of a table be found by a chain; what is known already stays where it is."""
        for block, key in zip(table, chain, strict=False):
            if key not in self._block_of and block not in self._hash_of:
                self._block_of[key] = block
                self._hash_of[block] = key

    def free(self, table: Seq[int]) -> None:
        """Let go of blocks. The last of a prefix are taken anew before the first, which more may share."""
        for block in reversed(table):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._hash_of:
                self._idle[block] = None
            else:
                self._blank.append(block)
        while len(self._idle) > self._num_kept:
            self._evict()
