"""One step: every sequence gets its own result, whoever is beside it; equal ones are computed once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.params import PoolingParams
from forebay.core.tasks import Task
from forebay.engine.runner import Runner
from tests.support.engine import CPU, FakeModel, make_pipeline, make_sequences, mean_of

ITEMS = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), min_size=1, max_size=20)


def runner(model: FakeModel) -> Runner:
    return Runner({"": make_pipeline(model)}, CPU)


@given(ITEMS)
@settings(max_examples=60, deadline=None)
def test_each_gets_its_own(items: list[list[int]]) -> None:
    model = FakeModel()
    sequences = make_sequences(items)
    results = {id(result.sequence): result for result in runner(model).run(sequences).results}
    for sequence, ids in zip(sequences, items, strict=True):
        np.testing.assert_allclose(results[id(sequence)].rows[0], mean_of(ids), rtol=1e-6)
        assert results[id(sequence)].is_finite
    (batch,) = model.batches
    assert sorted(batch) == sorted(map(list, {tuple(ids) for ids in items}))


def test_parameters_may_differ_in_a_step() -> None:
    wishes = [PoolingParams(), PoolingParams(dimensions=1), PoolingParams(use_activation=True), PoolingParams()]
    ids = [[3, 4], [3, 4], [3, 4], [7]]
    sequences = [one for row, wish in zip(ids, wishes, strict=True) for one in make_sequences([row], params=wish)]
    model = FakeModel()
    rows = {id(result.sequence): result.rows[0] for result in runner(model).run(sequences).results}
    whole = np.array(mean_of([3, 4]), np.float32)
    expected = [whole, whole[:1], whole / np.linalg.norm(whole), np.array(mean_of([7]), np.float32)]
    for sequence, row in zip(sequences, expected, strict=True):
        np.testing.assert_allclose(rows[id(sequence)], row, rtol=1e-6)
    assert model.batches == [[[7], [3, 4]]]


def test_several_outputs_come_from_one_forward() -> None:
    model = FakeModel()
    params = PoolingParams(outputs=(Task.TOKEN_EMBED, Task.EMBED))
    sequences = make_sequences([[3, 4], [9]], params=params) + make_sequences([[3, 4]])
    tokens, vector = runner(model).run(sequences).results[0].rows
    np.testing.assert_allclose(tokens, [[3, 0, 1], [4, 1, 1]])
    np.testing.assert_allclose(vector, mean_of([3, 4]))
    assert len(model.batches) == 1


def test_what_is_not_finite_is_marked_alone() -> None:
    model = FakeModel()
    sequences = make_sequences([[1, 2], [1, model.nan_id], [5], [model.nan_id]])
    results = {id(result.sequence): result.is_finite for result in runner(model).run(sequences).results}
    assert [results[id(sequence)] for sequence in sequences] == [True, False, True, False]


def test_one_output_that_is_not_finite_is_enough() -> None:
    """The other output of the same item may be fine."""
    model = FakeModel()
    pipeline = make_pipeline(model, "LAST")
    sequences = make_sequences([[model.nan_id, 1]], params=PoolingParams(outputs=(Task.EMBED, Task.TOKEN_EMBED)))
    (result,) = Runner({"": pipeline}, CPU).run(sequences).results
    assert np.isfinite(result.rows[0]).all()
    assert not result.is_finite


def test_empty_sequences_give_zeros() -> None:
    model = FakeModel()
    rows = [result.rows[0].tolist() for result in runner(model).run(make_sequences([[], [4], []])).results]
    assert sorted(rows) == [[0, 0, 0], [0, 0, 0], [4, 0, 1]]
    assert runner(model).run(make_sequences([[], []])).results[0].rows[0].tolist() == [0, 0, 0]


def test_equal_items_do_not_share_memory() -> None:
    """A caller may write into its rows; they belong to different requests, maybe."""
    for task in (Task.EMBED, Task.TOKEN_EMBED):
        params = PoolingParams(outputs=(task,))
        sequences = make_sequences([[4, 5]] * 3, params=params)
        first, *others = [result.rows[0] for result in runner(FakeModel()).run(sequences).results]
        first *= 100.0
        for other in others:
            assert not np.shares_memory(first, other)
            assert other.max() == pytest.approx(4.5 if task is Task.EMBED else 5.0)


def test_each_route_has_its_pipeline() -> None:
    models = {"query": FakeModel(), "document": FakeModel()}
    pipelines = {"query": make_pipeline(models["query"], "LAST"), "document": make_pipeline(models["document"], "CLS")}
    engine = Runner(pipelines, CPU)
    (query,) = engine.run(make_sequences([[3, 8]], route="query")).results
    (document,) = engine.run(make_sequences([[3, 8]], route="document")).results
    assert (query.rows[0][0], document.rows[0][0]) == (8, 3)
