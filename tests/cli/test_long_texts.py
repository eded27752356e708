"""What is too long, from the command line: cut at either end, refused, or read by windows, by a model that computes."""

import json
from pathlib import Path

import pytest

from forebay import PoolingModel
from tests.support.heads import head_folder
from tests.support.store import Store
from tests.support.texts import sentence

WINDOWS = {"enable_chunked_processing": True, "chunk_overlap": 4, "chunk_scores": "mean", "max_embed_len": 150}
QUERY, TEXTS = sentence(5, 1), (sentence(10, 2), sentence(120, 3), sentence(300, 4))


@pytest.fixture(scope="module")
def folder(store: Store) -> Path:
    return head_folder(store, "bert", "sequence", num_labels=1)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    lines = [json.dumps({"query": QUERY, "document": text, "text": text}) for text in TEXTS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["score", "rerank"])
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("pooler", [None, WINDOWS])
def test_scores_are_those_of_python(real_cli, folder, pairs, command, side, pooler):
    with PoolingModel(str(folder), pooler_config=pooler) as model:
        expected = model.score(QUERY, list(TEXTS), truncation_side=side)
    options = [
        *(["--truncation-side", side] if side else ()),
        *(["--pooler-config", json.dumps(pooler)] if pooler else ()),
    ]
    first = [] if command == "score" else [QUERY]
    done = real_cli(command, *first, pairs, "--model", folder, *options)
    assert (done.code, done.err) == (0, "")
    lines = sorted((json.loads(line) for line in done.out.splitlines()), key=lambda line: line["index"])
    assert [line["score"] for line in lines] == pytest.approx(expected.scores.tolist(), abs=1e-6)
    assert [line["truncated"] for line in lines] == [False, pooler is None, True]
    done = real_cli(command, *first, pairs, "--model", folder, "--no-truncate", *options)
    assert done.code == 2
    assert f"{'document' if command == 'score' else 'text'}[{2 if pooler else 1}]" in done.err


def test_windows_for_a_run(real_cli, folder, pairs):
    with PoolingModel(str(folder)) as model:
        expected = model.score(QUERY, list(TEXTS), split=True)
    done = real_cli("score", pairs, "--model", folder, "--split")
    assert [json.loads(line)["score"] for line in done.out.splitlines()] == pytest.approx(expected.scores, abs=1e-6)
    done = real_cli("classify", pairs, "--model", folder, "--split", "--no-progress")
    assert (done.code, "can't be joined" in done.err) == (2, True)


def test_the_ends_differ(folder):
    with PoolingModel(str(folder)) as model:
        left, right = (model.score(QUERY, TEXTS[1], truncation_side=side)[0] for side in ("left", "right"))
        assert abs(left - right) >= 1e-3


def test_embeddings_by_windows(real_cli, store, tmp_path):
    backbone, path = store.backbone("bert"), tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    config = {"enable_chunked_processing": True}
    with PoolingModel(str(backbone), pooler_config=config) as model:
        expected = model.embed(list(TEXTS))
    done = real_cli("embed", path, "--model", backbone, "--no-progress", "--pooler-config", json.dumps(config))
    assert done.code == 0
    found = [json.loads(line)["embedding"] for line in done.out.splitlines()]
    for row, wanted in zip(found, expected.embeddings.tolist(), strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)
    assert not expected.truncated.any()
    asked = real_cli("embed", path, "--model", backbone, "--no-progress", "--split")
    assert asked.out == done.out
    done = real_cli("embed", path, "--model", backbone, "--no-progress", "--no-truncate")
    assert (done.code, "input[1]" in done.err) == (1, True)
    done = real_cli("embed", path, "--model", backbone, "--pooler-config", "[]")
    assert (done.code, "--pooler-config is a JSON list" in done.err) == (2, True)
    done = real_cli("embed", path, "--model", backbone, "--pooler-config", "{")
    assert (done.code, "--pooler-config is not JSON" in done.err) == (2, True)
