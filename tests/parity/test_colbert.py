"""A trained ColBERT in Stanford's layout against sentence-transformers, through Python and HTTP."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from forebay import PoolingModel
from tests.parity.test_minilm import TEXTS
from tests.support.live_server import serving
from tests.support.multi_vector import Reference

pytestmark = pytest.mark.parity

FOLDER = Path("~/.cache/forebay-models/wn-colbert-tiny").expanduser()
SIDES = ("query", "document")


@pytest.fixture(scope="module")
def model() -> Iterator[PoolingModel]:
    if not FOLDER.exists():
        pytest.skip(f"the checkpoint is not there: expected it in {FOLDER}")
    with PoolingModel(str(FOLDER)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(model: PoolingModel) -> Reference:
    return Reference(FOLDER)


@pytest.mark.parametrize("side", SIDES)
def test_vectors(side: str, model: PoolingModel, reference: Reference) -> None:
    found = model.token_embed(TEXTS, input_type=side).matrices
    for row, wanted in zip(found, reference.embed(TEXTS, side), strict=True):
        assert row.shape == wanted.shape
        assert np.abs(row - wanted).max() <= 1e-5


def test_the_sides_differ(model: PoolingModel) -> None:
    query, document = (model.token_embed(TEXTS[0], input_type=side).matrices[0] for side in SIDES)
    num = min(len(query), len(document)) - 1
    assert np.abs(query[:num] - document[:num]).max() >= 1e-3


def test_scores_and_order(model: PoolingModel, reference: Reference) -> None:
    queries, documents = (reference.embed(TEXTS, side) for side in SIDES)
    expected = np.array([[(query @ document.T).max(1).sum() for document in documents] for query in queries])
    for query, wanted in zip(TEXTS, expected, strict=True):
        np.testing.assert_allclose(model.score(query, TEXTS).scores, wanted, atol=1e-4)
        ranked = model.rerank(query, TEXTS)
        scores = [result.score for result in ranked]
        assert scores == sorted(scores, reverse=True)


def test_vectors_over_http(model: PoolingModel, reference: Reference) -> None:
    with serving(model.engine) as url:
        for side in SIDES:
            body = {"input": TEXTS, "task": "token_embed", "input_type": side}
            reply = httpx.post(f"{url}/pooling", json=body, timeout=60)
            assert reply.status_code == 200, reply.text
            for entry, wanted in zip(reply.json()["data"], reference.embed(TEXTS, side), strict=True):
                assert np.abs(np.array(entry["data"]) - wanted).max() <= 1e-5
