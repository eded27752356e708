"""Failure is local: the item whose computation fails gets an error, its neighbours their vectors."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay import PoolingModel
from forebay.core.errors import ItemFailed
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
def poisoned(store: Store, poisoned_id: int, tmp_path: Path) -> Iterator[PoolingModel]:
    """A model in whose word table one row is not a number."""
    folder = Path(shutil.copytree(store.mean_pipeline("bert"), tmp_path / "poisoned"))
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][poisoned_id] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with PoolingModel(str(folder)) as model:
        yield model


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
