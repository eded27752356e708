"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786), also EmbeddingGemma: local and global layers with own rotations."""

from collections.abc import Mapping
from typing import Any

from forebay.layers.rotary import Rotary, read_rotary
from forebay.models.base import read, refuse
from forebay.models.decoder import SLIDING, is_causal, layer_windows, llama_naming, read_kinds
from forebay.models.gemma2 import GEMMA_NORMS, Gemma, gemma_shape

_HEAD_DIM = 256
_WINDOW = 4096
_PATTERN = 6  # every sixth layer is global
_THETAS = {SLIDING: 1e4, "full_attention": 1e6}
_OLD_NAMES = {SLIDING: "rope_local_base_freq", "full_attention": "rope_theta"}


def _rotary(config: Mapping[str, Any], kind: str) -> Rotary:
    """One kind's rotation: the older schema scales that of the global layers only."""
    parameters = dict((config.get("rope_parameters") or {}).get(kind) or {})
    if kind != SLIDING:
        parameters |= config.get("rope_scaling") or {}
    if config.get(_OLD_NAMES[kind]) is not None:
        parameters.setdefault("rope_theta", config[_OLD_NAMES[kind]])
    return read_rotary(config, parameters, read(config, "head_dim", default=_HEAD_DIM), theta=_THETAS[kind])


class Gemma3(Gemma):
    """Queries and keys are normalised head by head; without causality a window of w reaches w / 2 to either side."""

    naming = llama_naming(**GEMMA_NORMS, self_attn__q_norm="query_norm", self_attn__k_norm="key_norm")

    def __init__(self, config: Mapping[str, Any]) -> None:
        refuse(config, attn_logit_softcapping=None)
        pattern = read(config, "sliding_window_pattern", default=_PATTERN)
        kinds = read_kinds(config, lambda index: bool((index + 1) % pattern))
        window = read(config, "sliding_window", default=_WINDOW)
        if config.get("use_bidirectional_attention"):
            window //= 2
        shape = gemma_shape(
            config,
            windows=layer_windows(kinds, window, is_causal=is_causal(config)),
            kinds=kinds,
            rotaries={kind: _rotary(config, kind) for kind in dict.fromkeys(kinds)},
            has_head_norms=True,
        )
        super().__init__(config, shape)
