"""What a pooler hands back, still on the device: one row a sequence, ragged rows, or sparse vectors.

``to_host`` makes the transfer, once for all sequences of a step, and cuts the copy into rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.core.request import Row, SparseVector


class Result(Protocol):
    """The outputs of one task for n sequences."""

    def to_host(self) -> list[Row]:
        """Copy to the host and cut into one value a sequence."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """One vector a sequence: float32 [n, d]."""

    values: Tensor

    def to_host(self) -> list[Row]:
        """n arrays [d]."""
        return list(self.values.cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """Several vectors a sequence, end to end: float32 [sum(lens), d]; ``lens`` int64 [n]."""

    values: Tensor
    lens: NDArray[np.int64]

    def select(self, places: Sequence[int]) -> "Matrices":
        """The vectors of some sequences, in the order asked for; a view where it is all of them."""
        if list(places) == list(range(len(self.lens))):
            return self
        starts = np.cumsum(self.lens) - self.lens
        rows = [np.arange(starts[place], starts[place] + self.lens[place]) for place in places]
        index = torch.from_numpy(np.concatenate(rows)).to(self.values.device)
        return Matrices(self.values[index], self.lens[list(places)])

    def to_host(self) -> list[Row]:
        """n arrays [lens[i], d]; copies of their own, so that one kept row does not keep the step's."""
        host = self.values.cpu().numpy()
        return [part.copy() for part in np.split(host, np.cumsum(self.lens)[:-1])]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVectors:
    """Sparse vectors end to end: ``ids`` int64 and ``weights`` float32 [sum(lens)], ids ascending in each."""

    ids: Tensor
    weights: Tensor
    lens: NDArray[np.int64]

    def to_host(self) -> list[Row]:
        """n sparse vectors."""
        cuts = np.cumsum(self.lens)[:-1]
        ids = np.split(self.ids.cpu().numpy().astype(np.int32), cuts)
        weights = np.split(self.weights.cpu().numpy(), cuts)
        return [SparseVector(*pair) for pair in zip(ids, weights, strict=True)]


def is_finite(row: Row) -> bool:
    """Tell that an output holds neither NaN nor infinity."""
    values = row.weights if isinstance(row, SparseVector) else row
    return bool(np.isfinite(values).all())
