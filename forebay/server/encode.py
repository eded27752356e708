"""Arrays to JSON and bytes: base64 straight from the buffer, decimals by orjson; never a Python float per element.

It knows arrays and their spelling, no dialect's envelope. Quantised spellings are meant for vectors of unit length:

- ``int8`` is round(127 v), ``uint8`` the same plus 128;
- ``ubinary`` has a bit for each number, 1 where it is positive, eight to a byte, the first in the highest bit
  (``numpy.packbits``); ``binary`` is the same minus 128, as a signed byte.
"""

import sys
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest, ItemFailed
from forebay.core.request import Row, SparseVector

Floats = NDArray[np.float32]
Encoding = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDtype = Literal["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"]
Endianness = Literal["native", "little", "big"]

QUANTIZED: frozenset[EmbedDtype] = frozenset({"int8", "uint8", "binary", "ubinary"})
PACKED: frozenset[EmbedDtype] = frozenset({"binary", "ubinary"})

BLOCK = 256
"""Rows whose finiteness is checked in one call."""

UNIT_TOLERANCE = 1e-3
"""By how much a number of a vector of unit length may exceed 1."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How arrays are said: as numbers, as text or as bytes; of which type; in which byte order."""

    encoding: Encoding = "float"
    dtype: EmbedDtype = "float32"
    endianness: Endianness = "little"

    @property
    def byteorder(self) -> Literal["little", "big"]:
        """The order of bytes, with ``native`` said out."""
        return sys.byteorder if self.endianness == "native" else self.endianness

    @property
    def numpy_dtype(self) -> str:
        """What NumPy calls the type of the bytes; bfloat16, which it lacks, is their upper 16 bits."""
        kind = {"bfloat16": "uint16", "binary": "int8", "ubinary": "uint8"}.get(self.dtype, self.dtype)
        return np.dtype(kind).newbyteorder(self.byteorder).str

    def cast(self, rows: Sequence[Floats]) -> list[NDArray[Any]]:
        """Arrays of one last size in the wanted type and byte order, without gaps; bfloat16 as its upper 16 bits."""
        if self.dtype == "float32":
            return [np.ascontiguousarray(row, dtype=self.numpy_dtype) for row in rows]
        return _at_once(self._cast, rows)

    def say(self, rows: Sequence[Floats]) -> list[Any]:
        """Arrays as orjson takes them: numbers in the fewest digits that read back the same, or base64 strings."""
        if self.encoding == "base64":
            strings = (b2a_base64(values.data, newline=False) for values in self.cast(rows))
            return [orjson.Fragment(b'"' + string + b'"') for string in strings]
        if self.dtype == "float32":
            return [np.ascontiguousarray(row, dtype=np.float32) for row in rows]
        return _at_once(self._to_numbers, rows)

    def _cast(self, block: Floats) -> NDArray[Any]:
        values = CASTS[self.dtype](block)
        return values.astype(values.dtype.newbyteorder(self.byteorder), copy=False)

    def _to_numbers(self, block: Floats) -> NDArray[Any]:
        values = CASTS[self.dtype](block)
        return _widen(values) if self.dtype == "bfloat16" else values


def _at_once(work: Callable[[Floats], NDArray[Any]], rows: Sequence[Floats]) -> list[NDArray[Any]]:
    """Do the work on all rows in one array [n, d], since rows are many and short, and cut the result."""
    if not rows:
        return []
    block = work(np.concatenate([row.reshape(-1, row.shape[-1]) for row in rows]))
    parts = np.split(block, np.cumsum([row.size // row.shape[-1] for row in rows])[:-1])
    return [part.reshape(*row.shape[:-1], block.shape[1]) for part, row in zip(parts, rows, strict=True)]


def _to_float32(row: Floats) -> NDArray[Any]:
    return row.astype(np.float32, copy=False)


def _to_float16(row: Floats) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return _still_finite(row.astype(np.float16), "float16")


def _to_bfloat16(row: Floats) -> NDArray[Any]:
    """Round to the nearest, ties to even, and keep the upper half of each float32."""
    bits = row.astype(np.float32, copy=False).view(np.uint32)
    halves = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    _still_finite(_widen(halves), "bfloat16")
    return halves


def _widen(halves: NDArray[Any]) -> Floats:
    widened: Floats = (halves.astype(np.uint32) << 16).view(np.float32)
    return widened


def _still_finite(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    if not np.isfinite(values).all():
        raise _refuse(f"a number is too large for embed_dtype '{dtype}'; ask for float32")
    return values


def _to_int8(row: Floats) -> NDArray[Any]:
    largest = float(np.abs(row).max(initial=0.0))
    if largest > 1 + UNIT_TOLERANCE:
        raise _refuse(
            f"embed_dtype int8 and uint8 hold numbers from -1 to 1, but a vector has {largest:g}; "
            "send use_activation true for vectors of unit length, or ask for float16"
        )
    rounded: NDArray[Any] = np.rint(np.clip(row, -1, 1) * np.float32(127)).astype(np.int8)
    return rounded


def _to_uint8(row: Floats) -> NDArray[Any]:
    return (_to_int8(row).astype(np.int16) + 128).astype(np.uint8)


def _to_ubinary(row: Floats) -> NDArray[Any]:
    check_packable(row.shape[-1])
    return np.packbits(row > 0, axis=-1)


def _to_binary(row: Floats) -> NDArray[Any]:
    return (_to_ubinary(row).astype(np.int16) - 128).astype(np.int8)


CASTS: dict[EmbedDtype, Callable[[Floats], NDArray[Any]]] = {
    "float32": _to_float32,
    "float16": _to_float16,
    "bfloat16": _to_bfloat16,
    "int8": _to_int8,
    "uint8": _to_uint8,
    "binary": _to_binary,
    "ubinary": _to_ubinary,
}


def check_packable(dimension: int) -> None:
    """Refuse a dimension whose bits do not fill whole bytes."""
    if dimension % 8:
        raise _refuse(
            f"embed_dtype binary and ubinary pack eight numbers to a byte, but the vectors have {dimension}; "
            "ask for dimensions that are a multiple of 8, or for int8"
        )


def _refuse(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="embed_dtype")


RowT = TypeVar("RowT", bound=Row)


def finite(rows: Sequence[RowT | None]) -> list[RowT]:
    """Return the rows, all present and finite; JSON has no word for anything else."""
    checked: list[RowT] = []
    for start in range(0, len(rows), BLOCK):
        block = [_present(row, start + offset) for offset, row in enumerate(rows[start : start + BLOCK])]
        numbers = [row.weights if isinstance(row, SparseVector) else row for row in block]
        if not np.isfinite(np.concatenate(numbers, axis=None)).all():
            bad = next(offset for offset, row in enumerate(numbers) if not np.isfinite(row).all())
            raise ItemFailed(f"input[{start + bad}] gave a non-finite result", index=start + bad)
        checked += block
    return checked


def _present(row: RowT | None, index: int) -> RowT:
    if row is None:
        raise ItemFailed(f"input[{index}] has no result", index=index)
    return row
