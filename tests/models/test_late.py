"""Late interaction in the three formats against sentence-transformers, with mutants of everything that is easy to miss.

models.md's catalogue: markers as ids, the mask expansion with its attention rule, the skip list, several layers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask

from forebay import PoolingModel
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint, WeightsMismatch
from tests.support import multi_vector as makers
from tests.support.multi_vector import TEXTS, Reference

TOLERANCE = 2e-5
METADATA = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_maxlen": 12,
    "doc_maxlen": 20,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
    "similarity": "cosine",
    "dim": makers.DIM,
}
FIXED = {"strategy": "fixed", "attend": False, "length": 12}


def modules(**settings: Any) -> Callable[[Path], Path]:
    mask = settings.pop("mask", None)

    def make(folder: Path) -> Path:
        own = MultiVectorMask(**mask) if mask is not None else None
        return makers.multi_vector_encoder(folder, folder.parent / "backbone", mask=own, **settings)

    return make


CASES: dict[str, Callable[[Path], Path]] = {
    "stanford": lambda folder: makers.stanford(folder, metadata=METADATA),
    "stanford, fillers seen": lambda folder: makers.stanford(
        folder, metadata=METADATA | {"attend_to_mask_tokens": True, "mask_punctuation": False}
    ),
    "stanford, nothing said": lambda folder: makers.stanford(folder),
    "pylate": lambda folder: makers.pylate(folder),
    "pylate, chain": lambda folder: makers.pylate(folder, sizes=(40, 16), skiplist_words=None),
    "pylate, fillers seen": lambda folder: makers.pylate(folder, attend_to_expansion_tokens=True),
    "pylate, no expansion": lambda folder: makers.pylate(folder, do_query_expansion=False),
    "pylate, prompts": lambda folder: makers.pylate(folder, prompts={"query": "search the ", "document": "passage "}),
    "modules": modules(mask={"skiplist_words": list(".,!")}, query_expansion=FIXED, document_length=20),
    "modules, at least": modules(mask={}, query_expansion=FIXED | {"strategy": "min"}, document_length=9),
    "modules, seen, other token": modules(
        mask={"skiplist_words": ["river", "."], "skiplist_tasks": ["query", "document"]},
        query_expansion=FIXED | {"attend": True, "token": "mill"},
        prompts={"query": "query ", "document": "document "},
    ),
    "modules, lengths alone": modules(query_length=7, document_length=11),
    "modules, kept alone": modules(mask={"keep_only_token_ids": [2, 3, 5, 9, 10, 11, 12]}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("native", ["1", "0"])
def test_it_is_sentence_transformers_own(
    name: str, native: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_NATIVE", native)
    folder = CASES[name](tmp_path / "model")
    reference = Reference(folder)
    with PoolingModel(str(folder)) as model:
        for side in ("query", "document"):
            expected = reference.embed(TEXTS, side)
            found = model.token_embed(list(TEXTS), input_type=side).matrices
            assert [row.shape for row in found] == [row.shape for row in expected]
            for row, wanted in zip(found, expected, strict=True):
                assert np.abs(row - wanted).max() <= TOLERANCE


MUTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "query marker": ("query", {"query_token_id": "[unused1]"}),
    "document marker": ("document", {"doc_token_id": "[unused0]"}),
    "no expansion": ("query", {"query_maxlen": 7}),
    "fillers seen": ("query", {"attend_to_mask_tokens": True}),
    "no skip list": ("document", {"mask_punctuation": False}),
    "another length": ("document", {"doc_maxlen": 19}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_reading_would_show(name: str, tmp_path: Path) -> None:
    side, change = MUTANTS[name]
    outputs = []
    for place, metadata in enumerate((METADATA, METADATA | change)):
        folder = makers.stanford(tmp_path / str(place), metadata=metadata)
        with PoolingModel(str(folder)) as model:
            outputs.append(model.token_embed(list(TEXTS), input_type=side).matrices)
    assert any(
        right.shape != wrong.shape or np.abs(right - wrong).max() > 100 * TOLERANCE
        for right, wrong in zip(*outputs, strict=True)
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = makers.stanford(tmp_path_factory.mktemp("late") / "model", metadata=METADATA)
    with PoolingModel(str(folder)) as loaded:
        yield loaded


def test_a_text_of_no_side_is_a_document(model: PoolingModel) -> None:
    plain = model.token_embed(list(TEXTS)).matrices
    document = model.token_embed(list(TEXTS), input_type="document").matrices
    for row, wanted in zip(plain, document, strict=True):
        np.testing.assert_array_equal(row, wanted)


def test_what_is_beside_a_query_does_not_change_it(model: PoolingModel) -> None:
    """Queries with other numbers of fillers, and documents of the same length, share its step."""
    alone = model.token_embed(TEXTS[0], input_type="query").matrices[0]
    beside = model.token_embed([*TEXTS, TEXTS[0]], input_type="query").matrices
    np.testing.assert_allclose(beside[0], alone, atol=1e-6)
    np.testing.assert_array_equal(beside[-1], beside[0])


def test_ids_get_marker_and_fillers_once(model: PoolingModel) -> None:
    """The ids of a text with and without frame and marker mean the text."""
    tokenizer = model.engine._model.texts[""]
    (whole,) = tokenizer.encode([TEXTS[0]], model_text("query"), "").ids
    body = whole[2:7]
    expected = model.token_embed(TEXTS[0], input_type="query").matrices[0]
    for ids in (body, whole[:8]):
        found = model.token_embed([ids.tolist()], input_type="query").matrices[0]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def model_text(side: str) -> Any:
    from forebay import TextParams

    return TextParams(input_type=side)


def test_the_ids_are_the_papers(model: PoolingModel) -> None:
    """Catalogue row 45: [CLS] [unused0] text [SEP] [MASK] …, all of a query's vectors and no document's of a comma."""
    tokenizer = model.engine._model.texts[""]
    token_of = tokenizer.token_of
    encoded = tokenizer.encode(["cold, river"], model_text("query"), "")
    words = ["[CLS]", "[unused0]", "cold", ",", "river", "[SEP]", *["[MASK]"] * 6]
    assert [token_of(int(id_)) for id_ in encoded.ids[0]] == words
    assert encoded.readings is not None
    assert encoded.readings[0].num_attended == 6
    assert encoded.readings[0].is_kept.all()
    encoded = tokenizer.encode(["cold, river"], model_text("document"), "")
    assert [token_of(int(id_)) for id_ in encoded.ids[0]] == ["[CLS]", "[unused1]", *words[2:6]]
    assert encoded.readings is not None
    assert encoded.readings[0].is_kept.tolist() == [True, True, True, False, True, True]


def test_truncation_is_told(model: PoolingModel) -> None:
    output = model.token_embed(["lake " * 9, "lake " * 10, "lake"], input_type="query")
    assert output.truncated.tolist() == [False, True, False]
    assert output.num_tokens.tolist() == [12, 12, 12]
    with pytest.raises(Exception, match="at most 12 tokens"):
        model.token_embed(["lake " * 10], input_type="query", truncate=False)


def test_a_score_is_the_sum_of_the_best(model: PoolingModel) -> None:
    """Catalogue row 43: over all of a query's vectors; a document's worst tokens count for nothing, not for 0."""
    query = model.token_embed(TEXTS[0], input_type="query").matrices[0]
    documents = model.token_embed(list(TEXTS), input_type="document").matrices
    expected = [(query @ document.T).max(1).sum() for document in documents]
    np.testing.assert_allclose(model.score(TEXTS[0], list(TEXTS)).scores, expected, atol=1e-4)
    pairs = model.score(list(reversed(TEXTS)), list(TEXTS)).scores
    queries = model.token_embed(list(reversed(TEXTS)), input_type="query").matrices
    expected = [(one @ other.T).max(1).sum() for one, other in zip(queries, documents, strict=True)]
    np.testing.assert_allclose(pairs, expected, atol=1e-4)
    np.testing.assert_allclose(
        model.score(query, [np.array(row) for row in documents]).scores,
        pairs[-1:] * 0 + [(query @ document.T).max(1).sum() for document in documents],
        atol=1e-4,
    )


def test_the_mean_where_the_checkpoint_asks(tmp_path: Path) -> None:
    folder = makers.multi_vector_encoder(tmp_path / "model", tmp_path / "backbone", query_length=9)
    scores = []
    for similarity in ("maxsim", "meanmaxsim"):
        path = folder / "config_sentence_transformers.json"
        config = json.loads(path.read_text(encoding="utf-8")) | {"similarity_fn_name": similarity}
        path.write_text(json.dumps(config), encoding="utf-8")
        with PoolingModel(str(folder)) as model:
            assert model.info.similarity == similarity
            scores.append(model.score(TEXTS[0], list(TEXTS)).scores)
            matrices = [np.array(row) for row in model.token_embed(list(TEXTS)).matrices]
            query = model.token_embed(TEXTS[0], input_type="query").matrices[0]
            np.testing.assert_allclose(model.score(query, matrices).scores, scores[-1], atol=1e-5)
    np.testing.assert_allclose(scores[0] / len(query), scores[1], atol=1e-6)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "l2": ({"similarity": "l2"}, "similarity"),
    "length": ({"query_maxlen": 0}, "query_maxlen"),
    "marker": ({"query_token_id": 3}, "query_token_id"),
    "flag": ({"mask_punctuation": "yes"}, "mask_punctuation"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_understood_fails_the_load(name: str, tmp_path: Path) -> None:
    change, field = REFUSALS[name]
    folder = makers.stanford(tmp_path / "model", metadata=METADATA | change)
    with pytest.raises(UnsupportedCheckpoint, match=field):
        PoolingModel(str(folder))


def test_a_projection_that_is_missing_fails_the_load(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = makers.stanford(tmp_path / "model", metadata=METADATA)
    tensors = load_file(folder / "model.safetensors")
    del tensors["linear.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsMismatch, match=r"linear\.weight"):
        PoolingModel(str(folder))


def test_other_tasks_are_refused(model: PoolingModel) -> None:
    with pytest.raises(InvalidRequest, match="token_embed"):
        model.embed("lake")


@pytest.mark.parametrize("factor", [2, 3, 50])
def test_alike_vectors_are_joined(model: PoolingModel, factor: int) -> None:
    """Against sentence-transformers with PyLate's rule: the first vector stays, means stay as they are."""
    whole = [torch.from_numpy(np.array(rows)) for rows in model.token_embed(list(TEXTS)).matrices]
    expected = HierarchicalTokenPooling(factor, normalize_embeddings=False).pool(whole)
    found = model.token_embed(list(TEXTS), pool_factor=factor).matrices
    for row, wanted in zip(found, expected, strict=True):
        assert row.shape == tuple(wanted.shape)
        assert np.abs(row - wanted.numpy()).max() <= TOLERANCE
    assert len(found[-1]) < len(whole[-1])


