"""Gemma (Gemma Team 2024, arXiv:2403.08295): Llama with scaled word embeddings and norms whose weights start from 1."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from forebay.layers.norm import RMSNorm
from forebay.models.base import read
from forebay.models.decoder import llama_naming, llama_shape
from forebay.models.gemma2 import Gemma

_HEAD_DIM = 256  # of the class, whatever the sizes are
_TANH = "gelu_pytorch_tanh"


class Gemma1(Gemma):
    """Every layer sees the whole text before a token. "gelu" in its configs stands for the tanh form."""

    naming = llama_naming()

    def __init__(self, config: Mapping[str, Any]) -> None:
        bias = read(config, "attention_bias", bool, False)
        activation = read(config, "hidden_act", str, _TANH)
        shape = llama_shape(
            config,
            head_dim=_HEAD_DIM,
            norm=partial(RMSNorm, eps=read(config, "rms_norm_eps", float, 1e-6), offset=1.0),
            activation=_TANH if activation == "gelu" else activation,
            qkv_bias=bias,
            out_bias=bias,
        )
        super().__init__(config, shape)
