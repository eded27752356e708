"""`forebay embed`: every input and output format, ids, failures, refusals."""

import json
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.fake_model import DIMENSION, vector

TEXTS = ["one", "zwei drei", "", 'a, "quoted" text', "日本"]


def write_input(path, texts, ids):
    kind = path.suffix
    if kind == ".txt":
        path.write_text("".join(f"{text}\n" for text in texts))
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps({"text": t, "id": i}) + "\n" for t, i in zip(texts, ids, strict=True)))
    elif kind == ".csv":
        quoted = ('"' + text.replace('"', '""') + '"' for text in texts)
        path.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in zip(ids, quoted, strict=True)))
    else:
        pq.write_table(pa.table({"id": ids, "text": texts}), path)
    return path


def read_output(path):
    """Vectors (NaN where there is none) and ids."""
    if path.suffix == ".npy":
        return np.load(path), None
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        lines = pq.read_table(path).to_pylist()
    missing = [float("nan")] * DIMENSION
    vectors = [line.get("embedding") or missing for line in lines]
    return np.array(vectors, dtype=np.float32).reshape(-1, DIMENSION), [line.get("id") for line in lines]


@pytest.mark.parametrize("source", ["in.txt", "in.jsonl", "in.csv", "in.parquet"])
@pytest.mark.parametrize("target", ["out.npy", "out.jsonl", "out.parquet"])
def test_every_pair_of_formats(cli, tmp_path, source, target):
    done = cli("embed", write_input(tmp_path / source, TEXTS, range(5)), "-o", tmp_path / target)
    assert done.code == 0, done.err
    assert done.out == ""
    vectors, _ = read_output(tmp_path / target)
    np.testing.assert_array_equal(vectors, [vector(text) for text in TEXTS])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source, target])


