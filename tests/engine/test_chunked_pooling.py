"""Every pooling method, over steps of every size, with and without a known prefix, gives what one step gives."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch

from forebay.core.config import EngineLimits
from forebay.core.events import Event, StepDone
from forebay.core.params import PoolingParams
from forebay.core.request import Row, SparseVector
from forebay.core.tasks import Task
from forebay.engine.loop import Engine
from forebay.engine.runner import Runner
from forebay.layers.native import extension
from forebay.pooling.pooler import LayerMix, Pipeline
from tests.support.decoder import NUM_LAYERS, PADDING, TAG, VOCAB, WINDOWED, decoder, natively, poolers
from tests.support.engine import CPU, make_job, make_sequences

BOUND = 1e-5
MODELS = {"whole": decoder(), "windowed": decoder(**WINDOWED)}
if extension is not None:
    MODELS |= {"native": natively(decoder()), "native windowed": natively(decoder(**WINDOWED))}
POOLERS = poolers()
SPARING = [name for name in POOLERS if name in ("LAST", "LAST by id", "classify")]
PROMPT = 24


def texts(seed: int) -> list[list[int]]:
    """One that others begin with, and others of very different lengths; padding and tags stand here and there."""
    chance = np.random.default_rng(seed)
    first = chance.integers(1, VOCAB, 70).tolist()
    first[30], first[50] = PADDING, TAG
    own = [chance.integers(1, VOCAB, size).tolist() for size in (1, 9, 20, 3)]
    own[1][-1] = own[1][-2] = PADDING
    own[2][5] = TAG
    others = [first[:48] + own[0], first[:33] + own[1], first[:64] + own[2], first[:40], first[:32] + own[3]]
    return [first, *others, [TAG], chance.integers(1, VOCAB, 17).tolist()]


def pipeline_of(model: str, name: str, layer_mix: LayerMix | None = None) -> Pipeline:
    task, pooler = POOLERS[name]
    return Pipeline(MODELS[model], {task: pooler}, layer_mix)  # type: ignore[arg-type]


def ask(name: str, chunk_size: int | None = None) -> PoolingParams:
    return PoolingParams((POOLERS[name][0],), chunk_size=chunk_size)


def in_one_step(pipeline: Pipeline, ids: list[list[int]], params: PoolingParams, prompts: list[int]) -> list[Row]:
    """Each text alone, whole, with nothing kept."""
    runner, rows = Runner({"": pipeline}, CPU), []
    for text, prompt in zip(ids, prompts, strict=True):
        (result,) = runner.run(make_sequences([text], params=params, prompt_lens=[prompt])).results
        rows.append(result.rows[0])
    return rows


def prompts_of(num_texts: int) -> list[int]:
    return [PROMPT if place % 2 else 0 for place in range(num_texts)]


@cache
def expected_of(model: str, name: str) -> list[Row]:
    ids = texts(1)
    return in_one_step(pipeline_of(model, name), ids, ask(name), prompts_of(len(ids)))


@contextmanager
def engine_of(
    pipeline: Pipeline, events: list[Event] | None = None, longest: int = 0, **limits: int
) -> Iterator[Engine]:
    observer = (lambda event: None) if events is None else events.append
    engine = Engine(Runner({"": pipeline}, CPU), EngineLimits(**limits), observer, longest=longest)  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        engine.close(0)


def answer(engine: Engine, ids: list[list[int]], params: PoolingParams, prompts: list[int]) -> list[Row]:
    job = make_job(ids, params=params, prompt_lens=prompts)
    engine.submit(job)
    reply = job.future.result(60)
    reply.raise_errors()
    return list(reply.rows)  # type: ignore[arg-type]


def assert_alike(found: Sequence[Row], expected: Sequence[Row]) -> None:
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, SparseVector):
            assert isinstance(one, SparseVector)
            one, other = dense(one), dense(other)
        assert isinstance(one, np.ndarray)
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) <= BOUND * max(1.0, np.abs(other).max(initial=0))


def dense(row: SparseVector) -> np.ndarray:
    out = np.zeros(VOCAB, np.float32)
    out[row.ids] = row.weights
    return out


def settle(events: list[Event], count: int) -> None:
    """Wait until so much was told: an answer comes before what is said of its last step."""
    limit = time.monotonic() + 60
    while len(events) < count and time.monotonic() < limit:
        time.sleep(0.001)


def count_read(events: list[Event]) -> int:
    return sum(event.prefix_tokens for event in events if isinstance(event, StepDone))


@pytest.mark.parametrize("caches", [False, True], ids=["none known", "prefix known"])
@pytest.mark.parametrize("step", [3, 16, 33, 1000])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", POOLERS)
def test_it_is_the_one_steps_result(name: str, model: str, step: int, caches: bool) -> None:
    """Those that begin as the first does come after it, so that they find it where it is kept."""
    pipeline, ids = pipeline_of(model, name), texts(1)
    prompts = prompts_of(len(ids))
    expected = expected_of(model, name)
    events: list[Event] = []
    limits = {"max_step_tokens": step, "block_size": 4, "prefix_cache_tokens": 400, "enable_prefix_caching": caches}
    with engine_of(pipeline, events, max(map(len, ids)), **limits) as engine:
        assert_alike(answer(engine, ids[:1], ask(name), prompts[:1]), expected[:1])
        num_steps = -(-len(ids[0]) // step)
        settle(events, 1 + num_steps)
        assert len(events) == 1 + num_steps
        assert count_read(events) == 0
        assert_alike(answer(engine, ids, ask(name), prompts), expected)
    if not caches or name.startswith(("ALL", "STEP", "SPLADE")):
        assert count_read(events) == 0
    else:
        assert count_read(events) >= (200 if name in SPARING else 16)


@pytest.mark.parametrize("step", [5, 16, 50, 500])
def test_windows_of_late_chunking_cross_the_cuts(step: int) -> None:
    pipeline, ids, params = pipeline_of("whole", "ALL"), texts(2), ask("ALL", chunk_size=6)
    zeros = [0] * len(ids)
    with engine_of(pipeline, max_step_tokens=step) as engine:
        assert_alike(answer(engine, ids, params, zeros), in_one_step(pipeline, ids, params, zeros))


@pytest.mark.parametrize("step", [5, 50])
def test_layers_may_be_mixed(step: int) -> None:
    mix = LayerMix(torch.arange(1.0, NUM_LAYERS + 1), 1)
    pipeline, ids = pipeline_of("whole", "MEAN", mix), texts(3)
    zeros = [0] * len(ids)
    with engine_of(pipeline, max_step_tokens=step) as engine:
        assert_alike(answer(engine, ids, ask("MEAN"), zeros), in_one_step(pipeline, ids, ask("MEAN"), zeros))


def test_outputs_that_need_different_states_come_from_one_forward() -> None:
    """What one of them can spare the other may need; then nothing is read."""
    named = [POOLERS["LAST"], POOLERS["STEP"]]
    pipeline = Pipeline(MODELS["whole"], dict(named))  # type: ignore[arg-type]
    both, one = PoolingParams((Task.EMBED, Task.TOKEN_CLASSIFY)), PoolingParams((Task.EMBED,))
    ids, events = texts(4), list[Event]()
    zeros = [0] * len(ids)
    expected = in_one_step(pipeline, ids, both, zeros)
    with engine_of(pipeline, events, max_step_tokens=20) as engine:
        for _ in range(2):
            assert_alike(answer(engine, ids, both, zeros), expected)
        assert count_read(events) == 0
        assert_alike(answer(engine, ids, one, zeros), expected)
    assert count_read(events) > 0


@pytest.mark.parametrize("length", [64, 65])
def test_a_full_hit_computes_the_last_token_again(length: int) -> None:
    pipeline, text = pipeline_of("whole", "LAST"), (texts(5)[0] * 2)[:length]
    events: list[Event] = []
    with engine_of(pipeline, events, block_size=16) as engine:
        first = answer(engine, [text], ask("LAST"), [0])
        assert_alike(answer(engine, [text], ask("LAST"), [0]), first)
    steps = [event for event in events if isinstance(event, StepDone)]
    known = (length - 1) // 16 * 16
    assert [(step.num_tokens, step.prefix_tokens) for step in steps] == [(length, 0), (length - known, known)]


def test_a_salt_keeps_prefixes_apart() -> None:
    pipeline, text = pipeline_of("whole", "LAST"), texts(6)[0]
    events: list[Event] = []
    with engine_of(pipeline, events, block_size=8) as engine:
        for salt in ("", "a", "a", "b", ""):
            job = make_job([text], params=ask("LAST"), salt=salt)
            engine.submit(job)
            job.future.result(60)
    assert [event.prefix_tokens > 0 for event in events if isinstance(event, StepDone)] == [
        False, False, True, False, True
    ]  # fmt: skip
