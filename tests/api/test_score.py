"""Comparisons from Python: bi-encoders against sentence-transformers, the rules of shapes, what can't score."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.core.errors import InputTooLong, InvalidRequest, ItemFailed
from forebay.core.request import Reply, Request, ScoreRequest
from forebay.core.tasks import Task
from tests.support import pipelines
from tests.support.heads import head_folder
from tests.support.store import Store
from tests.support.texts import sentence

QUERIES = [sentence(5, 1), sentence(40, 2), sentence(5, 1), "a"]
DOCUMENTS = [sentence(20, 3), "", sentence(100, 4), sentence(20, 3)]
PROMPTS = {"query": "search query: ", "document": "passage: "}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
TOLERANCE = 1e-5


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def embedder(store: Store, similarity: str) -> Path:
    def make(place: Path) -> Path:
        modules = [pipelines.transformer(store.backbone("bert")), pipelines.pooling("mean")]
        return pipelines.save_pipeline(place, modules, prompts=PROMPTS, similarity_fn_name=similarity)

    return store.folder(f"scorer-{similarity}", make)


def expected_matrix(store: Store, folder: Path, **prompts: str) -> np.ndarray:
    """The reference's similarity of all queries [4] and all documents [4]."""
    reference = store.reference(folder)
    options = prompts or {"query": "query", "document": "document"}
    kind = "prompt" if prompts else "prompt_name"
    one, other = (
        reference.model.encode(texts, **{kind: options[side]})
        for texts, side in ((QUERIES, "query"), (DOCUMENTS, "document"))
    )
    return reference.model.similarity(one, other).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_each_sides_prompt_and_the_checkpoints_similarity(store: Store, similarity: str) -> None:
    folder = embedder(store, similarity)
    model, expected = store.engine(folder), expected_matrix(store, folder)
    scale = float(np.abs(expected).max())
    assert model.info.abilities.score_type == "bi-encoder"
    pairwise = model.score(QUERIES, DOCUMENTS)
    assert pairwise.scores.dtype == np.float32
    assert difference(pairwise.scores, expected.diagonal()) <= TOLERANCE * max(scale, 1)
    assert difference(model.score(QUERIES[1], DOCUMENTS).scores, expected[1]) <= TOLERANCE * max(scale, 1)
    assert difference(model.score(QUERIES[1], DOCUMENTS[0]).scores, expected[1, :1]) <= TOLERANCE * max(scale, 1)
    assert pairwise.truncated.tolist() == [False, False, True, False]
    bare = expected_matrix(store, folder, query="", document="")
    turned = expected_matrix(store, folder, query=PROMPTS["document"], document=PROMPTS["query"])
    for name, wrong in {"no prompts": bare, "prompts exchanged": turned}.items():
        assert difference(wrong, expected) >= 100 * TOLERANCE, name


def test_the_four_similarities_differ(store: Store) -> None:
    found = [store.engine(embedder(store, name)).score(QUERIES[1], DOCUMENTS).scores for name in SIMILARITIES]
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            assert difference(one, other) >= 100 * TOLERANCE
    assert (found[2] <= 0).all()
    assert (found[3] <= 0).all()


def test_the_requests_prompt_is_the_querys(store: Store) -> None:
    folder = embedder(store, "dot")
    expected = expected_matrix(store, folder, query="the mill ", document=PROMPTS["document"])
    found = store.engine(folder).score(QUERIES, DOCUMENTS, prompt="the mill ").scores
    assert difference(found, expected.diagonal()) <= TOLERANCE * np.abs(expected).max()


def test_each_distinct_text_is_embedded_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = store.engine(embedder(store, "cosine"))
    asked: list[Request] = []
    submit = model.engine.submit
    monkeypatch.setattr(model.engine, "submit", lambda request: (asked.append(request), submit(request))[1])
    model.score(QUERIES, DOCUMENTS)
    assert [len(request.items) for request in asked] == [3, 3]
    asked.clear()
    model.rerank(QUERIES[0], DOCUMENTS)
    assert [len(request.items) for request in asked] == [1, 3]


def test_documents_best_first_and_equal_ones_in_their_order(store: Store) -> None:
    model = store.engine(embedder(store, "cosine"))
    scores = model.score(QUERIES[0], DOCUMENTS).scores
    output = model.rerank(QUERIES[0], DOCUMENTS, return_documents=True)
    assert [one.index for one in output] == np.argsort(-scores, kind="stable").tolist()
    assert [one.document for one in output] == [DOCUMENTS[one.index] for one in output]
    assert [one.index for one in output if one.index in (0, 3)] == [0, 3]
    assert [one.score for one in output] == [float(scores[one.index]) for one in output]
    assert all(one.document is None for one in model.rerank(QUERIES[0], DOCUMENTS))


@pytest.mark.parametrize("queries", [[], QUERIES])
def test_a_ranking_is_for_one_query(store: Store, queries: list[str]) -> None:
    """As many queries as documents would be compared pair by pair."""
    model = store.engine(embedder(store, "cosine"))
    with pytest.raises(InvalidRequest, match=f"'query' holds {len(queries)} texts") as caught:
        model.rerank(queries, DOCUMENTS)  # type: ignore[arg-type]
    assert caught.value.field == "query"
    assert list(model.rerank(QUERIES[:1], DOCUMENTS)) == list(model.rerank(QUERIES[0], DOCUMENTS))  # type: ignore[arg-type]


