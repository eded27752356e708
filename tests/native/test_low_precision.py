"""Linear layers in bfloat16 and int8: against what their formats allow, in every tile, and for extreme values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from tests.native.kinds import LOW_KINDS as KINDS
from tests.native.kinds import ROUNDING
from tests.native.test_kernels import attend, expect

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

Floats = NDArray[np.float32]
if not KINDS:
    pytest.skip("this processor lacks AVX2", allow_module_level=True)
GROUP = 128


def compute(kind: tuple[str, str], x: Floats, weight: Floats, activation: str = "none") -> Floats:
    isa, precision = kind
    out = np.empty((len(x), len(weight)), np.float32)
    native.run_linear(x, native.PackedLinear(isa, weight, None, precision), None, activation, out)
    return out


def round_bf16(x: Floats) -> NDArray[np.float64]:
    return np.asarray(torch.from_numpy(x).bfloat16().double())


def quantize(x: Floats, weight: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values that int8 stands for: by groups, rows of x with a zero point, rows of the weight without."""
    rows, weights = x.astype(np.float64), weight.astype(np.float64)
    for start in range(0, x.shape[1], GROUP):
        part = slice(start, start + GROUP)
        low, high = rows[:, part].min(1, keepdims=True).clip(max=0), rows[:, part].max(1, keepdims=True).clip(min=0)
        scale = (high - low) / 255
        scale[scale == 0] = 1
        zero = np.rint(-low / scale)
        rows[:, part] = ((np.rint(rows[:, part] / scale) + zero).clip(0, 255) - zero) * scale
        scale = np.abs(weights[:, part]).max(1, keepdims=True) / 127
        scale[scale == 0] = 1
        weights[:, part] = np.rint(weights[:, part] / scale) * scale
    return rows, weights


@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 400), st.integers(1, 200)),
    has=st.tuples(st.booleans(), st.booleans()),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
def test_linear(
    kind: tuple[str, str], shape: tuple[int, int, int], has: tuple[bool, bool], scale: float, seed: int
) -> None:
    """As exact as the products of the rounded values; in int8 single values may be rounded the other way."""
    isa, precision = kind
    rows, inner, columns = shape
    rng = np.random.default_rng(seed)
    x, weight, residual = (
        rng.standard_normal(size, np.float32) for size in ((rows, inner), (columns, inner), (rows, columns))
    )
    x *= np.float32(scale)
    bias = rng.standard_normal(columns, np.float32) if has[0] else None
    out = np.full((rows + 2, columns), 7, np.float32)  # a guard row before and behind
    packed = native.PackedLinear(isa, weight, bias, precision)
    native.run_linear(x, packed, residual if has[1] else None, "none", out[1:-1])
    one, other = (round_bf16(x), round_bf16(weight)) if precision == "bfloat16" else quantize(x, weight)
    expected = one @ other.T + (0 if bias is None else bias) + (residual if has[1] else 0)
    size = np.abs(one) @ np.abs(other).T + 3
    ties = 0.0
    if precision == "int8":  # a value in the middle between two may go either way
        ties = 2 * scale * 8 / 255 * np.abs(weight).max()
    assert (np.abs(out[1:-1] - expected) <= size * 2e-6 + ties).all()
    assert (out[[0, -1]] == 7).all()


