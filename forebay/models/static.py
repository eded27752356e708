"""Static embeddings: one trained vector a token, no context (sentence-transformers' StaticEmbedding, model2vec)."""

import torch
from torch import Tensor

from forebay.layers.embedding import Table
from forebay.layers.program import Inputs, NoNativeForm, Recorder, State
from forebay.models.base import Encoder, LayerHook, Naming


class StaticEmbedding(Encoder):
    """A lookup table; its hidden states are the tokens' vectors, and their mean is the text's."""

    naming = Naming((), "layers.", {}, {"embedding": "embedding"})

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = 0
        self.vocab_size = vocab_size
        self.max_len = None
        self.embedding = Table(vocab_size, hidden_size)

    def compute(self, inputs: Inputs | Recorder, on_layer: LayerHook | None) -> State:
        """The tokens' vectors [T, H]."""
        if isinstance(inputs, Recorder):
            raise NoNativeForm("a lookup needs no kernels")
        x: Tensor = self.embedding(inputs.batch.input_ids)
        if on_layer is not None:
            on_layer(0, x)
        return x


def fold_model2vec(embeddings: Tensor, mapping: Tensor | None, weights: Tensor | None) -> Tensor:
    """One row a token id from model2vec's shared rows: ``embeddings[mapping[id]] * weights[id]``, float32 [V, H]."""
    rows = embeddings.float() if mapping is None else embeddings[mapping.long()].float()
    return rows if weights is None else rows * weights.to(torch.float32)[:, None]
