"""One side of a late interaction: how its ids are completed, which tokens others see, whose vectors count.

Markers are put in as ids behind the first token, queries are filled up with mask tokens that by most checkpoints' rule
are seen by no other token but see them, and vectors of punctuation are left out of documents (Khattab & Zaharia 2020,
arXiv:2004.12832). It knows no checkpoint and no model.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.core.request import Reading

Ids = NDArray[np.int32]


def _none() -> Ids:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class LateSide:
    """Queries or documents. ``max_len`` None: the model's own; it counts all tokens.

    Sequences of fewer than ``fill_to`` tokens are filled up with ``filler``; ``is_attended`` tells whether other
    tokens see the fillers. Vectors of the ids ``skipped`` are left out; where ``kept`` has any, all others are.
    """

    marker: Ids = field(default_factory=_none)
    max_len: int | None = None
    fill_to: int = 0
    filler: int = 0
    is_attended: bool = False
    skipped: Ids = field(default_factory=_none)
    kept: Ids = field(default_factory=_none)

    def limit(self, max_len: int) -> int:
        """The most tokens that are read where the model itself reads ``max_len``."""
        return max_len if self.max_len is None else min(max_len, self.max_len)

    def strip(self, body: Ids) -> Ids:
        """Take away the marker that a caller's ids have already."""
        num = len(self.marker)
        return body[num:] if num and np.array_equal(body[:num], self.marker) else body

    def complete(self, ids: Ids, max_len: int) -> tuple[Ids, Reading]:
        """Put the marker behind the first token of a framed text and fill it up."""
        ids = np.concatenate([ids[:1], self.marker, ids[1:]])
        num_real = len(ids)
        num_fillers = max(0, min(self.fill_to, max_len) - num_real)
        is_kept = ~np.isin(ids, self.skipped)
        if len(self.kept):
            is_kept &= np.isin(ids, self.kept)
        if num_fillers:
            ids = np.concatenate([ids, np.full(num_fillers, self.filler, np.int32)])
            is_kept = np.concatenate([is_kept, np.ones(num_fillers, np.bool_)])
        return ids, Reading(len(ids) if self.is_attended else num_real, is_kept)
