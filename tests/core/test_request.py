"""A reply: rows of several outputs, and errors of items that wait until they are asked for."""

import numpy as np
import pytest

from forebay.core.errors import ItemFailed
from forebay.core.request import Reply, SparseVector
from forebay.core.tasks import Task


def reply(errors: dict[int, ItemFailed]) -> Reply:
    rows = [None if index in errors else np.full(2, index, np.float32) for index in range(3)]
    return Reply({Task.EMBED: rows, Task.SPARSE: []}, np.ones(3, np.int32), np.zeros(3, np.bool_), errors)


def test_the_first_error_is_raised() -> None:
    reply({}).raise_errors()
    first, second = ItemFailed("first", index=1), ItemFailed("second", index=2)
    with pytest.raises(ItemFailed, match="first"):
        reply({2: second, 1: first}).raise_errors()


def test_rows_are_the_first_output() -> None:
    assert [row.tolist() for row in reply({}).rows] == [[0, 0], [1, 1], [2, 2]]


def test_a_sparse_vector_has_its_number_of_entries() -> None:
    assert len(SparseVector(np.array([3, 7], np.int32), np.ones(2, np.float32))) == 2
