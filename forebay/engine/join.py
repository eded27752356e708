"""Joins the outputs of a long text's windows to one."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Part(NamedTuple):
    """The vector [d] of one window and the number of tokens that it stands for: 0 where it says nothing of the text."""

    vector: NDArray[np.float32]
    num_tokens: int


Join = Literal["mean", "unit_mean", "max"]


def mean(parts: list[Part]) -> NDArray[np.float32]:
    """Mean of the parts weighted by their tokens: float32 [d]."""
    vectors = np.stack([part.vector for part in parts])
    weights = np.array([part.num_tokens for part in parts], np.float32)
    if not weights.any():
        return parts[0].vector
    joined: NDArray[np.float32] = weights @ vectors / weights.sum()
    return joined


def unit_mean(parts: list[Part]) -> NDArray[np.float32]:
    """The same, scaled to unit length."""
    joined = mean(parts)
    return joined / np.float32(max(float(np.linalg.norm(joined)), 1e-12))


def best(parts: list[Part]) -> NDArray[np.float32]:
    """The largest of each number."""
    largest: NDArray[np.float32] = np.stack([part.vector for part in parts]).max(0)
    return largest


JOINS: dict[Join, Callable[[list[Part]], NDArray[np.float32]]] = {"mean": mean, "unit_mean": unit_mean, "max": best}
"""Ways to join, by name."""
