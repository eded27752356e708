"""Sums over segments: natively as in PyTorch, and not a bit of a neighbour in them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.layers import segments
from forebay.layers.batch import Run
from forebay.layers.native import extension
from forebay.layers.segments import (
    divide_rows,
    maxima,
    maxima_reference,
    rows_at,
    unit_rows,
    weighted_sums,
    weighted_sums_reference,
)

pytestmark = pytest.mark.skipif(extension is None, reason="the native kernels are not built")


def make(lens: list[int], gap: int) -> tuple[np.ndarray, np.ndarray, list[Run]]:  # type: ignore[type-arg]
    """Segments with ``gap`` rows of others between them: starts, lens, runs of one segment each."""
    sizes = np.array(lens, np.int64)
    starts = np.cumsum(sizes + gap) - sizes
    runs = [Run(int(start), 1, int(length)) for start, length in zip(starts, sizes, strict=True)]
    return starts, sizes, runs


@given(
    lens=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    gap=st.integers(0, 3),
    width=st.integers(1, 70),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_sums(lens: list[int], gap: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts, sizes, runs = make(lens, gap)
    hidden = torch.from_numpy(rng.standard_normal((int(sizes.sum()) + gap * len(lens), width), np.float32))
    weights = rng.integers(0, 9, int(sizes.sum())).astype(np.float32)
    made = weighted_sums(hidden, starts, sizes, runs, weights)
    assert (made - weighted_sums_reference(hidden, runs, weights)).abs().max() <= 1e-5 * 40 * 9
    own = 0
    for index, (start, length) in enumerate(zip(starts, sizes, strict=True)):
        alone = hidden[start : start + length].clone()
        part = weighted_sums(
            alone,
            np.zeros(1, np.int64),
            sizes[index : index + 1],
            [Run(0, 1, int(length))],
            weights[own : own + length],
        )
        own += int(length)
        assert torch.equal(part[0], made[index])


@given(
    lens=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    gap=st.integers(0, 3),
    width=st.integers(1, 70),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_maxima_and_single_rows(lens: list[int], gap: int, width: int, seed: int) -> None:
    """Bit for bit those of PyTorch, whatever is not finite."""
    rng = np.random.default_rng(seed)
    starts, sizes, _ = make(lens, gap)
    rows = rng.standard_normal((int(sizes.sum()) + gap * len(lens), width), np.float32)
    rows[rng.random(rows.shape) < 0.02] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32))
    hidden = torch.from_numpy(rows)
    for made in (maxima(hidden, starts, sizes), maxima_reference(hidden, starts, sizes)):
        for row, start, length in zip(made.numpy(), starts, sizes, strict=True):
            part = rows[start : start + length]
            assert np.array_equal(row, part.max(0) if length else np.zeros(width, np.float32), equal_nan=True)
    is_there = (sizes > 0) & (rng.random(len(sizes)) < 0.7)
    places = np.where(is_there, starts + np.maximum(sizes - 1, 0), starts)
    expected = np.zeros((len(sizes), width), np.float32)
    expected[is_there] = rows[places[is_there]]
    assert np.array_equal(rows_at(hidden, places, is_there).numpy(), expected, equal_nan=True)
    assert np.array_equal(rows_at(hidden.double(), places, is_there).numpy(), expected, equal_nan=True)


def test_what_is_not_finite_stays_in_its_segment() -> None:
    hidden = torch.ones(4, 3)
    hidden[1, 2] = float("nan")
    starts, sizes, runs = make([2, 2], 0)
    made = weighted_sums(hidden, starts, sizes, runs, np.ones(4, np.float32))
    assert made[0].isnan().tolist() == [False, False, True]
    assert made[1].tolist() == [2, 2, 2]


def test_switched_off_it_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_IS_NATIVE", False)
    monkeypatch.setattr(segments, "extension", None)
    starts, sizes, runs = make([2, 1], 0)
    assert weighted_sums(torch.ones(3, 2), starts, sizes, runs, np.ones(3, np.float32)).tolist() == [[2, 2], [1, 1]]
    rows = torch.tensor([[1.0, 5.0], [3.0, 2.0], [7.0, 7.0]])
    assert maxima(rows, starts, sizes).tolist() == [[3, 5], [7, 7]]
    assert rows_at(rows, np.array([1, 2]), np.array([True, False])).tolist() == [[3, 2], [0, 0]]
    assert unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [0, 0],
    ]


def test_no_weights_are_weights_of_one() -> None:
    starts, sizes, runs = make([5, 1, 7], 3)
    hidden = torch.randn(int(starts[-1] + sizes[-1]), 37)
    ones = np.ones(int(sizes.sum()), np.float32)
    assert torch.equal(
        weighted_sums(hidden, starts, sizes, runs, None), weighted_sums(hidden, starts, sizes, runs, ones)
    )
    assert torch.equal(weighted_sums_reference(hidden, runs, None), weighted_sums_reference(hidden, runs, ones))


@pytest.mark.parametrize("width", [1, 15, 16, 37, 384])
def test_unit_rows(width: int) -> None:
    """As exact as PyTorch's, each by itself; zeros stay, and what is not finite stays in its row."""
    rows = torch.randn(5, width) * torch.tensor([[1e-3], [1.0], [1e3], [0.0], [1.0]])
    rows[4, 0] = float("nan")
    made = unit_rows(rows)
    assert torch.allclose(made[:3], F.normalize(rows[:3].double(), dim=-1).float(), rtol=2e-7, atol=0)
    assert not made[3].any()
    assert bool(made[4, 0].isnan())
    assert torch.equal(unit_rows(rows[1:2]), made[1:2])


def test_rows_are_divided_one_by_one() -> None:
    rows = torch.randn(3, 4)
    assert torch.equal(
        divide_rows(rows, np.array([1, 2, 3], np.float32)), rows / torch.tensor([1.0, 2.0, 3.0])[:, None]
    )


@pytest.mark.parametrize(
    ("starts", "lens", "num_weights"), [([0], [4], 4), ([-1], [2], 2), ([4], [0], 0), ([0], [2], 3), ([0], [-1], 0)]
)
def test_segments_outside_the_rows_are_refused(starts: list[int], lens: list[int], num_weights: int) -> None:
    out = np.empty((1, 2), np.float32)
    rows, weights = np.ones((3, 2), np.float32), np.ones(num_weights, np.float32)
    with pytest.raises(ValueError, match="segment"):
        extension.weighted_sums(rows, np.array(starts), np.array(lens), weights, out)
    if num_weights == sum(lens):
        with pytest.raises(ValueError, match="segment"):
            extension.maxima(rows, np.array(starts), np.array(lens), out)
