"""The special tokens around a single text, read from a tokenizer's template. Pure; it knows only ids."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forebay.core.errors import UnsupportedCheckpoint

Ids = NDArray[np.int32]

_PROBES = ("a", "0", "the", "。")


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens before and after a single text."""

    prefix: Ids
    suffix: Ids

    def __len__(self) -> int:
        return len(self.prefix) + len(self.suffix)

    def wrap(self, body: Ids) -> Ids:
        """Return prefix + body + suffix."""
        return np.concatenate([self.prefix, body, self.suffix])

    def wrap_once(self, body: Ids) -> Ids:
        """The same, without what the body has at that end already."""
        head, tail = len(self.prefix), len(body) - len(self.suffix)
        has_head = head <= len(body) and np.array_equal(body[:head], self.prefix)
        has_tail = tail >= 0 and np.array_equal(body[tail:], self.suffix)
        return np.concatenate([self.prefix[: 0 if has_head else None], body, self.suffix[: 0 if has_tail else None]])

    def unwrap(self, ids: Ids) -> Ids:
        """Return what stands between prefix and suffix, if the ids have both, else all of them."""
        head, tail = len(self.prefix), len(ids) - len(self.suffix)
        if head <= tail and np.array_equal(ids[:head], self.prefix) and np.array_equal(ids[tail:], self.suffix):
            return ids[head:tail]
        return ids


def read_frame(tokenizer: Tokenizer) -> Frame:
    """Find the special tokens that the tokenizer puts around a single text."""
    for probe in _PROBES:
        plain = tokenizer.encode(probe, add_special_tokens=False).ids
        framed = tokenizer.encode(probe).ids
        if not plain:
            continue
        for head in range(len(framed) - len(plain) + 1):
            tail = head + len(plain)
            if framed[head:tail] == plain:
                return Frame(np.array(framed[:head], np.int32), np.array(framed[tail:], np.int32))
    raise UnsupportedCheckpoint("tokenizer.json: its template changes the tokens of a text, which is not supported")
