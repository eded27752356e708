"""Attention over the ragged sequences of a flat batch.

Sequences are ordered by length, so that equal ones lie side by side: each run is one call of the fused kernel
on a view of the batch, with neither padding nor mask.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.layers.batch import FlatBatch
from forebay.layers.decoder_attention import AttentionSpec
from forebay.layers.key_lens import hide_keys
from forebay.layers.program import State, Value


def attention(qkv: State, num_heads: int, batch: FlatBatch, bias: Tensor | None = None) -> State:
    """Bidirectional attention of every sequence with itself.

    ``qkv`` is [T, 3 * H] (queries, keys, values side by side), H = num_heads * head size; ``bias``, added to
    the scaled scores, is [num_heads, L, L] for the longest sequence and is cut for shorter ones, so it may
    depend only on positions; keys beyond the batch's ``key_lens`` are not seen. Returns [T, H].
    Formula: softmax(q kᵀ / sqrt(d) + bias) v (Vaswani et al. 2017).
    """
    if isinstance(qkv, Value):
        size = qkv.width // 3 // num_heads
        return qkv.recorder.attention(qkv, AttentionSpec(0, num_heads, num_heads, size, size**-0.5, is_causal=False))
    num_tokens, width = qkv.shape[0], qkv.shape[1] // 3
    out = qkv.new_empty(num_tokens, num_heads, width // num_heads)
    first = 0
    for run in batch.runs:
        key_lens = None if batch.key_lens is None else batch.key_lens[first : first + run.num_seqs]
        first += run.num_seqs
        if run.length == 0:  # empty sequences have no rows
            continue
        shape = (run.num_seqs, run.length, 3, num_heads, width // num_heads)
        q, k, v = qkv[run.rows].view(shape).permute(2, 0, 3, 1, 4)  # each [n, heads, L, d]
        mask = None if bias is None else bias[None, :, : run.length, : run.length]
        if key_lens is not None and (key_lens < run.length).any():
            hidden = hide_keys(key_lens, run.length, qkv)[:, None, None]  # [n, 1, 1, L]
            mask = hidden if mask is None else mask + hidden
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out[run.rows].view(run.num_seqs, run.length, num_heads, -1).copy_(mixed.transpose(1, 2))
    return out.view(num_tokens, width)


def attention_reference(qkv: Tensor, num_heads: int, batch: FlatBatch, bias: Tensor | None = None) -> Tensor:
    """The same, one sequence and one plain formula at a time; tests compare ``attention`` with it."""
    width = qkv.shape[1] // 3
    outs: list[Tensor] = []
    borders = batch.cu_seqlens.tolist()
    for start, end in pairwise(borders):
        length = end - start
        q, k, v = qkv[start:end].view(length, 3, num_heads, width // num_heads).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) / (width // num_heads) ** 0.5
        if bias is not None:
            scores = scores + bias[:, :length, :length]
        if batch.key_lens is not None:
            scores[:, :, int(batch.key_lens[len(outs)]) :] = -torch.inf
        outs.append((scores.softmax(-1) @ v).transpose(0, 1).reshape(length, width))
    return torch.cat(outs)
