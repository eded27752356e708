"""The routes of scoring and reranking on live servers, as their clients call them."""

import numpy as np
import pytest

from tests.support import heads, multi_vector
from tests.support.texts import sentence

QUERY = "where does the river go"
DOCUMENTS = ["The river flows over stone.", "A mill.", "The river flows over stone.", "", "water " * 200]


@pytest.fixture(scope="session")
def reranker(store, serve):
    """A cross-encoder: one label and a sigmoid."""
    return serve(store.folder("http-reranker", lambda place: heads.with_head(place, "bert", "sequence", num_labels=1)))


@pytest.fixture(scope="session")
def scores(reranker):
    return reranker.model.score(QUERY, DOCUMENTS).scores


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]
)
def test_scores_come_in_order(reranker, scores, path, first, second):
    said = reranker.post(path, **{first: QUERY, second: DOCUMENTS})
    assert [entry["score"] for entry in said["data"]] == pytest.approx(scores.tolist(), abs=1e-7)
    assert [(entry["index"], entry["object"]) for entry in said["data"]] == [(n, "score") for n in range(5)]
    assert said["object"] == "list"
    assert said["truncated"] == [4]
    assert said["usage"]["total_tokens"] == reranker.model.score(QUERY, DOCUMENTS).num_tokens


def test_pairs(reranker):
    queries = ["a mill", QUERY]
    said = reranker.post("/score", text_1=queries, text_2=DOCUMENTS[:2])
    expected = reranker.model.score(queries, DOCUMENTS[:2]).scores
    assert [entry["score"] for entry in said["data"]] == pytest.approx(expected.tolist(), abs=1e-7)


@pytest.mark.parametrize("options", [{"use_activation": False}, {"raw_scores": True}])
@pytest.mark.parametrize("path", ["/score", "/rerank"])
def test_logits(reranker, options, path):
    expected = reranker.model.score(QUERY, DOCUMENTS, use_activation=False).scores
    names = ("queries", "documents") if path == "/score" else ("query", "documents")
    said = reranker.post(path, **{names[0]: QUERY, names[1]: DOCUMENTS}, **options)
    entries = sorted(said["data"], key=lambda result: result["index"])
    found = [entry.get("score", entry.get("relevance_score")) for entry in entries]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/v1/v2/rerank"])
def test_a_ranking(reranker, scores, path):
    said = reranker.post(path, query=QUERY, documents=DOCUMENTS)
    order = np.argsort(-scores, kind="stable").tolist()
    assert [result["index"] for result in said["results"]] == order
    assert order.index(0) < order.index(2)  # equal scores keep their order
    assert [result["relevance_score"] for result in said["results"]] == pytest.approx(scores[order].tolist(), abs=1e-7)
    assert "document" not in said["results"][0]
    assert said["data"] == said["results"]  # the speaker may be Voyage's client
    assert said["truncated"] == [4]


@pytest.mark.parametrize(("top_n", "length"), [(None, 5), (0, 5), (2, 2), (9, 5)])
def test_top_n(reranker, top_n, length):
    said = reranker.post("/rerank", query=QUERY, documents=DOCUMENTS, top_n=top_n)
    assert len(said["results"]) == length
    assert "data" not in said


def test_documents_come_back_where_asked_for(reranker):
    objects = [{"text": "A mill.", "id": 5}, "The river flows over stone."]
    said = reranker.post("/v2/rerank", query=QUERY, documents=objects, return_documents=True)
    found = {result["index"]: result["document"] for result in said["results"]}
    assert found == {0: objects[0], 1: {"text": objects[1]}}


def test_objects_are_read_by_their_rank_fields(reranker):
    documents = [{"title": "The mill", "body": "A mill."}, {"title": "The river", "body": "It flows."}]
    said = reranker.post("/v1/rerank", query=QUERY, documents=documents, rank_fields=["title", "body"])
    expected = reranker.model.rerank(QUERY, ["The mill\nA mill.", "The river\nIt flows."])
    assert [result["index"] for result in said["results"]] == [result.index for result in expected]


