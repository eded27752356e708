"""BERT (Devlin et al. 2018, arXiv:1810.04805): word + position + type embeddings, post-norm layers."""

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
    refuse,
    run_layers,
)

LAYER_NAMES: dict[str, str | tuple[str, int]] = {
    "attention.self.query": ("qkv", 0),
    "attention.self.key": ("qkv", 1),
    "attention.self.value": ("qkv", 2),
    "attention.output.dense": "attention_out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "ffn_in",
    "output.dense": "ffn_out",
    "output.LayerNorm": "ffn_norm",
}
EMBEDDING_NAMES = {
    "embeddings.word_embeddings": "embeddings.words",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.token_type_embeddings": "embeddings.types",
    "embeddings.LayerNorm": "embeddings.norm",
}
UNUSED_HEADS = (
    r"pooler\..*",
    r"embeddings\.position_ids",
    r"(cls|lm_head|classifier|qa_outputs)\..*",
)


class Bert(Encoder):
    """Post-norm encoder with learned absolute positions."""

    naming = Naming(("bert.",), "encoder.layer.", LAYER_NAMES, EMBEDDING_NAMES, UNUSED_HEADS)
    heads: ClassVar[Mapping[HeadKind, HeadNames]] = {
        "sequence": HeadNames({"pooler.dense": "dense", "classifier": "out"}, "tanh"),
        "token": HeadNames({"classifier": "out"}),
        "masked_lm": HeadNames(
            {
                "cls.predictions.transform.dense": "dense",
                "cls.predictions.transform.LayerNorm": "norm",
                "cls.predictions.decoder": "decoder",
            },
            spare={"cls.predictions": "decoder"},
        ),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        refuse(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
        self.hidden_size = read(config, "hidden_size")
        self.num_layers = read(config, "num_hidden_layers")
        self.vocab_size = read(config, "vocab_size")
        self.max_len: int = read(config, "max_position_embeddings")
        eps = read(config, "layer_norm_eps", float, 1e-12)
        num_types = read(config, "type_vocab_size", default=2)
        self.embeddings = Embeddings(self.vocab_size, self.max_len, num_types, self.hidden_size, eps)
        sizes = LayerSizes(
            self.hidden_size,
            read(config, "num_attention_heads"),
            read(config, "intermediate_size"),
            eps,
            read(config, "hidden_act", str, "gelu"),
        )
        self.layers = nn.ModuleList(PostNormLayer(sizes) for _ in range(self.num_layers))

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, then layers."""
        return run_layers(self.layers, self.embeddings(inputs), inputs, on_layer)
