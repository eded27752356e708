"""The Python front door: what is one text and what are many, order, chunks under way, and the embedded model."""

import threading
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from forebay import EngineLimits, PoolingModel
from forebay.api.async_engine import AsyncEngine
from forebay.core.errors import ForebayError, InputTooLong, InvalidRequest, ItemFailed, NotReady
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Reply
from tests.support.engine import FakeModel, mean_of
from tests.support.fake_model import loaded_model
from tests.support.text import reference_ids

SECONDS = 60


class Door(PoolingModel):
    """PoolingModel around a FakeModel."""

    def __init__(self, **limits: Any) -> None:
        self.fake = FakeModel()
        self.engine = AsyncEngine(loaded_model(self.fake), EngineLimits(**limits))


@pytest.fixture
def door() -> Iterator[Door]:
    with Door() as made:
        yield made


@pytest.fixture(scope="module")
def default() -> Iterator[PoolingModel]:
    with PoolingModel("default") as made:
        yield made


def vectors(*texts: str) -> np.ndarray[Any, Any]:
    return np.array([mean_of(reference_ids("bert", text, 64)) for text in texts])


IDS = reference_ids("bert", "the lake")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("the lake", vectors("the lake")),
        (["the lake"], vectors("the lake")),
        (("the lake", "river"), vectors("the lake", "river")),
        (np.array(["the lake", "river"]), vectors("the lake", "river")),
        (IDS, vectors("the lake")),
        (tuple(IDS), vectors("the lake")),
        (np.array(IDS), vectors("the lake")),
        ([IDS, IDS[1:-1]], vectors("the lake", "the lake")),
        (np.array([IDS, IDS]), vectors("the lake", "the lake")),
        (["river", IDS], vectors("river", "the lake")),
        ("", vectors("")),
        ([[]], vectors("")),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_one_text_and_many(door: Door, texts: Any, expected: np.ndarray[Any, Any]) -> None:
    output = door.embed(texts)
    np.testing.assert_allclose(output.embeddings, expected, rtol=1e-5)
    assert output.embeddings.dtype == np.float32
    assert len(output) == len(output.num_tokens) == len(output.truncated) == len(expected)


@pytest.mark.parametrize("texts", [[], (), np.array([])], ids=repr)
def test_nothing(door: Door, texts: Any) -> None:
    assert door.embed(texts).embeddings.shape == (0, 3)
    assert door.embed(texts, dimensions=2).embeddings.shape == (0, 2)
    with pytest.raises(InvalidRequest):
        door.embed(texts, dimensions=4)
    assert list(door.stream([])) == []


