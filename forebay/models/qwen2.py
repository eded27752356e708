"""Qwen2 (Yang et al. 2024, arXiv:2407.10671): Llama with biases on queries, keys and values."""

from collections.abc import Mapping
from typing import Any

from forebay.models.base import read
from forebay.models.decoder import Decoder, is_causal, layer_windows, llama_naming, llama_shape, read_kinds


def qwen_windows(config: Mapping[str, Any]) -> list[int | None]:
    """Each layer's window: none unless ``use_sliding_window``, and then from layer ``max_window_layers`` on."""
    window = read(config, "sliding_window", default=4096) if config.get("use_sliding_window") else None
    first = read(config, "max_window_layers", default=28, at_least=0)
    kinds = read_kinds(config, lambda index: window is not None and index >= first)
    return layer_windows(kinds, window, is_causal=is_causal(config))


class Qwen2(Decoder):
    """Upper layers may have sliding windows."""

    naming = llama_naming()

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, llama_shape(config, windows=qwen_windows(config), qkv_bias=True))
