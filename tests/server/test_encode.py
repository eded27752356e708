import base64
import sys

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forebay.core.errors import InvalidRequest, ItemFailed
from forebay.core.request import SparseVector
from forebay.server import encode
from forebay.server.encode import Spelling

finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows = arrays(np.float32, st.integers(1, 40), elements=finite_floats)
matrices = arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 9)), elements=finite_floats)
triples = arrays(np.float32, st.tuples(st.integers(0, 4), st.just(3)), elements=st.floats(-9, 9, width=32))
unit_rows = arrays(np.float32, 16, elements=st.floats(-1, 1, width=32))


def read(said: object) -> object:
    return orjson.loads(orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY))


def decode(said: object, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(read(said)), dtype)  # type: ignore[arg-type]


@given(rows | matrices)
def test_all_spellings_give_the_same_float32_back(row):
    shape = row.shape
    np.testing.assert_array_equal(np.array(read(Spelling().say([row])[0]), np.float32).reshape(shape), row)
    np.testing.assert_array_equal(decode(Spelling("base64").say([row])[0], "<f4").reshape(shape), row)
    np.testing.assert_array_equal(decode(Spelling("base64", endianness="big").say([row])[0], ">f4").reshape(shape), row)
    np.testing.assert_array_equal(Spelling("bytes").cast([row])[0], row)


def test_views_and_foreign_byte_orders():
    row = np.arange(6, dtype=np.float32)[::2]
    for given_row in (row, row.astype(">f4")):
        assert read(Spelling().say([given_row])[0]) == [0.0, 2.0, 4.0]
        assert decode(Spelling("base64").say([given_row])[0], "<f4").tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("dtype", "little", "big"),
    [
        ("float32", "<f4", ">f4"),
        ("float16", "<f2", ">f2"),
        ("bfloat16", "<u2", ">u2"),
        ("int8", "|i1", "|i1"),
        ("uint8", "|u1", "|u1"),
        ("binary", "|i1", "|i1"),
        ("ubinary", "|u1", "|u1"),
    ],
)
def test_the_type_that_numpy_reads(dtype, little, big):
    row = np.linspace(-1, 1, 16, dtype=np.float32)
    for endianness, expected in (("little", little), ("big", big), ("native", little)):
        spelling = Spelling("bytes", dtype, endianness)
        assert spelling.numpy_dtype == (big if endianness == "native" and sys.byteorder == "big" else expected)
        assert spelling.cast([row])[0].dtype == np.dtype(spelling.numpy_dtype)


@given(rows.filter(lambda row: np.abs(row).max() < 65000))
def test_half_precision_is_the_nearest_and_numbers_are_those_of_the_bytes(row):
    tensor = torch.from_numpy(row)
    half, brain = Spelling("base64", "float16"), Spelling("base64", "bfloat16")
    np.testing.assert_array_equal(decode(half.say([row])[0], "<f2"), tensor.half().numpy())
    expected = tensor.bfloat16()
    np.testing.assert_array_equal(decode(brain.say([row])[0], "<i2"), expected.view(torch.int16).numpy())
    np.testing.assert_array_equal(
        np.array(read(Spelling("float", "float16").say([row])[0]), np.float16), row.astype("f2")
    )
    numbers = np.array(read(Spelling("float", "bfloat16").say([row])[0]), np.float32)
    np.testing.assert_array_equal(numbers, expected.float().numpy())


@given(unit_rows)
def test_quantised_numbers_follow_their_formulas(row):
    int8 = Spelling(dtype="int8").cast([row])[0]
    assert np.abs(int8 - row * 127.0).max() <= 0.5
    np.testing.assert_array_equal(Spelling(dtype="uint8").cast([row])[0].astype(int), int8.astype(int) + 128)
    bits = Spelling(dtype="ubinary").cast([row])[0]
    np.testing.assert_array_equal(np.unpackbits(bits), row > 0)
    np.testing.assert_array_equal(Spelling(dtype="binary").cast([row])[0].astype(int), bits.astype(int) - 128)


@given(st.lists(triples, min_size=0, max_size=6))
def test_many_at_once_are_each_alone(given_rows):
    for spelling in (Spelling("base64"), Spelling("bytes", "bfloat16", "big")):
        alone = [spelling.cast([row])[0] for row in given_rows]
        for one, other in zip(spelling.cast(given_rows), alone, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.flags.c_contiguous
    said = Spelling().say(given_rows)
    assert [row.shape for row in said] == [row.shape for row in given_rows]


def test_a_worked_example():
    row = np.array([1, -1, 0.5, 0, -0.25, 0, 0, 1e-9], np.float32)
    assert Spelling(dtype="int8").cast([row])[0].tolist() == [127, -127, 64, 0, -32, 0, 0, 0]
    assert Spelling(dtype="uint8").cast([row])[0].tolist() == [255, 1, 192, 128, 96, 128, 128, 128]
    assert Spelling(dtype="ubinary").cast([row])[0].tolist() == [0b10100001]
    assert Spelling(dtype="binary").cast([row])[0].tolist() == [0b10100001 - 128]


@pytest.mark.parametrize(
    ("dtype", "row", "words"),
    [
        ("float16", [65520.0], "float16"),
        ("bfloat16", [3.4e38], "bfloat16"),
        ("int8", [0.0, -1.01], "use_activation"),
        ("uint8", [2.0], "use_activation"),
        ("binary", [1.0] * 12, "multiple of 8"),
        ("ubinary", [1.0] * 7, "multiple of 8"),
    ],
)
def test_what_does_not_fit_is_refused(dtype, row, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        Spelling(dtype=dtype).cast([np.array(row, np.float32)])
    assert caught.value.field == "embed_dtype"


def test_rounding_of_unit_vectors_does_not_count_as_too_large():
    assert Spelling(dtype="int8").cast([np.array([1.0000005, -1.0000005], np.float32)])[0].tolist() == [127, -127]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(value):
    rows = list(np.ones((encode.BLOCK * 2, 3), dtype=np.float32))
    assert len(encode.finite(rows)) == len(rows)
    rows[encode.BLOCK + 7][1] = value
    with pytest.raises(ItemFailed) as caught:
        encode.finite(rows)
    assert caught.value.index == encode.BLOCK + 7
    assert caught.value.field == f"input[{encode.BLOCK + 7}]"


def test_matrices_and_sparse_vectors_are_looked_at_too():
    ids = np.zeros(2, np.int32)
    fine = SparseVector(ids, np.ones(2, np.float32))
    matrix = np.ones((3, 2), np.float32)
    assert encode.finite([matrix, matrix[:0]])[0] is matrix
    assert encode.finite([fine]) == [fine]
    with pytest.raises(ItemFailed, match=r"input\[1\]"):
        encode.finite([fine, SparseVector(ids, np.array([1, np.nan], np.float32))])
    with pytest.raises(ItemFailed, match=r"input\[1\]"):
        encode.finite([matrix, np.full((1, 2), np.inf, np.float32)])


def test_a_missing_row_is_refused():
    with pytest.raises(ItemFailed):
        encode.finite([np.ones(3, dtype=np.float32), None])