def test_joining_is_for_documents(model: PoolingModel) -> None:
    same = model.token_embed(TEXTS[0], pool_factor=1).matrices[0]
    np.testing.assert_array_equal(same, model.token_embed(TEXTS[0]).matrices[0])
    for wrong in ({"pool_factor": 2, "input_type": "query"}, {"pool_factor": 0}, {"pool_factor": 2, "chunk_size": 2}):
        with pytest.raises(InvalidRequest, match=r"pool_factor|joined"):
            model.token_embed(TEXTS[0], **wrong)  # type: ignore[arg-type]


POOLED: dict[str, dict[str, Any]] = {
    "as it is by default": {"pool_factor": 2},
    "a fraction": {"pool_factor": 1.5, "normalize_embeddings": False},
    "none protected, both sides": {"pool_factor": 3, "num_protected_tokens": 0, "tasks": ["query", "document"]},
    "scaled alone": {"pool_factor": 1.0},
    "queries alone": {"pool_factor": 2, "tasks": "query", "num_protected_tokens": 2},
}


def _pooled(folder: Path, work: Path, **settings: Any) -> Path:
    """A checkpoint with a HierarchicalTokenPooling at its end."""
    makers.multi_vector_encoder(folder, work, query_length=9)
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    model.append(HierarchicalTokenPooling(settings.pop("pool_factor"), **settings))
    model.save(str(folder))
    return folder


