"""Where each token of an item stands in its text: offsets in characters, special tokens, parts of words.

Made only when an answer needs it, by tokenizing the item once more with offsets; the ids were cut the same way.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The L tokens of one item, special ones included.

    ``offsets`` int64 [L, 2] are characters of the caller's text (0, 0 for special tokens and for the prompt's);
    ``is_special`` bool [L]; ``is_subword`` bool [L] flags tokens that go on with the word before them,
    ``is_prompt`` bool [L] those that stand for nothing but the prompt.
    """

    offsets: NDArray[np.int64]
    is_special: NDArray[np.bool_]
    is_subword: NDArray[np.bool_]
    is_prompt: NDArray[np.bool_]


def read_spans(tokenizer: Tokenizer, text: str, encoding: Encoding, first_char: int, unknown_id: int | None) -> Spans:
    """Return the spans of an encoded text without special tokens; ``first_char`` is where its offsets begin.

    Word pieces are told by their length where the tokenizer marks continuations (``##``), else by the absence of a
    blank before them: transformers' rule, so that entities come out the same.
    """
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    marks_subwords = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))
    is_subword = np.zeros(len(offsets), np.bool_)
    for index, (token_id, token, (start, end)) in enumerate(
        zip(encoding.ids, encoding.tokens, offsets.tolist(), strict=True)
    ):
        if token_id == unknown_id:
            continue
        if marks_subwords:
            is_subword[index] = len(token) != end - start
        else:
            is_subword[index] = start > 0 and " " not in text[start - 1 : start + 1]
    nowhere = np.zeros(len(offsets), np.bool_)
    return Spans(offsets + first_char, nowhere, is_subword, nowhere)


def window_spans(spans: Spans, size: int) -> NDArray[np.int64]:
    """Characters of every ``size`` tokens, int64 [windows, 2]; a window of special tokens alone is empty."""
    out = []
    position = 0
    for first in range(0, len(spans.offsets), size):
        window = slice(first, first + size)
        words = spans.offsets[window][~spans.is_special[window]]
        words = words[words[:, 1] > words[:, 0]]
        start, end = (int(words[:, 0].min()), int(words[:, 1].max())) if len(words) else (position, position)
        out.append((start, end))
        position = end
    return np.array(out, np.int64).reshape(-1, 2)