def test_voyage_reads_data(reranker):
    said = reranker.post("/v1/rerank", query=QUERY, documents=DOCUMENTS, top_k=2, truncation=True)
    assert said["data"] == said["results"]
    assert len(said["data"]) == 2


def test_tei(reranker, scores):
    reply = reranker.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    said = reply.json()
    order = np.argsort(-scores, kind="stable").tolist()
    assert [(entry["index"], entry["text"]) for entry in said] == [(index, DOCUMENTS[index]) for index in order]
    assert [entry["score"] for entry in said] == pytest.approx(scores[order].tolist(), abs=1e-7)


def test_limits_of_each_side(reranker):
    expected = reranker.model.score(QUERY, DOCUMENTS, max_tokens_per_query=2, max_tokens_per_doc=3)
    said = reranker.post("/score", queries=QUERY, documents=DOCUMENTS, max_tokens_per_query=2, max_tokens_per_doc=3)
    assert [entry["score"] for entry in said["data"]] == pytest.approx(expected.scores.tolist(), abs=1e-7)
    assert said["truncated"] == [0, 1, 2, 3, 4]
    zero = reranker.post("/score", queries=QUERY, documents=DOCUMENTS, max_tokens_per_query=0, max_tokens_per_doc=0)
    free = reranker.post("/score", queries=QUERY, documents=DOCUMENTS)["data"]
    assert zero["data"] == free
    for most in (1 << 31, 1 << 63, (1 << 64) - 1):
        huge = {"max_tokens_per_query": most, "max_tokens_per_doc": most}
        assert reranker.post("/score", queries=QUERY, documents=DOCUMENTS, **huge)["data"] == free


def test_embedders_compare_vectors(embedder):
    expected = embedder.model.score(QUERY, DOCUMENTS).scores
    said = embedder.post("/rerank", query=QUERY, documents=DOCUMENTS)
    found = {result["index"]: result["relevance_score"] for result in said["results"]}
    np.testing.assert_allclose([found[n] for n in range(5)], expected, atol=1e-6)
    assert embedder.client.get("/v1/models").json()["data"][0]["score_type"] == "bi-encoder"


