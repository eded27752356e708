"""`forebay embed --output …` and `forebay classify`: what each kind of row looks like in each format, and refusals."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from tests.cli.fake_model import LABELS, VOCABULARY, labels, matrix, sparse, vector

TEXTS = ["clear water", "FAIL secret", "", "a deep lake in the hills"]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def read_rows(path):
    """The rows of a jsonl or parquet file; a failed text's is None."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [None if "error" in line else line for line in lines]
    return [
        row if any(value is not None for value in row.values()) else None for row in pq.read_table(path).to_pylist()
    ]


def as_floats(values):
    """As JSON and Parquet readers give float32 numbers."""
    return pytest.approx(np.asarray(values).tolist(), rel=1e-7)


@pytest.fixture(params=["out.jsonl", "out.parquet"])
def run(request, cli, tmp_path, source):
    """Run a command on the texts; return its rows, the failed one among them checked."""

    def run_on_texts(*arguments):
        done = cli(*arguments, source, "-o", tmp_path / request.param)
        assert done.code == 1, done.err
        assert "1 of 4 texts failed; the first of this run is input[1]: the forward failed" in done.err
        rows = read_rows(tmp_path / request.param)
        assert rows.pop(1) is None
        return rows

    return run_on_texts


GOOD = [text for text in TEXTS if not text.startswith("FAIL")]


def test_sparse_rows(run):
    rows = run("embed", "-m", "language-model", "--output", "sparse")
    assert [set(row) for row in rows] == [{"indices", "values"}] * 3
    assert [row["indices"] for row in rows] == [sparse(text).ids.tolist() for text in GOOD]
    assert [row["values"] for row in rows] == [as_floats(sparse(text).weights) for text in GOOD]


def test_sparse_rows_with_tokens(run):
    rows = run("embed", "-m", "language-model", "--output", "sparse", "--tokens")
    assert [row["tokens"] for row in rows] == [[f"token-{i}" for i in sparse(text).ids] for text in GOOD]


def test_sparse_rows_as_one_matrix(cli, tmp_path, source):
    out = tmp_path / "out.npz"
    assert cli("embed", "-m", "language-model", "--output", "sparse", source, "-o", out).code == 1
    found = scipy.sparse.load_npz(out)
    wanted = np.zeros((4, VOCABULARY), np.float32)
    for place, text in zip((0, 2, 3), GOOD, strict=True):
        wanted[place, sparse(text).ids] = sparse(text).weights
    np.testing.assert_array_equal(found.toarray(), wanted)
    assert np.load(out)["failed"].tolist() == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npz"]


def test_token_rows(run):
    rows = run("embed", "-m", "language-model", "--output", "tokens", "--dimensions", 4)
    assert [set(row) for row in rows] == [{"embeddings"}] * 3
    for row, text in zip(rows, GOOD, strict=True):
        np.testing.assert_array_equal(np.array(row["embeddings"], np.float32).reshape(-1, 4), matrix(text, 4))


def test_token_rows_of_windows_tell_their_characters(run):
    rows = run("embed", "-m", "language-model", "--output", "tokens", "--chunk-size", 2)
    assert [row["spans"] for row in rows] == [[[0, 11]], [], [[0, 6], [7, 14], [15, 24]]]


def test_the_best_label(run):
    rows = run("classify", "-m", "classifier")
    best = [labels(text).argmax() for text in GOOD]
    assert [row["label"] for row in rows] == [LABELS[label] for label in best]
    assert len(set(best)) > 1
    assert [row["score"] for row in rows] == as_floats([labels(text).max() for text in GOOD])
    assert [set(row) for row in rows] == [{"label", "score"}] * 3


def test_all_scores_are_named_by_their_labels(run):
    rows = run("classify", "-m", "classifier", "--all-scores")
    for row, text in zip(rows, GOOD, strict=True):
        assert list(row["scores"]) == list(LABELS)
        assert list(row["scores"].values()) == as_floats(labels(text))


def find_wanted(text, position=0):
    """One entity a word, unless its label is O."""
    for word in text.split():
        start = text.index(word, position)
        position = start + len(word)
        scores = labels(word)
        yield {
            "label": LABELS[scores.argmax()],
            "score": pytest.approx(scores.max(), rel=1e-7),
            "start": start,
            "end": position,
            "text": word,
        }


def test_entities_of_single_tokens(run):
    rows = run("classify", "-m", "tagger", "--aggregation", "none")
    wanted = [[entity for entity in find_wanted(text) if entity["label"] != "O"] for text in GOOD]
    assert [row["entities"] for row in rows] == wanted
    assert sum(map(len, wanted)) > 3


def test_a_tagger_joins_entities_by_default(run):
    simple = run("classify", "-m", "tagger")
    assert simple == run("classify", "-m", "tagger", "--aggregation", "simple", "--overwrite")
    assert {entity["label"] for row in simple for entity in row["entities"]} <= {"river", "lake"}


def test_a_model_of_both_kinds_is_asked_by_the_aggregation(run):
    assert "label" in run("classify", "-m", "both")[0]
    assert "entities" in run("classify", "-m", "both", "--aggregation", "max", "--overwrite")[0]


