"""Tokens that see all of their sequence but are seen by none, at its end: hidden keys, for torch and native kernels.

The native kernels know one bias for all sequences of a run, so a step is cut where the number of hidden keys changes.
"""

from collections.abc import Iterator
from itertools import groupby

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


def cut_by_keys(batch: FlatBatch, bias: Tensor | None) -> Iterator[tuple[slice, FlatBatch, Tensor | None]]:
    """Cut a batch into neighbours with equally many hidden keys: their rows, batch and bias, [heads or 1, L, L]."""
    assert batch.key_lens is not None, "what hides no keys is not cut"
    borders = batch.cu_seqlens.tolist()
    lens = np.diff(borders).tolist()
    keys = [(length, seen) if seen < length else None for length, seen in zip(lens, batch.key_lens.tolist(), strict=True)]
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
            yield rows, part, bias
            continue
        length, seen = key
        like = torch.zeros(0) if bias is None else bias
        hidden = hide_keys(np.array([seen]), length, like)[None]  # [1, 1, L]
        own = hidden.expand(1, length, length) if bias is None else bias[:, :length, :length] + hidden
        yield rows, part, own
