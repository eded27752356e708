"""Texts that straddle every limit: nothing, one token, some words, exactly the limit, far beyond it."""

import random

from tests.support.tokenizers import WORDS


def sentence(num_words: int, seed: int) -> str:
    """``num_words`` words of the tiny tokenizers' lexicon, the same for the same seed."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(num_words))


MIXED: tuple[str, ...] = (
    "a",
    "",
    sentence(200, 1),
    "The mill-wheel turns slow, the water is clear.",
    sentence(3, 2),
    sentence(62, 3),
    sentence(63, 4),
    "  Héllo,\tWORLD!\n ",
    sentence(30, 5),
    "zzz ???",
    sentence(17, 6),
    "the",
)
"""One batch of very different lengths; sixty-two words are the tiny models' limit, less two special tokens."""
