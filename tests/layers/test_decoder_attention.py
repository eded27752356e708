"""Grouped, windowed, capped attention against the plain formula: in one step, and in chunks over blocks of a pool."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.engine.pack import pack
from forebay.engine.sequence import Sequence
from forebay.layers.decoder_attention import AttentionSpec, attention_reference, decoder_attention
from forebay.layers.kv import KVPool
from tests.support.engine import CPU, flat_batch, make_sequences

TOLERANCE = 3e-6
BLOCK_SIZE = 4


@dataclass
class Shape:
    """What KVPool must know of a model."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    is_causal: bool = True
    dtype: torch.dtype = torch.float32


@st.composite
def specs(draw: st.DrawFn, *, may_see_all: bool = True) -> AttentionSpec:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    size = draw(st.sampled_from([2, 8, 16]))
    return AttentionSpec(
        layer=draw(st.integers(0, 1)),
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=size,
        scale=draw(st.sampled_from([size**-0.5, 0.7])),
        is_causal=not may_see_all or draw(st.booleans()),
        window=draw(st.sampled_from([None, 1, 2, 5, 16, 40])),
        soft_cap=draw(st.sampled_from([None, 0.8, 30.0])),
    )


def random_qkv(lens: list[int], spec: AttentionSpec, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    widths = [heads * spec.head_dim for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
    return [torch.randn(sum(lens), width, generator=generator) for width in widths]


LENS = st.lists(st.integers(0, 40), min_size=1, max_size=8).map(sorted)


@given(LENS, specs(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_it_is_the_formula(lens: list[int], spec: AttentionSpec, seed: int) -> None:
    batch, qkv = flat_batch(lens), random_qkv(lens, spec, seed)
    found, expected = decoder_attention(*qkv, batch, spec), attention_reference(*qkv, batch, spec)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("window", [None, 200, 600])
@pytest.mark.parametrize("soft_cap", [None, 20.0])
@pytest.mark.parametrize("is_causal", [True, False])
def test_longer_than_a_block_of_queries(window: int | None, soft_cap: float | None, is_causal: bool) -> None:
    spec = AttentionSpec(0, 4, 2, 8, 0.5, is_causal, window, soft_cap)
    lens = [3, 300, 300, 700]
    batch, qkv = flat_batch(lens), random_qkv(lens, spec, 5)
    found, expected = decoder_attention(*qkv, batch, spec), attention_reference(*qkv, batch, spec)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@given(LENS, specs(may_see_all=False), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_in_chunks_it_is_the_formula_of_the_whole(lens: list[int], spec: AttentionSpec, seed: int) -> None:
    """Each sequence is cut at its own places, and its blocks lie anywhere in the pool."""
    chance = random.Random(seed)
    batch, whole = flat_batch(lens), random_qkv(lens, spec, seed)
    expected = attention_reference(*whole, batch, spec)
    starts = [int(start) for start in batch.cu_seqlens[:-1]]
    sequences, pool = held(lens, spec, chance)
    found = torch.full_like(expected, float("nan"))
    while any(seq.start < len(seq.ids) for seq in sequences):
        step = [seq for seq in sequences if seq.start < len(seq.ids) and chance.random() < 0.7]
        for seq in step:
            seq.end = chance.randint(seq.start + 1, len(seq.ids))
        if step:
            rows = chunk_rows(step, sequences, starts, pool)
            packed = pack(step, CPU, pool)
            found[rows] = decoder_attention(*(x[rows] for x in whole), packed.batch, spec)
        for seq in step:
            seq.start = seq.end
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def held(lens: list[int], spec: AttentionSpec, chance: random.Random) -> tuple[list[Sequence], KVPool]:
    """Sequences with scattered blocks; unwritten slots are NaN, so that a wrong read shows."""
    sequences = make_sequences([[place] * length for place, length in enumerate(lens)])
    numbers = list(range(1, 1 + sum(-(-length // BLOCK_SIZE) for length in lens)))
    chance.shuffle(numbers)
    for seq in sequences:
        table = [numbers.pop() for _ in range(-(-len(seq.ids) // BLOCK_SIZE))]
        seq.begin(table, 0, len(seq.ids))
    pool = KVPool.reserve(Shape(2, spec.num_kv_heads, spec.head_dim), 200, CPU, block_size=BLOCK_SIZE)
    pool.keys.fill_(float("nan"))
    pool.values.fill_(float("nan"))
    return sequences, pool


def chunk_rows(step: list[Sequence], sequences: list[Sequence], starts: list[int], pool: KVPool) -> Tensor:
    """The rows of a step's tokens among those of the whole sequences, in the order of the packed batch."""
    cursor = pack(step, CPU, pool).cursor
    rows = []
    for at, length, offset in zip(cursor.starts, cursor.lens, cursor.offsets, strict=True):
        start = starts[int(cursor.ids[at])] + int(offset)
        rows.append(torch.arange(start, start + int(length)))
    return torch.cat(rows)


def test_a_shared_prefix_is_read_by_all() -> None:
    """Three sequences go on from the same blocks; the formula over each one's own whole gives the same."""
    spec = AttentionSpec(1, 4, 2, 8, 0.35)
    prefix, own = random_qkv([8], spec, 1), random_qkv([3, 3, 5], spec, 2)
    first, *others = make_sequences([[9] * 8, *([9] * 8 + [place] * more for place, more in enumerate([3, 3, 5]))])
    first.begin([7, 3], 0, 8)
    for place, seq in enumerate(others):
        seq.begin([7, 3, 10 + 2 * place, 11 + 2 * place], 8, len(seq.ids))
    pool = KVPool.reserve(Shape(2, 2, 8), 20, CPU, block_size=BLOCK_SIZE)
    decoder_attention(*prefix, pack([first], CPU, pool).batch, spec)
    found = decoder_attention(*own, pack(others, CPU, pool).batch, spec)
    for start, end in [(0, 3), (3, 6), (6, 11)]:
        qkv = [torch.cat([a, b[start:end]]) for a, b in zip(prefix, own, strict=True)]
        expected = attention_reference(*qkv, flat_batch([8 + end - start]), spec)[8:]
        torch.testing.assert_close(found[start:end], expected, rtol=0, atol=TOLERANCE)


def test_rows_that_fill_up_a_batch_disturb_nobody() -> None:
    spec = AttentionSpec(0, 2, 1, 8, 0.35)
    (seq,) = make_sequences([[4] * 9])
    seq.begin([2, 1, 3], 0, 9)
    pool = KVPool.reserve(Shape(1, 1, 8), 5, CPU, block_size=BLOCK_SIZE)
    batch = pack([seq], CPU, pool).batch
    qkv = random_qkv([9], spec, 3)
    filled = batch.filled()
    more = len(filled.input_ids) - 9
    assert more
    rows = [torch.cat([x, torch.ones(more, x.shape[1])]) for x in qkv]
    expected = decoder_attention(*qkv, replace(batch, kv=None), spec)
    torch.testing.assert_close(decoder_attention(*rows, filled, spec)[:9], expected, rtol=0, atol=TOLERANCE)
    seq.begin([2, 1, 3], 8, 9)
    last = decoder_attention(*(x[8:] for x in qkv), pack([seq], CPU, pool).batch, spec)
    torch.testing.assert_close(last, expected[8:], rtol=0, atol=TOLERANCE)
