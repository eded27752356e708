"""Prompts, input types and asymmetric models, against sentence-transformers."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.support import pipelines, tiny
from tests.support.store import Store
from tests.support.texts import MIXED

PROMPTS = {"query": "search query: ", "document": "passage: ", "lake": "in the deep lake "}
SCHEMAS: tuple[pipelines.Schema, ...] = ("old", "new")


def prompted(store: Store, schema: pipelines.Schema, **settings: object) -> Path:
    backbone = store.backbone("bert")

    def make(place: Path) -> Path:
        modules = [pipelines.transformer(backbone), pipelines.pooling("mean")]
        return pipelines.save_pipeline(place, modules, schema=schema, **settings)

    return store.folder(f"prompted-{schema}-{sorted(settings.items())!r}".replace("/", "_")[:80], make)


def assert_equal(one: object, other: object) -> None:
    assert np.abs(np.asarray(one) - np.asarray(other)).max() <= TOLERANCE


def assert_apart(one: object, other: object) -> None:
    assert np.abs(np.asarray(one) - np.asarray(other)).max() >= MUTANT_FACTOR * TOLERANCE


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    "options",
    [{}, {"prompt_name": "lake"}, {"prompt": "over the stone "}, {"input_type": "query"}, {"input_type": "document"}],
    ids=str,
)
def test_prompts_are_put_in_front(store: Store, schema: pipelines.Schema, options: dict[str, str]) -> None:
    folder = prompted(store, schema, prompts=PROMPTS)
    reference = store.reference(folder)
    expected = reference.embed(MIXED, **options)
    assert_equal(store.engine(folder).embed(MIXED, **options), expected)
    if options:
        assert_apart(expected, reference.embed(MIXED))


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("options", [{}, {"prompt_name": "query"}, {"prompt": "a "}, {"input_type": "query"}], ids=str)
def test_the_default_prompt(store: Store, schema: pipelines.Schema, options: dict[str, str]) -> None:
    folder = prompted(store, schema, prompts=PROMPTS, default_prompt_name="lake")
    reference = store.reference(folder)
    assert_equal(store.engine(folder).embed(MIXED, **options), reference.embed(MIXED, **options))
    assert_apart(reference.embed(MIXED), reference.embed(MIXED, prompt=""))


def test_an_empty_prompt_sets_the_default_aside(store: Store) -> None:
    folder = prompted(store, "new", prompts=PROMPTS, default_prompt_name="lake")
    assert_equal(store.engine(folder).embed(MIXED, prompt=""), store.reference(folder).embed(MIXED, prompt=""))


@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_documents_take_the_first_prompt_that_has_text(store: Store, name: str) -> None:
    """The library writes an empty ``document`` beside them, which its own encode_document then falls for."""
    folder = prompted(store, "new", prompts={"query": "search: ", name: "the lake "})
    expected = store.reference(folder).embed(MIXED, prompt_name=name)
    assert_equal(store.engine(folder).embed(MIXED, input_type="document"), expected)
    assert_apart(expected, store.reference(folder).embed(MIXED))


def two_projections(backbone: Path) -> list[nn.Module]:
    shared = pipelines.transformer(backbone)
    sides = {
        side: [shared, pipelines.pooling("mean"), pipelines.dense(tiny.HIDDEN, 24, activation=nn.Tanh(), seed=seed)]
        for side, seed in (("query", 51), ("document", 52))
    }
    return [pipelines.router(sides["query"], sides["document"]), pipelines.normalize()]


def static_queries(backbone: Path) -> list[nn.Module]:
    table = pipelines.static_embedding(tiny.static(backbone.parent / "routes-static"))
    documents = [pipelines.transformer(backbone), pipelines.pooling("cls")]
    return [pipelines.router([table], documents), pipelines.dense(tiny.HIDDEN, 24, seed=53)]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("input_type", [None, "query", "document"])
@pytest.mark.parametrize("make", [two_projections, static_queries])
def test_each_side_has_its_route(store: Store, make: object, input_type: str | None, schema: pipelines.Schema) -> None:
    backbone = store.backbone("bert")
    name = f"routes-{make.__name__}-{schema}"  # type: ignore[attr-defined]
    folder = store.folder(name, lambda place: pipelines.save_pipeline(place, make(backbone), schema=schema))  # type: ignore[operator]
    reference = store.reference(folder)
    expected = reference.embed(MIXED, input_type=input_type)
    assert_equal(store.engine(folder).embed(MIXED, input_type=input_type), expected)
    other = "document" if input_type == "query" else "query"
    assert_apart(expected, reference.embed(MIXED, input_type=other))


def test_routes_and_their_prompts_meet(store: Store) -> None:
    backbone = store.backbone("bert")
    folder = store.folder(
        "routes-prompted",
        lambda place: pipelines.save_pipeline(place, two_projections(backbone), prompts=PROMPTS),
    )
    for side in ("query", "document"):
        expected = store.reference(folder).embed(MIXED, input_type=side)
        assert_equal(store.engine(folder).embed(MIXED, input_type=side), expected)
        assert_apart(expected, store.reference(folder).embed(MIXED, input_type=side, prompt=""))
