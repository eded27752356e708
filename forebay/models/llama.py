"""Llama (Touvron et al. 2023, arXiv:2302.13971): RMSNorm, rotary positions, gated SiLU, grouped heads."""

from collections.abc import Mapping
from typing import Any

from forebay.models.base import read
from forebay.models.decoder import Decoder, llama_naming, llama_shape


class Llama(Decoder):
    """Every layer sees the whole text before a token."""

    naming = llama_naming()

    def __init__(self, config: Mapping[str, Any]) -> None:
        bias = read(config, "attention_bias", bool, False)
        ffn_bias = read(config, "mlp_bias", bool, False)
        super().__init__(config, llama_shape(config, qkv_bias=bias, out_bias=bias, ffn_bias=ffn_bias))


class LlamaBidirectional(Llama):
    """Llama whose tokens see the whole text; NVIDIA's embedders and rerankers are of this kind."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__({**config, "is_causal": False})
