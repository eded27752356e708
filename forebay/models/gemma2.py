"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): norms around both halves, capped scores, every other layer local."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from forebay.layers.norm import RMSNorm
from forebay.models.base import read
from forebay.models.decoder import (
    Decoder,
    DecoderShape,
    is_causal,
    layer_windows,
    llama_naming,
    llama_shape,
    read_kinds,
)

_HEAD_DIM = 256
_WINDOW = 4096
_SOFT_CAP = 50.0  # where the config has no word of it; null there means none

GEMMA_NORMS = {
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "ffn_post_norm",
}


def gemma_shape(config: Mapping[str, Any], **more: Any) -> DecoderShape:
    """What both Gemmas have in common."""
    bias = read(config, "attention_bias", bool, False)
    scale = read(config, "query_pre_attn_scalar", float, 256.0) ** -0.5
    return llama_shape(
        config,
        head_dim=_HEAD_DIM,
        norm=partial(RMSNorm, eps=read(config, "rms_norm_eps", float, 1e-6), offset=1.0),
        activation=read(config, "hidden_activation", str, "gelu_pytorch_tanh"),
        scales=[scale] * read(config, "num_hidden_layers"),
        qkv_bias=bias,
        out_bias=bias,
        has_post_norms=True,
        **more,
    )


class Gemma(Decoder):
    """Word embeddings are multiplied by the root of their width, rounded to their own type as in training."""

    @property
    def word_factor(self) -> float:
        """What the embeddings are multiplied by."""
        return math.sqrt(self.hidden_size)


class Gemma2(Gemma):
    """Layers 0, 2, 4, … have a sliding window unless ``layer_types`` says otherwise.

    ``use_bidirectional_attention`` means what ``is_causal: false`` means: the window's number is then the largest
    distance to either side, and not halved, which is Gemma 3's own rule.
    """

    naming = llama_naming(**GEMMA_NORMS)

    def __init__(self, config: Mapping[str, Any]) -> None:
        window = read(config, "sliding_window", default=_WINDOW)
        kinds = read_kinds(config, lambda index: index % 2 == 0)
        soft_cap = config.get("attn_logit_softcapping", _SOFT_CAP)
        windows = layer_windows(kinds, window, is_causal=is_causal(config))
        super().__init__(config, gemma_shape(config, windows=windows, soft_cap=soft_cap))
