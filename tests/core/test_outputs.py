"""Outputs are used like lists of rows, and like arrays where they are some."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from forebay.core.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    SparseOutput,
    TokenClassificationOutput,
    TokenEmbeddingOutput,
)
from forebay.core.request import SparseVector

COUNTS, CUT = np.array([1, 2, 3], np.int32), np.zeros(3, np.bool_)
VALUES = np.array([[0.0, 5.0], [4.0, 3.0], [1.0, 2.0]], np.float32)
RAGGED = [np.ones((length, 2), np.float32) * length for length in (1, 2, 3)]
SPARSE = [
    SparseVector(np.array(ids, np.int32), np.array(weights, np.float32))
    for ids, weights in (([1, 4], [0.5, 2.0]), ([], []), ([0, 2, 3], [1.0, 3.0, 2.0]))
]
EMBEDDINGS = EmbeddingOutput(COUNTS, CUT, VALUES)
SPARSE_OUTPUT = SparseOutput(COUNTS, CUT, SPARSE, 5, "token{}".format)


@pytest.mark.parametrize(
    ("output", "rows"),
    [
        (EMBEDDINGS, list(VALUES)),
        (ClassificationOutput(COUNTS, CUT, VALUES, ("no", "yes")), list(VALUES)),
        (TokenEmbeddingOutput(COUNTS, CUT, RAGGED), RAGGED),
        (TokenClassificationOutput(COUNTS, CUT, RAGGED, ("O", "B"), [CUT]), RAGGED),
        (SPARSE_OUTPUT, SPARSE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows(output: Any, rows: list[Any]) -> None:
    assert len(output) == 3
    for place, (row, expected) in enumerate(zip(output, rows, strict=True)):
        for found in (row, output[place], output[place - 3]):
            assert np.array_equal(getattr(found, "weights", found), getattr(expected, "weights", expected))


def test_embeddings_are_an_array() -> None:
    assert np.array_equal(np.asarray(EMBEDDINGS), VALUES)
    assert np.asarray(EMBEDDINGS, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(EMBEDDINGS), VALUES)
    assert not np.shares_memory(np.array(EMBEDDINGS), VALUES)
    assert np.linalg.norm(EMBEDDINGS, axis=1).shape == (3,)


def test_the_best_label() -> None:
    output = ClassificationOutput(COUNTS, CUT, VALUES, ("no", "yes"))
    assert output.top == [("yes", 5.0), ("no", 4.0), ("yes", 2.0)]


def test_sparse_vectors_become_matrices() -> None:
    dense = SPARSE_OUTPUT.to_dense()
    assert dense.tolist() == [[0, 0.5, 0, 0, 2], [0, 0, 0, 0, 0], [1, 0, 3, 2, 0]]
    assert np.array_equal(csr_matrix(SPARSE_OUTPUT.to_csr(), shape=(3, 5)).toarray(), dense)


def test_the_heaviest_token_comes_first() -> None:
    assert SPARSE_OUTPUT.tokens(2) == [("token2", 3.0), ("token3", 2.0), ("token0", 1.0)]
    assert SPARSE_OUTPUT.tokens(1) == []
