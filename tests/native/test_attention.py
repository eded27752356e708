"""Causal, windowed, capped and grouped attention of every instruction set: in one step, and over kept keys."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from forebay.engine.pack import pack
from forebay.layers.batch import FlatBatch
from forebay.layers.decoder_attention import AttentionSpec, attention_reference
from forebay.layers.program import _pages
from tests.layers.test_decoder_attention import chunk_rows, held
from tests.native.kinds import ISAS, LOW_KINDS, ROUNDING
from tests.support.engine import CPU, flat_batch

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

Floats = NDArray[np.float32]


@st.composite
def specs(draw: st.DrawFn, *, causal: bool | None = None) -> AttentionSpec:
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    size = draw(st.sampled_from([2, 7, 16, 64, 80, 96, 128, 256]))
    return AttentionSpec(
        layer=draw(st.integers(0, 1)),
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=size,
        scale=draw(st.sampled_from([size**-0.5, 0.3])),
        is_causal=draw(st.booleans()) if causal is None else causal,
        window=draw(st.sampled_from([None, 1, 2, 16, 65, 130])),
        soft_cap=draw(st.sampled_from([None, 0.8, 30.0])),
        is_alternating=group == 1 and draw(st.booleans()),
    )


def random_rows(lens: list[int], spec: AttentionSpec, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    return [torch.randn(sum(lens), count * spec.head_dim, generator=generator) for count in heads]


def join(qkv: list[Tensor], spec: AttentionSpec) -> Floats:
    """The rows that a linear layer for all three makes."""
    if spec.is_alternating:
        parts = [x.view(len(x), spec.num_heads, spec.head_dim) for x in qkv]
        return torch.stack(parts, 2).flatten(1).contiguous().numpy()  # type: ignore[no-any-return]
    return torch.cat(qkv, 1).contiguous().numpy()  # type: ignore[no-any-return]


def attend(isa: str, rows: Floats, batch: FlatBatch, spec: AttentionSpec, **how: Any) -> Floats:
    width = spec.num_heads * spec.head_dim
    heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.is_alternating)
    program = native.Program(isa, [(rows.shape[1], True), (width, True)])
    program.embed(0, [(rows, 0)])
    program.keep(0, heads, spec.layer)
    program.attention(
        0,
        1,
        heads,
        spec.scale,
        spec.is_causal,
        spec.window or 0,
        spec.soft_cap or 0.0,
        spec.layer,
        how.pop("precision", "float32"),
    )
    program.show(1, 0)
    ids, out = np.arange(len(rows)), np.empty((1, len(rows), width), np.float32)
    pages = None if batch.kv is None else _pages(batch.kv)
    cut, threads = how.pop("cut", "automatic"), how.pop("threads", 2)
    program.run(ids, ids, None, batch.cu_seqlens.numpy(), None, out, threads, cut, pages=pages, **how)
    return out[0]


def expect(qkv: list[Tensor], batch: FlatBatch, spec: AttentionSpec) -> NDArray[np.float64]:
    return np.asarray(attention_reference(*(x.double() for x in qkv), batch, spec))


LENS = st.lists(st.integers(0, 70) | st.integers(120, 300), min_size=1, max_size=4).map(sorted)


@given(LENS, specs(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("isa", ISAS)
def test_it_is_the_formula(isa: str, lens: list[int], spec: AttentionSpec, seed: int) -> None:
    batch, qkv = flat_batch(lens), random_rows(lens, spec, seed)
    rows, expected = join(qkv, spec), expect(qkv, batch, spec)
    made = [attend(isa, rows, batch, spec, cut=cut) for cut in ("groups", "rows", "columns")]
    assert all(np.array_equal(made[0], other) for other in made[1:])
    assert np.abs(made[0] - expected).max(initial=0) <= 4e-6 * max(1, spec.head_dim**0.5 * spec.scale)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (700, None), (30, 20.0)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_longer_than_a_tile_of_keys(isa: str, window: int | None, soft_cap: float | None, is_causal: bool) -> None:
    spec = AttentionSpec(0, 2, 1, 64, 0.125, is_causal, window, soft_cap)
    lens = [511, 512, 513, 1500] if isa != "plain" else [511, 1030]
    batch, qkv = flat_batch(lens), random_rows(lens, spec, 5)
    assert np.abs(attend(isa, join(qkv, spec), batch, spec) - expect(qkv, batch, spec)).max() <= 4e-6


@given(LENS, specs(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("isa", ROUNDING)
def test_in_bfloat16(isa: str, lens: list[int], spec: AttentionSpec, seed: int) -> None:
    """The bound of tests/native/test_low_precision.py; a cap makes differences of scores smaller, never larger."""
    batch, qkv = flat_batch(lens), random_rows(lens, spec, seed)
    rounded = [x.bfloat16().float() for x in qkv]
    made = attend(isa, join(qkv, spec), batch, spec, precision="bfloat16")
    allowed = float(qkv[2].abs().max()) * 2**-8 + 2e-5 if len(qkv[2]) else 0.0
    assert np.abs(made - expect(rounded, batch, spec)).max(initial=0) <= allowed


@pytest.mark.parametrize(("isa", "precision"), [kind for kind in LOW_KINDS if kind[0] not in ROUNDING])
def test_without_instructions_for_bfloat16_it_stays_in_float32(isa: str, precision: str) -> None:
    spec = AttentionSpec(0, 4, 2, 64, 0.125, is_causal=True, window=None, soft_cap=None)
    lens = [3, 70, 600]
    batch, rows = flat_batch(lens), join(random_rows(lens, spec, 1), spec)
    assert np.array_equal(attend(isa, rows, batch, spec, precision=precision), attend(isa, rows, batch, spec))


@given(
    st.lists(st.integers(0, 40) | st.integers(120, 180), min_size=1, max_size=4).map(sorted),
    specs(causal=True),
    st.integers(0, 10**6),
)
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize(
    ("isa", "precision"), [(isa, "float32") for isa in ISAS] + [(isa, "bfloat16") for isa in ROUNDING]
)
def test_in_chunks_it_is_the_whole_bit_for_bit(
    isa: str, precision: str, lens: list[int], spec: AttentionSpec, seed: int
) -> None:
    """Each sequence is cut at its own places, and its blocks lie anywhere in the pool."""
    chance = random.Random(seed)
    batch, qkv = flat_batch(lens), random_rows(lens, spec, seed)
    rows = join(qkv, spec)
    expected = attend(isa, rows, batch, spec, precision=precision)
    starts = [int(start) for start in batch.cu_seqlens[:-1]]
    sequences, pool = held(lens, spec, chance)
    found = np.full_like(expected, np.nan)
    while any(seq.start < len(seq.ids) for seq in sequences):
        step = [seq for seq in sequences if seq.start < len(seq.ids) and chance.random() < 0.7]
        for seq in step:
            seq.end = chance.randint(seq.start + 1, len(seq.ids))
        if step:
            own = chunk_rows(step, sequences, starts, pool).numpy()
            packed = pack(step, CPU, pool).batch
            cut = chance.choice(["groups", "rows", "columns"])
            found[own] = attend(isa, rows[own], packed, spec, precision=precision, cut=cut)
        for seq in step:
            seq.start = seq.end
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_tokens_that_are_not_seen_change_nothing(isa: str) -> None:
    spec = AttentionSpec(0, 2, 2, 16, 0.25, is_causal=False)
    lens, seen = [3, 20, 90], np.array([3, 11, 70])
    batch, qkv = flat_batch(lens), random_rows(lens, spec, 3)
    rows = join(qkv, spec)
    made = attend(isa, rows, batch, spec, seen=seen)
    start = 0
    for length, count in zip(lens, seen, strict=True):
        q, k, v = (x[start : start + length].view(length, 2, 16).transpose(0, 1).double() for x in qkv)
        expected = (q @ k[:, :count].transpose(1, 2) * 0.25).softmax(-1) @ v[:, :count]
        difference = made[start : start + length] - expected.transpose(0, 1).reshape(length, 32).numpy()
        assert np.abs(difference).max() <= 4e-6
        start += length


@pytest.mark.parametrize("isa", ISAS)
def test_large_scores_and_nan(isa: str) -> None:
    spec = AttentionSpec(0, 2, 1, 16, 1.0, window=9)
    lens = [5, 40, 700]
    batch, qkv = flat_batch(lens), random_rows(lens, spec, 3)
    qkv[0] *= 1e4
    rows = join(qkv, spec)
    clean = attend(isa, rows, batch, spec)
    assert np.abs(clean - expect(qkv, batch, spec)).max() <= 1e-2  # scores of 1e4 are known to 1e-3
    rows[20] = np.nan
    dirty = attend(isa, rows, batch, spec)
    assert np.isnan(dirty[20:29]).all()
    others = np.r_[0:5, 45:745]
    assert np.array_equal(dirty[others], clean[others])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": np.array([0, 1, 8])}, "a slot is not in the pool"),
        ({"slots": np.array([0, 1])}, "one slot a token"),
        ({"width": 8}, "in another width"),
        ({"segments": []}, "fewer segments than sequences"),
        ({"segments": [(1, np.array([[-1, 1, 2, 3]]))]}, "a slot is not in the pool"),
        ({"segments": [(1, np.array([[0, 1]]))]}, "slots of another shape"),
    ],
)
def test_pages_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    program = native.Program("plain", [(12, True), (4, True)])
    program.embed(0, [(np.zeros((3, 12), np.float32), 0)])
    program.keep(0, (1, 1, 4, False), 0)
    program.attention(0, 1, (1, 1, 4, False), 0.5, True)
    program.show(1, 0)
    ids = np.arange(3)
    pool = np.zeros((1, 8, change.get("width", 4)), np.float32)
    pages = (pool, pool.copy(), change.get("slots", ids), change.get("segments", [(1, None)]))
    with pytest.raises(ValueError, match=message):
        program.run(ids, ids, None, np.array([0, 3]), None, np.empty((1, 3, 4), np.float32), 1, pages=pages)
