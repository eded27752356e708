"""Pooler: methods and head joined; from hidden states and parameters to one result a sequence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.layers.batch import FlatBatch
from forebay.pooling.cursor import Cursor
from forebay.pooling.heads import EmbedHead, Stage
from forebay.pooling.methods import METHODS


@dataclass(frozen=True, eq=False)
class LayerMix:
    """A weighted mean over the states of several layers (sentence-transformers' WeightedLayerPooling).

    ``weights`` float32 [layers from layer_start on]; index 0 is the embedding's output.
    """

    weights: Tensor
    layer_start: int


class LayerMixer:
    """Adds up the layers' states one by one, so that no two of them stand in memory for longer than needed."""

    def __init__(self, mix: LayerMix) -> None:
        self._mix = mix
        self._total = mix.weights.sum()
        self.mixed: Tensor | None = None

    def __call__(self, index: int, hidden: Tensor) -> None:
        """Take the states [T, H] of one layer."""
        if index < self._mix.layer_start:
            return
        part = hidden.float() * (self._mix.weights[index - self._mix.layer_start] / self._total)
        self.mixed = part if self.mixed is None else self.mixed + part


@dataclass(frozen=True, eq=False)
class Pooler:
    """Token stages, then methods (several are concatenated), then the head."""

    methods: tuple[str, ...]
    head: EmbedHead
    token_stages: Sequence[Stage] = ()
    layer_mix: LayerMix | None = None

    def pool(self, hidden: Tensor, cursor: Cursor) -> Tensor:
        """Hidden states [T, H] of n sequences → vectors float32 [n, D] before slice and normalisation."""
        for stage in self.token_stages:
            hidden = stage(hidden.float())
        pooled = [METHODS[name](hidden, cursor) for name in self.methods]
        return self.head.transform(pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1))

    def finish(self, vectors: Tensor, groups: Mapping[PoolingParams, Sequence[int]]) -> dict[PoolingParams, Tensor]:
        """Make each group's results: rows of ``vectors`` [n, D], by the parameters they share → [rows, d]."""
        results = {}
        for params, rows in groups.items():
            index = torch.as_tensor(rows, device=vectors.device)
            results[params] = self.head.finish(vectors[index], params)
        return results


class Model(Protocol):
    """What a pipeline needs of a model: hidden states [T, hidden_size] of a flat batch."""

    hidden_size: int

    def __call__(self, batch: FlatBatch, on_layer: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Return the last hidden states."""
        ...


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A model and its pooler: everything between tokens and vectors."""

    model: Model
    pooler: Pooler

    def __call__(self, batch: FlatBatch, cursor: Cursor) -> Tensor:
        """A flat batch of n sequences → vectors float32 [n, D] before slice and normalisation."""
        if batch.input_ids.numel() == 0:  # every sequence is empty, and kernels dislike empty operands
            hidden = torch.zeros(0, self.model.hidden_size, device=batch.input_ids.device)
        elif self.pooler.layer_mix is None:
            hidden = self.model(batch)
        else:
            mixer = LayerMixer(self.pooler.layer_mix)
            self.model(batch, mixer)
            if mixer.mixed is None:
                raise AssertionError("no layer reached the mixer: layer_start must be checked at load")
            hidden = mixer.mixed
        return self.pooler.pool(hidden, cursor)
