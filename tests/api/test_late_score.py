"""Late interaction from Python: texts inside the engine and token vectors that were there before give one answer."""

from pathlib import Path

import numpy as np
import pytest

from forebay import PoolingModel
from forebay.core.errors import InputTooLong, InvalidRequest
from tests.models.test_m3 import COLBERT, make
from tests.support.store import Store
from tests.support.texts import sentence

QUERIES = [sentence(6, 1), "", sentence(6, 1), sentence(20, 2)]
DOCUMENTS = [sentence(30, 3), "a", sentence(100, 4), sentence(30, 3)]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(store: Store) -> PoolingModel:
    folder: Path = store.folder("m3", lambda place: make(place, backbone=store.backbone("xlm-roberta")))
    return store.engine(folder, pooler_config={"task": "token_embed"})


def matrices(model: PoolingModel, texts: list[str]) -> list[np.ndarray]:
    return list(model.token_embed(texts).matrices)


def formula(query: np.ndarray, document: np.ndarray) -> float:
    """BGE-M3's: the mean over the query's tokens of the best product."""
    return float((query @ document.T).max(1).mean())


@pytest.fixture(scope="module")
def expected(model: PoolingModel) -> np.ndarray:
    queries, documents = matrices(model, QUERIES), matrices(model, DOCUMENTS)
    return np.array([[formula(query, document) for document in documents] for query in queries], np.float32)


def test_texts_pair_by_pair_and_one_for_all(model: PoolingModel, expected: np.ndarray) -> None:
    assert model.info.abilities.score_type == "late-interaction"
    np.testing.assert_allclose(model.score(QUERIES, DOCUMENTS).scores, expected.diagonal(), atol=TOLERANCE)
    output = model.score(QUERIES[3], DOCUMENTS)
    np.testing.assert_allclose(output.scores, expected[3], atol=TOLERANCE)
    assert output.truncated.tolist() == [False, False, True, False]
    assert np.abs(expected[3] - expected[0]).max() >= 100 * TOLERANCE
    order = np.argsort(-output.scores, kind="stable").tolist()
    assert [one.index for one in model.rerank(QUERIES[3], DOCUMENTS)] == order


def test_token_vectors_on_either_side(model: PoolingModel, expected: np.ndarray) -> None:
    queries, documents = matrices(model, QUERIES), matrices(model, DOCUMENTS)
    mixed = [documents[0], DOCUMENTS[1], documents[2], DOCUMENTS[3]]
    for one, other in ((queries[3], documents), (QUERIES[3], documents), (queries[3], mixed), (QUERIES[3], mixed)):
        np.testing.assert_allclose(model.score(one, other).scores, expected[3], atol=TOLERANCE)
    pairs = [queries[0], QUERIES[1], queries[2], QUERIES[3]]
    np.testing.assert_allclose(model.score(pairs, mixed).scores, expected.diagonal(), atol=TOLERANCE)


def test_wrong_token_vectors_are_refused(model: PoolingModel) -> None:
    with pytest.raises(InvalidRequest, match="of 3 numbers can't be compared"):
        model.score("a", [np.zeros((2, 3), np.float32)])
    for wrong in (np.zeros((2, COLBERT)), np.zeros((0, COLBERT), np.float32)):
        with pytest.raises(InvalidRequest, match="at least one row"):
            model.score("a", [wrong])


def test_a_documents_error_names_its_place(model: PoolingModel) -> None:
    given = matrices(model, ["a"])[0]
    with pytest.raises(InputTooLong, match=r"input\[2\]"):
        model.score("a", [given, "a", sentence(100, 9)], truncate=False)
