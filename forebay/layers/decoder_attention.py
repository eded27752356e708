"""Attention of decoder models over a flat batch: grouped heads, causal or not, sliding windows, soft caps.

It knows no architecture. Where the batch has a ``kv``, tokens also attend to those of their sequence that came in
earlier chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.layers.batch import FlatBatch
from forebay.layers.kv import Segment
from forebay.layers.norm import RMSNorm
from forebay.layers.program import State, Value
from forebay.layers.rotary import Turns, rotate

# Queries of one masked call of the fused kernel.
_BLOCK_QUERIES = 256

# Numbers in the copies of kept keys that are made at a time: 32 MB in float32, and as much for values.
_KEPT_NUMBERS = 8 << 20

# Numbers in a block of scores, where they are written out: 16 MB in float32.
_BLOCK_SCORES = 4 << 20


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends. ``layer`` is its number from 0; ``scale`` multiplies the scores.

    ``window`` is how many keys a token sees at most: itself and those before it where ``is_causal``, else those with
    a distance below it on either side. ``soft_cap`` c bounds scores to c tanh(score / c). ``is_alternating`` rows hold
    queries, keys and values of one head and then of the next; others all queries, all keys, all values.
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    is_causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    is_alternating: bool = False


def head_attention(
    qkv: State,
    batch: FlatBatch,
    spec: AttentionSpec,
    turns: Turns | None = None,
    norms: tuple[RMSNorm, RMSNorm] | None = None,
) -> State:
    """Attention from rows of queries, keys and values [T, (heads + 2 kv heads) * d] → [T, heads * d].

    ``norms`` are of each head of queries and of keys; then both are rotated by ``turns``.
    """
    if isinstance(qkv, Value):
        assert turns is None or isinstance(turns, int), "a recording has no angles yet"
        if turns is not None or norms is not None:
            qkv.recorder.turn(qkv, spec, norms, -1 if turns is None else turns)
        return qkv.recorder.attention(qkv, spec)
    q, k, v = _split(qkv, spec)
    if norms is not None:
        q, k = (norm(x) for norm, x in zip(norms, (q, k), strict=True))
    if turns is not None:
        q, k = rotate(q, turns), rotate(k, turns)
    q, k, v = (x.reshape(len(x), -1) for x in (q, k, v))
    return decoder_attention(q, k, v, batch, spec)


def _split(qkv: Tensor, spec: AttentionSpec) -> tuple[Tensor, ...]:
    """Queries, keys, values, each [T, its heads, d]."""
    if spec.is_alternating:
        return qkv.view(len(qkv), spec.num_heads, 3, spec.head_dim).unbind(2)
    parts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    return qkv.view(len(qkv), -1, spec.head_dim).split_with_sizes(parts, 1)


def decoder_attention(q: Tensor, k: Tensor, v: Tensor, batch: FlatBatch, spec: AttentionSpec) -> Tensor:
    """Attention of every sequence with itself: q [T, heads * d], k and v [T, kv heads * d] → [T, heads * d].

    Formula: softmax(cap(q kᵀ scale)) v over the keys that a token sees; a group of heads / kv heads queries shares
    a key (Ainslie et al. 2023, arXiv:2305.13245).
    """
    out = torch.empty_like(q)
    if batch.kv is not None:
        batch.kv.store(spec.layer, k, v)
    for segment in _segments(batch):
        if not segment.length:  # empty sequences have no rows
            continue
        query, mixed = (_by_head(x[segment.rows], segment.num_seqs, spec.num_heads) for x in (q, out))
        if segment.slots is None:
            key, value = (_by_head(x[segment.rows], segment.num_seqs, spec.num_kv_heads) for x in (k, v))
            _attend(query, key, value, spec, mixed)
        else:
            _attend_kept(query, segment.slots, batch, spec, mixed)
    return out


def _segments(batch: FlatBatch) -> Iterator[Segment]:
    if batch.kv is not None:
        yield from batch.kv.segments
    else:
        yield from (Segment(*run) for run in batch.runs)


def _by_head(rows: Tensor, num_seqs: int, num_heads: int) -> Tensor:
    """[n * L, heads * d] → a view [n, heads, L, d]."""
    return rows.view(num_seqs, rows.shape[0] // num_seqs, num_heads, -1).transpose(1, 2)


def _attend_kept(query: Tensor, slots: Tensor, batch: FlatBatch, spec: AttentionSpec, out: Tensor) -> None:
    """Attention to keys and values at ``slots`` [n, K], copied once, for some sequences at a time."""
    assert batch.kv is not None
    if spec.window is not None:  # what even the first query does not see
        slots = slots[:, max(0, slots.shape[1] - query.shape[2] - spec.window + 1) :]
    step = max(1, _KEPT_NUMBERS // (slots.shape[1] * spec.num_kv_heads * spec.head_dim))
    for at in range(0, len(slots), step):
        own = slice(at, min(at + step, len(slots)))
        key, value = (
            x.view(*x.shape[:2], spec.num_kv_heads, spec.head_dim).transpose(1, 2)
            for x in batch.kv.load(spec.layer, slots[own])
        )
        _attend(query[own], key, value, spec, out[own])


def _attend(query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, out: Tensor) -> None:
    """Queries [n, heads, L, d] are the last L of the K keys [n, kv heads, K, d]; the result goes to ``out``."""
    num_keys, before = key.shape[2], key.shape[2] - query.shape[2]
    is_whole = spec.window is None or num_keys <= spec.window  # no query misses a key that the window hides
    if is_whole and spec.soft_cap is None and not (before and spec.is_causal):
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=spec.is_causal,
            scale=spec.scale,
            enable_gqa=spec.num_heads != spec.num_kv_heads,
        )
        out.copy_(mixed)
        return
    attend_block = _attend_fused if spec.soft_cap is None else _attend_plainly
    size = _BLOCK_QUERIES
    if spec.soft_cap is not None:
        size = min(size, max(1, _BLOCK_SCORES // (spec.num_heads * num_keys)))
    for start in range(0, query.shape[2], size):
        block = slice(start, min(start + size, query.shape[2]))
        seen = _seen_keys(before + block.start, before + block.stop, num_keys, spec)
        mask = _visible(before + block.start, before + block.stop, seen, spec, query.device)
        out[:, :, block].copy_(attend_block(query[:, :, block], key[:, :, seen], value[:, :, seen], mask, spec))


def _seen_keys(start: int, stop: int, num_keys: int, spec: AttentionSpec) -> slice:
    """The keys that any of the queries at positions ``start`` to ``stop`` sees."""
    last = stop if spec.is_causal else num_keys
    if spec.window is None:
        return slice(0, last)
    return slice(max(0, start - spec.window + 1), min(last, stop + spec.window - 1))


def _visible(start: int, stop: int, seen: slice, spec: AttentionSpec, device: torch.device) -> Tensor:
    """Which of the keys each query sees: bool [queries, keys]."""
    distance = torch.arange(start, stop, device=device)[:, None] - torch.arange(seen.start, seen.stop, device=device)
    visible = distance >= 0 if spec.is_causal else torch.ones_like(distance, dtype=torch.bool)
    return visible if spec.window is None else visible & (distance.abs() < spec.window)


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, spec: AttentionSpec) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=spec.scale, enable_gqa=spec.num_heads != spec.num_kv_heads
    )


def _attend_plainly(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, spec: AttentionSpec) -> Tensor:
    """The formula written out, for caps that no fused kernel knows; some sequences at a time."""
    num_seqs, num_heads, num_queries, size = query.shape
    assert spec.soft_cap is not None
    step = max(1, _BLOCK_SCORES // (num_heads * num_queries * key.shape[2]))
    parts = []
    for at in range(0, num_seqs, step):
        own_key, own_value = key[at : at + step], value[at : at + step]
        grouped = query[at : at + step].reshape(len(own_key), spec.num_kv_heads, -1, size)
        scores = (grouped @ own_key.transpose(2, 3)).float() * spec.scale
        scores = torch.tanh_(scores.div_(spec.soft_cap)).mul_(spec.soft_cap)
        scores.view(len(own_key), num_heads, num_queries, -1).masked_fill_(~mask, float("-inf"))
        mixed = scores.softmax(-1).to(value.dtype) @ own_value
        parts.append(mixed.view(len(own_key), num_heads, num_queries, size))
    return torch.cat(parts)


def attention_reference(q: Tensor, k: Tensor, v: Tensor, batch: FlatBatch, spec: AttentionSpec) -> Tensor:
    """The plain formula, one sequence at a time; tests compare ``decoder_attention`` with it."""
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    outs = []
    for start, end in pairwise(batch.cu_seqlens.tolist()):
        length = end - start
        query = q[start:end].view(length, heads, size).transpose(0, 1)
        key, value = (
            x[start:end].view(length, kv_heads, size).transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
            for x in (k, v)
        )
        scores = (query @ key.transpose(1, 2)).float() * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        hidden = distance < 0 if spec.is_causal else torch.zeros_like(distance, dtype=torch.bool)
        if spec.window is not None:
            hidden |= distance.abs() >= spec.window
        scores = scores.masked_fill(hidden.to(q.device), float("-inf"))
        outs.append((scores.softmax(-1).to(v.dtype) @ value).transpose(0, 1).reshape(length, heads * size))
    return torch.cat(outs)
