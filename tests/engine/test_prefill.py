"""Sequences cut over steps: budget, order, blocks, ageing; what fails or is cancelled half-way frees all it held."""

import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.config import EngineLimits
from forebay.core.errors import ItemFailed
from forebay.core.events import Event, StepDone
from forebay.core.params import PoolingParams
from forebay.core.request import Lane
from forebay.engine.loop import Engine
from forebay.engine.prefill import Prefill
from forebay.engine.runner import Runner
from forebay.engine.scheduler import Scheduler, Step
from forebay.engine.sequence import Sequence
from tests.support.engine import CPU, FakeModel, make_job, make_pipeline, mean_of

BUDGET = 16
SECONDS = 60


class Queue:
    """A scheduler whose sequences spare all but their last token, and steps that always succeed."""

    def __init__(self, **limits: int) -> None:
        sizes = {"max_step_tokens": BUDGET, "block_size": 2, "prefix_cache_tokens": 32} | limits
        options = EngineLimits(**sizes)  # type: ignore[arg-type]
        self.prefill = Prefill(options, lambda seq: len(seq.ids) - 1)
        self.scheduler = Scheduler(options, self.prefill)
        self.computed: dict[int, int] = {}
        set_back = self.prefill.set_back

        def forget(seq: Sequence) -> None:
            del self.computed[id(seq)]
            set_back(seq)

        self.prefill.set_back = forget  # type: ignore[method-assign]

    def step(self) -> list[tuple[int, int]]:
        """Run the next step; the first id and the number of tokens of each of its sequences."""
        step = self.scheduler.schedule(0.0)
        chunks = [(int(seq.ids[0]), seq.end - seq.start) for seq in step.sequences]
        self.check(step)
        for seq in step.sequences:
            self.computed[id(seq)] = seq.end
            if seq.is_last_chunk:
                self.prefill.keep(seq)
                self.prefill.release(seq)
        self.scheduler.add_back([seq for seq in step.sequences if self.computed[id(seq)] < len(seq.ids)])
        return chunks

    def check(self, step: Step) -> None:
        """Each goes on where it stopped, or at what is known; the budget holds."""
        for seq in step.sequences:
            assert self.computed.get(id(seq), seq.num_read) == seq.start < seq.end
            assert not seq.is_cut or len(seq.table) == self.prefill.pool.count_blocks(len(seq.ids))
        rows = {seq.step_key: seq.end - seq.start for seq in step.sequences}
        assert step.num_tokens == sum(rows.values())
        assert step.num_tokens <= BUDGET or len(rows) == 1


