"""Every module that a sentence-transformers folder may list, in both schemas, against that library."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.models.stage_cases import CHAINS, MODES, PROMPTED, READING, StageCase
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

CASES = (*MODES, *PROMPTED, *CHAINS, *READING)
SAID = [pytest.param(case, schema, id=f"{case.name}, {schema}") for case in CASES for schema in case.schemas]


def folder_of(store: Store, case: StageCase, schema: pipelines.Schema) -> Path:
    backbone = store.backbone(case.family, **case.changes)
    return store.folder(
        f"stages-{case.name}-{schema}",
        lambda place: pipelines.save_pipeline(place, case.modules(backbone), schema=schema),
    )


@pytest.mark.parametrize(("case", "schema"), SAID)
def test_the_pipeline_gives_what_its_library_gives(store: Store, case: StageCase, schema: pipelines.Schema) -> None:
    folder = folder_of(store, case, schema)
    expected = store.reference(folder).embed(MIXED, **case.options)
    output = store.engine(folder).embed(MIXED, **case.options)
    assert output.embeddings.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))  # a sum over many tokens is not of order one
    assert np.abs(output.embeddings - expected).max() <= TOLERANCE * scale


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_mistake_would_be_seen(store: Store, case: StageCase) -> None:
    backbone = store.backbone(case.family, **case.changes)
    right = pipelines.Reference(case.modules(backbone)).embed(MIXED, **case.options)
    wrong = pipelines.Reference(case.mistake(backbone)).embed(MIXED, **case.options)
    assert wrong.shape == right.shape, "compare with a mistake that the shape alone does not tell"
    scale = max(1.0, float(np.abs(right).max()))
    assert np.abs(wrong - right).max() >= MUTANT_FACTOR * TOLERANCE * scale


@pytest.mark.parametrize("num_words", [0, 1, 61, 62, 80])
@pytest.mark.parametrize("mode", ["mean", "max", "weightedmean", "cls", "lasttoken"])
def test_a_prompt_that_fills_the_limit(store: Store, mode: str, num_words: int) -> None:
    """Its tokens leave the pooling as far as they were read; the end token, which is not its own, stays."""
    modules = [pipelines.transformer(store.backbone("bert")), pipelines.pooling(mode, include_prompt=False)]
    folder = store.folder(f"filled-{mode}", lambda place: pipelines.save_pipeline(place, modules))
    prompt = sentence(num_words, 3) + " "
    expected = store.reference(folder).embed(MIXED, prompt=prompt)
    assert np.abs(store.engine(folder).embed(MIXED, prompt=prompt).embeddings - expected).max() <= TOLERANCE


def test_both_schemas_differ_on_disk_and_agree_in_numbers(store: Store) -> None:
    """The compact ``pooling_mode`` and the six booleans say the same."""
    case = next(case for case in MODES if case.name == "max")
    old, new = (folder_of(store, case, schema) for schema in ("old", "new"))
    assert "pooling_mode" not in json.loads((old / "1_Pooling" / "config.json").read_text())
    assert json.loads((new / "1_Pooling" / "config.json").read_text())["pooling_mode"] == "max"
    assert np.array_equal(store.engine(old).embed(MIXED).embeddings, store.engine(new).embed(MIXED).embeddings)


def test_booleans_that_are_all_false_mean_the_mean(store: Store, tmp_path: Path) -> None:
    backbone = store.backbone("bert")
    modules = [pipelines.transformer(backbone), pipelines.pooling("mean")]
    folder = pipelines.save_pipeline(tmp_path / "none", modules, schema="old")
    file = folder / "1_Pooling" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pooling_mode_mean_tokens": False}))
    expected = pipelines.Reference(folder).embed(MIXED)
    assert np.abs(store.engine(folder).embed(MIXED).embeddings - expected).max() <= TOLERANCE


def test_a_folder_without_modules_is_pooled_by_its_mean(store: Store) -> None:
    folder = store.backbone("roberta")
    expected = pipelines.Reference(folder).embed(MIXED)
    assert np.abs(store.engine(folder).embed(MIXED).embeddings - expected).max() <= TOLERANCE


@pytest.mark.parametrize("mode", ["mean", "max", "lasttoken", "weightedmean", "cls"])
def test_two_modules_of_tokens_share_one_pass(store: Store, mode: str) -> None:
    """The same text twice in one batch, once with a neighbour of another length: the pooling stays apart."""
    case = next(case for case in MODES if case.name == mode)
    engine = store.engine(folder_of(store, case, "new"))
    together = engine.embed([MIXED[3], MIXED[2], MIXED[3], "a"]).embeddings
    scale = max(1.0, float(np.abs(together).max()))
    assert np.array_equal(together[0], together[2])
    assert np.abs(together[0] - engine.embed([MIXED[3]]).embeddings[0]).max() <= 1e-6 * scale
