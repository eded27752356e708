"""One request in, one reply out: cancelled, late, wrong, closed, and whichever thread it comes from."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest

from forebay.api.async_engine import AsyncEngine
from forebay.core.config import EngineLimits
from forebay.core.errors import DeadlineExceeded, ForebayError, InvalidRequest, ItemFailed, NotReady, Overloaded
from forebay.core.events import Event, RequestDropped
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Reply, Request
from tests.support.engine import FakeModel, mean_of
from tests.support.fake_model import loaded_model
from tests.support.text import reference_ids

SECONDS = 60
LONG = "the river flows " * 2000
"""A request of so many characters is tokenized on a thread of the pool."""


class Rig:
    """An engine around a FakeModel, and what it told."""

    def __init__(self, **limits: Any) -> None:
        self.model = FakeModel()
        self.events: list[Event] = []
        self.engine = AsyncEngine(loaded_model(self.model), EngineLimits(**limits), self.events.append)

    def submit(self, *items: Any, **options: Any) -> Future[Reply]:
        return self.engine.submit(Request(list(items), **options))

    def answer(self, *items: Any, **options: Any) -> Reply:
        return self.submit(*items, **options).result(SECONDS)

    def hold(self) -> Future[Reply]:
        """Let the engine be busy with a first request, which is returned."""
        self.model.hold()
        first = self.submit("a")
        self.model.wait_until_held()
        return first

    @property
    def dropped(self) -> list[str]:
        return [event.kind for event in self.events if isinstance(event, RequestDropped)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.model.release.set()
    made.engine.close()


def check(reply: Reply, *texts: str) -> None:
    expected = [mean_of(reference_ids("bert", text, 64)) for text in texts]
    np.testing.assert_allclose(np.stack(reply.rows), expected, rtol=1e-5)


@pytest.mark.parametrize("texts", [("the lake",), ("the lake", "", "river"), (LONG, "the lake")], ids=len)
def test_texts_become_vectors(rig: Rig, texts: tuple[str, ...]) -> None:
    reply = rig.answer(*texts)
    check(reply, *texts)
    assert reply.truncated.tolist() == [text is LONG for text in texts]


def test_no_items(rig: Rig) -> None:
    reply = rig.answer()
    assert (list(reply.rows), reply.errors, len(reply.num_tokens)) == ([], {}, 0)


def test_awaiting(rig: Rig) -> None:
    async def ask() -> list[Reply]:
        return await asyncio.gather(*(rig.engine.run(Request([text])) for text in ("the lake", LONG, "river")))

    for reply, text in zip(asyncio.run(ask()), ("the lake", LONG, "river"), strict=True):
        check(reply, text)


def test_cancelling_the_task_drops_the_work(rig: Rig) -> None:
    rig.hold()

    async def ask() -> None:
        task = asyncio.create_task(rig.engine.run(Request(["the lake", "river"])))
        while rig.engine.count_queued()[0] < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    rig.model.release.set()
    check(rig.answer("stone"), "stone")
    assert rig.engine.count_queued() == (0, 0)
    assert rig.dropped == ["cancelled"]
    lake = reference_ids("bert", "the lake")
    assert all(lake not in batch for batch in rig.model.batches)


def test_a_timeout_drops_the_work(rig: Rig) -> None:
    rig.hold()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rig.engine.run(Request(["the lake"])), 0.001)

    asyncio.run(ask())
    rig.model.release.set()
    check(rig.answer("stone"), "stone")
    assert len(rig.model.batches) == 2


def test_cancelling_the_future_drops_the_work(rig: Rig) -> None:
    rig.hold()
    waiting = rig.submit("the lake")
    assert waiting.cancel()
    rig.model.release.set()
    check(rig.answer("stone"), "stone")
    assert len(rig.model.batches) == 2
    with pytest.raises(CancelledError):
        waiting.result(SECONDS)


class SlowTokenizer:
    """Waits in its encode until it may go on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.entered, self.release = threading.Semaphore(0), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, *arguments: Any, **options: Any) -> Any:
        self.entered.release()
        assert self.release.wait(SECONDS)
        return self._inner.encode(*arguments, **options)


@pytest.fixture
def slow(rig: Rig) -> SlowTokenizer:
    """The rig's tokenizer, which waits now."""
    tokenizer = SlowTokenizer(rig.engine._model.texts[""])
    rig.engine._model.texts[""] = tokenizer  # type: ignore[index]
    return tokenizer


def test_cancelling_while_the_tokenizer_works(rig: Rig, slow: SlowTokenizer) -> None:
    waiting = rig.submit(LONG)
    assert slow.entered.acquire(timeout=SECONDS)
    assert waiting.cancel()
    slow.release.set()
    check(rig.answer("stone"), "stone")
    assert len(rig.model.batches) == 1


