"""Joins the vectors of a long text's windows to one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# How far from 1 the length of a vector may be that was normalised.
_UNIT_TOLERANCE = 1e-3


class Part(NamedTuple):
    """The vector [d] of one window and the number of tokens that it stands for."""

    vector: NDArray[np.float32]
    num_tokens: int


def join_parts(parts: list[Part]) -> NDArray[np.float32]:
    """Mean of the parts weighted by their tokens, of unit length again where all parts were: float32 [d]."""
    vectors = np.stack([part.vector for part in parts])
    weights = np.array([part.num_tokens for part in parts], np.float32)
    mean: NDArray[np.float32] = weights @ vectors / weights.sum()
    lengths = np.linalg.norm(vectors, axis=1)
    if np.abs(lengths - 1).max() > _UNIT_TOLERANCE:
        return mean
    return mean / np.float32(max(float(np.linalg.norm(mean)), 1e-12))