@pytest.mark.parametrize("source", ["in.jsonl", "in.csv", "in.parquet"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("ids", [[7, 5, 3, 1, 9], ["a", "b", "c", "d", "e"]])
def test_ids_are_copied(cli, tmp_path, source, target, ids):
    cli("embed", write_input(tmp_path / source, TEXTS, ids), "-o", tmp_path / target, "--id-field", "id")
    wanted = [str(key) for key in ids] if source == "in.csv" else ids  # CSV knows no numbers
    assert read_output(tmp_path / target)[1] == wanted


def test_npy_is_what_numpy_would_save(cli, tmp_path):
    cli("embed", write_input(tmp_path / "in.txt", TEXTS, ()), "-o", tmp_path / "out.npy")
    np.save(tmp_path / "wanted.npy", np.stack([vector(text) for text in TEXTS]))
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "wanted.npy").read_bytes()


def test_parquet_has_a_fixed_size_list_of_float32(cli, tmp_path):
    cli("embed", write_input(tmp_path / "in.txt", TEXTS, ()), "-o", tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").field("embedding").type == pa.list_(pa.float32(), DIMENSION)


def test_several_files_are_one_input(cli, tmp_path):
    first = write_input(tmp_path / "a.txt", TEXTS[:2], ())
    second = write_input(tmp_path / "b.jsonl", TEXTS[2:], range(3))
    cli("embed", first, second, "-o", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [vector(text) for text in TEXTS])


@pytest.mark.parametrize("files", [[], ["-"]])
def test_standard_input_to_standard_output(fake_command, files):
    done = subprocess.run(
        [*fake_command, "embed", *files, "--input-format", "jsonl", "--field", "body", "--id-field", "n"],
        input='{"body": "x", "n": 1}\n\n{"n": "two", "body": "y z"}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [
        {"id": 1, "embedding": vector("x").tolist()},
        {"id": "two", "embedding": vector("y z").tolist()},
    ]
    assert done.stderr.startswith("2 texts in ")
    assert "3 tokens" in done.stderr


@pytest.mark.parametrize("target", ["out.npy", "out.jsonl", "out.parquet"])
@pytest.mark.parametrize("source", ["in.txt", "in.jsonl", "in.csv", "in.parquet"])
def test_no_texts_make_an_empty_output(cli, tmp_path, source, target):
    done = cli("embed", write_input(tmp_path / source, [], []), "-o", tmp_path / target, "--dimensions", 4)
    assert done.code == 0, done.err
    if target == "out.npy":
        assert np.load(tmp_path / target).shape == (0, 4)
    elif target == "out.parquet":
        table = pq.read_table(tmp_path / target)
        assert (table.num_rows, table.schema.field("embedding").type) == (0, pa.list_(pa.float32(), 4))
    else:
        assert (tmp_path / target).read_bytes() == b""


def test_an_empty_parquet_has_its_id_column(cli, tmp_path):
    source = write_input(tmp_path / "in.jsonl", [], [])
    cli("embed", source, "-o", tmp_path / "out.parquet", "--id-field", "id")
    assert pq.read_schema(tmp_path / "out.parquet").names == ["id", "embedding"]


@pytest.mark.parametrize("target", ["out.npy", "out.jsonl", "out.parquet"])
def test_failed_texts_are_marked_and_told(cli, tmp_path, target):
    source = write_input(tmp_path / "in.txt", ["a", "FAIL secret", "b"], ())
    done = cli("embed", source, "-o", tmp_path / target)
    assert done.code == 1
    assert "error: 1 of 3 texts failed; the first of this run is input[1]: the forward failed" in done.err
    assert "secret" not in done.err
    vectors, _ = read_output(tmp_path / target)
    np.testing.assert_array_equal(vectors, [vector("a"), np.full(DIMENSION, np.nan, np.float32), vector("b")])
    if target == "out.jsonl":
        line = json.loads((tmp_path / target).read_text().splitlines()[1])
        assert line == {"error": {"code": "item_failed", "message": "input[1]: the forward failed"}}
    if target == "out.parquet":
        assert pq.read_table(tmp_path / target)["embedding"].null_count == 1


def test_parameters_reach_the_model(cli, tmp_path, monkeypatch):
    from tests.cli.fake_model import FakeModel

    seen = []
    answer = FakeModel.answer
    monkeypatch.setattr(FakeModel, "answer", lambda self, *args: seen.append(args) or answer(self, *args))
    source = write_input(tmp_path / "in.txt", ["a"], ())
    cli(
        "embed", source, "--prompt", "p ", "--input-type", "query", "--dimensions", 4, "--raw", "--no-truncate",
        "--max-tokens", 5,
    )  # fmt: skip
    cli("embed", source, "--prompt-name", "query")
    (_, pooling, text), (_, pooling_by_default, named) = seen
    assert (pooling.dimensions, pooling.use_activation) == (4, False)
    assert (text.prompt, text.input_type, text.truncate, text.max_tokens) == ("p ", "query", False, 5)
    assert (pooling_by_default.dimensions, pooling_by_default.use_activation) == (None, None)
    assert (named.prompt, named.prompt_name, named.truncate) == (None, "query", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in.txt", "-o", "out.bin"], "pass --output-format"),
        (["in.bin", "-o", "out.npy"], "pass --input-format"),
        (["in.txt", "-o", "absent/out.npy"], "is not there; make it first"),
        (["in.txt", "-o", "folder", "--output-format", "npy"], "is not a regular file"),
        (["folder"], "is a folder"),
        (["in.txt", "--output-format", "npy"], "can't be written to standard output"),
        (["in.txt", "--resume"], "need an output file"),
        (["in.txt", "-o", "out.jsonl", "--id-field", "id"], "txt has none"),
        (["in.jsonl", "-o", "out.npy", "--id-field", "id"], "npy has no room for --id-field"),
        (["-", "--input-format", "parquet"], "give the file's name"),
        (["in.txt", "-o", "there.npy"], "exists; pass --overwrite"),
        (["in.txt", "-o", "there.npy", "--resume"], "is complete, nothing to resume; pass --overwrite"),
    ],
)
def test_refusals(cli, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("in.txt", "in.bin", "in.jsonl", "there.npy"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    done = cli("embed", *arguments)
    assert done.code == 2
    assert message in done.err
    assert (tmp_path / "there.npy").read_bytes() == b""


def test_overwrite_replaces_at_the_end(cli, tmp_path):
    source = write_input(tmp_path / "in.txt", ["new"], ())
    (tmp_path / "out.npy").write_text("old")
    assert cli("embed", source, "-o", tmp_path / "out.npy", "--overwrite").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [vector("new")])


def test_a_malformed_line_leaves_no_output_and_the_old_one(cli, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.npy"
    source.write_text('"fine"\n{"txt": "secret"}\n')
    out.write_text("old")
    done = cli("embed", source, "-o", out, "--overwrite")
    assert done.code == 1
    assert done.err.startswith(f"error: {source}, line 2: field 'text' is missing; expected a string")
    assert "secret" not in done.err
    assert out.read_text() == "old"


def test_quiet_without_progress(cli, tmp_path):
    source = write_input(tmp_path / "in.txt", TEXTS, ())
    done = cli("embed", source, "-o", tmp_path / "out.npy", "--no-progress")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_text_that_is_too_long_is_named_by_its_row(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.cli.rows.DenseRows.chunk_items", 2)
    source = write_input(tmp_path / "in.txt", ["a", "b", "c", "word " * 257], ())
    done = cli("embed", source, "-o", tmp_path / "out.npy", "--no-truncate")
    assert (done.code, done.err) == (
        1,
        "error: input[3] has 257 tokens; send a shorter text (--no-truncate; --on-error skip leaves out such rows)\n",
    )
