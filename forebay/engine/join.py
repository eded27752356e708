"""Joins the vectors of a long text's windows to one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Part(NamedTuple):
    """The vector [d] of one window and the number of tokens that it stands for."""

    vector: NDArray[np.float32]
    num_tokens: int


def join_parts(parts: list[Part], *, is_unit: bool) -> NDArray[np.float32]:
    """Mean of the parts weighted by their tokens, scaled to unit length if ``is_unit``: float32 [d]."""
    vectors = np.stack([part.vector for part in parts])
    weights = np.array([part.num_tokens for part in parts], np.float32)
    mean: NDArray[np.float32] = weights @ vectors / weights.sum()
    return mean / np.float32(max(float(np.linalg.norm(mean)), 1e-12)) if is_unit else mean
