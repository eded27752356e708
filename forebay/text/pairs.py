"""Two texts that a cross-encoder reads as one sequence: the special tokens and token types around them, and what is
cut where both together are too long. Pure; it knows no texts, only their ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forebay.core.errors import InvalidRequest
from forebay.core.request import Item

Ids = NDArray[np.int32]

_PROBES = (("a", "0"), ("the", "the"), ("。", "a"))


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The special tokens before, between and behind two texts.

    ``types`` are the token types of the five parts: prefix, first text, middle, second text, suffix.
    """

    prefix: Ids
    middle: Ids
    suffix: Ids
    types: tuple[Ids, int, Ids, int, Ids]

    def __len__(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    @property
    def num_types(self) -> int:
        """How many token types there are: the largest one, plus one."""
        return 1 + int(max(np.max(part, initial=0) for part in self.types))

    def wrap(self, first: Ids, second: Ids) -> Ids:
        """Return both texts with all special tokens."""
        return np.concatenate([self.prefix, first, self.middle, second, self.suffix])

    def type_ids(self, num_first: int, num_second: int) -> Ids:
        """Return the token types of two texts of so many tokens."""
        prefix, first, middle, second, suffix = self.types
        parts = [prefix, np.full(num_first, first), middle, np.full(num_second, second), suffix]
        return np.concatenate(parts).astype(np.int32)


def read_pair_frame(tokenizer: Tokenizer) -> PairFrame | None:
    """Find what the tokenizer puts around two texts; None where its template does something else with them."""
    for first, second in _PROBES:
        bodies = [tokenizer.encode(text, add_special_tokens=False).ids for text in (first, second)]
        if all(bodies):
            return _read(tokenizer.encode(first, second), *bodies)
    return None


def _read(framed: object, first: list[int], second: list[int]) -> PairFrame | None:
    ids = np.array(framed.ids, np.int32)  # type: ignore[attr-defined]  # an Encoding, which has no type of its own
    types = np.array(framed.type_ids, np.int32)  # type: ignore[attr-defined]
    owners: list[int | None] = framed.sequence_ids  # type: ignore[attr-defined]
    if 0 not in owners or 1 not in owners:
        return None
    start, middle = owners.index(0), owners.index(0) + len(first)
    other, end = owners.index(1), owners.index(1) + len(second)
    if ids[start:middle].tolist() != first or ids[other:end].tolist() != second or middle > other:
        return None
    return PairFrame(
        ids[:start],
        ids[middle:other],
        ids[end:],
        (types[:start], int(types[start]), types[middle:other], int(types[other]), types[end:]),
    )


def longest_first(firsts: Ids, seconds: Ids, room: int) -> tuple[Ids, Ids]:
    """Tell how many tokens are kept of each pair's texts, [n] and [n], so that both fit into ``room``.

    The rule that the ``tokenizers`` library calls longest first: only the longer text is cut while that is enough,
    else both share the room evenly, and the longer one (the second, of equals) gets the odd token.
    """
    shorter, longer = np.minimum(firsts, seconds), np.maximum(firsts, seconds)
    is_over = shorter + longer > room
    kept_longer = np.where(is_over, np.maximum(shorter, room - shorter), longer)
    is_still_over = shorter + kept_longer > room
    kept_shorter = np.where(is_still_over, room // 2, shorter)
    kept_longer = np.where(is_still_over, room - room // 2, kept_longer)
    is_swapped = firsts > seconds
    return np.where(is_swapped, kept_longer, kept_shorter), np.where(is_swapped, kept_shorter, kept_longer)


def check_pairs(firsts: Sequence[Item], seconds: Sequence[str]) -> None:
    """Refuse what is no pair of texts."""
    for index, pair in enumerate(zip(firsts, seconds, strict=True)):
        if not all(isinstance(text, str) for text in pair):
            raise InvalidRequest(f"input[{index}] is not a pair of texts; token ids can't be paired", index=index)
