"""Texts of one step that begin alike: the beginning is computed once, whoever of them fails, leaves or is cut."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from torch import Tensor

from forebay.core.config import EngineLimits
from forebay.core.events import Event, StepDone
from forebay.core.request import Lane, Row
from forebay.engine.loop import Engine
from forebay.engine.runner import Runner
from forebay.layers.kv import BatchKV
from tests.engine.test_chunked_pooling import (
    BOUND,
    MODELS,
    POOLERS,
    SPARING,
    answer,
    ask,
    assert_alike,
    count_read,
    engine_of,
    expected_of,
    pipeline_of,
    prompts_of,
    texts,
)
from tests.engine.test_prefill import SECONDS, CausalModel, Queue, num_held, settle
from tests.support.engine import CPU, make_job, make_pipeline, mean_of


def steps_of(events: list[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def test_the_beginning_counts_once_in_the_budget() -> None:
    """Eight tokens in common: 10 + 2 + 3 of them make a step of 16, where 10 + 10 + 11 would not."""
    queue = Queue()
    rows = [[1] * 8 + [place] * size for place, size in ((2, 2), (3, 2), (4, 3))]
    queue.scheduler.add(make_job(rows).sequences, Lane.INTERACTIVE)
    assert queue.step() == [(1, 10), (1, 2), (1, 3)]
    assert (queue.scheduler.num_sequences, queue.prefill.pool.num_held) == (0, 0)


def test_less_than_a_block_is_not_shared() -> None:
    queue = Queue(block_size=4)
    queue.scheduler.add(make_job([[1] * 3 + [2] * 3, [1] * 3 + [3] * 3]).sequences, Lane.INTERACTIVE)
    assert queue.step() == [(1, 6), (1, 6)]


def test_of_one_that_is_cut_only_what_it_has_reached_is_shared() -> None:
    """The long one's first chunk is 16 tokens; the second's share of its 20 tokens in common is those 16."""
    queue = Queue(max_passes=0)
    long, other = [1] * 20 + [2] * 20, [1] * 20 + [3] * 3
    queue.scheduler.add(make_job([long]).sequences, Lane.INTERACTIVE)
    queue.step()
    queue.scheduler.add(make_job([other]).sequences, Lane.INTERACTIVE)
    assert queue.step() == [(1, 16)]
    assert queue.step() == [(1, 8), (1, 3)]


def test_salts_and_a_cache_turned_off_share_nothing() -> None:
    rows = [[1] * 8 + [2] * 2, [1] * 8 + [3] * 2]
    for queue, salts in ((Queue(), ("a", "b")), (Queue(enable_prefix_caching=False), ("", ""))):
        for row, salt in zip(rows, salts, strict=True):
            queue.scheduler.add(make_job([row], salt=salt).sequences, Lane.INTERACTIVE)
        assert queue.step() == [(1, 10)]
        assert queue.step() == [(1, 10)]


@pytest.mark.parametrize("step", [16, 33, 1000])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", POOLERS)
def test_what_shares_is_what_stands_alone(name: str, model: str, step: int) -> None:
    """All texts come at once, and nothing is known before."""
    pipeline, ids, events = pipeline_of(model, name), texts(1), list[Event]()
    prompts = prompts_of(len(ids))
    with engine_of(pipeline, events, max_step_tokens=step, block_size=4, prefix_cache_tokens=400) as engine:
        assert_alike(answer(engine, ids, ask(name), prompts), expected_of(model, name))
    if step == 1000:
        assert len(steps_of(events)) == 1
        read = 0 if name.startswith(("ALL", "STEP", "SPLADE")) else 150 if name in SPARING else 16
        assert count_read(events) >= read
        assert steps_of(events)[0].num_tokens == sum(map(len, ids)) - count_read(events)


def test_it_is_the_others_keys_and_values_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they not stored before the others attend, the results would be others."""

    def forget(self: BatchKV, layer: int, keys: Tensor, values: Tensor) -> None:
        self.pool.keys[layer].zero_()
        self.pool.values[layer].zero_()  # a new pool may hold anything, NaN too

    monkeypatch.setattr(BatchKV, "store", forget)
    pipeline, ids = pipeline_of("whole", "LAST"), texts(1)
    with engine_of(pipeline, block_size=4) as engine:
        found = answer(engine, ids, ask("LAST"), [0] * len(ids))
    assert max(np.abs(one - other).max() for one, other in zip(found, expected(), strict=True)) > 100 * BOUND


