"""Keys and values of tokens that later chunks or other sequences attend to, in blocks of a pool.

It knows slots: which token lies in which is the engine's affair. Slots of block 0 are for what nobody will read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class CausalModel(Protocol):
    """What must be known of a model to hold its keys and values."""

    is_causal: bool
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def dtype(self) -> torch.dtype:
        """What keys and values are in."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class KVPool:
    """Keys and values of all layers, each [layers, slots, kv heads * head size]; a block has ``block_size`` slots."""

    keys: Tensor
    values: Tensor
    block_size: int

    @classmethod
    def reserve(cls, model: CausalModel, num_blocks: int, device: torch.device, *, block_size: int) -> "KVPool":
        """Make room for so many blocks. On the CPU memory is taken up as it is first written to."""
        shape = (model.num_layers, num_blocks * block_size, model.num_kv_heads * model.head_dim)
        keys, values = (torch.empty(shape, dtype=model.dtype, device=device) for _ in range(2))
        return cls(keys, values, block_size)

    @property
    def num_bytes(self) -> int:
        """Size of both."""
        return 2 * self.keys.numel() * self.keys.element_size()


class Segment(NamedTuple):
    """Neighbouring sequences with as many tokens in this step as each other, and as many before it.

    Their rows are ``start`` to ``start + num_seqs * length``; ``slots``, int64 [num_seqs, K], are those of each one's
    K tokens from its first to the last of this step, None where this step has the first.
    """

    start: int
    num_seqs: int
    length: int
    slots: Tensor | None = None

    @property
    def rows(self) -> slice:
        """The segment's rows of the flat batch."""
        return slice(self.start, self.start + self.num_seqs * self.length)


@dataclass(frozen=True, slots=True, eq=False)
class BatchKV:
    """Where a step's new keys and values go (``slots`` int64 [T]) and what is there before; ``segments`` cover all rows
    in order."""

    pool: KVPool
    slots: Tensor
    segments: Sequence[Segment]

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep a layer's new rows [T, kv heads * head size], all before any attends: a sequence may read what another
        of the same step computes."""
        self.pool.keys[layer].index_copy_(0, self.slots, keys)
        self.pool.values[layer].index_copy_(0, self.slots, values)

    def load(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values at ``slots`` [n, K], one copy each: [n, K, kv heads * head size]."""
        shape, flat = (*slots.shape, -1), slots.reshape(-1)
        keys, values = (x[layer].index_select(0, flat).view(shape) for x in (self.pool.keys, self.pool.values))
        return keys, values

    def filled(self, num_more: int) -> "BatchKV":
        """The same with sequences of one token at the end, which are not kept."""
        end = Segment(len(self.slots), num_more, 1)
        return BatchKV(self.pool, F.pad(self.slots, (0, num_more)), (*self.segments, end))
