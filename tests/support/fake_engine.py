"""An engine of the same interface as AsyncEngine that needs no model: a text's hash seeds its vector.

Words steer it: an item that holds BOOM fails, NAN gives a non-finite vector, a request that holds CRASH raises.
"""

import asyncio
import hashlib
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from forebay.core.errors import DeadlineExceeded, ForebayError, InputTooLong, ItemFailed, NotReady, Overloaded
from forebay.core.events import Observer, RequestDone, RequestDropped, StepDone, ignore
from forebay.core.info import Decision, ModelInfo
from forebay.core.params import Abilities
from forebay.core.request import Item, Reply, Request, Timings
from forebay.core.tasks import Task

INFO = ModelInfo(
    name="fake/model",
    path="/models/fake",
    architecture="Fake",
    dtype="float32",
    device="cpu",
    abilities=Abilities(
        tasks=(Task.EMBED,),
        default_task=Task.EMBED,
        dimension=8,
        default_dimension=8,
        max_len=16,
        vocab_size=1000,
        prompts={"query": "query: "},
    ),
    prompts={"query": "query: "},
    default_prompt_name=None,
    similarity="cosine",
    num_parameters=0,
    decisions=(Decision("pooling", "MEAN", "default"),),
)


def vector(item: Item, dimensions: int | None = None, prefix: str = "") -> np.ndarray:
    text = prefix + item if isinstance(item, str) else ",".join(map(str, item))
    seed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    values = np.random.default_rng(np.frombuffer(seed, dtype=np.uint32)).standard_normal(8).astype(np.float32)
    values = values[:dimensions]
    return values / np.linalg.norm(values)


def count_tokens(item: Item) -> int:
    return len(item.split()) + 2 if isinstance(item, str) else len(item)


@dataclass(eq=False)
class FakeEngine:
    """``delay`` seconds a request; ``release``, where given, is an event that every request waits for."""

    observer: Observer = ignore
    delay: float = 0.0
    release: threading.Event | None = None
    overloaded: bool = False
    info: ModelInfo = INFO
    requests: list[Request] = field(default_factory=list)
    num_cancelled: int = 0
    closed: bool = False

    def submit(self, request: Request) -> Future[Reply]:
        future: Future[Reply] = Future()
        try:
            future.set_result(self._answer(request))
        except ForebayError as error:
            future.set_exception(error)
        return future

    async def run(self, request: Request) -> Reply:
        self.requests.append(request)
        try:
            until = time.monotonic() + self.delay
            while not self.closed and (time.monotonic() < until or (self.release and not self.release.is_set())):
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            self.observer(RequestDropped("cancelled", len(request.items)))
            raise
        return self._answer(request)

    def count_queued(self) -> tuple[int, int]:
        return (3, 42)

    def count_reserved(self) -> tuple[int, int]:
        return (5, 640)

    def close(self, *, drain: float = 0.0) -> None:
        self.closed = True

    def _answer(self, request: Request) -> Reply:
        self._check(request)
        dimensions = request.pooling.dimensions
        prefix = request.text.prompt or self.info.prompts.get(request.text.prompt_name or "", "")
        rows: list[np.ndarray | None] = [vector(item, dimensions, prefix) for item in request.items]
        errors: dict[int, ForebayError] = {}
        for index, item in enumerate(request.items):
            if isinstance(item, str) and "BOOM" in item:
                rows[index], errors[index] = None, ItemFailed("the forward pass failed", index=index)
            elif isinstance(item, str) and "NAN" in item:
                rows[index] = np.full(8, np.nan, dtype=np.float32)
        counts = np.array([count_tokens(item) for item in request.items], dtype=np.int32)
        limit = request.text.max_tokens or self.info.abilities.max_len
        truncated = counts > limit
        if truncated.any() and not request.text.truncate:
            raise InputTooLong(
                f"input[{truncated.argmax()}] has {counts.max()} tokens, but this model reads {limit}",
                field=f"input[{truncated.argmax()}]",
            )
        counts = np.minimum(counts, limit).astype(np.int32)
        timings = Timings(tokenize=0.001, queue=0.002, compute=0.003)
        self.observer(StepDone(len(rows), int(counts.sum()), 2048, 0.0001, 0.002, 0, 0))
        self.observer(RequestDone(len(rows), int(counts.sum()), int(truncated.sum()), len(errors), timings))
        return Reply({Task.EMBED: rows}, counts, truncated, errors, timings)

    def _check(self, request: Request) -> None:
        if self.closed:
            raise NotReady("closed")
        if self.overloaded:
            raise Overloaded("the queue is full", retry_after=2.5)
        if request.deadline is not None and request.deadline < time.monotonic():
            raise DeadlineExceeded("the deadline has passed")
        if any(isinstance(item, str) and "CRASH" in item for item in request.items):
            raise RuntimeError("a bug")
        request.pooling.check(self.info.abilities)
        request.text.check(self.info.abilities)
