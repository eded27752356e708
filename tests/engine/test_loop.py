"""The loop answers everyone, whatever fails: an item, a step, the observer, the engine itself."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.config import EngineLimits
from forebay.core.errors import EngineError, ItemFailed
from forebay.core.events import Event, Observer, RequestDone, StepDone, ignore
from forebay.core.request import Reply
from forebay.engine.loop import Engine
from forebay.engine.runner import Ran, Runner
from forebay.engine.sequence import Job
from tests.support.engine import CPU, FakeModel, make_job, make_pipeline, mean_of

BOOM, NAN = FakeModel.boom_id, FakeModel.nan_id
SECONDS = 60
Start = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes engines around a model, and closes them."""
    engines = []

    def make(model: FakeModel, observer: Observer = ignore, **limits: float) -> Engine:
        runner = Runner({"": make_pipeline(model)}, CPU)
        engines.append(Engine(runner, EngineLimits(**limits), observer))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close(0)


def submit(engine: Engine, *jobs: Job) -> list[Reply]:
    for job in jobs:
        engine.submit(job)
    return [job.future.result(SECONDS) for job in jobs]


def check(reply: Reply, ids: list[list[int]], failed: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """Every row is its item's, the failed ones have errors that name them."""
    assert set(reply.errors) == failed
    for index, (row, own) in enumerate(zip(reply.rows, ids, strict=True)):
        if index in failed:
            assert row is None
            error = reply.errors[index]
            assert isinstance(error, ItemFailed)
            assert (error.index, error.field, error.status) == (index, f"input[{index}]", 500)
        else:
            np.testing.assert_allclose(row, mean_of(own), rtol=1e-6)
    assert reply.num_tokens.tolist() == [len(own) for own in ids]


ITEMS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=12)


