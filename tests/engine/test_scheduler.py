"""What makes a step: the budget, passing with ageing, two lanes, equal sequences once, dead work never."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.config import EngineLimits
from forebay.core.request import Lane
from forebay.engine.scheduler import Scheduler, Step
from forebay.engine.sequence import Job
from tests.support.engine import make_job

BUDGET = 20


def scheduler(**limits: float) -> Scheduler:
    return Scheduler(EngineLimits(max_step_tokens=BUDGET, **limits))  # type: ignore[arg-type]


def job_of(*lens: int, first_id: int = 1, **options: object) -> Job:
    """One item a length, all different."""
    return make_job([[first_id + place] * length for place, length in enumerate(lens)], **options)  # type: ignore[arg-type]


def add(queue: Scheduler, *jobs: Job) -> None:
    for job in jobs:
        queue.add(job.sequences, job.lane)


def lens_of(step: Step) -> list[int]:
    return [len(seq.ids) for seq in step.sequences]


def drained(queue: Scheduler) -> list[Step]:
    """All steps until nothing waits."""
    steps = []
    while queue.num_sequences:
        steps.append(queue.schedule(0.0))
        assert steps[-1].sequences or steps[-1].dropped
    return steps


def cost_of(step: Step) -> int:
    return sum(len(seq.ids) for seq in {seq.key: seq for seq in step.sequences}.values())


def test_an_empty_queue_gives_an_empty_step() -> None:
    step = scheduler().schedule(0.0)
    assert (step.sequences, step.num_tokens, list(step.dropped)) == ([], 0, [])


def test_a_step_is_filled_to_the_budget() -> None:
    queue = scheduler()
    add(queue, job_of(8, 8, 4, 1))
    assert lens_of(queue.schedule(0.0)) == [1, 4, 8]
    assert lens_of(queue.schedule(0.0)) == [8]


def test_a_short_one_passes_a_long_one() -> None:
    queue = scheduler()
    add(queue, job_of(15), job_of(10), job_of(5))
    assert lens_of(queue.schedule(0.0)) == [15, 5]
    assert lens_of(queue.schedule(0.0)) == [10]


def test_a_sequence_over_the_budget_is_a_step_of_its_own() -> None:
    queue = scheduler()
    add(queue, job_of(50), job_of(1))
    assert lens_of(queue.schedule(0.0)) == [50]
    assert lens_of(queue.schedule(0.0)) == [1]


def test_what_was_passed_often_enough_leads() -> None:
    queue = scheduler(max_passes=2)
    victim = job_of(15)
    add(queue, job_of(10), job_of(10, first_id=2), job_of(10, first_id=3), job_of(10, first_id=4), victim)
    for place in range(4):
        add(queue, job_of(5, first_id=10 + place))
    steps = drained(queue)
    passed_in = [step for step in steps[: index_of(steps, victim)] if any(len(seq.ids) == 5 for seq in step.sequences)]
    assert len(passed_in) <= 2


def index_of(steps: Sequence[Step], job: Job) -> int:
    return next(place for place, step in enumerate(steps) if any(seq.job is job for seq in step.sequences))


ARRIVALS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=25)


@given(ARRIVALS, st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_budget_and_completeness(lens: list[list[int]], max_passes: int) -> None:
    queue = scheduler(max_passes=max_passes)
    jobs = [job_of(*row, first_id=100 * place) for place, row in enumerate(lens)]
    add(queue, *jobs)
    assert queue.num_tokens == sum(map(sum, lens))
    steps = drained(queue)
    for step in steps:
        assert step.num_tokens == cost_of(step)
        assert step.num_tokens <= BUDGET or len(step.sequences) == 1
    served = [id(seq) for step in steps for seq in step.sequences]
    assert sorted(served) == sorted(id(seq) for job in jobs for seq in job.sequences)
    assert (queue.num_sequences, queue.num_tokens) == (0, 0)


@given(ARRIVALS, st.integers(0, 3), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_no_one_starves(lens: list[list[int]], max_passes: int, seed: int) -> None:
    """Later arrivals overtake a sequence in at most ``max_passes`` steps, however many keep coming."""
    queue, chance = scheduler(max_passes=max_passes), random.Random(seed)
    arrived: dict[int, int] = {}
    overtaken: dict[int, int] = {}
    waiting: set[int] = set()
    pending = [job_of(*row, first_id=100 * place) for place, row in enumerate(lens)]
    while pending or queue.num_sequences:
        for job in [pending.pop(0) for _ in range(min(len(pending), chance.randint(0, 3)))]:
            for seq in sorted(job.sequences, key=lambda seq: (len(seq.ids), seq.key)):
                arrived[id(seq)] = len(arrived)
                waiting.add(id(seq))
            add(queue, job)
        served = [id(seq) for seq in queue.schedule(0.0).sequences]
        waiting -= set(served)
        for left in waiting:
            overtaken[left] = overtaken.get(left, 0) + any(arrived[one] > arrived[left] for one in served)
    assert max(overtaken.values(), default=0) <= max_passes


def test_the_first_in_line_is_always_served() -> None:
    queue = scheduler()
    old = job_of(19)
    add(queue, old)
    for place in range(100):
        add(queue, job_of(3, first_id=10 + place))
    assert queue.schedule(0.0).sequences[0].job is old


def test_equal_sequences_count_once() -> None:
    queue = scheduler()
    add(queue, make_job([[7] * 12] * 5), make_job([[7] * 12, [8] * 8]))
    step = queue.schedule(0.0)
    assert lens_of(step) == [12] * 6 + [8] or lens_of(step) == [12] * 5 + [8, 12]
    assert step.num_tokens == 20
    assert queue.num_sequences == 0


def test_equal_ids_with_another_prompt_are_another_sequence() -> None:
    """They are computed twice, so they must count twice."""
    queue = scheduler()
    add(queue, make_job([[7] * 12], prompt_lens=[0]), make_job([[7] * 12], prompt_lens=[3]))
    assert [step.num_tokens for step in drained(queue)] == [12, 12]


def test_one_route_a_step() -> None:
    queue = scheduler()
    add(queue, make_job([[1] * 3], route="query"), make_job([[2] * 3], route="document"))
    add(queue, make_job([[3] * 3], route="query"))
    steps = drained(queue)
    assert [{seq.route for seq in step.sequences} for step in steps] == [{"query"}, {"document"}]
    assert [len(step.sequences) for step in steps] == [2, 1]


def test_interactive_goes_first_and_alone() -> None:
    queue = scheduler()
    bulk, urgent = job_of(2, lane=Lane.BULK), job_of(3, first_id=9)
    add(queue, bulk, urgent)
    assert [seq.job for seq in queue.schedule(0.0).sequences] == [urgent]
    assert [seq.job for seq in queue.schedule(0.0).sequences] == [bulk]


def served_lanes(step_seconds: float, max_lane_wait: float, num_steps: int) -> str:
    """I or B for each step, while both lanes never run dry."""
    queue, lanes = scheduler(max_lane_wait=max_lane_wait), ""
    for place in range(num_steps):
        add(queue, job_of(20, first_id=place), job_of(20, first_id=10_000 + place, lane=Lane.BULK))
        step = queue.schedule(100.0 + place * step_seconds)
        lanes += "IB"[step.sequences[0].job.lane]
    return lanes


def test_bulk_gets_a_step_after_its_wait() -> None:
    assert served_lanes(step_seconds=0.25, max_lane_wait=1.0, num_steps=13) == "IIIIIBIIIIIBI"


@pytest.mark.parametrize("step_seconds", [1.5, 60.0])
def test_bulk_never_leads_twice_though_a_step_takes_longer_than_its_wait(step_seconds: float) -> None:
    """Or else a slow model would serve nothing but bulk."""
    assert served_lanes(step_seconds, max_lane_wait=1.0, num_steps=6) == "IBIBIB"


def test_no_wait_at_all_is_every_other_step() -> None:
    assert served_lanes(step_seconds=0.1, max_lane_wait=0.0, num_steps=6) == "IBIBIB"


def test_the_wait_of_bulk_begins_when_it_is_first_held_back() -> None:
    queue = scheduler(max_lane_wait=1.0)
    add(queue, job_of(5, lane=Lane.BULK))
    add(queue, *(job_of(20, first_id=10 + place) for place in range(3)))
    lanes = [queue.schedule(now).sequences[0].job.lane for now in (1000.0, 1000.5, 1001.5, 1001.6)]
    assert lanes == [Lane.INTERACTIVE, Lane.INTERACTIVE, Lane.BULK, Lane.INTERACTIVE]


def test_cancelled_work_is_never_scheduled() -> None:
    queue = scheduler()
    gone, alive = job_of(5, 5), job_of(5, first_id=9)
    add(queue, gone, alive)
    assert gone.future.cancel()
    step = queue.schedule(0.0)
    assert [seq.job for seq in step.sequences] == [alive]
    assert not step.dropped  # its caller knows
    assert (queue.num_sequences, queue.num_tokens) == (0, 0)


def test_expired_work_is_dropped_once_and_told() -> None:
    queue = scheduler()
    late, timely = job_of(5, 5, 5, deadline=10.0), job_of(5, first_id=9, deadline=10.5)
    add(queue, late, timely)
    step = queue.schedule(10.0)
    assert [seq.job for seq in step.sequences] == [timely]
    assert list(step.dropped) == [late]
    assert (queue.num_sequences, queue.num_tokens) == (0, 0)


def test_expired_work_in_both_lanes() -> None:
    queue = scheduler()
    jobs = [job_of(5, deadline=1.0), job_of(5, deadline=1.0, lane=Lane.BULK), job_of(4, lane=Lane.BULK)]
    add(queue, *jobs)
    step = queue.schedule(2.0)
    assert list(step.dropped) == jobs[:2]
    assert [seq.job for seq in step.sequences] == jobs[2:]


def test_only_dead_work_leaves_an_empty_step() -> None:
    queue = scheduler()
    late = job_of(5, 30, deadline=1.0)
    add(queue, late)
    step = queue.schedule(2.0)
    assert (step.sequences, list(step.dropped), queue.num_sequences) == ([], [late], 0)


def test_draining_gives_each_job_once() -> None:
    queue = scheduler()
    jobs = [job_of(5, 5), job_of(5, lane=Lane.BULK), job_of(30)]
    add(queue, *jobs)
    drained_jobs = queue.drain()
    assert sorted(map(id, drained_jobs)) == sorted(map(id, jobs))
    assert (queue.num_sequences, queue.num_tokens) == (0, 0)
    assert queue.schedule(0.0).sequences == []
