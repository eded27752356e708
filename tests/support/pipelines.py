"""Makers of sentence-transformers folders in both schemas, around a tiny backbone.

The new schema is what sentence-transformers 6 itself writes; the old one is made from it by giving modules, keys and
files the names they had before 5.4. ``Reference`` computes what that library makes of a folder.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Router,
    StaticEmbedding,
    Transformer,
    WeightedLayerPooling,
)
from torch import nn

from tests.support.tiny import HIDDEN, randomize

Schema = Literal["old", "new"]

OLD_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def transformer(backbone: Path, **settings: Any) -> Transformer:
    """The first module around a transformers checkpoint."""
    return Transformer(str(backbone), **settings)


def static_embedding(backbone: Path) -> StaticEmbedding:
    """The first module around a folder with a static table."""
    return StaticEmbedding.load(str(backbone))


def pooling(*modes: str, dimension: int = HIDDEN, include_prompt: bool = True) -> Pooling:
    """One mode, or the concatenation of several in this order."""
    return Pooling(dimension, pooling_mode=list(modes), include_prompt=include_prompt)


def dense(size_in: int, size_out: int, *, activation: nn.Module | None = None, seed: int = 21, **more: Any) -> Dense:
    """A Dense module with large random weights."""
    module = Dense(size_in, size_out, activation_function=activation, **more)
    randomize(module, seed)
    return module


def normalize(**more: Any) -> Normalize:
    """L2 normalisation."""
    return Normalize(**more)


def dropout() -> Dropout:
    """A leftover of training."""
    return Dropout(0.5)


def layer_norm(dimension: int = HIDDEN, *, seed: int = 22) -> LayerNorm:
    """A LayerNorm module with random gain and bias."""
    module = LayerNorm(dimension)
    randomize(module, seed)
    return module


def weighted_layers(num_layers: int, *, start: int, weights: Sequence[float]) -> WeightedLayerPooling:
    """A weighted mean over the hidden states of the layers from ``start`` on."""
    values = nn.Parameter(torch.tensor(weights))
    return WeightedLayerPooling(HIDDEN, num_hidden_layers=num_layers, layer_start=start, layer_weights=values)


def router(queries: Sequence[nn.Module], documents: Sequence[nn.Module]) -> Router:
    """An asymmetric model: one chain of modules a side; documents are the default."""
    return Router.for_query_document(list(queries), list(documents))


def save_pipeline(folder: Path, modules: Sequence[nn.Module], *, schema: Schema = "new", **settings: Any) -> Path:
    """Write a pipeline's folder; ``settings`` are prompts, default_prompt_name, truncate_dim, similarity_fn_name."""
    model = SentenceTransformer(modules=list(modules), device="cpu", **settings)
    model.save(str(folder), create_model_card=False)
    if schema == "old":
        _rewrite_as_old(folder, modules)
    return folder