@given(st.lists(ITEMS, min_size=1, max_size=6), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_order_is_kept_over_any_number_of_steps(requests: list[list[list[int]]], max_step_tokens: int) -> None:
    runner, limits = Runner({"": make_pipeline(FakeModel())}, CPU), EngineLimits(max_step_tokens=max_step_tokens)
    engine = Engine(runner, limits, ignore)
    replies = submit(engine, *map(make_job, requests))
    engine.close(0)
    for reply, ids in zip(replies, requests, strict=True):
        check(reply, ids)


def test_requests_that_wait_share_a_step(start: Start) -> None:
    model = FakeModel()
    engine = start(model)
    model.hold()
    first, *others = [make_job([[place, place]]) for place in range(1, 5)]
    engine.submit(first)
    model.wait_until_held()
    for job in others:
        engine.submit(job)
    assert engine.count_queued() == (3, 6)
    model.release.set()
    wait([job.future for job in others], SECONDS)
    assert model.batches == [[[1, 1]], [[2, 2], [3, 3], [4, 4]]]
    assert engine.count_queued() == (0, 0)


@pytest.mark.parametrize("bad", [BOOM, NAN], ids=["fails", "not finite"])
@pytest.mark.parametrize("places", [{0}, {2}, {4}, {0, 4}, {0, 1, 2, 3, 4}], ids=str)
def test_the_guilty_item_fails_alone(start: Start, bad: int, places: set[int]) -> None:
    model = FakeModel()
    engine = start(model)
    ids = [[place + 10] * 3 for place in range(5)]
    for place in places:
        ids[place] = [place, bad]
    check(submit(engine, make_job(ids))[0], ids, failed=places)
    check(submit(engine, make_job([[7]]))[0], [[7]])


@pytest.mark.parametrize("bad", [BOOM, NAN], ids=["fails", "not finite"])
def test_the_neighbour_requests_are_answered(start: Start, bad: int) -> None:
    model = FakeModel()
    engine = start(model)
    model.hold()
    opener = make_job([[1]])
    engine.submit(opener)
    model.wait_until_held()
    requests = [[[2, 3], [4]], [[5], [bad]], [[bad], [bad, 1]], [[6]]]
    jobs = [make_job(ids) for ids in requests]
    for job in jobs:
        engine.submit(job)
    model.release.set()
    replies = [job.future.result(SECONDS) for job in jobs]
    for reply, ids, failed in zip(replies, requests, [set(), {1}, {0, 1}, set()], strict=True):
        check(reply, ids, failed)


def test_a_failed_step_is_run_again_one_by_one(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    model = FakeModel()
    ids = [[1, 1], [2, 2], [BOOM, 3]]
    with caplog.at_level(logging.CRITICAL):
        submit(start(model), make_job(ids))
    assert model.batches == [ids, [[1, 1]], [[2, 2]], [[BOOM, 3]]]


def test_a_step_of_one_is_not_run_again(start: Start) -> None:
    model = FakeModel()
    submit(start(model), make_job([[BOOM]]))
    assert model.batches == [[[BOOM]]]


def test_equal_items_are_computed_once_and_fail_together(start: Start) -> None:
    model = FakeModel()
    engine = start(model)
    ids = [[5, 6], [7], [5, 6], [5, 6]]
    check(submit(engine, make_job(ids))[0], ids)
    assert model.batches == [[[7], [5, 6]]]
    ids = [[NAN], [7], [NAN]]
    check(submit(engine, make_job(ids))[0], ids, failed={0, 2})


def test_no_items_are_answered_at_once(start: Start) -> None:
    model = FakeModel()
    (reply,) = submit(start(model), make_job([]))
    assert (list(reply.rows), reply.errors, len(reply.num_tokens), model.batches) == ([], {}, 0, [])


class BrokenRunner(Runner):
    """Gives results that are none, once."""

    is_broken = True

    def run(self, sequences: object) -> Ran:
        ran = super().run(sequences)  # type: ignore[arg-type]
        if self.is_broken:
            self.is_broken = False
            return Ran([None], 0.0, 0.0)  # type: ignore[list-item]
        return ran


def test_a_fault_of_the_engine_itself_does_not_kill_the_loop() -> None:
    engine = Engine(BrokenRunner({"": make_pipeline(FakeModel())}, CPU), EngineLimits(), ignore)
    broken = make_job([[1], [2]])
    engine.submit(broken)
    with pytest.raises(EngineError, match="please report"):
        broken.future.result(SECONDS)
    check(submit(engine, make_job([[3]]))[0], [[3]])
    engine.close(0)


def test_an_observer_that_raises_costs_no_one_an_answer(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def observer(event: Event) -> None:
        raise ValueError("the observer is broken")

    engine = start(FakeModel(), observer)
    for ids in ([[1], [2]], [], [[BOOM], [3]], [[NAN]]):
        submit(engine, make_job(ids))
    late = make_job([[1]], deadline=0.0)
    engine.submit(late)
    with pytest.raises(EngineError):
        late.future.result(SECONDS)
    check(submit(engine, make_job([[4]]))[0], [[4]])
    assert "the observer failed" in caplog.text


def test_the_events_of_a_step_and_a_request(start: Start) -> None:
    events: list[Event] = []
    engine = start(FakeModel(), events.append, max_step_tokens=100)
    submit(engine, make_job([[1, 2], [1, 2], [NAN, 3, 4]]))
    engine.close(0)
    step, done = sorted(events, key=lambda event: type(event).__name__, reverse=True)
    assert isinstance(step, StepDone)
    assert (step.num_sequences, step.num_tokens, step.budget) == (3, 5, 100)
    assert (step.queued_sequences, step.queued_tokens) == (0, 0)
    assert step.pack_seconds > 0
    assert step.forward_seconds > 0
    assert isinstance(done, RequestDone)
    assert (done.num_items, done.num_tokens, done.num_truncated, done.num_failed) == (3, 7, 0, 1)
    assert done.timings.tokenize == 0.25
    assert min(done.timings.queue, done.timings.compute) >= 0


def test_a_lent_thread_computes_where_the_engine_is_idle(start: Start) -> None:
    model = FakeModel()
    engine = start(model)
    job = make_job([[1, 2], [3]])
    engine.submit(job, lends_thread=True)
    assert job.future.done()
    check(job.future.result(), [[1, 2], [3]])
    check(submit(engine, make_job([[4]]))[0], [[4]])


def test_what_a_lent_thread_leaves_is_the_loops(start: Start) -> None:
    """Of two steps the first is run before submit returns, the second behind it."""
    model = FakeModel()
    job = make_job([[1, 2], [3, 4]])
    start(model, max_step_tokens=2).submit(job, lends_thread=True)
    check(job.future.result(SECONDS), [[1, 2], [3, 4]])
    assert len(model.batches) == 2


def test_a_lent_thread_is_not_taken_while_a_step_is_under_way(start: Start) -> None:
    model = FakeModel()
    model.hold()
    engine = start(model)
    first, second = make_job([[1]]), make_job([[2]])
    engine.submit(first)
    model.wait_until_held()
    engine.submit(second, lends_thread=True)
    assert not second.future.done()
    model.release.set()
    check(second.future.result(SECONDS), [[2]])
    check(first.future.result(SECONDS), [[1]])


def test_an_interrupt_of_a_lent_thread_reaches_the_caller_alone(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    class Interrupted(FakeModel):
        is_interrupted = True

        def __call__(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            if self.is_interrupted:
                self.is_interrupted = False
                raise KeyboardInterrupt
            return super().__call__(*args, **kwargs)  # type: ignore[arg-type]

    engine = start(Interrupted())
    job = make_job([[1]])
    with caplog.at_level(logging.CRITICAL), pytest.raises(KeyboardInterrupt):
        engine.submit(job, lends_thread=True)
    with pytest.raises(EngineError):
        job.future.result(0)
    check(submit(engine, make_job([[2]]))[0], [[2]])


def test_many_callers_who_lend_their_threads_are_all_answered(start: Start) -> None:
    engine = start(FakeModel(), max_step_tokens=8)

    def call(seed: int) -> None:
        for number in range(20):
            job = make_job([[seed + 1, number + 1]])
            engine.submit(job, lends_thread=bool((seed + number) % 3))
            check(job.future.result(SECONDS), [[seed + 1, number + 1]])

    with ThreadPoolExecutor(6) as callers:
        for done in [callers.submit(call, seed) for seed in range(6)]:
            done.result(SECONDS)
