import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forebay.core.errors import ItemFailed
from forebay.server import encode

rows = arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(rows)
def test_both_spellings_give_the_same_float32_back(row):
    np.testing.assert_array_equal(np.array(json.loads(encode.decimals(row)), dtype=np.float32), row)
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(json.loads(encode.base64(row))), "<f4"), row)


def test_views_and_foreign_byte_orders():
    row = np.arange(6, dtype=np.float32)[::2]
    for given_row in (row, row.astype(">f4")):
        assert json.loads(encode.decimals(given_row)) == [0.0, 2.0, 4.0]
        assert base64.b64decode(json.loads(encode.base64(given_row))) == row.astype("<f4").tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(value):
    rows = list(np.ones((encode.BLOCK * 2, 3), dtype=np.float32))
    assert len(encode.finite(rows)) == len(rows)
    rows[encode.BLOCK + 7][1] = value
    with pytest.raises(ItemFailed) as caught:
        encode.finite(rows)
    assert caught.value.index == encode.BLOCK + 7
    assert caught.value.field == f"input[{encode.BLOCK + 7}]"


def test_a_missing_row_is_refused():
    with pytest.raises(ItemFailed):
        encode.finite([np.ones(3, dtype=np.float32), None])
