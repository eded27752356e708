"""FlatBatch: the tokens of all sequences of a step end to end, without padding.

The one bundle that models and attention read. It knows neither requests nor pooling.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.kv import BatchKV


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


def find_runs(starts: NDArray[np.int64], lens: NDArray[np.int64]) -> tuple[Run, ...]:
    """Join neighbours of equal length among sequences of ``lens`` [n] rows from ``starts`` [n] on."""
    runs: list[Run] = []
    for start, length in zip(starts.tolist(), lens.tolist(), strict=True):
        former = runs[-1] if runs else None
        if former is not None and former.length == length and former.rows.stop == start:
            runs[-1] = Run(former.start, former.num_seqs + 1, length)
        else:
            runs.append(Run(start, 1, length))
    return tuple(runs)


@dataclass(frozen=True, slots=True, eq=False)
class FlatBatch:
    """T tokens of n sequences, or of chunks of them, ordered by length.

    ``input_ids`` int64 [T]; ``positions`` int64 [T], from 0 within each whole sequence; ``cu_seqlens`` int64 [n + 1],
    the sequences' borders; ``type_ids`` int64 [T], or None where all are 0; ``runs`` covers all rows in order; ``kv``
    is where causal models keep keys and values for chunks to come, None where nothing is kept and nothing came before.
    ``key_lens`` int64 [n] (host) tells how many of a sequence's first tokens its tokens attend to (None: to all);
    of sequences of one length, those with equal ones lie side by side.
    """

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    type_ids: Tensor | None
    runs: tuple[Run, ...]
    kv: BatchKV | None = None
    key_lens: NDArray[np.int64] | None = None

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence."""
        return max((run.length for run in self.runs), default=0)

    def filled(self) -> "FlatBatch":
        """Return the batch with sequences of one token (id 0) at its end, so that T is one of few sizes.

        oneDNN compiles and keeps code for every number of rows that it meets: half a millisecond and a megabyte each.
        """
        num_tokens = len(self.input_ids)
        num_more = _round_up(num_tokens) - num_tokens
        if not num_more:
            return self
        ends = torch.arange(num_tokens + 1, num_tokens + num_more + 1, device=self.cu_seqlens.device)
        return FlatBatch(
            input_ids=F.pad(self.input_ids, (0, num_more)),
            positions=F.pad(self.positions, (0, num_more)),
            cu_seqlens=torch.cat([self.cu_seqlens, ends]),
            type_ids=None if self.type_ids is None else F.pad(self.type_ids, (0, num_more)),
            runs=(*self.runs, Run(num_tokens, num_more, 1)),
            kv=None if self.kv is None else self.kv.filled(num_more),
            key_lens=None if self.key_lens is None else np.pad(self.key_lens, (0, num_more), constant_values=1),
        )


def fill_rows(rows: Tensor) -> Tensor:
    """Return [n, H] with rows of zeros at its end where the CPU computes, for the same reason; the caller cuts them."""
    num_more = _round_up(len(rows)) - len(rows)
    return F.pad(rows, (0, 0, 0, num_more)) if num_more and rows.device.type == "cpu" else rows


def _round_up(num_rows: int) -> int:
    """The next multiple of a power of two that is at most a sixteenth of it, 8 at least."""
    step = max(8, 1 << max(0, num_rows.bit_length() - 5))
    return -(-num_rows // step) * step
