"""Late interaction from Python: texts inside the engine and token vectors that were there before give one answer."""

import gc
import re
import time
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forebay import PoolingModel
from forebay.core.errors import DeadlineExceeded, InputTooLong, InvalidRequest, ItemFailed
from forebay.core.request import Reply, Request, ScoreRequest
from forebay.core.tasks import Task
from forebay.text.windows import split
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
    fit = matrices(model, ["a"])[0]
    narrow = np.zeros((2, 3), np.float32)
    broken, far = fit.copy(), np.full((1, COLBERT), 3e38, np.float32)
    broken[0, 1] = np.nan
    for given, words in (
        ([narrow], f"has token vectors of 3 numbers; this model's have {COLBERT}"),
        ([np.zeros((2, COLBERT + 1), np.float32)], f"has token vectors of {COLBERT + 1} numbers"),
        ([np.zeros((2, COLBERT))], "of float64"),
        ([np.zeros((2, 2, COLBERT), np.float32)], f"of float32, [2, 2, {COLBERT}]"),
        ([np.zeros((2, 0), np.float32)], "of float32, [2, 0]"),
        ([np.zeros((0, COLBERT))], "of float64"),
        ([broken], "NaN or infinite"),
        ([np.zeros((8193, COLBERT), np.float32)], "8193 token vectors; at most 8192"),
        ([fit.tolist()], "is of type list"),
    ):
        for documents in (given, ["a", *given]):
            with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
                model.score("a", documents)
            place = f"documents[{len(documents) - 1}]"
            assert caught.value.field == place
            assert str(caught.value).startswith(f"{place} ")
        if isinstance(given[0], np.ndarray) and given[0].ndim == 2:
            with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
                model.rerank(given[0], ["a"])
            assert caught.value.field == "query"
    with pytest.raises(InvalidRequest, match="of 3 numbers, and others before it of 4"):
        model.score(np.zeros((2, 4), np.float32), [narrow])
    assert model.score(narrow, [narrow]).scores.tolist() == [0]  # sliced ones, among themselves
    with pytest.raises(InvalidRequest, match="too large for float32") as caught:
        model.score(far, [np.eye(1, COLBERT, dtype=np.float32), far])
    assert caught.value.field == "documents[1]"
    for query, documents, place in ((far, ["a b c"], "queries"), ("a", ["b", far], "documents[1]")):
        with pytest.raises(InvalidRequest, match="too long to be compared") as caught:
            model.score(query, documents)
        assert caught.value.field == place
    long = np.eye(1, COLBERT, dtype=np.float32) * 1e19
    assert np.isfinite(model.score(long, ["a b c"])[0])


def test_a_documents_error_names_its_place(model: PoolingModel) -> None:
    given = matrices(model, ["a"])[0]
    with pytest.raises(InputTooLong, match=r"documents\[2\]"):
        model.score("a", [given, "a", sentence(100, 9)], truncate=False)
    with pytest.raises(InputTooLong, match=r"queries\[1\]"):
        model.score(["a", sentence(100, 9)], ["a", given], truncate=False)
    with pytest.raises(InputTooLong, match=r"^query has"):
        model.rerank(sentence(100, 9), ["a", given], truncate=False)


def test_a_failed_query_is_not_told_of_a_document(model: PoolingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = model.engine.submit

    def fail_query(request: Request) -> "Future[Reply]":
        if request.against is not None:
            return submit(request)
        place = len(request.items) - 1
        reply = submit(request).result()
        error = ItemFailed(f"input[{place}]: the forward failed", index=place)
        answered: Future[Reply] = Future()
        answered.set_result(
            replace(reply, outputs={Task.TOKEN_EMBED: [*reply.rows[:place], None]}, errors={place: error})
        )
        return answered

    monkeypatch.setattr(model.engine, "submit", fail_query)
    reply = model.engine.submit_score(ScoreRequest(["a", "b"], ["c", "d"])).result()
    assert np.isnan(reply.scores).tolist() == [False, True]
    assert (reply.errors[1].field, str(reply.errors[1])) == ("queries[1]", "queries[1]: the forward failed")
    reply = model.engine.submit_score(ScoreRequest(["a"], ["c", "d"])).result()
    assert [error.field for error in reply.errors.values()] == ["queries[0]", "queries[0]"]
    with pytest.raises(ItemFailed, match=r"^query: the forward failed"):
        model.rerank("a", ["c", "d"])


@pytest.mark.parametrize("scores", ["max", "mean"])
def test_long_documents_by_windows(store: Store, scores: str) -> None:
    """Each window is a text of its own with its special tokens; its score counts as that of one."""
    folder = store.folder("m3", lambda place: make(place, backbone=store.backbone("xlm-roberta")))
    config = {"task": "token_embed", "enable_chunked_processing": True, "chunk_scores": scores, "chunk_overlap": 5}
    model = store.engine(folder, pooler_config=config)
    tokenizer = model.engine._model.texts[""]
    long = sentence(150, 4)
    body = tokenizer._encode_batch([long])[0]
    windows = split(body, tokenizer.max_len - 2, 5)
    assert len(windows) > 2
    vectors = [model.token_embed([window.tolist()]).matrices[0] for window in windows]
    query = matrices(model, ["a river"])[0]
    each = [formula(query, rows) for rows in vectors]
    weights = np.array([len(window) + 2 for window in windows])
    wanted = max(each) if scores == "max" else float(weights @ each / weights.sum())
    output = model.score("a river", [long, "a"])
    assert abs(output[0] - wanted) <= TOLERANCE
    assert abs(max(each) - float(weights @ each / weights.sum())) >= 10 * TOLERANCE
    assert not output.truncated.any()
    with pytest.raises(InvalidRequest, match="max_embed_len"):
        PoolingModel(str(folder), pooler_config={"task": "token_embed", "max_embed_len": 100})
    bounded = store.engine(folder, pooler_config=config | {"max_embed_len": 100})
    assert bounded.score("a river", [long, "a"]).truncated.tolist() == [True, False]


class Watched(np.ndarray):
    """An array that can be watched."""


@pytest.mark.parametrize("end", ["answered", "left", "left at once", "too late", "refused"])
def test_nothing_of_a_query_stays(model: PoolingModel, end: str) -> None:
    """However a comparison ends, and with several under way."""
    queries = [rows.copy().view(Watched) for rows in matrices(model, ["a river", "the lake", "a mill"])]
    refs = [weakref.ref(query) for query in queries]
    documents = [sentence(40, seed) for seed in range(100)]
    bad = [np.full((2, 3), 1, np.float32)] if end == "refused" else []
    deadline = time.monotonic() - 1 if end == "too late" else None
    requests = [ScoreRequest([query], [*documents, *bad], deadline=deadline) for query in queries]
    futures = [model.engine.submit_score(request) for request in requests]
    del requests, queries
    if end.startswith("left"):
        if end == "left":
            time.sleep(0.05)
        was_cancelled = [future.cancel() for future in futures]  # those that are answered by then can't be
        assert was_cancelled == [True] * 3 or end == "left"
    else:
        done = [future.exception(timeout=60) for future in futures]
        assert [type(error) for error in done] == [
            {"answered": type(None), "too late": DeadlineExceeded, "refused": InvalidRequest}[end]
        ] * 3
        del done
    del futures
    for _ in range(50):
        gc.collect()
        if all(ref() is None for ref in refs):
            break
        time.sleep(0.1)
    assert [ref() is None for ref in refs] == [True] * 3
    assert model.engine.count_queued() == (0, 0)
