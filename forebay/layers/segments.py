"""Sums and maxima over segments of rows, and what else pooling makes of few rows: quotients, unit vectors. It knows no
sequences and no methods.

A short text has one row of a few hundred numbers, of which PyTorch's way to a sum or a quotient takes longer than the
numbers do: on the CPU the native kernels and NumPy compute them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.batch import Run, find_runs
from forebay.layers.native import extension, is_wanted

# A slab of rows is brought to float32 at a time, so that no whole copy of the batch ever stands in memory.
_SLAB_ROWS = 4096

_LEAST_NORM = 1e-12
_IS_NATIVE = is_wanted()


def weighted_sums(
    hidden: Tensor,
    starts: NDArray[np.int64],
    lens: NDArray[np.int64],
    runs: Sequence[Run],
    weights: NDArray[np.float32] | None,
) -> Tensor:
    """Sum weights [own rows] (None: 1) times rows of ``hidden`` [T, H] over each of n segments, in float32: [n, H].

    ``starts`` and ``lens`` (int64 [n]) are the segments' rows; ``runs`` are the same segments as neighbours of equal
    length. Natively, a segment's sum does not depend on the others by a bit.
    """
    if _IS_NATIVE and _is_plain(hidden):
        out = np.empty((len(starts), hidden.shape[1]), np.float32)
        extension.weighted_sums(hidden.numpy(), starts, lens, weights, out)
        return torch.from_numpy(out)
    return weighted_sums_reference(hidden, runs, weights)


def weighted_sums_reference(hidden: Tensor, runs: Sequence[Run], weights: NDArray[np.float32] | None) -> Tensor:
    """The same by PyTorch, for every device and dtype."""
    out = hidden.new_zeros(sum(run.num_seqs for run in runs), hidden.shape[1], dtype=torch.float32)
    if weights is None:
        weights = np.ones(sum(run.num_seqs * run.length for run in runs), np.float32)
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


def rows_at(hidden: Tensor, places: NDArray[np.int64], is_there: NDArray[np.bool_]) -> Tensor:
    """Return the rows of ``hidden`` [T, H] at ``places`` [n], zeros where not ``is_there`` [n]: float32 [n, H]."""
    if _IS_NATIVE and _is_plain(hidden):
        out = np.empty((len(places), hidden.shape[1]), np.float32)
        extension.weighted_sums(hidden.numpy(), places, is_there.astype(np.int64), None, out)  # sums of one row or none
        return torch.from_numpy(out)
    found = hidden.new_zeros(len(places), hidden.shape[1], dtype=torch.float32)
    rows = torch.from_numpy(places[is_there]).to(hidden.device)
    found[torch.from_numpy(is_there).to(hidden.device)] = hidden[rows].float()
    return found


def maxima(hidden: Tensor, starts: NDArray[np.int64], lens: NDArray[np.int64]) -> Tensor:
    """Return the greatest rows of ``hidden`` [T, H], column by column, over each of n segments: float32 [n, H].

    ``starts`` and ``lens`` (int64 [n]) are the segments' rows. NaN is greater than all; a segment without rows is 0.
    """
    if _IS_NATIVE and _is_plain(hidden):
        out = np.empty((len(starts), hidden.shape[1]), np.float32)
        extension.maxima(hidden.numpy(), starts, lens, out)
        return torch.from_numpy(out)
    return maxima_reference(hidden, starts, lens)


def maxima_reference(hidden: Tensor, starts: NDArray[np.int64], lens: NDArray[np.int64]) -> Tensor:
    """The same by PyTorch, for every device and dtype."""
    out = hidden.new_zeros(len(starts), hidden.shape[1], dtype=torch.float32)
    first = 0
    for run in find_runs(starts, lens):
        if run.length:
            rows = hidden[run.rows].view(run.num_seqs, run.length, -1)
            out[first : first + run.num_seqs] = rows.amax(1).float()
        first += run.num_seqs
    return out


def divide_rows(rows: Tensor, divisors: NDArray[np.float32]) -> Tensor:
    """Divide each row of [n, H] by its divisor [n]."""
    if rows.device.type == "cpu":
        return torch.from_numpy(rows.numpy() / divisors[:, None])
    return rows / torch.from_numpy(divisors).to(rows.device)[:, None]


def unit_rows(rows: Tensor) -> Tensor:
    """Scale each row of [n, H] to unit length; a row of zeros stays as it is."""
    if _IS_NATIVE and _is_plain(rows):
        out = np.empty(rows.shape, np.float32)
        extension.unit_rows(rows.numpy(), out, _LEAST_NORM)
        return torch.from_numpy(out)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / lengths.clamp_(min=_LEAST_NORM)


def _is_plain(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous()