def test_a_long_one_is_cut_and_short_ones_fill_its_last_step() -> None:
    queue = Queue()
    queue.scheduler.add(make_job([[1] * 40]).sequences, Lane.INTERACTIVE)
    queue.scheduler.add(make_job([[2] * 5, [3] * 5]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(3)] == [[(1, 16)], [(1, 16)], [(1, 8), (2, 5)]]
    assert queue.step() == [(3, 5)]
    assert (queue.scheduler.num_sequences, queue.scheduler.num_tokens, queue.prefill.pool.num_held) == (0, 0, 0)


def test_what_fits_a_step_is_not_cut() -> None:
    queue = Queue()
    queue.scheduler.add(make_job([[1] * 10, [2] * 15]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(2)] == [[(1, 10)], [(2, 15)]]


def test_one_that_the_pool_cannot_hold_gets_one_step_and_no_blocks() -> None:
    queue = Queue()
    queue.scheduler.add(make_job([[1] * 64, [2] * 65]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(5)] == [[(1, 16)]] * 4 + [[(2, 65)]]


def test_without_cutting_a_long_one_gets_one_step() -> None:
    queue = Queue(enable_chunked_prefill=False)
    queue.scheduler.add(make_job([[1] * 40, [2] * 3]).sequences, Lane.INTERACTIVE)
    queue.scheduler.add(make_job([[1] * 40 + [4] * 9]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(3)] == [[(2, 3)], [(1, 40)], [(1, 9)]]


def test_the_interactive_lane_goes_between_the_chunks_of_bulk() -> None:
    queue = Queue()
    queue.scheduler.add(make_job([[1] * 40], lane=Lane.BULK).sequences, Lane.BULK)
    assert queue.step() == [(1, 16)]
    queue.scheduler.add(make_job([[2] * 4]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(3)] == [[(2, 4)], [(1, 16)], [(1, 8)]]


def test_one_that_waits_for_blocks_is_passed_only_so_often() -> None:
    """Others behind it need fewer blocks, and there would always be enough for one of them."""
    queue = Queue(max_passes=3)
    queue.scheduler.add(make_job([[1] * 40], lane=Lane.BULK).sequences, Lane.BULK)
    queue.step()
    queue.scheduler.add(make_job([[2] * 60]).sequences, Lane.INTERACTIVE)
    passed = set()
    for place in range(20):
        queue.scheduler.add(make_job([[10 + place] * 20]).sequences, Lane.INTERACTIVE)
        first_ids = {first for first, _ in queue.step()}
        if 2 in first_ids:
            break
        passed |= first_ids - {1}
    assert 2 in first_ids
    assert 1 <= len(passed) <= 3


def test_a_short_one_is_passed_by_chunks_only_so_often() -> None:
    queue = Queue(max_passes=1)
    queue.scheduler.add(make_job([[1] * 64]).sequences, Lane.INTERACTIVE)
    queue.scheduler.add(make_job([[2] * 5]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(3)] == [[(1, 16)], [(1, 16)], [(2, 5), (1, 11)]]


def test_an_interactive_text_gets_the_blocks_of_bulk_under_way() -> None:
    """The bulk text begins anew, where what it had computed is gone, and ends."""
    queue = Queue(max_passes=3)
    queue.scheduler.add(make_job([[1] * 60], lane=Lane.BULK).sequences, Lane.BULK)
    assert [queue.step() for _ in range(2)] == [[(1, 16)]] * 2
    queue.scheduler.add(make_job([[2] * 40]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(3)] == [[(2, 16)], [(2, 16)], [(2, 8)]]
    done = 0
    while queue.scheduler.num_sequences:
        ((first, size),) = queue.step()
        assert first == 1
        done += size
    assert 28 <= done <= 60
    assert (queue.scheduler.num_tokens, queue.prefill.pool.num_held) == (0, 0)


def test_a_bulk_text_loses_its_blocks_only_so_often() -> None:
    queue = Queue(max_passes=2, enable_prefix_caching=False)
    queue.scheduler.add(make_job([[1] * 32], lane=Lane.BULK).sequences, Lane.BULK)
    assert queue.step() == [(1, 16)]
    for first in (2, 3, 4):
        queue.scheduler.add(make_job([[first] * 20]).sequences, Lane.INTERACTIVE)
        assert [queue.step() for _ in range(3)] == [[(first, 16)], [(first, 4)], [(1, 16)]]
    queue.scheduler.add(make_job([[5] * 20]).sequences, Lane.INTERACTIVE)
    assert [queue.step() for _ in range(3)] == [[(1, 16)], [(5, 16)], [(5, 4)]]


def test_a_chunk_of_bulk_takes_no_longer_than_a_bulk_step() -> None:
    queue = Queue(max_step_tokens=2048, block_size=16, prefix_cache_tokens=8192)
    for _ in range(30):
        queue.scheduler.note_speed(2048, 2.0)
    for lane, size in ((Lane.BULK, 512), (Lane.INTERACTIVE, 2048)):
        queue.scheduler.add(make_job([[1] * 6000], lane=lane).sequences, lane)
        step = queue.scheduler.schedule(0.0)
        assert [seq.end - seq.start for seq in step.sequences] == [size]


def test_without_a_cache_no_room_is_kept_for_one() -> None:
    sizes = {is_on: Queue(enable_prefix_caching=is_on).prefill.pool.size for is_on in (True, False)}
    assert sizes == {True: 32, False: 16}


ROWS = st.lists(st.tuples(st.integers(1, 80), st.integers(0, 3)), min_size=1, max_size=4)


@given(
    st.lists(ROWS, min_size=1, max_size=15),
    st.integers(0, 3),
    st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_all_are_computed_once_and_all_blocks_come_back(
    arrivals: list[list[tuple[int, int]]], max_passes: int, seed: int
) -> None:
    """Texts begin alike or not, come any time in any lane, and some callers go away half-way."""
    queue, chance = Queue(max_passes=max_passes), random.Random(seed)
    pending = [make_job([[kind] * size for size, kind in row], lane=chance.choice(list(Lane))) for row in arrivals]
    jobs, left = list(pending), 4000
    while pending or queue.scheduler.num_sequences:
        for job in [pending.pop() for _ in range(min(len(pending), chance.randint(0, 2)))]:
            queue.scheduler.add(job.sequences, job.lane)
        if chance.random() < 0.1:
            chance.choice(jobs).future.cancel()
            queue.scheduler.purge()
        queue.step()
        left -= 1
        assert left, "the queue does not get empty"
    assert (queue.scheduler.num_tokens, queue.prefill.pool.num_held) == (0, 0)
    for job in jobs:
        if not job.is_over:
            assert all(queue.computed[id(seq)] == len(seq.ids) for seq in job.sequences)


class CausalModel(FakeModel):
    """A fake one that keeps nothing of what it sees, but has room for it."""

    is_causal = True
    num_layers, num_kv_heads, head_dim = 1, 1, 1
    dtype = torch.float32


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def model() -> CausalModel:
    return CausalModel()


@pytest.fixture
def engine(model: CausalModel, events: list[Event]):
    limits = EngineLimits(max_step_tokens=BUDGET, block_size=2, prefix_cache_tokens=64)
    engine = Engine(Runner({"": make_pipeline(model)}, CPU), limits, events.append)
    yield engine
    engine.close(0)


def num_held(engine: Engine) -> int:
    assert engine._prefill is not None
    return engine._prefill.pool.num_held


def settle(engine: Engine) -> None:
    limit = time.monotonic() + SECONDS
    while (engine.count_queued()[0] or num_held(engine)) and time.monotonic() < limit:
        time.sleep(0.005)


def test_a_failure_in_a_later_chunk_is_the_items_own(model: CausalModel, engine: Engine) -> None:
    ids = [[5] * 40, [6] * 39 + [model.boom_id], [7] * 3, [8] * 30 + [model.nan_id] + [8] * 9]
    job = make_job(ids)
    engine.submit(job)
    reply = job.future.result(SECONDS)
    assert set(reply.errors) == {1, 3}
    assert all(isinstance(error, ItemFailed) for error in reply.errors.values())
    for place in (0, 2):
        np.testing.assert_allclose(reply.rows[place], mean_of(ids[place]), rtol=1e-6)
    settle(engine)
    assert num_held(engine) == 0


def test_who_is_beside_a_failing_one_begins_anew_and_ends_right(model: CausalModel, engine: Engine) -> None:
    """The step that fails holds the last chunk of one text and a whole other."""
    ids = [[5] * 20, [model.boom_id, 1], list(range(1, 40))]
    job = make_job(ids)
    engine.submit(job)
    reply = job.future.result(SECONDS)
    assert set(reply.errors) == {1}
    np.testing.assert_allclose(reply.rows[0], mean_of(ids[0]), rtol=1e-6)
    np.testing.assert_allclose(reply.rows[2], mean_of(ids[2]), rtol=1e-6)
    assert num_held(engine) == 0


def test_a_cancelled_half_done_text_frees_its_blocks(model: CausalModel, engine: Engine) -> None:
    model.hold()
    job = make_job([[5] * 60])
    engine.submit(job)
    model.wait_until_held()
    assert num_held(engine) == 30
    assert job.future.cancel()
    model.release.set()
    settle(engine)
    assert num_held(engine) == 0
    assert len(model.batches) == 1
    (seq,) = job.sequences
    assert (seq.table, seq.carried) == ([], None)


def test_closing_ends_half_done_texts(model: CausalModel, engine: Engine) -> None:
    model.hold()
    job = make_job([[5] * 60])
    engine.submit(job)
    model.wait_until_held()
    model.release.set()
    engine.close(0)
    assert job.future.done()
    assert num_held(engine) == 0


def test_a_request_ends_with_its_own_last_chunk(model: CausalModel, engine: Engine, events: list[Event]) -> None:
    """A prompt as long as several steps: as many forwards as it has chunks, and none more."""
    job = make_job([[5] * 64])
    engine.submit(job)
    job.future.result(SECONDS)
    assert [len(batch[0]) for batch in model.batches] == [16] * 4
    steps = [event for event in events if isinstance(event, StepDone)]
    assert all(step.num_blocks == 48 for step in steps)
    assert steps[0].held_blocks == 32


def test_the_pool_holds_the_longest_text(model: CausalModel, events: list[Event]) -> None:
    """Otherwise one of 200 tokens would be computed in a step of 200, however small the budget."""
    limits, text = EngineLimits(max_step_tokens=BUDGET, block_size=2, prefix_cache_tokens=8), [5] * 200
    batches = {}
    for longest in (0, 200):
        model.batches.clear()
        engine = Engine(Runner({"": make_pipeline(model)}, CPU), limits, events.append, longest=longest)
        job = make_job([text])
        engine.submit(job)
        np.testing.assert_allclose(job.future.result(SECONDS).rows[0], mean_of(text), rtol=1e-6)
        engine.close(0)
        batches[longest] = [len(batch[0]) for batch in model.batches]
    assert batches == {0: [200], 200: [16] * 12 + [8]}
    assert engine.reserved is not None
    assert engine.reserved.value.startswith("208 tokens in blocks of 2")


def test_without_memory_for_the_longest_text_there_is_as_much_as_before(
    model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Runner.reserve

    def refuse(self: Runner, num_blocks: int, block_size: int) -> int:
        if num_blocks > 1000:
            raise RuntimeError("not so many")
        return reserve(self, num_blocks, block_size)

    monkeypatch.setattr(Runner, "reserve", refuse)
    limits = EngineLimits(max_step_tokens=BUDGET, block_size=2, prefix_cache_tokens=8)
    engine = Engine(Runner({"": make_pipeline(model)}, CPU), limits, lambda event: None, longest=10**6)
    job = make_job([[5] * 200])
    engine.submit(job)
    job.future.result(SECONDS)
    engine.close(0)
    assert engine.reserved is not None
    assert engine.reserved.value.startswith("40 tokens")
    assert "longer texts get one step" in engine.reserved.source


def test_what_keeps_nothing_is_not_cut() -> None:
    """An encoder: no blocks, no chunks."""
    model = FakeModel()
    engine = Engine(Runner({"": make_pipeline(model)}, CPU), EngineLimits(max_step_tokens=BUDGET), lambda event: None)
    job = make_job([[5] * 64], params=PoolingParams())
    engine.submit(job)
    job.future.result(SECONDS)
    engine.close(0)
    assert engine.reserved is None
    assert [len(batch[0]) for batch in model.batches] == [64]
