"""Bad rows: they end a run, or are written as errors in their places while the run goes on."""

import json

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from tests.cli.fake_model import DIMENSION, vector

ROWS = [
    '{"text": "a", "id": 1}',
    '{"text": 5, "id": 2}',
    "no json",
    '{"text": "FAIL", "id": 4}',
    '{"text": "b", "id": 5}',
]
LONG = "word " * 257


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(ROWS) + "\n")
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("command", ["embed", "score", "rerank"])
def test_a_run_stops_unless_told_otherwise(cli, source, tmp_path, command):
    options = {"embed": [], "score": ["--query", "a", "--field", "text"], "rerank": []}[command]
    arguments = ["a", source] if command == "rerank" else [source]
    done = cli(command, *arguments, *options, "-o", tmp_path / "out.jsonl")
    assert done.code == 1
    assert done.err.startswith(f"error: {source}, line 2: field 'text' is int; expected a string")
    assert "--on-error skip leaves out such rows" in done.err
    assert not (tmp_path / "out.jsonl").exists()


def test_skipped_rows_are_errors_in_their_places(cli, source, tmp_path):
    out = tmp_path / "out.jsonl"
    done = cli("embed", source, "-o", out, "--on-error", "skip", "--id-field", "id")
    assert done.code == 1
    assert f"error: 3 of 5 texts failed; the first of this run is {source}, line 2: field 'text'" in done.err
    found = lines_of(out)
    assert [line["id"] for line in found] == [1, 2, None, 4, 5]
    codes = [line.get("error", {}).get("code") for line in found]
    assert codes == [None, "malformed_input", "malformed_input", "item_failed", None]
    assert "line 3: not JSON" in found[2]["error"]["message"]
    assert found[4]["embedding"] == vector("b").tolist()


def test_skipped_rows_in_arrays_and_tables(cli, source, tmp_path):
    assert cli("embed", source, "-o", tmp_path / "out.npy", "--on-error", "skip").code == 1
    nothing = np.full(DIMENSION, np.nan, np.float32)
    expected = [vector("a"), nothing, nothing, nothing, vector("b")]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    source.write_text("rubbish\n" + source.read_text())
    assert cli("embed", source, "-o", tmp_path / "out.parquet", "--on-error", "skip", "--id-field", "id").code == 1
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == [None, 1, 2, None, 4, 5]
    assert table["embedding"].is_null().to_pylist() == [True, False, True, True, True, False]


def test_texts_that_are_too_long_are_skipped_one_by_one(cli, tmp_path, monkeypatch):
    from tests.cli.fake_model import FakeModel

    answer = FakeModel.answer

    def cut(self, items, pooling, text):
        reply = answer(self, items, pooling, text)
        reply.truncated[:] = [len(item.split()) > 256 for item in items]
        return reply

    monkeypatch.setattr(FakeModel, "answer", cut)
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text(f"a\n{LONG}\nb\n{LONG}\n")
    done = cli("embed", source, "-o", out, "--no-truncate", "--on-error", "skip")
    assert done.code == 1
    assert "error: 2 of 4 texts failed" in done.err
    assert "truncated" not in done.err
    found = lines_of(out)
    assert found[1]["error"]["code"] == found[3]["error"]["code"] == "context_length_exceeded"
    assert found[3]["error"]["message"].startswith("input[3] has more tokens")
    assert found[2]["embedding"] == vector("b").tolist()


def test_a_run_that_stopped_at_a_bad_row_goes_on_past_it(cli, tmp_path, monkeypatch):
    """Only what to do about bad rows changed, so that all rows before them are good."""
    monkeypatch.setattr("forebay.cli.rows.DenseRows.chunk_items", 4)
    monkeypatch.setattr("forebay.cli.outputs.JsonlWriter.sync_seconds", 0.0)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [json.dumps(f"text {index}") for index in range(40)]
    source.write_text("\n".join([*rows[:30], "bad", *rows[30:]]))
    done = cli("embed", source, "-o", out)
    assert (done.code, out.exists()) == (1, False)
    saved = orjson.loads((tmp_path / "out.jsonl.progress").read_bytes())["rows"]
    assert 0 < saved <= 30
    done = cli("embed", source, "-o", out, "--resume", "--on-error", "skip")
    assert done.code == 1
    assert f"{41 - saved} texts in" in done.err
    assert "error: 1 of 41 texts failed" in done.err
    expected = [{"embedding": vector(f"text {index}").tolist()} for index in range(40)]
    found = lines_of(out)
    assert found[:30] + found[31:] == expected
    assert found[30]["error"]["code"] == "malformed_input"


def test_a_changed_bad_row_is_a_changed_input(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.cli.rows.DenseRows.chunk_items", 2)
    monkeypatch.setattr("forebay.cli.outputs.JsonlWriter.sync_seconds", 0.0)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = ["bad", *(json.dumps(f"text {index}") for index in range(20)), "bad"]
    source.write_text("\n".join(rows))
    cli("embed", source, "-o", out, "--on-error", "skip")
    out.unlink()
    source.write_text("\n".join([*rows[:-1], json.dumps({"a": 1})]))
    assert cli("embed", source, "-o", out).code == 1
    source.write_text("\n".join(["bad", *rows[1:]]))
    assert cli("embed", source, "-o", out, "--overwrite", "--on-error", "skip").code == 1


def test_pairs_that_have_no_score(cli, tmp_path):
    source = tmp_path / "pairs.jsonl"
    rows = [{"query": "a b", "document": "a"}, {"query": "a"}, {"query": "a", "document": LONG}, {"document": "a"}]
    source.write_text("\n".join(map(json.dumps, rows)))
    done = cli("score", source, "-o", tmp_path / "out.jsonl", "--no-truncate", "--on-error", "skip")
    assert (done.code, done.err) == (1, "error: 3 of 4 rows failed\n")
    found = lines_of(tmp_path / "out.jsonl")
    assert [line["index"] for line in found] == [0, 1, 2, 3]
    assert found[0] == {"index": 0, "score": 1.0, "truncated": False}
    codes = [line["error"]["code"] for line in found[1:]]
    assert codes == ["malformed_input", "context_length_exceeded", "malformed_input"]


def test_documents_that_are_not_ranked(cli, tmp_path):
    source = tmp_path / "documents.jsonl"
    source.write_text("\n".join(["bad", '"a mill"', json.dumps("mill " + LONG), '"water"', '"the mill of a mill"']))
    done = cli("rerank", "a mill", source, "--no-truncate", "--on-error", "skip", "--top-n", 2)
    assert (done.code, done.err) == (1, "error: 2 of 5 rows failed\n")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [line["index"] for line in found] == [1, 4, 0, 2]
    assert [line.get("error", {}).get("code") for line in found[2:]] == ["malformed_input", "context_length_exceeded"]
