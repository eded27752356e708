"""ALBERT (Lan et al. 2019, arXiv:1909.11942): BERT with a narrow word table and layers that share their weights."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from forebay.layers.embedding import Embeddings
from forebay.layers.linear import Linear
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
from forebay.models.bert import EMBEDDING_NAMES


class Albert(Encoder):
    """Post-norm encoder whose ``num_layers`` passes go through ``num_hidden_groups`` sets of weights."""

    naming = Naming(
        ("albert.",),
        "encoder.albert_layer_groups.",
        {
            "albert_layers.0.attention.query": ("qkv", 0),
            "albert_layers.0.attention.key": ("qkv", 1),
            "albert_layers.0.attention.value": ("qkv", 2),
            "albert_layers.0.attention.dense": "attention_out",
            "albert_layers.0.attention.LayerNorm": "attention_norm",
            "albert_layers.0.ffn": "ffn_in",
            "albert_layers.0.ffn_output": "ffn_out",
            "albert_layers.0.full_layer_layer_norm": "ffn_norm",
        },
        {**EMBEDDING_NAMES, "encoder.embedding_hidden_mapping_in": "project"},
        (
            r"pooler\..*",
            r"embeddings\.position_ids",
            r"predictions\..*",
            r"(sop_classifier|classifier|qa_outputs)\..*",
        ),
    )
    heads: ClassVar[Mapping[HeadKind, HeadNames]] = {
        "sequence": HeadNames({"pooler": "dense", "classifier": "out"}, "tanh"),
        "token": HeadNames({"classifier": "out"}),
        "masked_lm": HeadNames(
            {
                "predictions.dense": "dense",
                "predictions.LayerNorm": "norm",
                "predictions.decoder": "decoder",
            },
            spare={"predictions": "decoder"},
        ),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        refuse(config, position_embedding_type="absolute", inner_group_num=1)
        self.hidden_size = read(config, "hidden_size")
        self.num_layers = read(config, "num_hidden_layers")
        self.vocab_size = read(config, "vocab_size")
        self.max_len: int = read(config, "max_position_embeddings")
        self._embedding_size: int = read(config, "embedding_size", default=128)
        eps = read(config, "layer_norm_eps", float, 1e-12)
        num_types = read(config, "type_vocab_size", default=2)
        self.embeddings = Embeddings(self.vocab_size, self.max_len, num_types, self._embedding_size, eps)
        self.project = Linear(self._embedding_size, self.hidden_size)
        sizes = LayerSizes(
            self.hidden_size,
            read(config, "num_attention_heads"),
            read(config, "intermediate_size"),
            eps,
            read(config, "hidden_act", str, "gelu_new"),
        )
        num_groups = read(config, "num_hidden_groups", default=1)
        self.layers = nn.ModuleList(PostNormLayer(sizes) for _ in range(num_groups))

    @property
    def embedding_size(self) -> int:
        """Width of the word table."""
        return self._embedding_size

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, widened, then passes through the groups of layers."""
        passes_a_group = self.num_layers / len(self.layers)
        passes = [
            self.layers[int(index / passes_a_group)] for index in range(self.num_layers)
        ]  # rounded as in training
        return run_layers(passes, self.project(self.embeddings(inputs)), inputs, on_layer)
