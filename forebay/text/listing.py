"""All tokens of a text, one by one, for callers who count, cut or look at them. Nothing is left out for its length."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forebay.text.frames import Frame


@dataclass(frozen=True, slots=True, eq=False)
class TokenList:
    """The L tokens of one text: ``ids`` and what the tokenizer calls them.

    ``offsets`` int64 [L, 2] are characters of the text without its prompt, -1 for tokens that stand for none of them:
    special tokens and those of the prompt.
    """

    ids: list[int]
    names: list[str]
    offsets: NDArray[np.int64]


def list_tokens(tokenizer: Tokenizer, frame: Frame, prompt: str, text: str) -> TokenList:
    """Tokenize one text behind its prompt, within the frame of special tokens."""
    encoding = tokenizer.encode(prompt + text, add_special_tokens=False)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) - len(prompt)
    offsets = np.where(offsets[:, 1:] <= 0, -1, np.maximum(offsets, 0)) if prompt else offsets
    before, after = frame.prefix.tolist(), frame.suffix.tolist()
    return TokenList(
        [*before, *encoding.ids, *after],
        [*_names(tokenizer, before), *encoding.tokens, *_names(tokenizer, after)],
        np.pad(offsets, ((len(before), len(after)), (0, 0)), constant_values=-1),
    )


def _names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.id_to_token(id_) or "" for id_ in ids]