@pytest.mark.parametrize(
    ("name", "path", "body", "words"),
    [
        ("classifier", "/rerank", {}, "3 labels"),
        ("tagger", "/score", {}, "can't score"),
        ("reranker", "/rerank", {"query": None}, "'query' is missing"),
        ("reranker", "/rerank", {"documents": None}, "'documents' is missing"),
        ("reranker", "/rerank", {"documents": []}, "'documents' is an empty list"),
        ("reranker", "/rerank", {"documents": ["a", 5]}, "'documents[1]' must be a string"),
        ("reranker", "/rerank", {"documents": [{"body": "a"}]}, "'text'"),
        ("reranker", "/rerank", {"documents": [{"title": "a"}], "rank_fields": ["body"]}, "'body'"),
        ("reranker", "/rerank", {"query": ["a", "b"]}, "one query"),
        ("reranker", "/rerank", {"top_n": -1}, "top_n is -1"),
        ("reranker", "/rerank", {"top_k": -1}, "top_k is -1"),
        ("reranker", "/rerank", {"top_n": 1.5}, "'top_n' must be an integer"),
        ("reranker", "/v1/rerank", {"texts": ["a"]}, "'texts' and 'documents'"),
        ("reranker", "/v2/rerank", {"documents": None, "texts": []}, "'texts' is an empty list"),
        ("reranker", "/v1/rerank", {"top_n": 1, "top_k": 2}, "'top_n' and 'top_k'"),
        ("reranker", "/rerank", {"documents": [{"content": []}]}, "'documents[0].content' must be"),
        ("reranker", "/rerank", {"documents": [{"content": [{"image_url": "a"}]}]}, "'documents[0].content[0]' has no"),
        ("reranker", "/rerank", {"documents": [{"a": True}], "rank_fields": ["a"]}, "'documents[0].a' must be"),
        ("reranker", "/rerank", {"max_tokens_per_doc": -3}, "max_tokens_per_doc is -3"),
        ("reranker", "/rerank", {"instruction": "find"}, "'instruction'"),
        ("reranker", "/rerank", {"documents": [[[0.5, 0.5]]]}, "this model compares a text"),
        (
            "reranker",
            "/rerank",
            {"documents": ["water " * 200], "truncate": False},
            "are read beside 3 special ones",
        ),
        ("reranker", "/rerank", {"raw_scores": True, "use_activation": True}, "'raw_scores'"),
        ("reranker", "/score", {}, "one pair of names"),
        ("reranker", "/score", {"queries": "a"}, "one pair of names"),
        ("reranker", "/score", {"text_1": "a", "text_2": "b", "queries": "c"}, "one pair of names"),
        ("reranker", "/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "2 queries can't be paired with 1 documents"),
        ("embedder", "/rerank", {"raw_scores": True}, "raw scores are the logits of cross-encoders"),
    ],
)
def test_what_is_refused(request, name, path, body, words):
    served = request.getfixturevalue(name)
    whole = {"query": "secret", "documents": ["secret"], **body} if "rerank" in path else body
    if name == "tagger":
        whole = {"queries": "secret", "documents": "secret"}
    reply = served.client.post(path, json=whole)
    assert reply.status_code == 400, reply.text
    assert words in reply.json()["error"]["message"]
    assert "secret" not in reply.text
    if "rerank" in path:  # what the clients of Cohere and Voyage read
        assert reply.json()["message"] == reply.json()["detail"] == reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("reranker", {"texts": []}, "'texts' is an empty list"),
        ("reranker", {"texts": ["a"], "documents": ["a"]}, "'texts' and 'documents'"),
        ("reranker", {"texts": ["water " * 200], "truncate": False}, "are read beside 3 special ones"),
        ("classifier", {"texts": ["a"]}, "3 labels"),
        ("reranker", {"texts": ["a"], "model": "other"}, "no model of that name"),
    ],
)
def test_errors_of_tei(request, name, body, words):
    served = request.getfixturevalue(name)
    reply = served.client.post("/rerank", json={"query": "secret", **body})
    assert reply.status_code in (400, 404)
    assert set(reply.json()) == {"error", "error_type"}
    assert words in reply.json()["error"]
    assert "secret" not in reply.text


def test_tei_tells_what_was_cut_and_takes_a_number_of_results(reranker, scores):
    reply = reranker.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "truncation_direction": "Right"})
    assert {entry["index"] for entry in reply.json() if entry.get("truncated")} == {4}
    best = reranker.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "top_n": 1}).json()
    assert best == reply.json()[:1]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_texts_are_documents_where_no_client_of_tei_comes(reranker, path):
    said = reranker.post(path, query=QUERY, texts=DOCUMENTS, top_n=0)
    assert said["results"] == reranker.post(path, query=QUERY, documents=DOCUMENTS)["results"]


def test_objects_of_chats(reranker):
    part = {"content": [{"type": "text", "text": "A mill."}, {"type": "text", "text": "A river."}]}
    said = reranker.post("/score", queries={"content": QUERY}, documents=[part, {"text": "A mill."}])
    expected = reranker.model.score(QUERY, ["A mill.\nA river.", "A mill."]).scores
    assert [entry["score"] for entry in said["data"]] == pytest.approx(expected.tolist(), abs=1e-6)


def test_fields_that_an_object_lacks_are_passed_over(reranker):
    documents = [{"title": "The mill", "year": 1820, "body": None}]
    said = reranker.post("/v1/rerank", query=QUERY, documents=documents, rank_fields=["title", "body", "year"])
    expected = reranker.model.score(QUERY, ["The mill\n1820"]).scores
    assert said["results"][0]["relevance_score"] == pytest.approx(float(expected[0]), abs=1e-6)


