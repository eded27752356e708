"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT without token types, under names of its own."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from forebay.layers.embedding import Embeddings
from forebay.layers.program import Inputs, Recorder, State
from forebay.models.base import (
    Encoder,
    HeadKind,
    HeadNames,
    LayerHook,
    LayerSizes,
    Naming,
    PostNormLayer,
    read,
    run_layers,
)

_NORM_EPS = 1e-12  # fixed in the architecture, absent from its config


class DistilBert(Encoder):
    """Post-norm encoder; sinusoidal positions, where a checkpoint has them, are stored as a table all the same."""

    naming = Naming(
        ("distilbert.",),
        "transformer.layer.",
        {
            "attention.q_lin": ("qkv", 0),
            "attention.k_lin": ("qkv", 1),
            "attention.v_lin": ("qkv", 2),
            "attention.out_lin": "attention_out",
            "sa_layer_norm": "attention_norm",
            "ffn.lin1": "ffn_in",
            "ffn.lin2": "ffn_out",
            "output_layer_norm": "ffn_norm",
        },
        {
            "embeddings.word_embeddings": "embeddings.words",
            "embeddings.position_embeddings": "embeddings.positions",
            "embeddings.LayerNorm": "embeddings.norm",
        },
        (r"embeddings\.position_ids", r"vocab_.*", r"pre_classifier\..*", r"classifier\..*", r"qa_outputs\..*"),
    )

    heads: ClassVar[Mapping[HeadKind, HeadNames]] = {
        "sequence": HeadNames({"pre_classifier": "dense", "classifier": "out"}, "relu"),
        "token": HeadNames({"classifier": "out"}),
        "masked_lm": HeadNames({"vocab_transform": "dense", "vocab_layer_norm": "norm", "vocab_projector": "decoder"}),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.hidden_size = read(config, "dim")
        self.num_layers = read(config, "n_layers")
        self.vocab_size = read(config, "vocab_size")
        self.max_len: int = read(config, "max_position_embeddings")
        self.embeddings = Embeddings(self.vocab_size, self.max_len, 0, self.hidden_size, _NORM_EPS)
        sizes = LayerSizes(
            self.hidden_size,
            read(config, "n_heads"),
            read(config, "hidden_dim"),
            _NORM_EPS,
            read(config, "activation", str, "gelu"),
        )
        self.layers = nn.ModuleList(PostNormLayer(sizes) for _ in range(self.num_layers))

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, then layers."""
        return run_layers(self.layers, self.embeddings(inputs), inputs, on_layer)
