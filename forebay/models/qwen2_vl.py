"""Qwen2-VL (Wang et al. 2024, arXiv:2409.12191), its language side: Qwen2 whose positions have three parts.

In a text the three parts of a position (time, height, width) are equal, so that its rotation is the ordinary one.
The vision tower is not built.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from forebay.layers.rotary import read_parameters, read_rotary
from forebay.models.base import HeadKind, HeadNames, Naming, read
from forebay.models.decoder import HEADS, LLAMA_LAYER, LLAMA_OUTSIDE, UNUSED, Decoder, llama_shape
from forebay.models.heads import RankingHead
from forebay.models.qwen2 import qwen_windows

_THETA = 1e6
_EPSILON = 1e-5
_FIRST_WINDOW = 80


class Qwen2VL(Decoder):
    """Reads texts; the ids that stand for pictures and films are ``media_ids``."""

    naming = Naming(
        ("model.language_model.", "language_model.model.", "model."),
        "layers.",
        LLAMA_LAYER,
        LLAMA_OUTSIDE,
        (*UNUSED, r"visual\..*", r"language_model\.lm_head\..*"),
    )
    heads: ClassVar[dict[HeadKind, HeadNames]] = {
        **HEADS,
        "ranking": HeadNames({"score.0": "dense", "score.2": "out"}),
    }
    left_out = ("visual.", "model.visual.")

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = {"rms_norm_eps": _EPSILON, "max_window_layers": _FIRST_WINDOW, **config}
        text |= config.get("text_config") or {}
        parameters = read_parameters(text)
        if (parameters.get("rope_type") or parameters.get("type")) == "mrope":
            parameters |= {"rope_type": "default", "type": "default"}
        head_dim = read(text, "hidden_size") // read(text, "num_attention_heads")
        rotaries = {"": read_rotary(text, parameters, head_dim, theta=_THETA)}
        shape = llama_shape(text, windows=qwen_windows(text), rotaries=rotaries, qkv_bias=True)
        super().__init__(text, shape)
        names = ("image_token_id", "video_token_id")
        self.media_ids = frozenset(id_ for name in names if isinstance(id_ := config.get(name), int))

    def make_head(self, kind: HeadKind, num_labels: int) -> nn.Module | None:
        """jina-reranker-m0's score: two layers, ReLU between."""
        return RankingHead(self.hidden_size, num_labels) if kind == "ranking" else None
