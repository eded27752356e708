"""Attention of decoder models over a flat batch: grouped heads, causal or not, sliding windows, soft caps.

It knows no architecture. Queries and keys come with their positions already rotated into them.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from forebay.layers.batch import FlatBatch


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends. ``layer`` is its number from 0; ``scale`` multiplies the scores.

    ``window`` is how many keys a token sees at most: itself and those before it where ``is_causal``, else those with
    a distance below it on either side. ``soft_cap`` c bounds scores to c tanh(score / c).
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    is_causal: bool = True
    window: int | None = None
    soft_cap: float | None = None


def decoder_attention(q: Tensor, k: Tensor, v: Tensor, batch: FlatBatch, spec: AttentionSpec) -> Tensor:
    """Attention of every sequence with itself: q [T, heads * d], k and v [T, kv heads * d] → [T, heads * d]."""
    return attention_reference(q, k, v, batch, spec)


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
