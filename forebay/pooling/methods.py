"""Pooling methods: which rows are taken from the hidden states, and with which weights.

A method maps hidden states [T, H] of n sequences to float32 [n, H]. Where prompts are left out
(``include_prompt`` false in the checkpoint), cursor.prompt_lens tells how many tokens each sequence's prompt has;
attention has seen them, pooling then does not. Definitions: Reimers & Gurevych 2019 (arXiv:1908.10084) and
Muennighoff 2022 (arXiv:2202.08904) for the weighted mean.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.pooling.cursor import Cursor

Method = Callable[[Tensor, Cursor], Tensor]

# A slab of rows is brought to float32 at a time, so that no whole copy of the batch ever stands in memory.
_SLAB_ROWS = 4096


def _weighted_sum(hidden: Tensor, cursor: Cursor, weights: NDArray[np.float64]) -> Tensor:
    """Sum of weights [T] times rows over each sequence, accumulated in float32: [n, H]."""
    out = hidden.new_zeros(len(cursor), hidden.shape[1], dtype=torch.float32)
    row_weights = torch.from_numpy(weights.astype(np.float32)).to(hidden.device)
    first = 0
    for run in cursor.runs:
        if run.length:
            slab = max(1, _SLAB_ROWS // run.length)
            rows = hidden[run.rows].view(run.num_seqs, run.length, -1)
            run_weights = row_weights[run.rows].view(run.num_seqs, 1, run.length)
            for at in range(0, run.num_seqs, slab):
                sums = torch.bmm(run_weights[at : at + slab], rows[at : at + slab].float())
                out[first + at : first + at + len(sums)] = sums[:, 0]
        first += run.num_seqs
    return out


def _counted(cursor: Cursor) -> NDArray[np.bool_]:
    """Tell which rows are pooled [T]: all but the prompts' tokens."""
    return cursor.token_positions() >= np.repeat(cursor.prompt_lens, cursor.lens)


def _normalise(weights: NDArray[np.float64], cursor: Cursor, power: float = 1.0) -> NDArray[np.float64]:
    """Divide each sequence's weights [T] by their sum to ``power``; a sequence without weight stays at zero."""
    index = np.repeat(np.arange(len(cursor)), cursor.lens)
    totals = np.bincount(index, weights, minlength=len(cursor))
    divided: NDArray[np.float64] = weights / np.maximum(totals, 1e-9)[index] ** power
    return divided


def cls(hidden: Tensor, cursor: Cursor) -> Tensor:
    """The first token's row; the first after the prompt where prompts are left out."""
    return cursor.rows_at(hidden, np.where(cursor.prompt_lens < cursor.lens, cursor.prompt_lens, 0))


def last(hidden: Tensor, cursor: Cursor) -> Tensor:
    """The last token's row."""
    return cursor.rows_at(hidden, cursor.lens - 1)


def mean(hidden: Tensor, cursor: Cursor) -> Tensor:
    """The mean of all rows."""
    return _weighted_sum(hidden, cursor, _normalise(_counted(cursor).astype(np.float64), cursor))


def mean_sqrt_len(hidden: Tensor, cursor: Cursor) -> Tensor:
    """The sum of all rows divided by the square root of their number."""
    return _weighted_sum(hidden, cursor, _normalise(_counted(cursor).astype(np.float64), cursor, power=0.5))


def weighted(hidden: Tensor, cursor: Cursor) -> Tensor:
    """The mean with weights 1, 2, 3 … by position; a left-out prompt keeps its positions: the next is not 1."""
    weights = (cursor.token_positions() + 1) * _counted(cursor)
    return _weighted_sum(hidden, cursor, _normalise(weights.astype(np.float64), cursor))


def maximum(hidden: Tensor, cursor: Cursor) -> Tensor:
    """The maximum of all rows, column by column; a sequence with no row to pool gives zeros."""
    out = hidden.new_zeros(len(cursor), hidden.shape[1], dtype=torch.float32)
    for index, (start, length, skipped) in enumerate(zip(cursor.starts, cursor.lens, cursor.prompt_lens, strict=True)):
        if skipped < length:
            out[index] = hidden[start + skipped : start + length].amax(0)
    return out


METHODS: dict[str, Method] = {
    "CLS": cls,
    "LAST": last,
    "MEAN": mean,
    "MEAN_SQRT_LEN": mean_sqrt_len,
    "WEIGHTED": weighted,
    "MAX": maximum,
}
