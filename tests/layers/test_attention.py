"""The fused attention against the plain formula, over ragged batches of every shape."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.layers.attention import attention, attention_reference
from tests.support.engine import flat_batch

TOLERANCE = 2e-6
LENS = [
    [1],
    [7],
    [1, 1, 1],
    [5, 5, 5, 5],
    [1, 2, 3, 4, 5],
    [1, 1, 9, 9, 30],
    [3, 3, 64, 65],
    [257],
]


def random_qkv(lens: list[int], width: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(sum(lens), 3 * width, generator=torch.Generator().manual_seed(seed))


def random_bias(num_heads: int, lens: list[int]) -> torch.Tensor:
    return torch.randn(num_heads, max(lens), max(lens), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("lens", LENS, ids=str)
@pytest.mark.parametrize(("num_heads", "size"), [(1, 8), (4, 8), (12, 32)])
def test_it_is_the_formula(lens: list[int], num_heads: int, size: int, has_bias: bool) -> None:
    qkv, batch = random_qkv(lens, num_heads * size), flat_batch(lens)
    bias = random_bias(num_heads, lens) if has_bias else None
    torch.testing.assert_close(
        attention(qkv, num_heads, batch, bias), attention_reference(qkv, num_heads, batch, bias), rtol=0, atol=TOLERANCE
    )


@given(st.lists(st.integers(1, 24), min_size=1, max_size=12).map(sorted), st.booleans())
@settings(max_examples=40, deadline=None)
def test_it_is_the_formula_over_any_lengths(lens: list[int], has_bias: bool) -> None:
    qkv, batch = random_qkv(lens, 16), flat_batch(lens)
    bias = random_bias(2, lens) if has_bias else None
    torch.testing.assert_close(
        attention(qkv, 2, batch, bias), attention_reference(qkv, 2, batch, bias), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("scale", [1e-4, 30.0, 1e3])
def test_extreme_scores_stay_finite(scale: float) -> None:
    """Scores up to 1e6: the softmax is one-hot, and nothing overflows."""
    lens = [1, 3, 3, 17]
    qkv, batch = random_qkv(lens, 16, scale=scale), flat_batch(lens)
    out, expected = attention(qkv, 2, batch), attention_reference(qkv, 2, batch)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out / scale, expected / scale, rtol=0, atol=1e-5)


def test_one_token_sees_itself_alone() -> None:
    lens = [1, 1, 1]
    qkv = random_qkv(lens, 8)
    torch.testing.assert_close(attention(qkv, 2, flat_batch(lens)), qkv[:, 16:])


def test_sequences_do_not_see_each_other() -> None:
    lens = [2, 4, 4, 9]
    qkv, batch = random_qkv(lens, 16), flat_batch(lens)
    former = attention(qkv, 2, batch)
    changed = qkv.clone()
    changed[6:10] = torch.randn(4, 48, generator=torch.Generator().manual_seed(5))
    later = attention(changed, 2, batch)
    others = torch.tensor([True] * 6 + [False] * 4 + [True] * 9)
    assert torch.equal(former[others], later[others])
    assert not torch.allclose(former[~others], later[~others], atol=0.01)


def test_the_formula_is_the_formula() -> None:
    """The reference itself against numbers by hand: two tokens, one head of size one."""
    qkv = torch.tensor([[1.0, 2.0, 10.0], [0.0, -1.0, 20.0]])
    weight = np.exp(2.0) / (np.exp(2.0) + np.exp(-1.0))
    expected = torch.tensor([[weight * 10 + (1 - weight) * 20], [15.0]], dtype=torch.float32)
    torch.testing.assert_close(attention_reference(qkv, 1, flat_batch([2])), expected)


def test_a_bias_moves_the_weights_and_is_cut_for_shorter_sequences() -> None:
    lens = [2, 3]
    qkv, bias = torch.zeros(5, 3), torch.zeros(1, 3, 3)
    qkv[:, 2] = torch.arange(5.0)
    bias[0, :, 0] = 100.0  # everyone looks at the first token
    out = attention(qkv, 1, flat_batch(lens), bias)[:, 0]
    torch.testing.assert_close(out, torch.tensor([0.0, 0.0, 2.0, 2.0, 2.0]))


def test_empty_sequences_take_no_rows() -> None:
    lens = [0, 0, 3]
    qkv = random_qkv(lens, 8)
    torch.testing.assert_close(attention(qkv, 2, flat_batch(lens)), attention(qkv, 2, flat_batch([3])))


def test_bfloat16_follows_float32() -> None:
    lens = [1, 5, 5, 33]
    qkv, batch = random_qkv(lens, 32), flat_batch(lens)
    rounded = qkv.bfloat16()
    out = attention(rounded, 4, batch)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attention_reference(rounded.float(), 4, batch), rtol=0, atol=2e-2)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_hidden_keys_are_not_seen(data: st.DataObject) -> None:
    """In the order of a step: by length, then by what is seen."""
    pairs = data.draw(st.lists(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))))
    pairs = sorted(pairs or [(3, 2)])
    lens = [length for length, _ in pairs]
    batch = replace(flat_batch(lens), key_lens=np.array([seen for _, seen in pairs]))
    qkv = random_qkv(lens, 16)
    bias = random_bias(2, lens) if data.draw(st.booleans()) else None
    expected = attention_reference(qkv, 2, batch, bias)
    torch.testing.assert_close(attention(qkv, 2, batch, bias), expected, rtol=0, atol=TOLERANCE)
    if any(seen < length for length, seen in pairs):
        assert (attention(qkv, 2, flat_batch(lens), bias) - expected).abs().max() > 100 * TOLERANCE
