"""`forebay score` and `forebay rerank`: lines in, JSON lines out, whole files or none."""

import io
import json
import sys

import pytest

PAIRS = (
    {"query": "clear water", "document": "the water is clear"},
    {"query": "clear water", "document": "a mill"},
    {"query": "mill", "document": "a mill"},
)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return path


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents.jsonl"
    texts = ("a mill", "clear water of a mill", "water", "nothing", "clear water at a mill")
    path.write_text("".join(json.dumps({"text": text, "key": f"k{i}"}) + "\n" for i, text in enumerate(texts)))
    return path


def test_pairs_of_a_file(cli, pairs):
    done = cli("score", pairs)
    assert (done.code, done.err) == (0, "")
    assert lines(done.out) == [
        {"index": index, "score": score, "truncated": False} for index, score in enumerate([2.0, 0.0, 1.0])
    ]


def test_pairs_of_columns_with_other_names(cli, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("question,answer\nclear water,the water\nmill,mill\n")
    done = cli("score", path, "--query-field", "question", "--field", "answer", "--raw")
    assert [line["score"] for line in lines(done.out)] == [-1.0, -1.0]


def test_one_query_for_standard_input(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"water\nmill\n")))
    done = cli("score", "--query", "mill")
    assert [line["score"] for line in lines(done.out)] == [0.0, 1.0]


def test_chunks_are_counted_through(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.cli.score._CHUNK_PAIRS", 2)
    path = tmp_path / "documents.txt"
    path.write_text("mill\nwater\nwater\nmill\nmill\n")
    done = cli("score", path, "--query", "mill")
    assert [(line["index"], line["score"]) for line in lines(done.out)] == [(0, 1), (1, 0), (2, 0), (3, 1), (4, 1)]
    path.write_text("mill\nwater\nwater\n" + "mill " * 257 + "\n")
    done = cli("score", path, "--query", "mill", "--no-truncate")
    assert done.code == 2
    assert done.err.startswith("error: document[3] has 257 tokens")
    path.write_text("mill\nwater\nwater\n")
    done = cli("score", path, "--query", "mill " * 257, "--no-truncate")
    assert done.err.startswith("error: --query has 257 tokens")
    done = cli("rerank", "mill", path, "--no-truncate", "--field", "text")
    assert done.code == 0
    path.write_text("mill\n" + "mill " * 257 + "\n")
    done = cli("rerank", "mill", path, "--no-truncate")
    assert (done.code, done.err.split(" has ")[0]) == (2, "error: text[1]")
    assert [line["truncated"] for line in lines(cli("rerank", "mill", path).out)] == [False, True]


def test_what_has_no_query_is_told(cli, pairs, tmp_path):
    done = cli("score", pairs, "--query-field", "question")
    assert done.code == 1
    assert "field 'question' (--query-field) is missing" in done.err
    (tmp_path / "lines.txt").write_text("mill\n")
    done = cli("score", tmp_path / "lines.txt")
    assert done.code == 2
    assert "--query-field needs an input with fields" in done.err


def test_documents_best_first(cli, documents):
    done = cli("rerank", "clear water", documents)
    assert (done.code, done.err) == (0, "")
    found = [(line["index"], line["score"]) for line in lines(done.out)]
    assert found == [(1, 2.0), (4, 2.0), (2, 1.0), (0, 0.0), (3, 0.0)]


@pytest.mark.parametrize(("top_n", "count"), [(0, 5), (2, 2), (99, 5)])
def test_the_best_of_them(cli, documents, top_n, count):
    assert len(lines(cli("rerank", "clear water", documents, "--top-n", top_n).out)) == count


def test_documents_and_their_names(cli, documents):
    done = cli("rerank", "water", documents, "--top-n", 1, "--return-documents", "--id-field", "key")
    assert lines(done.out) == [
        {"index": 1, "score": 1.0, "truncated": False, "id": "k1", "document": "clear water of a mill"}
    ]


def test_a_file_is_replaced_only_where_that_is_wanted(cli, pairs, tmp_path):
    out = tmp_path / "scores.jsonl"
    assert cli("score", pairs, "-o", out).code == 0
    first = out.read_text()
    assert len(lines(first)) == 3
    done = cli("score", pairs, "-o", out)
    assert done.code == 2
    assert "--overwrite" in done.err
    assert cli("score", pairs, "-o", out, "--overwrite", "--raw").code == 0
    assert out.read_text() != first


def test_no_half_file_stays(cli, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps(PAIRS[0]) + "\nnot json\n")
    assert cli("score", pairs, "-o", tmp_path / "scores.jsonl").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_an_output_that_can_not_be(cli, pairs, tmp_path):
    assert cli("score", pairs, "-o", tmp_path).code == 2
    done = cli("score", pairs, "-o", tmp_path / "absent" / "scores.jsonl")
    assert done.code == 2
    assert "its parent is not a folder" in done.err