@pytest.mark.parametrize(("top_n", "count"), [(None, 4), (0, 4), (1, 1), (4, 4), (100, 4)])
def test_the_best_of_them(store: Store, top_n: int | None, count: int) -> None:
    model = store.engine(embedder(store, "cosine"))
    whole = model.rerank(QUERIES[0], DOCUMENTS)
    assert list(model.rerank(QUERIES[0], DOCUMENTS, top_n=top_n)) == list(whole)[:count]


def test_chunks_of_many_documents_are_one_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = store.engine(embedder(store, "cosine"))
    whole = model.score(QUERIES[0], DOCUMENTS).scores
    monkeypatch.setattr("forebay.api.model._CHUNK_ITEMS", 3)
    assert difference(model.score(QUERIES[0], DOCUMENTS).scores, whole) <= 1e-6
    assert difference(model.score(QUERIES, DOCUMENTS).scores, [model.score(*p)[0] for p in zip(QUERIES, DOCUMENTS, strict=True)]) <= TOLERANCE  # fmt: skip  # noqa: E501
    with pytest.raises(InputTooLong, match=r"documents\[3\]"):
        model.score("a", ["a", "b", "c", sentence(100, 9)], truncate=False)
    with pytest.raises(InputTooLong, match=r"queries\[4\]"):
        model.score(["a", "b", "c", "d", sentence(100, 9)], ["a"] * 5, truncate=False)
    with pytest.raises(InputTooLong, match=r"queries\[0\]"):  # the one for all is in every chunk
        model.score([sentence(100, 9)], ["a"] * 5, truncate=False)


def test_no_documents_are_no_scores(store: Store) -> None:
    model = store.engine(embedder(store, "cosine"))
    assert len(model.engine.submit_score(ScoreRequest(["a"], [])).result().scores) == 0


WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "two for three": (["a", "b"], ["a", "b", "c"], {}, "2 queries can't be paired with 3 documents"),
    "many for one": (["a", "b"], "a", {}, "one query for many documents"),
    "ids": ("a", [[1, 2]], {}, r"documents\[0\] is of type list"),
    "none": (None, ["a"], {}, "queries is of type NoneType"),
    "matrix": (
        np.zeros((2, 3), np.float32),
        ["a"],
        {},
        "queries is a matrix of token vectors; this model compares a text",
    ),
    "raw": ("a", ["a"], {"use_activation": False}, "logits of cross-encoders"),
    "instruction": ("a", ["a"], {"instruction": "find it"}, "template"),
    "limit": ("a", ["a"], {"max_tokens_per_doc": 0}, "max_tokens_per_doc is 0"),
    "kind of limit": ("a", ["a"], {"max_tokens_per_query": "9"}, "max_tokens_per_query is of type str"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_compared_is_refused(store: Store, name: str) -> None:
    queries, documents, options, words = WRONG[name]
    with pytest.raises(InvalidRequest, match=words):
        store.engine(embedder(store, "cosine")).score(queries, documents, **options)


def test_negative_top_n_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="top_n is -1"):
        store.engine(embedder(store, "cosine")).rerank("a", ["a"], top_n=-1)


def test_limits_of_each_side(store: Store) -> None:
    model = store.engine(embedder(store, "cosine"))
    query, document = sentence(30, 5), sentence(40, 6)
    output = model.score(query, document, max_tokens_per_query=12, max_tokens_per_doc=20)
    assert output.num_tokens == (12 + 2) + (20 + 2)
    assert output.truncated.tolist() == [True]
    assert abs(output[0] - model.score(query, document)[0]) >= 1e-4


def test_a_classifier_of_three_labels_tells_why_it_can_not(store: Store) -> None:
    model = store.engine(head_folder(store, "bert", "sequence", num_labels=3))
    assert model.info.abilities.score_type is None
    with pytest.raises(InvalidRequest, match=r"classifier with 3 labels.*'classify'"):
        model.score("a", ["b"])


def test_cancelling_a_comparison_cancels_its_parts(store: Store) -> None:
    model = store.engine(embedder(store, "cosine"))
    future = model.engine.submit_score(ScoreRequest([sentence(40, 1)], [sentence(40, seed) for seed in range(600)]))
    assert future.cancel()
    assert model.score("a", "a").scores.shape == (1,)


def test_a_text_that_failed_fails_its_pairs_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both pairs of a distinct text have its error, each at its own place; the others have their scores."""
    model = store.engine(embedder(store, "cosine"))
    expected = model.score(QUERIES[0], DOCUMENTS).scores
    submit = model.engine.submit

    def fail_first_document(request: Request) -> "Future[Reply]":
        reply = submit(request).result()
        if request.text.input_type == "document":
            rows = [None, *reply.rows[1:]]
            error = ItemFailed("input[0]: the forward failed", index=0)
            reply = replace(reply, outputs={Task.EMBED: rows}, errors={0: error})
        answered: Future[Reply] = Future()
        answered.set_result(reply)
        return answered

    monkeypatch.setattr(model.engine, "submit", fail_first_document)
    reply = model.engine.submit_score(ScoreRequest([QUERIES[0]], DOCUMENTS)).result()
    assert {place: (error.index, str(error)) for place, error in reply.errors.items()} == {
        place: (place, f"documents[{place}]: the forward failed") for place in (0, 3)
    }
    assert np.isnan(reply.scores[[0, 3]]).all()
    assert difference(reply.scores[[1, 2]], expected[[1, 2]]) <= 1e-6
    with pytest.raises(ItemFailed, match=r"documents\[0\]") as caught:
        model.score(QUERIES[0], DOCUMENTS)
    assert caught.value.field == "documents[0]"
