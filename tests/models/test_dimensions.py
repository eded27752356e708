"""Shorter vectors and normalisation: what the checkpoint says, and what a request may ask."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import MIXED


def saved(store: Store, *, normalised: bool, **settings: object) -> Path:
    backbone = store.backbone("bert")

    def make(place: Path) -> Path:
        modules = [pipelines.transformer(backbone), pipelines.pooling("mean")]
        return pipelines.save_pipeline(place, modules + [pipelines.normalize()] * normalised, **settings)

    return store.folder(f"dimensions-{normalised}-{settings}", make)


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


@pytest.mark.parametrize("size", [1, 8, 16, 31, 32])
def test_dimensions_cut_and_normalise_again(store: Store, size: int) -> None:
    folder = saved(store, normalised=True)
    full = store.reference(folder).embed(MIXED)
    output = store.engine(folder).embed(MIXED, dimensions=size).embeddings
    assert output.shape == (len(MIXED), size)
    assert difference(output, unit(full[:, :size])) <= TOLERANCE
    if size < 32:
        assert difference(full[:, :size], unit(full[:, :size])) >= MUTANT_FACTOR * TOLERANCE


@pytest.mark.parametrize("size", [8, 16])
def test_raw_vectors_are_cut_and_stay_raw(store: Store, size: int) -> None:
    folder = saved(store, normalised=False)
    full = store.reference(folder).embed(MIXED)
    assert difference(store.engine(folder).embed(MIXED, dimensions=size), full[:, :size]) <= TOLERANCE


def test_activation_may_be_asked_for_or_left_out(store: Store) -> None:
    raw, normalised = saved(store, normalised=False), saved(store, normalised=True)
    full = store.reference(raw).embed(MIXED)
    assert difference(store.engine(raw).embed(MIXED), full) <= TOLERANCE
    assert difference(store.engine(raw).embed(MIXED, use_activation=True), unit(full)) <= TOLERANCE
    assert difference(store.engine(normalised).embed(MIXED, use_activation=False), full) <= TOLERANCE
    assert difference(store.engine(normalised).embed(MIXED, use_activation=True), unit(full)) <= TOLERANCE
    assert difference(full, unit(full)) >= MUTANT_FACTOR * TOLERANCE


def test_raw_cut_of_a_normalised_model(store: Store) -> None:
    full = store.reference(saved(store, normalised=False)).embed(MIXED)
    output = store.engine(saved(store, normalised=True)).embed(MIXED, use_activation=False, dimensions=16)
    assert difference(output, full[:, :16]) <= TOLERANCE


@pytest.mark.parametrize("normalised", [True, False])
def test_the_checkpoints_own_truncation_is_its_librarys(store: Store, normalised: bool) -> None:
    """sentence-transformers cuts last and does not normalise again."""
    folder = saved(store, normalised=normalised, truncate_dim=16)
    assert json.loads((folder / "config_sentence_transformers.json").read_text())["truncate_dim"] == 16
    expected = store.reference(folder).embed(MIXED)
    assert expected.shape[1] == 16
    assert difference(store.engine(folder).embed(MIXED), expected) <= TOLERANCE
