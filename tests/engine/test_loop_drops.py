"""What is not computed: cancelled, expired, too much, too late; and how the engine stops."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from forebay.core.config import EngineLimits
from forebay.core.errors import DeadlineExceeded, NotReady, Overloaded
from forebay.core.events import Event, RequestDone, RequestDropped
from forebay.core.request import Lane
from forebay.engine.loop import Engine
from forebay.engine.runner import Runner
from forebay.engine.sequence import Job
from tests.support.engine import CPU, FakeModel, make_job, make_pipeline

SECONDS = 60


class Held:
    """An engine whose first request is under way and stays there until ``go``."""

    def __init__(self, **limits: Any) -> None:
        self.model = FakeModel()
        self.events: list[Event] = []
        runner = Runner({"": make_pipeline(self.model)}, CPU)
        self.engine = Engine(runner, EngineLimits(**limits), self.events.append)
        self.model.hold()
        self.first = self.submit([[1]])
        self.model.wait_until_held()

    def submit(self, ids: list[list[int]], **options: Any) -> Job:
        job = make_job(ids, **options)
        self.engine.submit(job)
        return job

    def go(self) -> None:
        self.model.release.set()
        self.first.future.result(SECONDS)

    @property
    def dropped(self) -> list[tuple[str, int]]:
        return [(event.kind, event.num_items) for event in self.events if isinstance(event, RequestDropped)]


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held(max_queued_tokens=100)
    yield made
    made.model.release.set()
    made.engine.close(0)


def test_cancelled_work_is_not_computed(held: Held) -> None:
    gone, alive = held.submit([[2, 2], [3, 3]]), held.submit([[4]])
    assert gone.future.cancel()
    held.go()
    alive.future.result(SECONDS)
    assert held.model.batches == [[[1]], [[4]]]
    assert held.engine.count_queued() == (0, 0)
    assert held.dropped == [("cancelled", 2)]


def test_work_under_way_may_be_cancelled_too(held: Held) -> None:
    assert held.first.future.cancel()
    with pytest.raises(CancelledError):
        held.go()
    held.submit([[4]]).future.result(SECONDS)
    assert held.dropped == [("cancelled", 1)]
    assert sum(isinstance(event, RequestDone) for event in held.events) == 1


def test_cancelling_between_the_steps_of_a_request_drops_the_rest() -> None:
    held = Held(max_step_tokens=4)
    held.go()
    held.model.hold()
    job = held.submit([[5] * 4, [6] * 4])
    held.model.wait_until_held()
    assert held.engine.count_queued() == (1, 4)
    assert job.future.cancel()
    held.model.release.set()
    held.submit([[7]]).future.result(SECONDS)
    held.engine.close(0)
    assert held.model.batches == [[[1]], [[5] * 4], [[7]]]


def test_expired_work_is_not_computed_and_its_caller_told(held: Held) -> None:
    late, timely = held.submit([[2], [3]], deadline=time.monotonic() - 1), held.submit([[4]], deadline=1e12)
    held.go()
    timely.future.result(SECONDS)
    with pytest.raises(DeadlineExceeded) as caught:
        late.future.result(SECONDS)
    assert caught.value.status == 504
    assert held.model.batches == [[[1]], [[4]]]
    assert held.dropped == [("deadline_exceeded", 2)]


def test_nothing_but_expired_work_leaves_the_engine_alive(held: Held) -> None:
    late = held.submit([[2]], deadline=0.0)
    held.go()
    with pytest.raises(DeadlineExceeded):
        late.future.result(SECONDS)
    held.submit([[4]]).future.result(SECONDS)


def test_interactive_work_overtakes_bulk(held: Held) -> None:
    bulk = held.submit([[2]], lane=Lane.BULK)
    urgent = held.submit([[3]])
    held.go()
    for job in (bulk, urgent):
        job.future.result(SECONDS)
    assert held.model.batches == [[[1]], [[3]], [[2]]]


def test_too_many_waiting_tokens_are_refused_with_numbers(held: Held) -> None:
    held.submit([[2] * 60])
    with pytest.raises(Overloaded) as caught:
        held.submit([[3] * 41])
    error = caught.value
    assert (error.status, error.code) == (429, "overloaded")
    assert error.retry_after > 0
    for number in ("60", "41", "100"):
        assert number in error.message
    assert held.engine.count_queued() == (1, 60)
    held.submit([[3] * 40])


def test_a_request_over_the_limit_is_taken_when_nothing_waits(held: Held) -> None:
    """Or else it could never be served at all."""
    job = held.submit([[2] * 500])
    held.go()
    assert job.future.result(SECONDS).num_tokens.tolist() == [500]


def test_close_without_drain_ends_the_step_and_refuses_the_rest(held: Held) -> None:
    waiting = held.submit([[2], [3]])
    closer = threading.Thread(target=held.engine.close, args=(0.0,))
    closer.start()
    with pytest.raises(NotReady) as caught:
        waiting.future.result(SECONDS)
    assert caught.value.status == 503
    held.go()
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert held.model.batches == [[[1]]]
    assert held.dropped == [("not_ready", 2)]
    with pytest.raises(NotReady):
        held.submit([[4]])


def test_close_with_drain_answers_what_waits(held: Held) -> None:
    waiting = [held.submit([[2]]), held.submit([[3]], lane=Lane.BULK)]
    closer = threading.Thread(target=held.engine.close, args=(float(SECONDS),))
    closer.start()
    held.go()
    for job in waiting:
        assert job.future.result(SECONDS).errors == {}
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert held.dropped == []


def test_close_with_too_short_a_drain_aborts_what_is_left(held: Held) -> None:
    waiting = held.submit([[2]])
    closer = threading.Thread(target=held.engine.close, args=(0.01,))
    closer.start()
    with pytest.raises(NotReady):
        waiting.future.result(SECONDS)
    held.go()
    closer.join(SECONDS)
    assert not closer.is_alive()


def test_closing_twice_is_closing_once(held: Held) -> None:
    held.go()
    held.engine.close(0)
    held.engine.close(1.0)


def test_no_items_are_refused_after_the_end_too(held: Held) -> None:
    held.go()
    held.engine.close(0)
    with pytest.raises(NotReady):
        held.submit([])
