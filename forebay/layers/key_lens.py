"""Tokens that see all of their sequence but are seen by none, at its end: hidden keys, for torch and native kernels.

The native kernels know one bias for all sequences of a run, so a step is cut where the number of hidden keys changes.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.batch import FlatBatch

# Far below any score; finite, so that nothing becomes NaN.
_HIDDEN = -1e30


def hide_keys(key_lens: NDArray[np.int64], length: int, like: Tensor) -> Tensor:
    """What is added to scores so that keys from ``key_lens`` [n] on count for nothing: [n, length]."""
    is_hidden = torch.from_numpy(np.arange(length) >= key_lens[:, None]).to(like.device)
    return torch.zeros(is_hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(is_hidden, _HIDDEN)


class Part(NamedTuple):
    """Neighbours with equally many hidden keys: their rows of the batch, what they are, their bias [heads, L, L]."""

    rows: slice
    batch: FlatBatch
    bias: Tensor | None


def cut_by_keys(batch: FlatBatch, bias: Tensor | None, num_heads: int) -> Iterator[Part]:
    """Cut a batch where the number of hidden keys changes."""
    assert batch.key_lens is not None, "what hides no keys is not cut"
    borders = batch.cu_seqlens.tolist()
    lens = np.diff(borders).tolist()
    pairs = zip(lens, batch.key_lens.tolist(), strict=True)
    keys = [(length, seen) if seen < length else None for length, seen in pairs]
    first = 0
    for key, members in groupby(keys):
        last = first + sum(1 for _ in members)
        rows = slice(borders[first], borders[last])
        part = FlatBatch(
            input_ids=batch.input_ids[rows],
            positions=batch.positions[rows],
            cu_seqlens=batch.cu_seqlens[first : last + 1] - borders[first],
            type_ids=None if batch.type_ids is None else batch.type_ids[rows],
            runs=(),
        )
        first = last
        if key is None:
            yield Part(rows, part, bias)
            continue
        length, seen = key
        hidden = hide_keys(np.array([seen]), length, torch.zeros(0) if bias is None else bias)[0]
        one = hidden.expand(num_heads, length, length)  # a view: neither heads nor rows are stored
        yield Part(rows, part, one if bias is None else bias[:, :length, :length] + one)
