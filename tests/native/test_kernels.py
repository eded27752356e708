"""Each kernel of each instruction set that this processor has, against torch or the formula in float64."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from forebay.layers.attention import attention_reference
from forebay.layers.batch import FlatBatch
from tests.native.kinds import ISAS

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

Floats = NDArray[np.float32]

FORMULAS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_erf": lambda x: x * ndtr(x),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
# Units in the last place of the result between -4 and 4; those of the tanh form lose some to its cube.
ULPS = {"none": 0, "relu": 0, "gelu_erf": 8, "gelu_tanh": 24, "silu": 2, "tanh": 2}
TWINS = {
    "relu": torch.relu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}


def activate(isa: str, name: str, x: Floats) -> Floats:
    y = x.copy()
    native.activate(isa, name, y)
    return y


def test_plain_kernels_are_everywhere() -> None:
    assert ISAS[-1] == "plain"


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_exact_to_rounding(isa: str, name: str) -> None:
    x = np.concatenate([np.linspace(-4, 4, 400_001), -(10.0 ** np.linspace(-30, 0, 1000))]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = FORMULAS[name](x.astype(np.float64))
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert (np.abs(activate(isa, name, x) - expected) / unit).max() <= ULPS[name]


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_no_further_from_the_truth_than_torch(isa: str, name: str) -> None:
    x = np.linspace(-100, 100, 1_000_003).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = FORMULAS[name](x.astype(np.float64))
    unit = np.spacing(np.abs(x)).astype(np.float64)
    ours = (np.abs(activate(isa, name, x) - expected) / unit).max()
    theirs = (np.abs(TWINS[name](torch.from_numpy(x)).numpy() - expected) / unit).max()
    assert ours <= max(theirs, 2)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("isa", ISAS)
def test_activations_of_extreme_values(isa: str, name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, 89, -89, 104, -120], np.float32)
    low = -1.0 if name == "tanh" else 0.0
    high = 1.0 if name == "tanh" else np.inf
    y = activate(isa, name, x)
    assert np.isnan(y[0])
    assert (y[1], y[2]) == (high, low)
    assert (y[3], y[4]) == (0, 0)
    assert y[6] == low
    assert np.isfinite(y[3:]).all()
    assert y[10] == (1 if name == "tanh" else 104)


@given(
    rows=st.integers(1, 40),
    inner=st.integers(1, 150),
    columns=st.integers(1, 200),
    has=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("isa", ISAS)
def test_linear(isa: str, rows: int, inner: int, columns: int, has: tuple[bool, bool], seed: int) -> None:
    has_bias, has_residual = has
    rng = np.random.default_rng(seed)
    x, weight, residual = (
        rng.standard_normal(shape, np.float32) for shape in ((rows, inner), (columns, inner), (rows, columns))
    )
    bias = rng.standard_normal(columns, np.float32) if has_bias else None
    packed = native.PackedLinear(isa, weight, bias)
    out = np.full((rows + 2, columns), 7, np.float32)  # a guard row before and behind
    native.run_linear(x, packed, residual if has_residual else None, "none", out[1:-1])
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    if bias is not None:
        expected += bias
    if has_residual:
        expected += residual
    scale = np.abs(x).astype(np.float64) @ np.abs(weight.T) + 3
    assert (np.abs(out[1:-1] - expected) <= scale * 1e-6).all()
    assert (out[[0, -1]] == 7).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_of_a_linear_layer_is_the_same_in_every_tile(isa: str) -> None:
    rng = np.random.default_rng(3)
    weight, x = rng.standard_normal((70, 37), np.float32), rng.standard_normal((13, 37), np.float32)
    packed = native.PackedLinear(isa, weight, None)
    whole = np.empty((13, 70), np.float32)
    native.run_linear(x, packed, None, "gelu_erf", whole)
    for count in range(1, 13):
        part = np.empty((count, 70), np.float32)
        native.run_linear(x[:count], packed, None, "gelu_erf", part)
        assert np.array_equal(part, whole[:count])


@pytest.mark.parametrize("width", [1, 3, 16, 20, 32, 100, 384])
@pytest.mark.parametrize("isa", ISAS)
def test_layer_norm(isa: str, width: int) -> None:
    rng = np.random.default_rng(width)
    table = (rng.standard_normal((50, width)) * 10.0 ** rng.integers(-3, 4, (50, 1)) + 5).astype(np.float32)
    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    program = native.Program(isa, [(width, False)])
    program.embed(0, [(table, 0)])
    program.layer_norm(0, 0, weight, bias, 1e-5)
    program.show(0, 0)
    ids = rng.integers(0, 50, 200)
    out = np.empty((1, 200, width), np.float32)
    program.run(ids, ids, None, np.array([0, 200]), None, out, 2)
    x = torch.from_numpy(table[ids]).double()
    expected = torch.nn.functional.layer_norm(
        x, (width,), torch.from_numpy(weight).double(), torch.from_numpy(bias).double(), 1e-5
    ).numpy()
    # What float32 inputs allow: the mean's own rounding, relative to the row's spread.
    spread = np.sqrt(x.var(1, unbiased=False).numpy() + 1e-5)[:, None]
    allowed = 4e-6 * np.abs(weight) * (1 + np.abs(x.numpy()).max(1, keepdims=True) / spread) + 1e-6
    assert (np.abs(out[0] - expected) <= allowed).all()


def attend(
    isa: str, qkv: Floats, num_heads: int, lens: list[int], bias: Floats | None, precision: str = "float32"
) -> Floats:
    """Attention alone: the rows of a table stand for what the layers before it made."""
    width = qkv.shape[1] // 3
    program = native.Program(isa, [(3 * width, True), (width, True)])
    program.embed(0, [(qkv, 0)])
    size = width // num_heads
    program.attention(0, 1, (num_heads, num_heads, size, False), size**-0.5, precision=precision)
    program.show(1, 0)
    ids, borders = np.arange(len(qkv)), np.concatenate([[0], np.cumsum(lens)])
    out = np.empty((1, len(qkv), width), np.float32)
    program.run(ids, ids, None, borders, bias, out, 2)
    return out[0]


def expect(qkv: Floats, num_heads: int, lens: list[int], bias: Floats | None) -> NDArray[np.float64]:
    borders = torch.from_numpy(np.concatenate([[0], np.cumsum(lens)]))
    batch = FlatBatch(borders, borders, borders, None, ())
    made = attention_reference(
        torch.from_numpy(qkv).double(), num_heads, batch, None if bias is None else torch.from_numpy(bias).double()
    )
    return np.asarray(made)


@given(
    lens=st.lists(st.integers(1, 150), min_size=1, max_size=6),
    num_heads=st.integers(1, 4),
    size=st.sampled_from([1, 4, 8, 16, 24, 32, 40, 64, 80, 128]),
    has_bias=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("isa", ISAS)
def test_attention(isa: str, lens: list[int], num_heads: int, size: int, has_bias: bool, scale: float) -> None:
    rng = np.random.default_rng(sum(lens))
    qkv = rng.standard_normal((sum(lens), 3 * num_heads * size), np.float32)
    qkv[:, : num_heads * size] *= scale
    bias = rng.standard_normal((num_heads, max(lens) + 3, max(lens) + 5), np.float32) if has_bias else None
    difference = np.abs(attend(isa, qkv, num_heads, lens, bias) - expect(qkv, num_heads, lens, bias)).max()
    assert difference <= 4e-6 * max(1, scale)


@pytest.mark.parametrize("isa", ISAS)
def test_attention_with_a_strided_bias(isa: str) -> None:
    rng = np.random.default_rng(1)
    qkv = rng.standard_normal((20, 3 * 16), np.float32)
    bias = rng.standard_normal((2, 64, 64), np.float32)[:, ::2, 7:]
    assert np.abs(attend(isa, qkv, 2, [20], bias) - expect(qkv, 2, [20], np.ascontiguousarray(bias))).max() <= 4e-6


@pytest.mark.parametrize("isa", ISAS)
def test_attention_with_masked_pairs_and_large_scores(isa: str) -> None:
    rng = np.random.default_rng(2)
    qkv = rng.standard_normal((33, 3 * 16), np.float32)
    qkv[:, :16] *= 1e4
    bias = np.where(rng.random((2, 33, 33)) < 0.5, -np.inf, 0).astype(np.float32)
    bias[:, np.arange(33), np.arange(33)] = 0
    made = attend(isa, qkv, 2, [33], bias)
    assert np.isfinite(made).all()
    assert np.abs(made - expect(qkv, 2, [33], bias)).max() <= 1e-2  # scores of 1e4 are known to 1e-3


@pytest.mark.parametrize("isa", ISAS)
def test_nan_stays_in_its_sequence(isa: str) -> None:
    rng = np.random.default_rng(4)
    lens = [5, 20, 7]
    qkv = rng.standard_normal((32, 3 * 16), np.float32)
    clean = attend(isa, qkv, 2, lens, None)
    qkv[9, :] = np.nan
    dirty = attend(isa, qkv, 2, lens, None)
    borders = np.concatenate([[0], np.cumsum(lens)])
    for place, (start, end) in enumerate(pairwise(borders)):
        if place == 1:
            assert np.isnan(dirty[start:end]).all()
        else:
            assert np.array_equal(dirty[start:end], clean[start:end])
