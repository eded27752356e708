"""The Python front door and input that is empty, wrong, hostile or enormous."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import PoolingModel
from forebay.core.errors import InputTooLong, InvalidRequest, NotReady
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import sentence

PROMPTS = {"query": "search query: "}
BLANKS = ("", " ", "\n", "\t \u00a0\u3000", "\u200b", "\x00", "\x00\x01\x7f", "\ufeff")


@pytest.fixture(scope="module")
def folder(store: Store) -> Path:
    backbone = store.backbone("bert")
    modules = [pipelines.transformer(backbone), pipelines.pooling("mean")]
    return store.folder("walk", lambda place: pipelines.save_pipeline(place, modules, prompts=PROMPTS))


@pytest.fixture(scope="module")
def model(store: Store, folder: Path) -> PoolingModel:
    return store.engine(folder)


def test_nothing_gives_no_rows(model: PoolingModel) -> None:
    output = model.embed([])
    assert output.embeddings.shape == (0, 32)
    assert output.embeddings.dtype == np.float32
    assert output.num_tokens.shape == output.truncated.shape == (0,)
    assert model.embed([], dimensions=8).embeddings.shape == (0, 8)


@pytest.mark.parametrize("texts", [None, 5, 1.5, True, b"bytes", {"a": 1}, {"a"}, iter(["a"]), object()], ids=repr)
def test_what_is_no_list_of_texts_is_refused(model: PoolingModel, texts: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.embed(texts)
    assert caught.value.field == "texts"


@pytest.mark.parametrize("item", [None, 5, 1.5, True, b"bytes", {"a": 1}, object()], ids=repr)
def test_an_item_of_a_wrong_type_is_named(model: PoolingModel, item: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"input\[1\]") as caught:
        model.embed(["a", item, "b"])
    assert caught.value.field == "input[1]"


@pytest.mark.parametrize(
    "ids",
    [
        [-1],
        [5, 96 + 10_000],
        [2**31],
        [2**63],
        [2**70],
        [1.5],
        ["a"],
        [None],
        [[5]],
        [True, False],
        [5, "a"],
        [-(2**40)],
    ],
    ids=repr,
)
def test_ids_that_are_none_of_the_vocabulary_are_refused(model: PoolingModel, ids: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"input\[1\]") as caught:
        model.embed([[5, 6], ids])
    assert caught.value.field == "input[1]"


def test_the_last_id_of_the_vocabulary_is_the_largest(model: PoolingModel) -> None:
    size = model.info.abilities.vocab_size
    assert model.embed([[size - 1]]).embeddings.shape == (1, 32)
    with pytest.raises(InvalidRequest, match=f"0 to {size - 1}"):
        model.embed([[size]])


def test_ids_may_come_as_arrays_and_beside_texts(model: PoolingModel) -> None:
    plain = model.embed([[5, 6, 7]]).embeddings[0]
    for ids in (np.array([5, 6, 7]), np.array([5, 6, 7], np.uint8), (5, 6, 7), np.array([[5, 6, 7]])):
        assert np.array_equal(model.embed(ids).embeddings, plain[None])
    mixed = model.embed(["a", [5, 6, 7], np.array([5, 6, 7], np.int32)]).embeddings
    assert np.abs(mixed[1:] - plain).max() <= 1e-6


def test_no_ids_are_as_no_text(model: PoolingModel) -> None:
    assert np.array_equal(model.embed([[]]).embeddings, model.embed("").embeddings)


def test_a_prompt_before_ids_is_refused(model: PoolingModel) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        model.embed([[5, 6]], prompt="search: ")
    with pytest.raises(InvalidRequest, match="token ids"):
        model.embed([[5, 6]], prompt_name="query")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt_name": "unknown"}, "prompt_name"),
        ({"prompt_name": "query", "prompt": "a"}, "prompt_name"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": -1}, "dimensions"),
        ({"dimensions": 33}, "dimensions"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 65}, "max_tokens"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"input_type": "unknown"}, "input_type"),
        ({"dimensions": "8"}, "dimensions"),
        ({"dimensions": 8.0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"prompt": 5}, "prompt"),
        ({"prompt_name": 5}, "prompt_name"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_named(model: PoolingModel, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.embed(["a", "b"], **options)
    assert caught.value.field == field


def test_too_long_is_refused_where_truncation_is(model: PoolingModel) -> None:
    exact, longer = sentence(62, 1), sentence(63, 1)
    assert model.embed([exact], truncate=False).num_tokens.tolist() == [64]
    with pytest.raises(InputTooLong) as caught:
        model.embed(["a", exact, longer], truncate=False)
    assert caught.value.field == "input[2]"
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(InputTooLong):
        model.embed([[5] * 63], truncate=False)
    with pytest.raises(InputTooLong):
        model.embed([exact], truncate=False, prompt="a ")


@pytest.mark.parametrize("place", [0, 1500, 2600])
def test_an_item_far_down_a_long_list_is_named_by_its_place(model: PoolingModel, place: int) -> None:
    texts: list[Any] = ["a"] * 2700
    texts[place] = [10**6]
    with pytest.raises(InvalidRequest) as caught:
        model.embed(texts)
    assert caught.value.field == f"input[{place}]"
    texts[place] = sentence(63, 1)
    with pytest.raises(InputTooLong) as too_long:
        model.embed(texts, truncate=False)
    assert too_long.value.field == f"input[{place}]"


def test_blank_texts_are_as_the_reference_reads_them(store: Store, folder: Path, model: PoolingModel) -> None:
    expected = store.reference(folder).embed(BLANKS)
    output = model.embed(BLANKS).embeddings
    assert np.isfinite(output).all()
    assert np.abs(output - expected).max() <= 1e-5


@pytest.mark.parametrize("text", ["\ud800", "lake \udfff stone", "\udc80\ud83d", "a\ud83d\ude00"])
def test_lone_surrogates_are_read_as_the_replacement_sign(model: PoolingModel, text: str) -> None:
    mended = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    output = model.embed(["the lake", text, "a stone"]).embeddings
    assert np.abs(output - model.embed(["the lake", mended, "a stone"]).embeddings).max() <= 1e-6


def test_messages_do_not_repeat_the_text(model: PoolingModel) -> None:
    secret = "xyzzy " * 100
    with pytest.raises(InputTooLong) as caught:
        model.embed([secret], truncate=False)
    assert "xyzzy" not in str(caught.value)


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_enormous_text_takes_little_memory(folder: Path, side: str) -> None:
    """Peak memory is measured in a process of its own, from the moment when the first text is there."""
    script = f"""
import resource
from forebay import PoolingModel
with PoolingModel({str(folder)!r}) as model:
    text = "the river flows " * 1_300_000
    model.embed("warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for unit in ("the river flows ", "x", "\\n"):
        text = None  # one enormous text at a time
        text = unit * (20_000_000 // len(unit))
        output = model.embed([text, "a"], truncation_side={side!r})
        assert output.truncated.tolist() == [True, False], unit
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300


def test_a_closed_model_says_so(folder: Path) -> None:
    model = PoolingModel(str(folder))
    model.close()
    model.close()
    with pytest.raises(NotReady):
        model.embed("a")
