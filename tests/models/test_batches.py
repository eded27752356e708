"""The same text gives the same vector whoever shares the batch; order is kept; equal texts give equal rows."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forebay import EngineLimits, PoolingModel
from tests.support import pipelines
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

POOL: tuple[str, ...] = (*MIXED, *(sentence(length, 100 + length) for length in range(1, 62, 4)))
BOUND = 1e-6
FAMILIES = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta", "camembert", "modernbert")
SMALL_STEPS = EngineLimits(max_step_tokens=150)
"""A budget that many a batch exceeds, so that it takes several steps."""


def normalised(store: Store, family: str) -> PoolingModel:
    backbone = store.backbone(family)

    def make(place):  # type: ignore[no-untyped-def]
        modules = [pipelines.transformer(backbone), pipelines.pooling("mean"), pipelines.normalize()]
        return pipelines.save_pipeline(place, modules)

    return store.engine(store.folder(f"normalised-{family}", make), limits=SMALL_STEPS)


@pytest.fixture(scope="module")
def alone(store: Store) -> dict[str, NDArray[np.float32]]:
    """Every text of the pool by itself."""
    return {
        family: np.concatenate([normalised(store, family).embed([text]).embeddings for text in POOL])
        for family in FAMILIES
    }


@pytest.mark.parametrize("family", FAMILIES)
@given(chosen=st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=40))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_alone_is_as_in_any_batch(
    store: Store, alone: dict[str, NDArray[np.float32]], family: str, chosen: list[int]
) -> None:
    together = normalised(store, family).embed([POOL[index] for index in chosen]).embeddings
    assert np.abs(together - alone[family][chosen]).max() <= BOUND


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_of_another_order_change_nothing(store: Store, family: str) -> None:
    engine = normalised(store, family)
    order = np.random.default_rng(5).permutation(len(POOL))
    straight = engine.embed(POOL).embeddings
    shuffled = engine.embed([POOL[index] for index in order]).embeddings
    assert np.abs(shuffled - straight[order]).max() <= BOUND


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_texts_give_equal_rows(store: Store, family: str) -> None:
    rows = normalised(store, family).embed([MIXED[3]] * 20 + [MIXED[8]] * 3 + [MIXED[3]]).embeddings
    assert np.array_equal(rows[:20], np.repeat(rows[:1], 20, axis=0))
    assert np.array_equal(rows[0], rows[-1])
    assert np.array_equal(rows[20], rows[22])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_texts_differ_by_far_more_than_the_bound(alone: dict[str, NDArray[np.float32]], family: str) -> None:
    """Or else exchanged rows would pass."""
    distances = np.abs(alone[family][:, None] - alone[family][None]).max(-1)
    equal = [[one == other for other in POOL] for one in POOL]
    assert np.where(equal, 1.0, distances).min() >= 1000 * BOUND


def test_many_threads_share_a_model(store: Store, alone: dict[str, NDArray[np.float32]]) -> None:
    """Their requests meet in common steps; each gets its own rows."""
    engine = normalised(store, "bert")
    choices = [np.random.default_rng(seed).integers(0, len(POOL), 1 + seed % 30) for seed in range(64)]
    with ThreadPoolExecutor(8) as threads:
        outputs = list(threads.map(lambda chosen: engine.embed([POOL[index] for index in chosen]), choices))
    for chosen, output in zip(choices, outputs, strict=True):
        assert np.abs(output.embeddings - alone["bert"][chosen]).max() <= BOUND
