"""Commands with real engines give the numbers of the Python front door."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from forebay import PoolingModel
from tests.support.heads import with_head

MODELS = Path("~/.cache/forebay-models").expanduser()
TEXTS = ["a cold river flows over the stone wheel", "fish", "the mill by the lake, and the gate of a dam"]


def checkpoint(name):
    folder = MODELS / name
    if not folder.exists():
        pytest.skip(f"the checkpoint {name} is not there: expected it in {MODELS}")
    return folder


@pytest.fixture
def run(real_cli, tmp_path):
    """Run a command on the texts; return its rows."""
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))

    def run_on_texts(*arguments):
        done = real_cli(*arguments, tmp_path / "in.txt")
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    return run_on_texts


def test_sparse_vectors(run, tmp_path):
    folder = checkpoint("splade-tiny")
    rows = run("embed", "-m", folder, "--output", "sparse", "--max-active-dims", 20, "--tokens")
    run("embed", "-m", folder, "--output", "sparse", "--max-active-dims", 20, "-o", tmp_path / "out.npz")
    with PoolingModel(str(folder)) as model:
        output = model.sparse(TEXTS, max_active_dims=20)
    np.testing.assert_array_equal(scipy.sparse.load_npz(tmp_path / "out.npz").toarray(), output.to_dense())
    for index, row in enumerate(rows):
        assert row["indices"] == output[index].ids.tolist()
        np.testing.assert_array_equal(np.array(row["values"], np.float32), output[index].weights)
        assert sorted(row["tokens"]) == sorted(token for token, _ in output.tokens(index))


def test_vectors_of_windows(run):
    folder = checkpoint("splade-tiny")
    rows = run("embed", "-m", folder, "--output", "tokens", "--chunk-size", 4, "--prompt", "river: ")
    with PoolingModel(str(folder)) as model:
        output = model.token_embed(TEXTS, chunk_size=4, prompt="river: ")
    for index, row in enumerate(rows):
        np.testing.assert_array_equal(np.array(row["embeddings"], np.float32), output[index])
        assert row["spans"] == output.spans[index].tolist()


def test_a_reranker_scores_single_texts(run):
    folder = checkpoint("wn-reranker-tiny")
    rows = run("classify", "-m", folder)
    raw = run("classify", "-m", folder, "--raw")
    with PoolingModel(str(folder)) as model:
        scores = model.classify(TEXTS).scores
        logits = model.classify(TEXTS, use_activation=False).scores
    np.testing.assert_array_equal(np.array([row["score"] for row in rows], np.float32), scores[:, 0])
    np.testing.assert_array_equal(np.array([row["score"] for row in raw], np.float32), logits[:, 0])
    assert {row["label"] for row in rows} == {"LABEL_0"}


def test_a_classifier(run, tmp_path):
    folder = with_head(tmp_path / "model", "bert", "sequence", num_labels=5)
    rows = run("classify", "-m", folder, "--all-scores")
    with PoolingModel(str(folder)) as model:
        output = model.classify(TEXTS)
    assert [row["label"] for row in rows] == [label for label, _ in output.top]
    found = np.array([[row["scores"][label] for label in output.labels] for row in rows], np.float32)
    np.testing.assert_array_equal(found, output.scores)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_a_tagger(run, tmp_path, aggregation):
    labels = ("O", "B-WATER", "I-WATER", "B-MILL")
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    folder = with_head(tmp_path / "model", "bert", "token", **names)
    rows = run("classify", "-m", folder, "--aggregation", aggregation, "--prompt", "water ")
    with PoolingModel(str(folder)) as model:
        output = model.token_classify(TEXTS, aggregation=aggregation, prompt="water ")
    assert [row["entities"] for row in rows] == [
        [entity._asdict() for entity in entities] for entities in output.entities
    ]
    assert any(output.entities)


def test_a_task_that_the_model_lacks_is_refused_by_the_engine(real_cli, tmp_path):
    folder = with_head(tmp_path / "model", "bert", "sequence", num_labels=5)
    (tmp_path / "in.txt").write_text("lake\n")
    done = real_cli("embed", "-m", folder, tmp_path / "in.txt")
    assert done.code == 2
    assert done.err == "error: this model does not support the task 'embed'; it has 'classify'\n"


def test_a_text_that_is_too_long_is_named(real_cli, tmp_path):
    folder = with_head(tmp_path / "model", "bert", "sequence", num_labels=5)
    (tmp_path / "in.txt").write_text("lake\n" * 1500 + "lake " * 100 + "\n")
    done = real_cli("classify", "-m", folder, "--no-truncate", "-o", tmp_path / "out.jsonl", tmp_path / "in.txt")
    assert done.code == 1
    assert done.err.startswith("error: input[1500] has ")
    assert done.err.endswith("(--no-truncate; --on-error skip leaves out such rows)\n")
