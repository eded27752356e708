"""Results on their way to the host: cut into rows that are the caller's own."""

import numpy as np
import pytest
import torch

from forebay.core.request import SparseVector
from forebay.pooling.results import Matrices, SparseVectors, Vectors, is_finite

VALUES = torch.arange(12.0).view(6, 2)
LENS = np.array([0, 2, 0, 4, 0])


def test_vectors() -> None:
    rows = Vectors(VALUES).to_host()
    assert [row.tolist() for row in rows] == VALUES.tolist()  # type: ignore[union-attr]


def test_matrices() -> None:
    rows = Matrices(VALUES, LENS).to_host()
    assert [len(row) for row in rows] == LENS.tolist()
    assert [row.shape[1] for row in rows] == [2] * 5  # type: ignore[union-attr]
    assert np.concatenate(rows).tolist() == VALUES.tolist()  # type: ignore[arg-type]


def test_sparse_vectors() -> None:
    rows = SparseVectors(torch.arange(6), VALUES[:, 0], LENS).to_host()
    assert [len(row) for row in rows] == LENS.tolist()
    assert rows[3].ids.tolist() == [2, 3, 4, 5]  # type: ignore[union-attr]
    assert rows[3].weights.tolist() == [4, 6, 8, 10]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0, 2.0], True), ([1.0, np.nan], False), ([np.inf, 1.0], False), ([], True)]
)
def test_finite(values: list[float], expected: bool) -> None:
    array = np.array(values, np.float32)
    assert is_finite(array) is expected
    assert is_finite(array[None]) is expected
    assert is_finite(SparseVector(np.zeros(len(values), np.int32), array)) is expected
