"""Sparse vectors against their formulas, one sequence at a time; slabs, empty texts and limits."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from forebay.core.params import PoolingParams
from forebay.core.request import Row, SparseVector
from forebay.core.tasks import Task
from forebay.layers.batch import Run
from forebay.pooling import sparse
from forebay.pooling.cursor import Cursor
from forebay.pooling.results import is_finite
from forebay.pooling.sparse import LexicalPooler, SpladePooler
from tests.support.engine import flat_cursor

VOCABULARY = 7
LENS = [0, 1, 2, 2, 5, 9]
PARAMS = PoolingParams(outputs=(Task.SPARSE,))
GENERATOR = torch.Generator().manual_seed(1)
ROWS, WEIGHT = torch.randn(19, 4, generator=GENERATOR), torch.randn(VOCABULARY, 4, generator=GENERATOR)


def logits(rows: torch.Tensor) -> torch.Tensor:
    return rows @ WEIGHT.T - 0.5


def dense(row: Row, size: int = VOCABULARY) -> list[float]:
    """The whole vector; ids ascend and no weight is zero."""
    assert isinstance(row, SparseVector)
    assert (row.ids.dtype, row.weights.dtype, len(row)) == (np.int32, np.float32, len(row.weights))
    assert row.ids.tolist() == sorted(set(row.ids.tolist()))
    assert (row.weights != 0).all()
    vector = np.zeros(size)
    vector[row.ids] = row.weights
    return vector.tolist()


def splade(strategy: str, is_twice_logged: bool, rows: torch.Tensor) -> torch.Tensor:
    """One sequence, by the paper's formula."""
    values = torch.log1p(torch.relu(logits(rows)))
    values = torch.log1p(values) if is_twice_logged else values
    if len(rows) == 0:
        return torch.zeros(VOCABULARY)
    return values.amax(0) if strategy == "max" else values.sum(0)


@pytest.mark.parametrize("slab_rows", [1, 2, 3, 100])
@pytest.mark.parametrize("is_twice_logged", [False, True])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_splade_is_its_formula(
    strategy: Any, is_twice_logged: bool, slab_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "_SLAB_NUMBERS", slab_rows * VOCABULARY)
    _, cursor = flat_cursor(LENS)
    pooler = SpladePooler(logits, VOCABULARY, strategy, is_twice_logged)
    for row, (start, length) in zip(
        pooler(ROWS, cursor, PARAMS).to_host(), zip(cursor.starts, cursor.lens, strict=True), strict=True
    ):
        expected = splade(strategy, is_twice_logged, ROWS[start : start + length])
        np.testing.assert_allclose(dense(row), expected.numpy(), rtol=1e-5, atol=1e-6)
    chosen = pooler(ROWS, cursor.select([0, 2, 5]), PARAMS).to_host()
    whole = pooler(ROWS, cursor, PARAMS).to_host()
    for row, place in zip(chosen, [0, 2, 5], strict=True):
        np.testing.assert_allclose(dense(row), dense(whole[place]), rtol=1e-6)


def test_only_empty_texts() -> None:
    _, cursor = flat_cursor([0, 0])
    for row in SpladePooler(logits, VOCABULARY)(ROWS[:0], cursor, PARAMS).to_host():
        assert dense(row) == [0.0] * VOCABULARY


@pytest.mark.parametrize(
    ("own", "asked", "expected"), [(None, None, 4), (2, None, 2), (None, 3, 3), (2, 3, 3), (9, 1, 1)]
)
def test_the_largest_are_kept(own: int | None, asked: int | None, expected: int) -> None:
    values = torch.tensor([[0.5, 0.0, 3.0, 1.0, -1.0, 0.0, 2.0]])
    _, cursor = flat_cursor([1])
    pooler = SpladePooler(lambda rows: values, VOCABULARY, max_active_dims=own)
    (row,) = pooler(ROWS[:1], cursor, PoolingParams(outputs=(Task.SPARSE,), max_active_dims=asked)).to_host()
    dense(row)
    assert set(row.ids.tolist()) == {2, 6, 3, 0} - {0: set(), 1: {0}, 2: {0, 3}, 3: {0, 3, 6}}[4 - expected]  # type: ignore[union-attr]


def test_lexical_weights_are_the_largest_of_each_token() -> None:
    ids = [[2, 5, 2, 6], [], [1, 1], [5, 0]]
    weights = torch.tensor([0.1, 0.2, 0.7, -0.4, 0.3, 0.1, 0.9, 0.6])[:, None]
    lens = np.array([len(own) for own in ids], np.int64)
    starts, nothing = np.cumsum(lens) - lens, np.zeros_like(lens)
    runs = tuple(Run(int(start), 1, int(length)) for start, length in zip(starts, lens, strict=True))
    cursor = Cursor(starts, lens, nothing, nothing, np.array([*chain(*ids)], np.int64), runs)
    rows = LexicalPooler(lambda own: own, dropped_ids=frozenset({0}))(weights, cursor, PARAMS).to_host()
    found = [dict(zip(row.ids.tolist(), row.weights.tolist(), strict=True)) for row in rows]  # type: ignore[union-attr]
    assert found == [
        {2: pytest.approx(0.7), 5: pytest.approx(0.2), 6: pytest.approx(-0.4)},
        {},
        {1: pytest.approx(0.3)},
        {5: pytest.approx(0.9)},
    ]


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_not_a_number_is_seen(strategy: Any) -> None:
    _, cursor = flat_cursor([1, 2])
    broken = ROWS[:3].clone()
    broken[2] = float("nan")
    rows = SpladePooler(logits, VOCABULARY, strategy)(broken, cursor, PARAMS).to_host()
    assert [is_finite(row) for row in rows] == [True, False]
    weights = torch.tensor([[1.0], [1.0], [float("nan")]])
    rows = LexicalPooler(lambda own: own)(weights, cursor, PARAMS).to_host()
    assert [is_finite(row) for row in rows] == [True, False]


def test_the_heaviest_weights_are_kept_whatever_their_sign() -> None:
    _, cursor = flat_cursor([1, 1, 1])  # the ids 0, 1 and 2
    weights = torch.tensor([[0.3], [-0.9], [0.0]])
    merged = Cursor(
        cursor.starts[:1], np.array([3]), cursor.prompt_lens[:1], cursor.offsets[:1], cursor.ids, (Run(0, 1, 3),)
    )
    (row,) = LexicalPooler(lambda own: own, max_active_dims=1)(weights, merged, PARAMS).to_host()
    assert isinstance(row, SparseVector)
    assert (row.ids.tolist(), row.weights.tolist()) == ([1], [pytest.approx(-0.9)])
