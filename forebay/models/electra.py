"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT's network, with a word table that may be narrower."""

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
from forebay.models.bert import EMBEDDING_NAMES, LAYER_NAMES


class Electra(Encoder):
    """Post-norm encoder with learned absolute positions; embeddings are projected where their width differs."""

    naming = Naming(
        ("electra.",),
        "encoder.layer.",
        LAYER_NAMES,
        {**EMBEDDING_NAMES, "embeddings_project": "project"},
        (
            r"embeddings\.position_ids",
            r"(classifier|sequence_summary|qa_outputs)\..*",
            r"discriminator_predictions\..*",
            r"generator_(predictions|lm_head)\..*",
        ),
    )
    heads: ClassVar[Mapping[HeadKind, HeadNames]] = {
        "sequence": HeadNames({"classifier.dense": "dense", "classifier.out_proj": "out"}, "gelu"),
        "token": HeadNames({"classifier": "out"}),
        "masked_lm": HeadNames(
            {
                "generator_predictions.dense": "dense",
                "generator_predictions.LayerNorm": "norm",
                "generator_lm_head": "decoder",
            },
            "gelu",
        ),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        refuse(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
        self.hidden_size = read(config, "hidden_size")
        self.num_layers = read(config, "num_hidden_layers")
        self.vocab_size = read(config, "vocab_size")
        self.max_len: int = read(config, "max_position_embeddings")
        self._embedding_size: int = read(config, "embedding_size", default=self.hidden_size)
        eps = read(config, "layer_norm_eps", float, 1e-12)
        num_types = read(config, "type_vocab_size", default=2)
        self.embeddings = Embeddings(self.vocab_size, self.max_len, num_types, self._embedding_size, eps)
        is_narrow = self._embedding_size != self.hidden_size
        self.project = Linear(self._embedding_size, self.hidden_size) if is_narrow else nn.Identity()
        sizes = LayerSizes(
            self.hidden_size,
            read(config, "num_attention_heads"),
            read(config, "intermediate_size"),
            eps,
            read(config, "hidden_act", str, "gelu"),
        )
        self.layers = nn.ModuleList(PostNormLayer(sizes) for _ in range(self.num_layers))

    @property
    def embedding_size(self) -> int:
        """Width of the word table."""
        return self._embedding_size

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """Embeddings, widened where they are narrower, then layers."""
        return run_layers(self.layers, self.project(self.embeddings(inputs)), inputs, on_layer)
