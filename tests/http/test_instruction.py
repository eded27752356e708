"""The field ``instruction`` of the routes of scoring, on a language model that answers yes or no."""

import pytest

from tests.cli.test_rerank_instruction import DOCUMENTS, make_reranker

QUERY, TASK = "a river", "Find mills"


@pytest.fixture(scope="session")
def judge(store, serve):
    """A reranker whose template has a place for an instruction."""
    return serve(store.folder("yes-no-reranker", make_reranker))


@pytest.fixture(scope="session")
def plain_judge(store, serve, tmp_path_factory):
    """The same with a template that has none."""
    own = tmp_path_factory.mktemp("template") / "own.toml"
    own.write_text('pieces = ["q: {query}", " d: {document}"]\ntrue = "yes"\nfalse = "no"\n')
    return serve(store.folder("yes-no-reranker", make_reranker), template=str(own))


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rankings(judge, path):
    scores = {}
    for options in ({}, {"instruction": TASK}):
        expected = judge.model.rerank(QUERY, DOCUMENTS, **options)
        said = judge.post(path, query=QUERY, documents=list(DOCUMENTS), **options)["results"]
        assert [one["index"] for one in said] == [one.index for one in expected]
        found = [one["relevance_score"] for one in said]
        assert found == pytest.approx([one.score for one in expected], abs=1e-6)
        scores[bool(options)] = sorted(found)
    assert scores[True] != pytest.approx(scores[False], abs=1e-3)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores(judge, path):
    expected = judge.model.score(QUERY, DOCUMENTS, instruction=TASK).scores
    said = judge.post(path, text_1=QUERY, text_2=list(DOCUMENTS), instruction=TASK)
    assert [one["score"] for one in said["data"]] == pytest.approx(expected.tolist(), abs=1e-6)
    prompted = judge.post(path, text_1=QUERY, text_2=list(DOCUMENTS), prompt=TASK)
    assert prompted["data"] == said["data"], "a prompt stands in the same place"


def test_what_tei_says(judge):
    expected = judge.model.rerank(QUERY, DOCUMENTS, instruction=TASK)
    said = judge.client.post("/rerank", json={"query": QUERY, "texts": list(DOCUMENTS), "instruction": TASK}).json()
    assert [one["index"] for one in said] == [one.index for one in expected]


@pytest.mark.parametrize("body", [{"path": "/rerank", "query": QUERY}, {"path": "/score", "text_1": QUERY}])
def test_a_template_without_a_place_refuses_it(plain_judge, body):
    path, *_ = body.values()
    own = {name: value for name, value in body.items() if name != "path"}
    documents = {"documents" if path == "/rerank" else "text_2": list(DOCUMENTS)}
    plain_judge.post(path, **own, **documents)
    error = plain_judge.refuse(path, **own, **documents, instruction=TASK)
    assert error["param"] == "instruction"
    assert "has none; leave it out" in error["message"]
    assert TASK not in error["message"]


def test_what_is_kept_is_told(judge):
    """What is reserved for keys and values, in /info and among the metrics, before the first request."""
    decisions = {one["name"]: one for one in judge.client.get("/info").json()["decisions"]}
    assert decisions["keys and values"]["value"].endswith(" MiB")
    lines = judge.client.get("/metrics").text.splitlines()
    found = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
    assert found["forebay_kv_blocks"] * 16 == float(decisions["keys and values"]["value"].split()[0])
    told = float(decisions["keys and values"]["value"].split()[-2]) * (1 << 20)
    assert found["forebay_kv_bytes"] == pytest.approx(told, abs=0.1 * (1 << 20))
