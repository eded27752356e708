"""`forebay rerank --instruction` on a language model that answers yes or no, as the command line is."""

import json
import re
from pathlib import Path

import pytest

from forebay import PoolingModel
from tests.support.language_models import edit, save
from tests.support.store import Store

DOCUMENTS = ("the lake", "Cold, deep water.", "a mill at a river")


def make_reranker(place: Path) -> Path:
    """Known by its config, with a place for an instruction in its template."""
    folder = save(place, "qwen3", "CausalLM", max_position_embeddings=1024)
    edit(folder / "config.json", is_original_qwen3_reranker=True)
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    return folder


@pytest.fixture
def reranker(store: Store) -> Path:
    return store.folder("yes-no-reranker", make_reranker)


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(DOCUMENTS) + "\n")
    return path


def ranking(out):
    return [(line["index"], line["score"]) for line in map(json.loads, out.splitlines())]


def test_an_instruction_changes_the_ranking_as_it_does_in_python(real_cli, reranker, documents):
    plain = real_cli("rerank", "a river", documents, "--model", reranker)
    told = real_cli("rerank", "a river", documents, "--model", reranker, "--instruction", "Find mills")
    assert (plain.code, told.code) == (0, 0), told.err
    with PoolingModel(str(reranker)) as model:
        for done, options in ((plain, {}), (told, {"instruction": "Find mills"})):
            expected = [(one.index, one.score) for one in model.rerank("a river", DOCUMENTS, **options)]
            assert ranking(done.out) == [(index, pytest.approx(score, abs=1e-6)) for index, score in expected]
    assert max(abs(dict(ranking(plain.out))[i] - dict(ranking(told.out))[i]) for i in range(3)) >= 1e-3


def test_pairs_take_one_too(real_cli, reranker, documents):
    options = ("score", documents, "--query", "a river", "--model", reranker)
    found = [ranking(real_cli(*options, *more).out) for more in ((), ("--instruction", "Find mills"))]
    assert found[0] != found[1]


def test_a_template_without_a_place_refuses_it(real_cli, reranker, documents, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('pieces = ["q: {query}", " d: {document}"]\ntrue = "yes"\nfalse = "no"\n')
    options = ("rerank", "a river", documents, "--model", reranker, "--template", own)
    assert real_cli(*options).code == 0
    done = real_cli(*options, "--instruction", "Find mills")
    assert (done.code, done.out) == (2, "")
    assert "has none; leave it out" in done.err
    assert "Find mills" not in done.err


def test_what_is_reserved_is_told(real_cli, reranker):
    done = real_cli("info", reranker, "--json")
    decisions = {one["name"]: one["value"] for one in json.loads(done.out)["decisions"]}
    assert decisions["template"] == "qwen3-reranker"
    assert re.fullmatch(r"8192 tokens in blocks of 16, \d+\.\d MiB", decisions["keys and values"])


def test_one_of_unknown_kin_does_not_load_and_says_why(real_cli, documents, tmp_path):
    folder = save(tmp_path / "some-reranker", "llama", "CausalLM")
    done = real_cli("rerank", "a river", documents, "--model", folder)
    assert (done.code, done.out) != (0, "")
    assert "Give the option 'template': a .toml file, or one of qwen3-reranker" in done.err