@pytest.mark.parametrize("name", POOLED)
def test_token_pooling_that_is_saved(name: str, tmp_path: Path) -> None:
    folder = _pooled(tmp_path / "model", tmp_path / "work", **dict(POOLED[name]))
    reference, plain = (
        Reference(folder),
        makers.multi_vector_encoder(tmp_path / "plain", tmp_path / "w", query_length=9),
    )
    with PoolingModel(str(folder)) as model, PoolingModel(str(plain)) as unpooled:
        decisions = {decision.name: decision.value for decision in model.info.decisions}
        assert decisions["alike vectors"].startswith("joined to one for ")
        sides = POOLED[name].get("tasks", "document")
        for side in ("query", "document"):
            expected = reference.embed(TEXTS, side)
            found = model.token_embed(list(TEXTS), input_type=side).matrices
            whole = unpooled.token_embed(list(TEXTS), input_type=side).matrices
            assert [row.shape for row in found] == [row.shape for row in expected]
            for row, wanted in zip(found, expected, strict=True):
                assert np.abs(row - wanted).max() <= TOLERANCE
            if POOLED[name]["pool_factor"] > 1:
                assert (sum(map(len, found)) < sum(map(len, whole))) == (side in sides)
        query, rows = reference.embed(TEXTS[:1], "query")[0], reference.embed(TEXTS, "document")
        scores = [(query @ row.T).max(1).sum() for row in rows]
        np.testing.assert_allclose(model.score(TEXTS[0], list(TEXTS)).scores, scores, atol=1e-4)


