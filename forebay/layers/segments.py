"""Sums over segments of rows: what pooling makes means of. It knows no sequences and no methods."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.batch import Run
from forebay.layers.native import extension, is_wanted

# A slab of rows is brought to float32 at a time, so that no whole copy of the batch ever stands in memory.
_SLAB_ROWS = 4096


def weighted_sums(
    hidden: Tensor,
    starts: NDArray[np.int64],
    lens: NDArray[np.int64],
    runs: Sequence[Run],
    weights: NDArray[np.float32],
) -> Tensor:
    """Sum weights [own rows] times rows of ``hidden`` [T, H] over each of n segments, in float32: [n, H].

    ``starts`` and ``lens`` (int64 [n]) are the segments' rows; ``runs`` are the same segments as neighbours of equal
    length. Natively, a segment's sum does not depend on the others by a bit.
    """
    if hidden.device.type == "cpu" and hidden.dtype == torch.float32 and hidden.is_contiguous() and is_wanted():
        out = torch.empty(len(starts), hidden.shape[1])
        extension.weighted_sums(hidden.numpy(), starts, lens, weights, out.numpy())
        return out
    return weighted_sums_reference(hidden, runs, weights)


def weighted_sums_reference(hidden: Tensor, runs: Sequence[Run], weights: NDArray[np.float32]) -> Tensor:
    """The same by PyTorch, for every device and dtype."""
    out = hidden.new_zeros(sum(run.num_seqs for run in runs), hidden.shape[1], dtype=torch.float32)
    row_weights = torch.from_numpy(weights).to(hidden.device)
    first = own = 0
    for run in runs:
        if run.length:
            slab = max(1, _SLAB_ROWS // run.length)
            rows = hidden[run.rows].view(run.num_seqs, run.length, -1)
            size = run.num_seqs * run.length
            run_weights = row_weights[own : own + size].view(run.num_seqs, 1, run.length)
            own += size
            for at in range(0, run.num_seqs, slab):
                sums = torch.bmm(run_weights[at : at + slab], rows[at : at + slab].float())
                out[first + at : first + at + len(sums)] = sums[:, 0]
        first += run.num_seqs
    return out
