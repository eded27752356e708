"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): queries and keys are normalised head by head; no biases."""

from collections.abc import Mapping
from typing import Any

from forebay.models.base import read
from forebay.models.decoder import Decoder, llama_naming, llama_shape
from forebay.models.qwen2 import qwen_windows

_HEAD_DIM = 128  # of the class, whatever the sizes are


class Qwen3(Decoder):
    """Heads may be wider than their share of the hidden size."""

    naming = llama_naming(self_attn__q_norm="query_norm", self_attn__k_norm="key_norm")

    def __init__(self, config: Mapping[str, Any]) -> None:
        bias = read(config, "attention_bias", bool, False)
        shape = llama_shape(
            config,
            head_dim=_HEAD_DIM,
            windows=qwen_windows(config),
            qkv_bias=bias,
            out_bias=bias,
            has_head_norms=True,
        )
        super().__init__(config, shape)
