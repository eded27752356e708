"""One model in the many forms that checkpoints have on disk: the vectors stay the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from forebay import PoolingModel
from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import MIXED

FAMILIES = ("bert", "distilbert", "mpnet", "roberta")


def _pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _sharded(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in halves.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    places = {name: file for file, own in halves.items() for name in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _old_norm_names(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in tensors.items():
        ending = next((ending for ending in old if name.endswith(ending)), None)
        renamed[name.removesuffix(ending) + old[ending] if ending else name] = tensor
    assert set(renamed) != set(tensors)
    save_file(renamed, folder / "model.safetensors")


def _masked_lm(folder: Path) -> None:
    """The body under its prefix, and the head of masked language modelling beside it."""
    config = transformers.AutoConfig.from_pretrained(folder)
    body = load_file(folder / "model.safetensors")
    with_head = transformers.AutoModelForMaskedLM.from_config(config)
    prefix = with_head.base_model_prefix
    head = {n: t.clone() for n, t in with_head.state_dict().items() if not n.startswith(f"{prefix}.")}
    assert head
    save_file({**{f"{prefix}.{name}": tensor for name, tensor in body.items()}, **head}, folder / "model.safetensors")


def _with_position_ids(folder: Path) -> None:
    """Older releases saved this buffer."""
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.position_ids"] = torch.arange(64)[None]
    save_file(tensors, folder / "model.safetensors")


LAYOUTS: tuple[Callable[[Path], None], ...] = (_pickled, _sharded, _old_norm_names, _masked_lm, _with_position_ids)


def copied(store: Store, family: str, place: Path, change: Callable[[Path], None]) -> Path:
    folder = Path(shutil.copytree(store.mean_pipeline(family), place / "copy"))
    change(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        (family, layout)
        for family in FAMILIES
        for layout in LAYOUTS
        if (family, layout) != ("distilbert", _old_norm_names)  # it came after those names
    ],
)
def test_every_layout_gives_the_same_vectors(
    store: Store, family: str, layout: Callable[[Path], None], tmp_path: Path
) -> None:
    expected = store.engine(store.mean_pipeline(family)).embed(MIXED).embeddings
    with PoolingModel(str(copied(store, family, tmp_path, layout))) as model:
        assert np.array_equal(model.embed(MIXED).embeddings, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_are_computed_in_float32(store: Store, dtype: torch.dtype, tmp_path: Path) -> None:
    def halve(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}))

    folder = copied(store, "bert", tmp_path, halve)
    reference = pipelines.Reference(folder)
    expected = reference.embed(MIXED)
    with PoolingModel(str(folder)) as model:
        assert model.info.dtype == "float32"
        assert np.abs(model.embed(MIXED).embeddings - expected).max() <= TOLERANCE
    in_half = reference.mean(MIXED, backbone=reference.backbone.to(dtype))
    assert np.abs(in_half - expected).max() >= MUTANT_FACTOR * TOLERANCE


WORDING: tuple[dict[str, Any], ...] = (
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {},
)


@pytest.mark.parametrize("said", WORDING, ids=str)
@pytest.mark.parametrize("uncased", [True, False])
def test_the_tokenizers_config_has_the_last_word(
    store: Store, said: dict[str, Any], uncased: bool, tmp_path: Path
) -> None:
    """transformers sets BERT's normalizer by tokenizer_config.json, whatever tokenizer.json says of letter case."""
    backbone = store.backbone("bert", uncased=uncased)
    modules = [pipelines.transformer(backbone), pipelines.pooling("mean")]
    folder = pipelines.save_pipeline(tmp_path / "said", modules)
    file = folder / "tokenizer_config.json"
    config = {name: value for name, value in json.loads(file.read_text()).items() if name != "do_lower_case"}
    file.write_text(json.dumps({**config, **said}))
    texts = ["Héllo WORLD", "the Deep RIVER", "naïve 中文 Lake", *MIXED]
    expected = pipelines.Reference(folder).embed(texts)
    with PoolingModel(str(folder)) as model:
        assert np.abs(model.embed(texts).embeddings - expected).max() <= TOLERANCE