def test_a_requests_pooling_comes_on_top(tmp_path: Path) -> None:
    folder = _pooled(tmp_path / "model", tmp_path / "work", pool_factor=2)
    reference = Reference(folder).model
    pooling = HierarchicalTokenPooling(2, normalize_embeddings=False)
    expected = reference.encode_document(list(TEXTS), token_pooling=pooling, convert_to_numpy=True)
    with PoolingModel(str(folder)) as model:
        found = model.token_embed(list(TEXTS), input_type="document", pool_factor=2).matrices
    for row, wanted in zip(found, expected, strict=True):
        assert row.shape == wanted.shape
        assert np.abs(row - wanted).max() <= TOLERANCE


def test_an_older_file_normalises_nothing(tmp_path: Path) -> None:
    folder = _pooled(tmp_path / "model", tmp_path / "work", pool_factor=2)
    path = next(folder.glob("*HierarchicalTokenPooling")) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["normalize_embeddings"]
    path.write_text(json.dumps(config), encoding="utf-8")
    expected = Reference(folder).embed(TEXTS, "document")
    with PoolingModel(str(folder)) as model:
        found = model.token_embed(list(TEXTS), input_type="document").matrices
    assert max(np.abs(row - wanted).max() for row, wanted in zip(found, expected, strict=True)) <= TOLERANCE
    assert min(np.linalg.norm(found[-1], axis=1)) < 0.9999


@pytest.mark.parametrize(
    ("field", "value"), [("pool_factor", 0.5), ("num_protected_tokens", -1), ("tasks", ["corpus"])]
)
def test_token_pooling_that_is_not_understood(field: str, value: Any, tmp_path: Path) -> None:
    folder = _pooled(tmp_path / "model", tmp_path / "work", pool_factor=2)
    edit(next(folder.glob("*HierarchicalTokenPooling")) / "config.json", **{field: value})
    with pytest.raises(UnsupportedCheckpoint, match=field):
        PoolingModel(str(folder))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
