"""Arrays to JSON text: base64 straight from the buffer, decimals by orjson; never a Python float per element.

It knows vectors and their spelling, no dialect's envelope.
"""

from binascii import b2a_base64
from collections.abc import Callable, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from forebay.core.errors import ItemFailed

Row = NDArray[np.float32]
BLOCK = 256
"""Rows whose finiteness is checked in one call."""


def decimals(row: Row) -> bytes:
    """A vector as a JSON list, each number in the fewest digits that read back as the same float32."""
    return orjson.dumps(np.ascontiguousarray(row, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)


def base64(row: Row) -> bytes:
    """A vector as a JSON string: its little-endian float32 bytes in base64."""
    return b'"' + b2a_base64(np.ascontiguousarray(row, dtype="<f4").data, newline=False) + b'"'


ENCODERS: dict[str, Callable[[Row], bytes]] = {"float": decimals, "base64": base64}


def finite(rows: Sequence[Row | None]) -> list[Row]:
    """Return the rows, all present and finite; JSON has no word for anything else."""
    checked: list[Row] = []
    for start in range(0, len(rows), BLOCK):
        block = [_present(row, start + offset) for offset, row in enumerate(rows[start : start + BLOCK])]
        if not np.isfinite(np.concatenate(block, axis=None)).all():
            bad = next(offset for offset, row in enumerate(block) if not np.isfinite(row).all())
            raise ItemFailed(f"input[{start + bad}] gave a non-finite result", index=start + bad)
        checked += block
    return checked


def _present(row: Row | None, index: int) -> Row:
    if row is None:
        raise ItemFailed(f"input[{index}] has no result", index=index)
    return row