@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 400), st.integers(1, 200)),
    has=st.tuples(st.booleans(), st.booleans()),
    activation=st.sampled_from(["none", "gelu_erf", "gelu_tanh", "relu", "silu", "tanh"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_every_processor_gives_the_same_bits(
    precision: str, shape: tuple[int, int, int], has: tuple[bool, bool], activation: str, seed: int
) -> None:
    """Rows of very different sizes, one of them faulty now and then, through all forms that run here."""
    rows, inner, columns = shape
    rng = np.random.default_rng(seed)
    x, weight, residual = (
        rng.standard_normal(size, np.float32) for size in ((rows, inner), (columns, inner), (rows, columns))
    )
    x *= 10.0 ** rng.integers(-4, 5, (rows, 1)).astype(np.float32)
    if seed % 4 == 0:
        x[rng.integers(rows), rng.integers(inner)] = rng.choice(np.float32([np.nan, np.inf, -np.inf]))
    bias = rng.standard_normal(columns, np.float32) if has[0] else None
    made = []
    for isa in [isa for isa, other in KINDS if other == precision]:
        out = np.empty((rows, columns), np.float32)
        packed = native.PackedLinear(isa, weight, bias, precision)
        rest = residual if has[1] and activation == "none" else None
        native.run_linear(x, packed, rest, activation, out)
        made.append(out)
    for out in made[1:]:
        assert np.array_equal(out, made[0], equal_nan=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "int8"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_are_not_cut_off(kind: tuple[str, str], sign: int) -> None:
    """All values at the ends of their ranges: sums of two products leave 16 bits, whichever way they are made."""
    x, weight = np.full((7, 256), 2.0, np.float32), np.full((20, 256), 0.5 * sign, np.float32)
    assert np.abs(compute(kind, x, weight) / (256 * sign) - 1).max() <= 1e-6
    x[:, 1::2] = -1e-3  # where the zero point is 0, and nearly so
    assert np.abs(compute(kind, x, weight) / (128 * sign) - 1).max() <= 1e-2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "bfloat16"])
def test_numbers_below_the_normal_ones_count_as_nothing_in_bfloat16(kind: tuple[str, str]) -> None:
    small, large = np.full((2, 40), 1e-39, np.float32), np.full((2, 40), 1e30, np.float32)
    assert (compute(kind, small, large) == 0).all()
    assert (compute(kind, large, small) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", [37, 300])
def test_a_row_is_the_same_in_every_tile(kind: tuple[str, str], inner: int) -> None:
    rng = np.random.default_rng(3)
    weight, x = rng.standard_normal((70, inner), np.float32), rng.standard_normal((13, inner), np.float32)
    whole = compute(kind, x, weight, "gelu_erf")
    for count in range(1, 13):
        assert np.array_equal(compute(kind, x[:count], weight, "gelu_erf"), whole[:count])
        assert np.array_equal(compute(kind, x[count:], weight, "gelu_erf"), whole[count:])


@pytest.mark.parametrize("kind", KINDS)
def test_gelu_is_near(kind: tuple[str, str]) -> None:
    x = np.concatenate([np.linspace(-12, 12, 20_001), [1e4, -1e4, 3e38, -3e38]]).astype(np.float32)[:, None]
    one = np.ones((1, 1), np.float32)
    inner = compute(kind, x, one).astype(np.float64)
    made = compute(kind, x, one, "gelu_erf")
    assert (np.abs(made - inner * ndtr(inner)) <= 5e-5 + 1e-6 * np.abs(inner)).all()
    assert np.abs(made[[-3, -1]]).max() <= 5e-5


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_and_tiny_values_give_zero(kind: tuple[str, str]) -> None:
    weight = np.random.default_rng(1).standard_normal((5, 200), np.float32)
    for value in (0.0, -0.0, 1e-40, 1e-35):
        assert np.abs(compute(kind, np.full((2, 200), value, np.float32), weight)).max() <= 1e-31
    assert (compute(kind, np.ones((2, 200), np.float32), np.zeros((5, 200), np.float32)) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_huge_values_stay_finite_as_long_as_the_result_is(kind: tuple[str, str]) -> None:
    x = np.zeros((3, 160), np.float32)
    x[0, 0], x[1, 150], x[2, 3], x[2, 4] = 3e38, -3e38, 3e38, -3e38
    made = compute(kind, x, np.full((4, 160), 0.25, np.float32))
    assert np.isfinite(made).all()
    assert np.allclose(made[0], 0.75e38, rtol=1e-2)
    assert np.allclose(made[1], -0.75e38, rtol=1e-2)
    assert np.abs(made[2]).max() <= 1e36


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_fault_stays_in_its_row_and_is_seen(kind: tuple[str, str], fault: float) -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.standard_normal((7, 300), np.float32), rng.standard_normal((40, 300), np.float32)
    clean = compute(kind, x, weight)
    x[4, 140] = fault
    dirty = compute(kind, x, weight)
    assert not np.isfinite(dirty[4]).any()
    others = np.arange(7) != 4
    assert np.array_equal(dirty[others], clean[others])


@given(
    lens=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    num_heads=st.integers(1, 3),
    size=st.sampled_from([1, 4, 7, 16, 24, 32, 64, 80, 128]),
    has_bias=st.booleans(),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("isa", ROUNDING)
def test_attention(isa: str, lens: list[int], num_heads: int, size: int, has_bias: bool) -> None:
    """Rounding turns a score by its size, and a weight of the sum by e to that: a bound for each sequence's rows."""
    rng = np.random.default_rng(sum(lens))
    qkv = rng.standard_normal((sum(lens), 3 * num_heads * size), np.float32)
    bias = rng.standard_normal((num_heads, max(lens) + 3, max(lens) + 5), np.float32) if has_bias else None
    made = attend(isa, qkv, num_heads, lens, bias, "bfloat16")
    rounded = torch.from_numpy(qkv).bfloat16().float().numpy()
    # The weights that multiply the values, at most 1 in sum, are rounded as well: by 2^-8 of a value at most.
    allowed = np.abs(qkv[:, -num_heads * size :]).max() * 2**-8 + 1e-5
    assert np.abs(made - expect(rounded, num_heads, lens, bias)).max() <= allowed
    if len(lens) > 1:  # not a bit of a neighbour
        alone = attend(isa, qkv[: lens[0]], num_heads, lens[:1], bias, "bfloat16")
        assert np.array_equal(alone, made[: lens[0]])


def test_kernels_without_a_precision_refuse_to_pack() -> None:
    assert not native.has_precision("plain", "int8")
    with pytest.raises(ValueError, match="these kernels lack this precision"):
        native.form_of("plain", "int8")
    with pytest.raises(ValueError, match="the kernels 'plain' lack this precision"):
        native.PackedLinear("plain", np.zeros((2, 2), np.float32), None, "int8")
