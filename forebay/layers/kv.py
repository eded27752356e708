"""Keys and values of tokens that later chunks or other sequences attend to, in blocks of a pool.

It knows slots: which token lies in which is the engine's affair. Slots of block 0 are for what nobody will read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_SIZE = 16


class CausalModel(Protocol):
    """What must be known of a model to hold its keys and values."""

    is_causal: bool
    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, eq=False)
class KVPool:
    """Keys and values of all layers, each [layers, slots, kv heads * head size]."""

    keys: Tensor
    values: Tensor

    @classmethod
    def reserve(cls, model: CausalModel, num_blocks: int, dtype: torch.dtype, device: torch.device) -> "KVPool":
        """Make room for so many blocks. On the CPU memory is taken up as it is first written to."""
        shape = (model.num_layers, num_blocks * BLOCK_SIZE, model.num_kv_heads * model.head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))

    @property
    def num_bytes(self) -> int:
        """Size of both."""
        return 2 * self.keys.numel() * self.keys.element_size()


class Segment(NamedTuple):
    """Neighbouring sequences of equal length that share what stands before this chunk.

    Their rows are ``start`` to ``start + num_seqs * length``; ``prefix`` are the slots, int64 [P], of the P tokens
    before each of them, None where there are none.
    """

    start: int
    num_seqs: int
    length: int
    prefix: Tensor | None = None

    @property
    def rows(self) -> slice:
        """The segment's rows of the flat batch."""
        return slice(self.start, self.start + self.num_seqs * self.length)


@dataclass(frozen=True, slots=True, eq=False)
class BatchKV:
    """Where a step's new keys and values go (``slots`` int64 [T]), and what they meet there: ``segments`` cover all
    rows in order."""

    pool: KVPool
    slots: Tensor
    segments: Sequence[Segment]

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep a layer's new rows [T, kv heads * head size]."""
        self.pool.keys[layer].index_copy_(0, self.slots, keys)
        self.pool.values[layer].index_copy_(0, self.slots, values)

    def load(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values at ``slots``, one gather each."""
        return self.pool.keys[layer].index_select(0, slots), self.pool.values[layer].index_select(0, slots)

    def filled(self, num_more: int) -> "BatchKV":
        """The same with sequences of one token at the end, which are not kept."""
        end = Segment(len(self.slots), num_more, 1)
        return BatchKV(self.pool, F.pad(self.slots, (0, num_more)), (*self.segments, end))
