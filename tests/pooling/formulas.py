"""The pooling methods once more, plainly: one sequence at a time, by the formulas of their papers, in float64."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def _own(rows: Rows, prompt_len: int) -> Rows:
    return rows[prompt_len:]


def _cls(rows: Rows, prompt_len: int) -> Rows:
    return rows[prompt_len if prompt_len < len(rows) else 0]


def _last(rows: Rows, prompt_len: int) -> Rows:
    return rows[-1]


def _mean(rows: Rows, prompt_len: int) -> Rows:
    return sum(_own(rows, prompt_len)) / (len(rows) - prompt_len)  # type: ignore[return-value]


def _mean_sqrt_len(rows: Rows, prompt_len: int) -> Rows:
    return sum(_own(rows, prompt_len)) / (len(rows) - prompt_len) ** 0.5  # type: ignore[return-value]


def _weighted(rows: Rows, prompt_len: int) -> Rows:
    weights = [position + 1 for position in range(prompt_len, len(rows))]
    return sum(w * row for w, row in zip(weights, _own(rows, prompt_len), strict=True)) / sum(weights)  # type: ignore[return-value]


def _maximum(rows: Rows, prompt_len: int) -> Rows:
    return np.array([max(column) for column in _own(rows, prompt_len).T])


FORMULAS: dict[str, Callable[[Rows, int], Rows]] = {
    "CLS": _cls,
    "LAST": _last,
    "MEAN": _mean,
    "MEAN_SQRT_LEN": _mean_sqrt_len,
    "WEIGHTED": _weighted,
    "MAX": _maximum,
}


def pooled(name: str, rows: Rows, prompt_len: int) -> Rows:
    """One sequence's vector; with nothing to pool, zeros (where a method takes a row whatever the prompt: that)."""
    nothing_left = prompt_len >= len(rows) and name not in ("CLS", "LAST")
    return np.zeros(rows.shape[1]) if len(rows) == 0 or nothing_left else FORMULAS[name](rows, prompt_len)