def expected() -> list[Row]:
    return expected_of("whole", "LAST")


@pytest.fixture
def model() -> CausalModel:
    return CausalModel()


@contextmanager
def engine_around(model: CausalModel) -> Iterator[Engine]:
    limits = EngineLimits(max_step_tokens=64, block_size=2)
    engine = Engine(Runner({"": make_pipeline(model)}, CPU), limits, lambda event: None)
    assert engine._prefill is not None
    engine._prefill._count_spare = lambda seq: len(seq.ids) - 1  # as if the last token were all that counts
    try:
        yield engine
    finally:
        engine.close(0)


def test_a_leader_that_fails_fails_alone(model: CausalModel) -> None:
    """The step fails; then each is computed by itself, from its start."""
    ids = [[5] * 8 + [model.boom_id], [5] * 8 + [6] * 3, [5] * 8 + [7] * 4]
    with engine_around(model) as engine:
        job = make_job(ids)
        engine.submit(job)
        reply = job.future.result(SECONDS)
        assert set(reply.errors) == {0}
        for place in (1, 2):
            np.testing.assert_allclose(reply.rows[place], mean_of(ids[place]), rtol=1e-6)
        settle(engine)
        assert num_held(engine) == 0


def test_a_leader_that_gives_nan_takes_nobody_with_it(model: CausalModel) -> None:
    ids = [[5] * 8 + [model.nan_id], [5] * 8 + [6] * 3, [5] * 8 + [7] * 4]
    with engine_around(model) as engine:
        job = make_job(ids)
        engine.submit(job)
        reply = job.future.result(SECONDS)
        assert set(reply.errors) == {0}
        for place in (1, 2):
            row = reply.rows[place]
            assert isinstance(row, np.ndarray)
            assert row[0] == ids[place][-1], "the fake model sees what is not shared alone"
        settle(engine)
        assert num_held(engine) == 0


def test_a_leader_that_leaves_takes_no_block_with_it() -> None:
    """Its caller goes away while the step is under way; the other goes on with what both hold."""
    queue = Queue()
    leader, other = make_job([[1] * 8 + [2] * 2]), make_job([[1] * 8 + [3] * 3])
    for job in (leader, other):
        queue.scheduler.add(job.sequences, Lane.INTERACTIVE)
    step = queue.scheduler.schedule(0.0)
    first, second = step.sequences
    assert first.table[:4] == second.table[:4]
    assert leader.future.cancel()
    queue.prefill.release(first)
    pool = queue.prefill.pool
    assert pool.num_held == len(second.table)
    others = pool.take([], pool.size - pool.num_held)
    assert others is not None
    assert not set(others) & set(second.table)


def test_a_leader_that_left_before_leads_nobody(model: CausalModel) -> None:
    with engine_around(model) as engine:
        model.hold()
        engine.submit(make_job([[9] * 2]))
        model.wait_until_held()
        leader, other = make_job([[5] * 8 + [6]]), make_job([[5] * 8 + [7] * 4])
        engine.submit(leader)
        engine.submit(other)
        leader.future.cancel()
        model.release.set()
        (row,) = other.future.result(SECONDS).rows
        np.testing.assert_allclose(row, mean_of([5] * 8 + [7] * 4), rtol=1e-6)
        settle(engine)
        assert num_held(engine) == 0
