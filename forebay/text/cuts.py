"""How much of an endless text is tokenized at all. Pure; it knows no tokenizer.

A text is cut to so many characters for each token that may be kept. The cut stands if it yields clearly more tokens
than are kept; else more text is taken, up to a last limit.
"""

from typing import Literal

Side = Literal["left", "right"]

_CHARS_A_TOKEN = 24
_MAX_CHARS_A_TOKEN = 2048
_MIN_CHARS = 4096

MARGIN = 256
"""Tokens beyond what is kept that make a cut stand. It exceeds what a word cut in two can yield: WordPiece makes one
token of a whole word of 101 letters, but 99 of a part."""


def first_limit(num_tokens: int) -> int:
    """Characters to begin with, where so many tokens are kept."""
    return max(_MIN_CHARS, _CHARS_A_TOKEN * num_tokens)


def last_limit(num_tokens: int) -> int:
    """Characters that are ever looked at."""
    return max(_MIN_CHARS, _MAX_CHARS_A_TOKEN * num_tokens)


def cut_text(text: str, limit: int, side: Side) -> str:
    """Cut on that side to ``limit`` characters."""
    if len(text) <= limit:
        return text
    return text[:limit] if side == "right" else text[len(text) - limit :]
