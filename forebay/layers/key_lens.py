"""Tokens that see all of their sequence but are seen by none, at its end: keys that torch's attention must hide."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Far below any score; finite, so that nothing becomes NaN.
_HIDDEN = -1e30


def hide_keys(key_lens: NDArray[np.int64], length: int, like: Tensor) -> Tensor:
    """What is added to scores so that keys from ``key_lens`` [n] on count for nothing: [n, length]."""
    is_hidden = torch.from_numpy(np.arange(length) >= key_lens[:, None]).to(like.device)
    return torch.zeros(is_hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(is_hidden, _HIDDEN)
