"""MPNet (Song et al. 2020, arXiv:2004.09297): RoBERTa's positions plus one relative bias shared by all layers."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forebay.layers.batch import FlatBatch
from forebay.layers.embedding import Embeddings, Table
from forebay.layers.program import Inputs, Recorder, State
from forebay.models.base import Encoder, LayerHook, LayerSizes, Naming, PostNormLayer, read, run_layers
from forebay.models.roberta import ROBERTA_HEADS, offset_positions

_MAX_DISTANCE = 128


def relative_buckets(length: int, num_buckets: int, device: torch.device) -> Tensor:
    """Bucket of every (query, key) pair, int64 [length, length]: T5's bidirectional scheme (Raffel et al. 2019).

    Half of the buckets serve keys behind the query. In each half the near distances have a bucket each and the
    far ones, up to 128, share the rest logarithmically, computed in float32 and cut toward zero.
    """
    positions = torch.arange(length, device=device)
    distance = positions[None, :] - positions[:, None]  # key minus query
    half = num_buckets // 2
    exact = half // 2
    near = distance.abs()
    scaled = torch.log(near.clamp(min=1).float() / exact) / math.log(_MAX_DISTANCE / exact) * (half - exact)
    far = (exact + scaled.long()).clamp(max=half - 1)
    return (distance > 0).long() * half + torch.where(near < exact, near, far)


class MPNet(Encoder):
    """Post-norm encoder with offset positions, no token types and a relative bias on the attention scores."""

    naming = Naming(
        ("mpnet.",),
        "encoder.layer.",
        {
            "attention.attn.q": ("qkv", 0),
            "attention.attn.k": ("qkv", 1),
            "attention.attn.v": ("qkv", 2),
            "attention.attn.o": "attention_out",
            "attention.LayerNorm": "attention_norm",
            "intermediate.dense": "ffn_in",
            "output.dense": "ffn_out",
            "output.LayerNorm": "ffn_norm",
        },
        {
            "embeddings.word_embeddings": "embeddings.words",
            "embeddings.position_embeddings": "embeddings.positions",
            "embeddings.LayerNorm": "embeddings.norm",
            "encoder.relative_attention_bias": "relative_bias",
        },
        (r"pooler\..*", r"embeddings\.position_ids", r"(lm_head|classifier|qa_outputs)\..*"),
    )

    heads = ROBERTA_HEADS

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.hidden_size = read(config, "hidden_size")
        self.num_layers = read(config, "num_hidden_layers")
        self.vocab_size = read(config, "vocab_size")
        self.padding_id = read(config, "pad_token_id", default=1, at_least=0)
        self.max_len = read(config, "max_position_embeddings") - self.padding_id - 1
        eps = read(config, "layer_norm_eps", float, 1e-12)
        num_heads = read(config, "num_attention_heads")
        self.embeddings = Embeddings(self.vocab_size, read(config, "max_position_embeddings"), 0, self.hidden_size, eps)
        self.relative_bias = Table(read(config, "relative_attention_num_buckets", default=32), num_heads)
        sizes = LayerSizes(
            self.hidden_size, num_heads, read(config, "intermediate_size"), eps, read(config, "hidden_act", str, "gelu")
        )
        self.layers = nn.ModuleList(PostNormLayer(sizes) for _ in range(self.num_layers))

    def position_ids(self, batch: FlatBatch) -> Tensor:
        """Rows of the position table [T]."""
        return offset_positions(batch, self.padding_id)

    def attention_bias(self, batch: FlatBatch) -> Tensor:
        """The bias [heads, L, L] of every pair of positions."""
        buckets = relative_buckets(batch.max_len, self.relative_bias.num_embeddings, batch.input_ids.device)
        bias: Tensor = self.relative_bias(buckets).permute(2, 0, 1).contiguous()
        return bias

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, then layers."""
        return run_layers(self.layers, self.embeddings(inputs), inputs, on_layer)
