"""Token ids cut to size, or into windows that overlap, and who wants which. Pure; it knows no text."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.core.params import TextParams
from forebay.text.cuts import Side

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Windows:
    """How a long text is read by windows: ``most`` tokens of it in all, the last ``overlap`` of a window again in the
    next one. ``is_default`` tells that requests which do not say want it.
    """

    most: int = 1 << 20
    overlap: int = 0
    is_default: bool = False

    def limit(self, params: TextParams) -> int | None:
        """Tokens of a long text that a request wants read by windows; None: it is cut."""
        return self.most if (self.is_default if params.split is None else params.split) else None


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
