"""Queries that stay in the engine: only scores come out, each query's own, and nothing is kept however a job ends."""

import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from forebay.core.config import EngineLimits
from forebay.core.errors import DeadlineExceeded, ForebayError
from forebay.core.events import ignore
from forebay.core.params import PoolingParams
from forebay.core.request import Matrix, Reply
from forebay.core.tasks import Task
from forebay.engine.loop import Engine
from forebay.engine.runner import Runner
from forebay.engine.sequence import Job, SequenceTraits
from tests.support.engine import CPU, FakeModel, Tokens, make_pipeline

TOKEN_EMBED = PoolingParams((Task.TOKEN_EMBED,))
Q1 = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
Q2 = np.array([[-1, 0, 0]], np.float32)


class Array(np.ndarray):
    """An array that can be watched."""


def watched(values: Matrix) -> tuple[Any, "weakref.ref[Any]"]:
    array = values.copy().view(Array)
    return array, weakref.ref(array)


def make_job(ids: list[list[int]], against: list[Matrix], *, deadline: float | None = None) -> Job:
    from forebay.core.request import Lane

    job = Job(Future[Reply](), lane=Lane.INTERACTIVE, deadline=deadline, tokenize_seconds=0.0)
    num = len(ids)
    tokens = Tokens([np.array(row, np.int32) for row in ids], np.zeros(num, np.int64), np.arange(num))
    job.fill(tokens, np.zeros(num, np.bool_), SequenceTraits(TOKEN_EMBED, ""), against)
    return job


def expected(ids: list[int], query: Matrix) -> float:
    """A fake token's vector is (id, position, 1)."""
    rows = np.array([[id_, place, 1] for place, id_ in enumerate(ids)], np.float32)
    return float((query @ rows.T).max(1).sum())


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def engine(model: FakeModel) -> Iterator[Engine]:
    made = Engine(Runner({"": make_pipeline(model)}, CPU), EngineLimits(max_step_tokens=8), ignore)
    yield made
    made.close(0)


def test_each_gets_its_own_query(engine: Engine) -> None:
    """Over several steps, equal documents with other queries among them."""
    ids = [[3, 4, 5], [3, 4, 5], [7], [2, 9, 1, 1, 6], [3, 4, 5]]
    queries = [Q1, Q2, Q1, Q2, Q1]
    first, second = make_job(ids, queries), make_job(ids, queries[::-1])
    for job in (first, second):
        engine.submit(job)
    for job, wanted in ((first, queries), (second, queries[::-1])):
        rows = job.future.result(timeout=10).rows
        assert all(row.shape == (1,) for row in rows)
        np.testing.assert_allclose(
            [row[0] for row in rows], [expected(*pair) for pair in zip(ids, wanted, strict=True)]
        )


def test_scores_and_vectors_share_a_step(engine: Engine) -> None:
    from tests.support.engine import make_job as plain_job

    scores = make_job([[3, 4], [5]], [Q1, Q1])
    vectors = plain_job([[3, 4], [5]], params=TOKEN_EMBED)
    for job in (scores, vectors):
        engine.submit(job)
    np.testing.assert_allclose([row[0] for row in scores.future.result(timeout=10).rows], [5.0, 5.0])
    np.testing.assert_allclose(vectors.future.result(timeout=10).rows[0], [[3, 0, 1], [4, 1, 1]])


def _is_gone(ref: "weakref.ref[Any]") -> bool:
    for _ in range(200):
        gc.collect()
        if ref() is None:
            return True
        time.sleep(0.01)
    return False


def test_it_is_released_when_all_is_answered(engine: Engine) -> None:
    query, ref = watched(Q1)
    job = make_job([[3, 4], [5]], [query, query])
    future = job.future
    del query
    engine.submit(job)
    assert len(future.result(timeout=10)) == 2
    assert _is_gone(ref), "the job itself may still be held"
    assert job.is_over


def test_it_is_released_when_the_forward_fails(engine: Engine, model: FakeModel) -> None:
    query, ref = watched(Q1)
    job = make_job([[3, model.nan_id], [5]], [query, query])
    del query
    engine.submit(job)
    reply = job.future.result(timeout=10)
    assert list(reply.errors) == [0]
    assert reply.rows[1] is not None
    assert _is_gone(ref)


def test_it_is_released_when_it_is_too_late(engine: Engine) -> None:
    query, ref = watched(Q1)
    job = make_job([[3, 4]], [query], deadline=time.monotonic() - 1)
    del query
    engine.submit(job)
    with pytest.raises(DeadlineExceeded):
        job.future.result(timeout=10)
    assert _is_gone(ref)


def test_it_is_released_when_the_caller_leaves(engine: Engine) -> None:
    query, ref = watched(Q1)
    job = make_job([[3, 4]] * 50, [query] * 50)
    future = job.future
    del query
    engine.submit(job)
    future.cancel()
    del job
    assert _is_gone(ref), "the future itself may still be held"
    assert future.done()


def test_it_is_released_when_the_engine_ends(model: FakeModel) -> None:
    engine = Engine(Runner({"": make_pipeline(model)}, CPU), EngineLimits(max_step_tokens=8), ignore)
    query, ref = watched(Q1)
    job = make_job([[3, 4]] * 500, [query] * 500)
    del query
    engine.submit(job)
    engine.close(0)
    try:
        job.future.result(timeout=10)
    except ForebayError as error:
        assert "stopped" in str(error)
    assert _is_gone(ref)
