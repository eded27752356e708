"""Token vectors that a client sends back: rows of numbers, or base64 of a shape, as the routes of vectors gave them.

It knows one text's vectors, nothing of sides and pairs.
"""

import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.core.request import Matrix

VECTOR_KEYS = ("data", "embedding")
"""Under which an entry of a reply of /pooling or /embeddings has its vectors."""

_NUMBERS = frozenset((int, float))
_MOST = 1 << 31  # of either size of a shape: one side may be 0


def is_matrix(value: object) -> bool:
    """Whether this is meant as rows of numbers."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, list) and bool(first) and type(first[0]) in (int, float)


def read_entry(entry: Mapping[str, Any], key: str, field: str) -> Matrix:
    """Read an entry of a reply as it came."""
    value = entry[key]
    if value == []:  # so comes a text of which no vector is left
        return np.zeros((0, 0), np.float32)
    return _read_base64(value, entry.get("shape"), field) if isinstance(value, str) else read_rows(value, field)


def read_rows(rows: object, field: str) -> Matrix:
    """Read rows of numbers. Each is looked at before NumPy sees it, which makes room for the longest text in all."""
    rows = rows if isinstance(rows, list) else []
    is_right = [isinstance(row, list) and bool(row) and _NUMBERS.issuperset(map(type, row)) for row in rows]
    if not rows or not all(is_right) or len(set(map(len, rows))) != 1:
        raise _refuse_rows(field)
    try:
        found = np.array(rows)
    except OverflowError:  # a whole number that no float holds, beside others
        raise _refuse_rows(field) from None
    if found.dtype.kind not in "iuf":  # whole numbers of more than 64 bits
        raise _refuse_rows(field)
    return _check(found, field)


def _refuse_rows(field: str) -> InvalidRequest:
    return InvalidRequest(f"'{field}' must be token vectors: lists of numbers, all of one length", field=field)


def _read_base64(value: str, shape: object, field: str) -> Matrix:
    if not (
        isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and 0 <= size < _MOST for size in shape)
    ):
        raise InvalidRequest(
            f"'{field}' is a string, so a 'shape' of two sizes must stand beside it, as POST /pooling gives it",
            field=field,
        )
    try:
        raw = binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"'{field}' is no base64", field=field) from None
    if len(raw) != 4 * shape[0] * shape[1]:
        raise InvalidRequest(
            f"'{field}' has {len(raw)} bytes, but its shape asks for {shape[0]} x {shape[1]} little-endian numbers of "
            "float32; ask for token vectors with embed_dtype 'float32'",
            field=field,
        )
    return _check(np.frombuffer(raw, "<f4").reshape(shape), field)


def _check(found: NDArray[Any], field: str) -> Matrix:
    with np.errstate(over="ignore"):
        matrix: Matrix = np.ascontiguousarray(found, dtype=np.float32)
    if not np.isfinite(matrix).all():
        raise InvalidRequest(f"'{field}' holds numbers that float32 does not", field=field)
    return matrix