def test_nulls_are_left_out_fields(reranker):
    fields = ["top_n", "top_k", "return_documents", "rank_fields", "max_tokens_per_doc", "max_tokens_per_query"]
    fields += [
        "instruction",
        "raw_scores",
        "use_activation",
        "truncation",
        "truncate",
        "truncate_prompt_tokens",
        "model",
    ]
    fields += ["truncation_side", "prompt", "prompt_name", "priority", "texts", "max_chunks_per_doc"]
    said = reranker.post("/v2/rerank", query=QUERY, documents=DOCUMENTS, **dict.fromkeys(fields))
    assert said["results"] == reranker.post("/v2/rerank", query=QUERY, documents=DOCUMENTS)["results"]


LONG = "water " * 200


def test_long_documents_by_windows(reranker):
    documents = [sentence(200, 2), "A mill."]
    expected = reranker.model.score(QUERY, documents, split=True)
    cut = reranker.model.score(QUERY, documents)
    assert (expected.truncated.tolist(), cut.truncated.tolist()) == ([False, False], [True, False])
    for path, place in (("/score", "data"), ("/rerank", "results")):
        said = reranker.post(path, query=QUERY, queries=QUERY, documents=documents, split=True)
        found = {entry["index"]: entry.get("score", entry.get("relevance_score")) for entry in said[place]}
        assert [found[0], found[1]] == pytest.approx(expected.scores.tolist(), abs=1e-6)
    assert abs(expected[0] - cut[0]) > 1e-4
    error = reranker.refuse("/rerank", query=QUERY, documents=documents, truncate_prompt_tokens=1)
    assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/score", {"text_1": "a", "text_2": ["a", LONG]}, "text_2[1]"),
        ("/v1/score", {"data_1": ["a", LONG], "data_2": ["a", "b"]}, "data_1[1]"),
        ("/score", {"data_1": LONG, "data_2": ["a", "b"]}, "data_1"),
        ("/score", {"queries": ["a"], "items": ["b", "c", LONG]}, "items[2]"),
        ("/score", {"queries": "a", "documents": LONG}, "documents"),
        ("/rerank", {"query": LONG, "documents": ["a", "b"]}, "query"),
        ("/v2/rerank", {"query": "a", "documents": ["a", {"text": LONG}]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "texts": ["a", LONG]}, "texts[1]"),
    ],
)
@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_errors_name_the_bodys_own_field(request, kind, path, body, place):
    """A cross-encoder reads pairs: where its query alone is too long, no document is to blame."""
    served = request.getfixturevalue(kind)
    error = served.refuse(path, **body, truncate=False)
    assert error["param"] == place
    assert error["message"].startswith(place)
    assert error["code"] == "context_length_exceeded"


@pytest.fixture(scope="session")
def late(serve, tmp_path_factory):
    """ColBERT as its authors save it."""
    return serve(multi_vector.stanford(tmp_path_factory.mktemp("late") / "model", metadata={}))


@pytest.mark.parametrize(
    ("body", "place", "words"),
    [
        (
            {"text_1": "a", "text_2": [[[0.5, 0.5]]]},
            "text_2[0]",
            "has token vectors of 2 numbers; this model's have 24",
        ),
        ({"text_1": [[0.5, 0.5]], "text_2": "a"}, "text_1", "has token vectors of 2 numbers"),
        ({"data_1": "a", "data_2": ["a", [[0.5], [0.5, 1]]]}, "data_2[1]", "all of one length"),
        ({"data_1": "a", "data_2": ["a", [[1e300] * 24]]}, "data_2[1]", "numbers that float32 does not"),
        ({"queries": "a", "items": ["a", {"data": "AAAA", "shape": [1, 24]}]}, "items[1].data", "3 bytes"),
        ({"queries": "a", "documents": [[[3e38] * 24] * 9000]}, "documents[0]", "9000 token vectors; at most 8192"),
        ({"queries": [[3e38] * 24], "documents": [[[3e38] * 24]]}, "documents[0]", "too large for float32"),
    ],
)
def test_token_vectors_that_are_wrong(late, body, place, words):
    error = late.refuse("/score", **body)
    assert error["param"] == place
    assert words in error["message"]
