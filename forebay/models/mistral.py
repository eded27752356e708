"""Mistral (Jiang et al. 2023, arXiv:2310.06825): Llama with a sliding window in all layers."""

from collections.abc import Mapping
from typing import Any

from forebay.models.base import read
from forebay.models.decoder import SLIDING, Decoder, is_causal, layer_windows, llama_naming, llama_shape

_WINDOW = 4096  # where the config has no word of it; null there means none


class Mistral(Decoder):
    """Layers that see the same number of tokens before each."""

    naming = llama_naming()

    def __init__(self, config: Mapping[str, Any]) -> None:
        window = config.get("sliding_window", _WINDOW)
        kinds = [SLIDING if window is not None else ""] * read(config, "num_hidden_layers")
        super().__init__(config, llama_shape(config, windows=layer_windows(kinds, window, is_causal=is_causal(config))))
