"""Reads a plan's modules from their files: backbones with their heads, and the small modules behind them.

Routes that share a backbone's folder share its weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.checkpoint.classifier import labels_of
from forebay.checkpoint.pipeline import (
    DenseStage,
    LayerNormStage,
    NormalizeStage,
    StaticEmbeddingStage,
    TransformerStage,
    WeightedLayerPoolingStage,
)
from forebay.checkpoint.weights import iter_weights, load_file, load_sparse_static, load_tensors, stored_names
from forebay.core.config import ModelOptions
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint, WeightsMismatch
from forebay.layers.native import choose_kernels
from forebay.layers.program import NoNativeForm, Program, Recorder
from forebay.loading.fill import fill, pick_rows
from forebay.loading.plan import Backbone, Log, Plan, RoutePlan
from forebay.models.base import Encoder, Naming
from forebay.models.heads import attach_head, attach_rows
from forebay.models.registry import build_encoder, is_decoder
from forebay.models.static import StaticEmbedding, fold_model2vec
from forebay.pooling.activations import identity, module_activation
from forebay.pooling.heads import Dense, LayerNorm, Stage, normalize
from forebay.pooling.pooler import LayerMix


@dataclass(slots=True)
class Loader:
    """What the routes of one checkpoint share while it is loaded."""

    plan: Plan
    options: ModelOptions
    log: Log
    backbones: dict[tuple[Path, str | None], Encoder] = field(default_factory=dict)
    num_parameters: int = 0

    @property
    def device(self) -> torch.device:
        """Where the weights go."""
        return torch.device(self.plan.device)

    def backbone(self, route: RoutePlan, num_tokens: int) -> Encoder:
        """Build and fill a backbone with the route's head, once for each folder.

        ``num_tokens`` is the tokenizer's vocabulary: tokens that a static sparse table does not reach weigh nothing.
        """
        key = (route.backbone.folder, route.head)
        if key not in self.backbones:
            self.backbones[key] = self._load(route, num_tokens)
        return self.backbones[key]

    def _load(self, route: RoutePlan, num_tokens: int) -> Encoder:
        stage: Backbone = route.backbone
        if isinstance(stage, StaticEmbeddingStage):
            return self._static(_read_static(stage.folder))
        if not isinstance(stage, TransformerStage):
            weights = load_sparse_static(stage.folder).float()
            return self._static(F.pad(weights, (0, max(0, num_tokens - len(weights))))[:, None])
        with torch.device("meta"):
            model = build_encoder(stage.config)
            naming = self._attach(route, stage, model)
        recorder = self._choose_path(model)
        # A program rounds the products of its layers itself; all else in it is float32.
        dtype = torch.float32 if recorder is not None else getattr(torch, self.plan.dtype)
        tensors: Iterable[tuple[str, Tensor]] = (
            (name, tensor) for name, tensor in iter_weights(stage.folder) if name not in route.other_tensors
        )
        if route.rows:
            tensors = pick_rows(tensors, naming, route.rows, is_tied=_is_tied(stage.config))
        self.num_parameters += fill(model, naming, tensors, dtype, self.device)
        if recorder is not None:
            model.program = Program(recorder)
        if model.left_out:
            num = sum(name.startswith(model.left_out) for name in stored_names(stage.folder))
            self.log.say("vision", f"not loaded: {num} tensors ({model.left_out[0]}*); texts only", "the architecture")
        return model.eval()

    def _attach(self, route: RoutePlan, stage: TransformerStage, model: Encoder) -> Naming:
        if route.rows:
            if max(route.rows) >= model.vocab_size or min(route.rows) < 0:
                raise UnsupportedCheckpoint(
                    f"the answers are the tokens {', '.join(map(str, route.rows))}, but the vocabulary has "
                    f"{model.vocab_size}"
                )
            return attach_rows(model, stage.config, len(route.rows), is_score=route.kind == "yes_no")
        if route.head is None:
            return model.naming
        has_bias = True
        if route.head == "score" or (route.head != "ranking" and is_decoder(stage.config)):
            has_bias = bool(stored_names(stage.folder) & {"score.bias", "classifier.bias"})
            self.log.say("head", f"{route.head}{'' if has_bias else ' without bias'}", "the names of the weights")
        return attach_head(model, route.head, stage.config, len(labels_of(stage.config)), has_bias=has_bias)

    def _choose_path(self, model: Encoder) -> Recorder | None:
        """Return the empty model as a recording where the native kernels can run it, its layers marked for them."""
        kernels = choose_kernels(self.plan.dtype, self.device)
        try:
            recorder = model.record(kernels.name, self.plan.dtype) if kernels.name else None  # type: ignore[arg-type]
            source = kernels.why
        except NoNativeForm as missing:
            recorder, source = None, str(missing)
        if recorder is None and self.plan.dtype == "int8":
            raise InvalidRequest(
                f"int8 is computed by the native kernels only, which can't run here: {source}; use bfloat16 or float32",
                field="dtype",
            )
        self.log.say("compute path", "torch" if recorder is None else str(kernels), source)
        return recorder

    def _static(self, table: Tensor) -> Encoder:
        """A lookup table [V, H] as a model."""
        with torch.device("meta"):
            model = StaticEmbedding(*table.shape)
        self.num_parameters += fill(model, model.naming, [("embedding.weight", table)], torch.float32, self.device)
        return model

    def stage(self, stage: DenseStage | LayerNormStage | NormalizeStage) -> Stage:
        """Read one module behind the backbone, in float32."""
        if isinstance(stage, DenseStage):
            return self._dense(stage)
        return self._layer_norm(stage) if isinstance(stage, LayerNormStage) else normalize

    def _dense(self, stage: DenseStage) -> Dense:
        if stage.tensor is None:
            tensors = self._small(load_tensors(stage.folder))
        else:
            stored = {name: tensor.clone() for name, tensor in iter_weights(stage.folder) if name == stage.tensor}
            tensors = dict(zip(("linear.weight",), self._small(stored).values(), strict=False))
        has_residual = stage.use_residual and stage.in_features != stage.out_features
        shape = (stage.out_features, stage.in_features)
        dense = Dense(
            weight=_take(tensors, "linear.weight", shape, stage.folder),
            bias=_take(tensors, "linear.bias", shape[:1], stage.folder) if stage.bias else None,
            activation=module_activation(stage.activation),
            use_residual=stage.use_residual,
            residual=_take(tensors, "residual.weight", shape, stage.folder) if has_residual else None,
        )
        _finish(tensors, stage.folder)
        return dense

    def _layer_norm(self, stage: LayerNormStage) -> LayerNorm:
        tensors = self._small(load_tensors(stage.folder))
        size = (stage.dimension,)
        weight, bias = (_take(tensors, f"norm.{leaf}", size, stage.folder) for leaf in ("weight", "bias"))
        _finish(tensors, stage.folder)
        return LayerNorm(weight, bias)

    def layer_mix(self, stage: WeightedLayerPoolingStage, num_layers: int) -> LayerMix:
        """Read the weights of a mean over layers."""
        tensors = self._small(load_tensors(stage.folder))
        num_mixed = num_layers + 1 - stage.layer_start
        if num_mixed < 1:
            raise UnsupportedCheckpoint(
                f"{stage.folder.name}: layer_start is {stage.layer_start}, but the model has {num_layers} layers"
            )
        weights = _take(tensors, "layer_weights", (num_mixed,), stage.folder)
        _finish(tensors, stage.folder)
        return LayerMix(weights, stage.layer_start)

    def linear(self, path: Path, in_features: int, out_features: int | None) -> Dense:
        """Read a plain linear layer (``weight``, ``bias``) from a file of its own; None takes any output size."""
        tensors = self._small(load_file(path))
        if "weight" not in tensors:
            raise WeightsMismatch(f"{path.name}: the tensor 'weight' is missing")
        size = len(tensors["weight"]) if out_features is None else out_features
        weight, bias = _take(tensors, "weight", (size, in_features), path), _take(tensors, "bias", (size,), path)
        _finish(tensors, path)
        return Dense(weight, bias, identity)

    def _small(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        self.num_parameters += sum(tensor.numel() for tensor in tensors.values())
        return {name: tensor.to(self.device, torch.float32) for name, tensor in tensors.items()}


# transformers' classes whose language model's head is the word table where config.json does not say otherwise.
_TIED_BY_DEFAULT = ("gemma", "gpt2")


def _is_tied(config: Mapping[str, Any]) -> bool:
    inner = config.get("text_config")
    if isinstance(inner, dict) and inner.get("tie_word_embeddings"):  # where older versions saved it
        return True
    tied = config.get("tie_word_embeddings")
    return str(config.get("model_type")).startswith(_TIED_BY_DEFAULT) if tied is None else bool(tied)


def _read_static(folder: Path) -> Tensor:
    """Return a static embedding's table [V, H] in either of its formats."""
    tensors = load_tensors(folder)
    if "embedding.weight" in tensors:
        table = tensors.pop("embedding.weight").float()
    elif "embeddings" in tensors:
        names = ("embeddings", "mapping", "weights")
        table = fold_model2vec(tensors.pop("embeddings"), *(tensors.pop(name, None) for name in names[1:]))
    else:
        raise WeightsMismatch("a static embedding needs the tensor 'embedding.weight' or 'embeddings'")
    _finish(tensors, folder)
    return table


def _take(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], place: Path) -> Tensor:
    if name not in tensors:
        raise WeightsMismatch(f"{place.name}: the tensor '{name}' is missing")
    tensor = tensors.pop(name)
    if tuple(tensor.shape) != shape:
        raise WeightsMismatch(f"{place.name}: '{name}' has shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor


def _finish(tensors: dict[str, Tensor], place: Path) -> None:
    if tensors:
        raise WeightsMismatch(f"{place.name}: unknown tensors {', '.join(sorted(tensors))}")
