"""Token ids cut to size, or into windows that overlap. Pure; it knows no text."""

import numpy as np
from numpy.typing import NDArray

from forebay.text.cuts import Side

Ids = NDArray[np.int32]


def cut_ids(ids: Ids, room: int, side: Side) -> Ids:
    """The first ``room`` ids, or the last where the left side is cut."""
    if len(ids) <= room:
        return ids
    return ids[:room] if side == "right" else ids[len(ids) - room :]


def split(ids: Ids, size: int, overlap: int = 0) -> list[Ids]:
    """Cut ids into windows of at most ``size``; one window where they fit, also where there are none.

    A window begins with the last ``overlap`` ids of the one before it, at most half of its size.
    """
    overlap = min(overlap, size // 2)
    return [ids[start : start + size] for start in range(0, max(len(ids) - overlap, 1), size - overlap)]
