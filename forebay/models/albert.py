"""ALBERT (Lan et al. 2019, arXiv:1909.11942): BERT with a narrow word table and layers that share their weights."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from forebay.layers.batch import FlatBatch
from forebay.layers.linear import Linear
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
        self.max_len = read(config, "max_position_embeddings")
        self._embedding_size: int = read(config, "embedding_size", default=128)
        eps = read(config, "layer_norm_eps", float, 1e-12)
        self.words = nn.Embedding(self.vocab_size, self._embedding_size)
        self.positions = nn.Embedding(read(config, "max_position_embeddings"), self._embedding_size)
        self.types = nn.Embedding(read(config, "type_vocab_size", default=2), self._embedding_size)
        self.norm = nn.LayerNorm(self._embedding_size, eps=eps)
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

    def forward(self, batch: FlatBatch, on_layer: LayerHook | None = None) -> Tensor:
        """Return the last hidden states [T, H]."""
        x: Tensor = self.words(batch.input_ids) + self.positions(batch.positions)
        x += self.types.weight[0] if batch.type_ids is None else self.types(batch.type_ids)
        x = self.project(self.norm(x))
        if on_layer is not None:
            on_layer(0, x)
        for index in range(self.num_layers):
            x = self.layers[int(index / (self.num_layers / len(self.layers)))](x, batch)  # rounded as in training
            if on_layer is not None:
                on_layer(index + 1, x)
        return x
