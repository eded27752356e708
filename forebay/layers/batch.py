"""FlatBatch: the tokens of all sequences of a step end to end, without padding.

The one bundle that models and attention read. It knows neither requests nor pooling.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Run(NamedTuple):
    """Neighbouring sequences of equal length: rows ``start`` to ``start + num_seqs * length`` of the batch.

    Such rows can be viewed as [num_seqs, length, …] without a copy and without a mask.
    """

    start: int
    num_seqs: int
    length: int

    @property
    def rows(self) -> slice:
        """The run's rows of the flat batch."""
        return slice(self.start, self.start + self.num_seqs * self.length)


@dataclass(frozen=True, slots=True, eq=False)
class FlatBatch:
    """T tokens of n sequences, ordered by length.

    ``input_ids`` int64 [T]; ``positions`` int64 [T], from 0 within each sequence; ``cu_seqlens`` int64 [n + 1],
    the sequences' borders; ``type_ids`` int64 [T], or None where all are 0; ``runs`` covers all rows in order.
    """

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    type_ids: Tensor | None
    runs: tuple[Run, ...]

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence."""
        return max((run.length for run in self.runs), default=0)