class Reference:
    """What sentence-transformers makes of a folder, or of modules at hand, in float32 on the CPU."""

    def __init__(self, source: Path | Sequence[nn.Module]) -> None:
        if isinstance(source, Path):
            self.model = SentenceTransformer(str(source), device="cpu", model_kwargs={"dtype": torch.float32})
        else:
            self.model = SentenceTransformer(modules=list(source), device="cpu")
        self.model.eval()

    def embed(self, texts: Sequence[str], *, input_type: str | None = None, **options: Any) -> NDArray[np.float32]:
        """Its embeddings [n, dim] of the texts in one batch; ``input_type`` is query or document."""
        ways = {None: self.model.encode, "query": self.model.encode_query, "document": self.model.encode_document}
        vectors: NDArray[np.float32] = ways[input_type](
            list(texts), batch_size=len(texts), show_progress_bar=False, **options
        )
        return vectors

    @property
    def backbone(self) -> Any:
        """The transformers model inside the first module."""
        return self.model[0].model

    def features(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """The padded tensors that the backbone gets for these texts."""
        tokens = self.model.preprocess(list(texts))
        return {name: value for name, value in tokens.items() if isinstance(value, torch.Tensor)}

    def mean(self, texts: Sequence[str], *, backbone: Any = None, **inputs: torch.Tensor) -> NDArray[np.float32]:
        """The masked mean [n, H] of the last hidden states, by hand.

        ``backbone`` is a changed copy of the model, ``inputs`` stand in the place of the right ones.
        """
        features = self.features(texts)
        known = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in features}
        with torch.no_grad():
            states = (backbone or self.backbone)(**{**known, **inputs}).last_hidden_state
        mask = features["attention_mask"][..., None].float()
        means: NDArray[np.float32] = ((states * mask).sum(1) / mask.sum(1)).numpy()
        return means

    def frame(self, ids: Sequence[int]) -> list[int]:
        """The ids between the model's start and end token, unless they stand there already."""
        start, end = self.model.tokenizer.cls_token_id, self.model.tokenizer.sep_token_id
        is_framed = len(ids) > 1 and ids[0] == start and ids[-1] == end
        return list(ids) if is_framed else [start, *ids, end]

    def mean_of_ids(self, ids: Sequence[int], **inputs: torch.Tensor) -> NDArray[np.float32]:
        """The mean [H] of the hidden states of exactly these token ids, all of them attended."""
        row = torch.tensor([list(ids)])
        with torch.no_grad():
            states = self.backbone(input_ids=row, attention_mask=torch.ones_like(row), **inputs).last_hidden_state
        mean: NDArray[np.float32] = states[0].mean(0).numpy()
        return mean


def _rewrite_as_old(folder: Path, modules: Sequence[nn.Module]) -> None:
    stages = json.loads((folder / "modules.json").read_text())
    for stage, module in zip(stages, modules, strict=True):
        stage["type"] = f"sentence_transformers.models.{type(module).__name__}"
        _rewrite_module(folder / stage["path"], module)
    _write(folder / "modules.json", stages)
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    config.pop("model_type", None)
    config["__version__"] = {"sentence_transformers": "2.7.0", "transformers": "4.41.0", "pytorch": "2.3.0"}
    _write(folder / "config_sentence_transformers.json", config)


def _rewrite_module(place: Path, module: nn.Module) -> None:
    if isinstance(module, Transformer):
        lowers = {"max_seq_length": module.max_seq_length, "do_lower_case": module.do_lower_case}
        _write(place / "sentence_bert_config.json", lowers)
        return
    if isinstance(module, Router):
        _rewrite_router(place, module)
        return
    config_file = place / "config.json"
    if type(module).__name__ == "Normalize":
        shutil.rmtree(place)
        place.mkdir()
        return
    if not config_file.exists():
        return
    config = json.loads(config_file.read_text())
    if isinstance(module, Pooling):
        active = (module.pooling_mode,) if isinstance(module.pooling_mode, str) else module.pooling_mode
        config = {"word_embedding_dimension": module.embedding_dimension, "include_prompt": module.include_prompt}
        config |= {old: mode in active for mode, old in OLD_MODES.items()}
    if isinstance(module, WeightedLayerPooling):
        config["word_embedding_dimension"] = config.pop("embedding_dimension")
    if isinstance(module, Dense):
        config = {k: v for k, v in config.items() if k not in ("module_input_name", "module_output_name")}
    _write(config_file, config)


def _rewrite_router(place: Path, module: Router) -> None:
    file = place / "router_config.json"
    config = json.loads(file.read_text())
    config["types"] = {
        name: f"sentence_transformers.models.{path.rsplit('.', 1)[1]}" for name, path in config["types"].items()
    }
    _write(file, config)
    for route, names in config["structure"].items():
        for name, child in zip(names, module.sub_modules[route], strict=True):
            _rewrite_module(place / name, child)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2))
