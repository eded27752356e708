"""Sums of best products by the native kernels: for each vector of one matrix the largest product with any of another.

It knows neither queries nor documents beyond their numbers; where the kernels can't serve, the caller has torch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.layers.native import choose_kernels, extension

Floats = NDArray[np.float32]
_CPU = torch.device("cpu")


def sums_of_best_products(query: Floats, arrays: Sequence[Floats], lens: NDArray[np.int64]) -> Floats | None:
    """Sum over the vectors of ``query`` [q, d] the largest product with any row of each of n segments: float32 [n].

    Segments of ``lens`` rows lie end to end in each of the arrays [rows, d], whose rows may lie apart; one without rows
    has -inf. A segment's sum does not depend on the others by a bit. None where no native kernels fit.
    """
    kernels = choose_kernels("float32", _CPU).name
    if not kernels:
        return None
    out = np.empty(len(lens), np.float32)
    extension.max_sim(kernels, np.ascontiguousarray(query), arrays, lens, out, torch.get_num_threads())
    return out
