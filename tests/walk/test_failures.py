"""Failure is local: the item whose computation fails gets an error, its neighbours their vectors."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay import PoolingModel
from forebay.core.errors import ItemFailed, UnsupportedCheckpoint, WeightsMismatch
from tests.support.store import Store
from tests.support.texts import sentence

GOOD = (*(sentence(length, length) for length in (1, 4, 9, 9, 20, 33)), "the mill")
BAD = "a zebra"
"""It has letters that no word of GOOD has."""
PLACE = 3
TEXTS = [*GOOD[:PLACE], BAD, *GOOD[PLACE:]]


@pytest.fixture(scope="module")
def clean(store: Store) -> PoolingModel:
    return store.engine(store.mean_pipeline("bert"))


@pytest.fixture(scope="module")
def poisoned_id(store: Store) -> int:
    tokenizer = store.reference(store.mean_pipeline("bert")).model.tokenizer
    ids = set(tokenizer(BAD)["input_ids"]) - {i for text in GOOD for i in tokenizer(text)["input_ids"]}
    return max(ids)


@pytest.fixture
def poisoned(store: Store, poisoned_id: int) -> Iterator[PoolingModel]:
    """A model in whose word table one row is not a number."""
    with PoolingModel(str(store.mean_pipeline("bert"))) as model:
        model.engine._model.pipelines[""].model.word_table[poisoned_id] = float("nan")  # type: ignore[attr-defined]
        yield model


@pytest.mark.parametrize("name", ["query.weight", "key.bias", "LayerNorm.weight", "word_embeddings.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_refused_at_load(store: Store, tmp_path: Path, name: str, value: float) -> None:
    folder = Path(shutil.copytree(store.mean_pipeline("bert"), tmp_path / "damaged"))
    tensors = load_file(folder / "model.safetensors")
    full_name = next(stored for stored in tensors if stored.endswith(name))
    tensors[full_name].view(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsMismatch, match=full_name):
        PoolingModel(str(folder))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 0),
        ("hidden_size", -1),
        ("num_hidden_layers", 10**9),
        ("vocab_size", "many"),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_a_config_that_can_not_be_meant_is_refused_by_name(store: Store, tmp_path: Path, key: str, value: Any) -> None:
    folder = Path(shutil.copytree(store.mean_pipeline("bert"), tmp_path / "odd"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(UnsupportedCheckpoint, match=key):
        PoolingModel(str(folder))


def test_whole_numbers_are_no_weights(store: Store, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(store.mean_pipeline("bert"), tmp_path / "packed"))
    tensors = load_file(folder / "model.safetensors")
    name = next(stored for stored in tensors if stored.endswith("query.weight"))
    tensors[name] = (tensors[name] * 100).to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsMismatch, match="int8"):
        PoolingModel(str(folder))


def test_a_fork_is_told_to_load_its_own(clean: PoolingModel) -> None:
    """In a process of its own: pytest's has threads of other tests, for which Python warns."""
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from forebay import PoolingModel, ForebayError\n"
        f"model = PoolingModel({clean.info.path!r}); model.embed('a')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: model.embed('a')\n"
        "    except ForebayError as error: os._exit(7 if 'forked' in str(error) else 1)\n"
        "    os._exit(2)\n"
        "_, status = os.waitpid(child, 0)\n"
        "assert os.waitstatus_to_exitcode(status) == 7, status\n"
        "model.embed('a'); model.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def raising(store: Store, poisoned_id: int) -> Iterator[PoolingModel]:
    """A model whose forward raises on one token id."""

    def refuse(module: Any, inputs: tuple[Any, ...]) -> None:
        if (inputs[0].input_ids == poisoned_id).any():
            raise RuntimeError("out of something")

    with PoolingModel(str(store.mean_pipeline("bert"))) as model:
        encoder = model.engine._model.pipelines[""].model
        assert isinstance(encoder, torch.nn.Module)
        encoder.register_forward_pre_hook(refuse)
        yield model


@pytest.mark.parametrize("kind", ["poisoned", "raising"])
def test_the_guilty_item_is_named(kind: str, request: pytest.FixtureRequest) -> None:
    model: PoolingModel = request.getfixturevalue(kind)
    with pytest.raises(ItemFailed) as caught:
        model.embed(TEXTS)
    assert caught.value.index == PLACE
    assert caught.value.field == f"input[{PLACE}]"
    assert "zebra" not in str(caught.value)


@pytest.mark.parametrize("kind", ["poisoned", "raising"])
def test_the_neighbours_get_their_vectors(clean: PoolingModel, kind: str, request: pytest.FixtureRequest) -> None:
    model: PoolingModel = request.getfixturevalue(kind)
    (reply,) = model.stream(TEXTS)
    assert set(reply.errors) == {PLACE}
    assert isinstance(reply.errors[PLACE], ItemFailed)
    assert reply.rows[PLACE] is None
    expected = clean.embed(GOOD).embeddings
    rows = [row for row in reply.rows if row is not None]
    assert np.abs(np.stack(rows) - expected).max() <= 1e-6


@pytest.mark.parametrize("kind", ["poisoned", "raising"])
def test_the_model_lives_on(clean: PoolingModel, kind: str, request: pytest.FixtureRequest) -> None:
    model: PoolingModel = request.getfixturevalue(kind)
    for _ in range(3):
        with pytest.raises(ItemFailed) as caught:
            model.embed(BAD)
        assert caught.value.index == 0
    assert np.abs(model.embed(GOOD).embeddings - clean.embed(GOOD).embeddings).max() <= 1e-6


@pytest.mark.parametrize("kind", ["poisoned", "raising"])
def test_a_guilty_item_far_down_is_named_by_its_place(kind: str, request: pytest.FixtureRequest) -> None:
    model: PoolingModel = request.getfixturevalue(kind)
    texts = ["the mill"] * 1500
    texts[1400] = BAD
    with pytest.raises(ItemFailed) as caught:
        model.embed(texts)
    assert caught.value.index == 1400
