"""Pooling of a sequence that comes in chunks, whatever its pooler.

A pooler that has the three parts of a ``ChunkPooler`` carries little from chunk to chunk. Of any other the hidden
states themselves are carried, and pooled as a whole at the end.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.layers.batch import Run
from forebay.pooling.cursor import Cursor
from forebay.pooling.results import Result


class Pooler(Protocol):
    """Makes one task's output of hidden states [T, H] for the n sequences of a cursor."""

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> Result:
        """Return the outputs, in the cursor's order."""
        ...


@runtime_checkable
class ChunkPooler(Protocol):
    """A pooler in parts, as its methods are: of one chunk, of two carried ones, of all."""

    def partial(self, hidden: Tensor, cursor: Cursor) -> Any:
        """Take what the chunk holds of the cursor's one sequence."""
        ...

    def merge(self, carried: Any, new: Any) -> Any:
        """Join what was carried with the next chunk's."""
        ...

    def finish(self, carried: Any, params: PoolingParams) -> Result:
        """Make the output of the one sequence."""
        ...


@runtime_checkable
class SparingPooler(Protocol):
    """A pooler that can do without the states of some first tokens."""

    def spare(self, ids: NDArray[np.int32], prompt_len: int) -> int:
        """How many of a sequence's first tokens need not be computed for this output."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The states [L, H] and ids of all chunks so far, and which tokens' vectors are given."""

    rows: Tensor
    ids: NDArray[np.int64]
    prompt_len: int
    kept: NDArray[np.bool_]

    def whole(self) -> Cursor:
        """The sequence as if it had come in one piece."""
        lens = np.array([len(self.ids)], np.int64)
        zero = np.zeros(1, np.int64)
        return Cursor(zero, lens, np.array([self.prompt_len]), zero, self.ids, (Run(0, 1, len(self.ids)),), self.kept)


def carry(pooler: Pooler, hidden: Tensor, cursor: Cursor, carried: Any) -> Any:
    """Add a chunk of the cursor's one sequence to what was carried, None before the first."""
    if isinstance(pooler, ChunkPooler):
        new = pooler.partial(hidden, cursor)
        return new if carried is None else pooler.merge(carried, new)
    rows, ids = cursor.take_rows(hidden), cursor.ids[cursor.own_rows()]
    kept = np.ones(len(ids), np.bool_) if cursor.kept is None else cursor.kept[cursor.own_rows()]
    if carried is not None:
        rows, ids = torch.cat([carried.rows, rows]), np.concatenate([carried.ids, ids])
        kept = np.concatenate([carried.kept, kept])
    return _Kept(rows if carried is not None else rows.clone(), ids, int(cursor.prompt_lens[0]), kept)


def finish(pooler: Pooler, carried: Any, params: PoolingParams) -> Result:
    """Make the output of the one sequence whose chunks were carried."""
    if isinstance(carried, _Kept):
        return pooler(carried.rows, carried.whole(), params)
    assert isinstance(pooler, ChunkPooler)
    return pooler.finish(carried, params)


def count_spare(pooler: Pooler, ids: NDArray[np.int32], prompt_len: int) -> int:
    """How many of a sequence's first tokens need not be computed for a pooler's output."""
    return pooler.spare(ids, prompt_len) if isinstance(pooler, SparingPooler) else 0
