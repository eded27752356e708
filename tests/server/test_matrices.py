"""Token vectors in bodies: every form in which a reply gave them, and every way to spoil them."""

import base64
import tracemalloc

import numpy as np
import pytest

from forebay.core.errors import InvalidRequest
from forebay.server.pairs import read_side

ROWS = [[0.5, -1.0, 2.0], [0.25, 3, 0.0]]
MATRIX = np.array(ROWS, np.float32)
BASE64 = {"data": base64.b64encode(MATRIX.tobytes()).decode(), "shape": [2, 3]}


@pytest.mark.parametrize(
    "one",
    [ROWS, {"data": ROWS}, {"embedding": ROWS, "index": 0}, BASE64, {"embedding": BASE64["data"], "shape": [2, 3]}],
)
def test_every_form_alone_in_a_list_and_beside_texts(one):
    for value, place in ((one, 0), ([one], 0), (["a text", one], 1)):
        found = read_side(value, "documents")[place]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, MATRIX)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[1.0, 2.0], [3.0]], "all of one length"),
        ([[1.0, "2"]], "lists of numbers"),
        ([[[1.0]], [[[1.0]]]], "must be a string"),
        ([[10**400]], "lists of numbers"),
        ([[10**30]], "lists of numbers"),
        ([[1e300]], "float32"),
        ([[True]], "must be a string"),
        ([[]], "got an empty list"),
        ([[[]]], "begins with a list"),
        ([[], "text"], "got an empty list"),
        ([[1.0, True]], "lists of numbers"),
        ([[1.0, None]], "lists of numbers"),
        ([[1.0], 5], "lists of numbers"),
        ([[1.0], []], "lists of numbers"),
        ({"data": [[]]}, "lists of numbers"),
        ({"data": 5}, "lists of numbers"),
        ({"data": "AAAA"}, "'shape'"),
        ({"data": "AAAA", "shape": [1]}, "'shape'"),
        ({"data": "AAAA", "shape": [1, True]}, "'shape'"),
        ({"data": "AAAA", "shape": [0, 1]}, "3 bytes"),
        ({"data": "AAAA", "shape": [-1, 1]}, "'shape'"),
        ({"data": "AAAA", "shape": [1, 1]}, "3 bytes"),
        ({"data": "", "shape": [0, 1 << 31]}, "'shape'"),
        ({"data": "", "shape": [(1 << 64) - 1, 0]}, "'shape'"),
        ({"data": "AA", "shape": [1, 1]}, "no base64"),
        ({"data": "é", "shape": [1, 1]}, "no base64"),
        ({"data": base64.b64encode(np.array([np.nan], "<f4").tobytes()).decode(), "shape": [1, 1]}, "float32"),
    ],
)
def test_what_is_refused(value, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_side(value, "documents")
    assert caught.value.field.startswith("documents")


def test_a_long_text_among_numbers_takes_no_room_for_each_of_them():
    """NumPy would make every number a text as long as the longest."""
    rows = [[1.0, "x" * 100_000], *([1.0, 1.0] for _ in range(1000))]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="lists of numbers"):
            read_side([rows], "documents")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("entry", [{"data": []}, {"data": "", "shape": [0, 3]}, {"embedding": [], "index": 0}])
def test_a_text_of_which_no_vector_is_left(entry):
    for value in (entry, [entry], ["a text", entry]):
        assert len(read_side(value, "documents")[-1]) == 0