def test_types_in_parquet(cli, tmp_path, source):
    def schema(*arguments):
        cli(*arguments, source, "-o", tmp_path / "out.parquet", "--overwrite")
        return {field.name: field.type for field in pq.read_schema(tmp_path / "out.parquet")}

    floats = pa.list_(pa.float32())
    embed = ("embed", "-m", "language-model", "--output")
    sparse_types = {"indices": pa.list_(pa.int32()), "values": floats}
    assert schema(*embed, "sparse", "--tokens") == sparse_types | {"tokens": pa.list_(pa.string())}
    windows = {"embeddings": pa.list_(floats), "spans": pa.list_(pa.list_(pa.int64(), 2))}
    assert schema(*embed, "tokens", "--chunk-size", "3") == windows
    scores = pa.struct(dict.fromkeys(LABELS, pa.float32()))
    label_types = {"label": pa.string(), "score": pa.float32(), "scores": scores}
    assert schema("classify", "-m", "classifier", "--all-scores") == label_types
    words = {"label": pa.string(), "score": pa.float32(), "start": pa.int64(), "end": pa.int64(), "text": pa.string()}
    assert schema("classify", "-m", "tagger") == {"entities": pa.list_(pa.struct(words))}


def test_ids_stand_beside_the_values(cli, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 7, "text": "lake"}\n')
    done = cli("classify", "-m", "classifier", path, "--id-field", "id")
    assert list(json.loads(done.out)) == ["id", "label", "score"]


@pytest.mark.parametrize("target", ["out.npy", "out.jsonl"])
def test_truncated_vectors(cli, tmp_path, source, target):
    cli("embed", source, "-o", tmp_path / target, "--truncate-dim", 3)
    if target == "out.npy":
        assert np.load(tmp_path / target).shape == (4, 3)
    else:
        assert read_rows(tmp_path / target)[0]["embedding"] == as_floats(vector(TEXTS[0], 3))


def test_parameters_reach_the_model(cli, source, monkeypatch):
    from tests.cli.fake_model import FakeModel

    seen = []
    answer = FakeModel.answer
    monkeypatch.setattr(FakeModel, "answer", lambda self, *args: seen.append((self, args[1])) or answer(self, *args))
    model = ("-m", "language-model")
    cli("embed", source, *model, "--output", "sparse", "--max-active-dims", 7)
    cli("embed", source, *model, "--output", "tokens", "--chunk-size", 5, "--raw")
    cli("embed", source, "--truncate-dim", 6, "--runner", "pooling", "--convert", "embed")
    cli("classify", source, "-m", "classifier", "--raw")
    cli("classify", source, "-m", "tagger", "--raw")
    cli("classify", source, "-m", "classifier")
    pooling = [params for _, params in seen]
    assert pooling[0].max_active_dims == 7
    assert (pooling[1].chunk_size, pooling[1].use_activation) == (5, False)
    assert pooling[2].truncate_dim == 6
    assert [params.use_activation for params in pooling[3:]] == [False, False, None]
    options = seen[2][0].options
    assert (options.runner, options.convert, options.io_processor) == ("pooling", "embed", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "--output", "words"], "'words' is not one of 'dense', 'sparse', 'tokens'"),
        (["embed", "--output", "sparse"], "this model does not support the task 'sparse'; it has 'embed'"),
        (["embed", "--output", "tokens"], "this model does not support the task 'token_embed'; it has 'embed'"),
        (["embed", "-m", "classifier"], "this model does not support the task 'embed'; it has 'classify'"),
        (["embed", "--chunk-size", "2"], "'chunk_size' means nothing to 'embed'"),
        (["embed", "--max-active-dims", "2"], "'max_active_dims' means nothing to 'embed'"),
        (["embed", "--dimensions", "2", "--truncate-dim", "2"], "exclude each other"),
        (["embed", "--tokens"], "pass --output sparse"),
        (["embed", "--output", "tokens", "-o", "x.npy"], "npy has no room for a matrix a text, each of its own length"),
        (["embed", "--output", "tokens", "-o", "x.npy"], "choose jsonl or parquet"),
        (["embed", "--output", "sparse", "-o", "x.npy"], "choose npz or jsonl or parquet"),
        (["embed", "--output", "sparse", "--tokens", "-o", "x.npz"], "npz has no room for tokens"),
        (["embed", "-o", "x.npz"], "npz has no room for vectors; choose npy or jsonl or parquet"),
        (["classify"], "this model does not support the task 'classify'; it has 'embed'"),
        (["classify", "--aggregation", "max"], "this model does not support the task 'token_classify'"),
        (["classify", "--aggregation", "longest"], "expected one of none, simple, first, average, max"),
        (["classify", "-m", "classifier", "-o", "x.npy"], "npy has no room for labels; choose jsonl or parquet"),
        (["classify", "-m", "tagger", "--all-scores"], "--all-scores is for labels of whole texts"),
        (["classify", "--dimensions", "3"], "--dimensions"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(cli, source, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = cli(*arguments, source)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_labels_of_one_name_are_not_merged(cli, source, monkeypatch):
    monkeypatch.setattr("tests.cli.fake_model.LABELS", ("same", "same", "other", "O"))
    done = cli("classify", "-m", "classifier", "--all-scores", source)
    assert (done.code, "several labels of one name" in done.err) == (2, True)
    assert cli("classify", "-m", "classifier", source).code == 1  # of the text that fails


def test_a_tagger_without_labels_has_no_entities(cli, source, monkeypatch):
    monkeypatch.setattr("tests.cli.fake_model.LABELS", ())
    done = cli("classify", "-m", "tagger", source)
    assert (done.code, "has no labels for them" in done.err) == (2, True)