def test_closing_ends_what_waits_for_the_tokenizer(rig: Rig, slow: SlowTokenizer) -> None:
    """No caller is left waiting for ever: neither those on the tokenizer's threads nor those in line for them."""
    waiting = [rig.submit(LONG) for _ in range(6)]
    for _ in range(2):
        assert slow.entered.acquire(timeout=SECONDS)
    closer = threading.Thread(target=rig.engine.close)
    closer.start()
    for future in waiting[2:]:
        with pytest.raises(NotReady):
            future.result(SECONDS)
    slow.release.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    for future in waiting[:2]:
        assert isinstance(future.exception(SECONDS), NotReady | None)


def test_closing_with_drain_answers_them(rig: Rig, slow: SlowTokenizer) -> None:
    waiting = [rig.submit(LONG) for _ in range(6)]
    closer = threading.Thread(target=rig.engine.close, kwargs={"drain": float(SECONDS)})
    closer.start()
    slow.release.set()
    for future in waiting:
        check(future.result(SECONDS), LONG)
    closer.join(SECONDS)
    assert not closer.is_alive()


@pytest.mark.parametrize("text", ["short", LONG], ids=["inline", "on a thread"])
def test_a_closed_engine_says_so(text: str) -> None:
    rig = Rig()
    rig.engine.close()
    with pytest.raises(NotReady):
        rig.answer(text)
    rig.engine._is_closed = False  # as if the call had passed the check just before
    with pytest.raises(NotReady):
        rig.answer(text)
    rig.engine.close()


def test_a_deadline_in_the_past(rig: Rig) -> None:
    with pytest.raises(DeadlineExceeded):
        rig.answer("the lake", deadline=time.monotonic() - 1)
    assert rig.model.batches == []
    assert rig.dropped == ["deadline_exceeded"]
    check(rig.answer("the lake", deadline=time.monotonic() + SECONDS), "the lake")


def test_too_much_at_once() -> None:
    rig = Rig(max_queued_tokens=10)
    rig.hold()
    rig.submit("the river flows over stone")
    with pytest.raises(Overloaded):
        rig.answer("the river flows over stone")
    rig.model.release.set()
    rig.engine.close()


def test_an_item_that_fails_is_in_the_reply(rig: Rig) -> None:
    rig.model.boom_id = reference_ids("bert", "dam")[1]
    reply = rig.answer("the lake", "a dam", "river")
    assert isinstance(reply.errors[1], ItemFailed)
    assert reply.rows[1] is None
    with pytest.raises(ItemFailed, match="1"):
        reply.raise_errors()
    assert reply.rows[0] is not None
    assert reply.rows[2] is not None


@pytest.mark.parametrize(
    ("items", "options", "field"),
    [
        (["a", 5], {}, "input[1]"),
        ([None], {}, "input[0]"),
        (["a", b"bytes"], {}, "input[1]"),
        (["a", {"text": "a"}], {}, "input[1]"),
        ([np.array(5)], {}, "input[0]"),
        ([5.0] * 5000, {}, "input[0]"),
        (["a", [[1]]], {}, "input[1]"),
        (["a", [-1]], {}, "input[1]"),
        (["a"], {"pooling": PoolingParams(dimensions=4)}, "dimensions"),
        (["a"], {"text": TextParams(prompt_name="unheard")}, "prompt_name"),
        ([LONG], {"text": TextParams(truncate=False)}, "input[0]"),
        ([], {"pooling": PoolingParams(dimensions=4)}, "dimensions"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_comes_out_of_the_future(rig: Rig, items: list[Any], options: dict[str, Any], field: str) -> None:
    future = rig.submit(*items, **options)
    error = future.exception(SECONDS)
    assert isinstance(error, InvalidRequest)
    assert error.field == field
    check(rig.answer("the lake"), "the lake")


def test_a_fault_of_the_tokenizer_comes_out_of_the_future(rig: Rig, slow: SlowTokenizer) -> None:
    slow.release.set()
    slow.encode = lambda *arguments, **options: 1 / 0  # type: ignore[method-assign]
    for text in ("short", LONG):
        assert isinstance(rig.submit(text).exception(SECONDS), ZeroDivisionError)


def test_eight_threads_at_once(rig: Rig) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(place: int) -> None:
        try:
            barrier.wait(SECONDS)
            for turn in range(20):
                texts = [f"river {place} lake {turn} {'stone ' * (place + turn)}" for _ in range(1 + turn % 3)]
                if turn % 7 == 6:
                    rig.submit(*texts).cancel()
                check(rig.answer(*texts), *texts)
                with pytest.raises(ForebayError):
                    rig.answer(None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert rig.engine.count_queued() == (0, 0)