@pytest.mark.parametrize(
    "texts", [None, 5, b"bytes", bytearray(b"bytes"), {"a": 1}, {"a"}, (text for text in "ab"), object()], ids=repr
)
def test_what_is_neither(door: Door, texts: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door.embed(texts)
    assert caught.value.field == "texts"


def test_outputs_may_be_written_to(door: Door) -> None:
    output = door.embed(["river", "river"])
    output.embeddings[0] = 0.0
    assert output.embeddings[1].any()


def test_an_item_that_fails_is_raised_and_named(door: Door) -> None:
    door.fake.boom_id = reference_ids("bert", "dam")[1]
    with pytest.raises(ItemFailed) as caught:
        door.embed(["river", "lake", "dam"])
    assert caught.value.field == "input[2]"


def test_errors_far_down_are_named_by_their_place(door: Door) -> None:
    texts = ["river"] * 2500
    with pytest.raises(InputTooLong) as caught:
        door.embed([*texts, "stone " * 100], truncate=False)
    assert caught.value.field == "input[2500]"
    door.fake.boom_id = reference_ids("bert", "dam")[1]
    with pytest.raises(ItemFailed) as failed:
        door.embed([*texts, "dam"])
    assert failed.value.field == "input[2500]"


def rows(replies: Iterable[Reply]) -> np.ndarray[Any, Any]:
    return np.stack([row for reply in replies for row in reply.rows])


@pytest.mark.parametrize("chunk_items", [1, 3, 7, 1000])
def test_a_stream_keeps_the_order(door: Door, chunk_items: int) -> None:
    texts = ["stone " * (place % 13) + "river" for place in range(20)]
    replies = list(door.stream(iter(texts), chunk_items=chunk_items))
    sizes = [len(reply.rows) for reply in replies]
    assert sizes == [min(chunk_items, 20 - start) for start in range(0, 20, chunk_items)]
    np.testing.assert_allclose(rows(replies), vectors(*texts), rtol=1e-5)


def test_an_endless_stream_is_read_no_further_than_needed(door: Door) -> None:
    """However long it runs, so many chunks are under way and no more."""
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for place in count():
            taken += 1
            yield f"river {place}"

    stream = door.stream(endless(), chunk_items=10)
    ahead = []
    for answered in range(1, 30):
        assert len(next(stream).rows) == 10
        ahead.append(taken - 10 * answered)
    stream.close()
    assert len(set(ahead)) == 1
    assert 0 < ahead[0] <= 40


def test_a_stream_that_is_left_drops_what_is_under_way(door: Door) -> None:
    stream = door.stream((f"river {place}" for place in count()), chunk_items=5)
    next(stream)
    door.fake.hold()
    stream.close()
    num_computed = len(door.fake.batches)
    door.fake.release.set()
    np.testing.assert_allclose(rows(door.stream(["lake"])), vectors("lake"), rtol=1e-5)
    assert door.engine.count_queued() == (0, 0)
    assert len(door.fake.batches) <= num_computed + 2  # what was under way already, and the lake


def test_a_source_that_fails_fails_the_stream(door: Door) -> None:
    def broken() -> Iterator[str]:
        yield from ["river"] * 25
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk"):
        list(door.stream(broken(), chunk_items=10))
    assert len(door.embed("lake")) == 1


def test_errors_of_items_stay_in_their_reply(door: Door) -> None:
    door.fake.boom_id = reference_ids("bert", "dam")[1]
    replies = list(door.stream(["river", "dam", "lake", "dam"], chunk_items=2))
    assert [list(reply.errors) for reply in replies] == [[1], [1]]


@pytest.mark.parametrize("chunk_items", [0, -1])
def test_chunks_of_nothing_are_refused(door: Door, chunk_items: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(door.stream(["river"], chunk_items=chunk_items))
    assert caught.value.field == "chunk_items"


def test_parameters_reach_every_chunk(door: Door) -> None:
    pooling, text = PoolingParams(dimensions=1), TextParams(prompt="search ")
    replies = door.stream(["river"] * 5, pooling=pooling, text=text, chunk_items=2)
    np.testing.assert_allclose(rows(replies), vectors(*["search river"] * 5)[:, :1], rtol=1e-5)


def test_a_long_job_does_not_overload_its_own_engine() -> None:
    """Its chunks hold more tokens than may wait: they take turns."""
    with Door(max_queued_tokens=50, max_step_tokens=20) as door:
        texts = ["river " * (place % 9) for place in range(60)]
        np.testing.assert_allclose(rows(door.stream(texts, chunk_items=10)), vectors(*texts), rtol=1e-5)


def test_a_closed_model(door: Door) -> None:
    door.close()
    door.close()
    for call in (lambda: door.embed("river"), lambda: door.embed([]), lambda: list(door.stream(["river"]))):
        with pytest.raises(NotReady):
            call()
    assert door.info.name == "fake"


def test_the_embedded_model(default: PoolingModel) -> None:
    info = default.info
    assert (info.abilities.dimension, info.abilities.max_len) == (384, 256)
    output = default.embed(["a river", "a stream", "a locomotive"])
    assert output.embeddings.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(output, axis=1), 1.0, atol=1e-6)
    near, far = output[0] @ output[1], output[0] @ output[2]
    assert near > far + 0.2


def test_the_embedded_model_streams_in_order(default: PoolingModel) -> None:
    texts = [f"text number {place} {'and so on ' * (place % 17)}" for place in range(100)]
    whole = default.embed(texts).embeddings
    np.testing.assert_allclose(rows(default.stream(texts, chunk_items=9)), whole, atol=1e-6)
    np.testing.assert_allclose(whole[::7], np.stack([default.embed(text)[0] for text in texts[::7]]), atol=1e-6)


def test_eight_threads_share_the_embedded_model(default: PoolingModel) -> None:
    texts = [f"thread {place} reads {'a long ' * (3 * place)}text" for place in range(8)]
    expected = default.embed(texts).embeddings
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(place: int) -> None:
        try:
            barrier.wait(SECONDS)
            for turn in range(6):
                own = [texts[(place + step) % 8] for step in range(1 + turn % 3)]
                wanted = expected[[(place + step) % 8 for step in range(len(own))]]
                np.testing.assert_allclose(default.embed(own).embeddings, wanted, atol=1e-6)
                with pytest.raises(ForebayError):
                    default.embed(own, dimensions=999)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
