"""AsyncEngine: one Request in, one Reply out, from any thread or event loop.

It strings the walk together: parameters are checked, items tokenized in one batch call off the caller's event loop,
then scheduled, run and answered by the engine's own thread.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from forebay.api.plugin import IOProcessor, find_processor, parse_checked
from forebay.api.score import start_score
from forebay.core.config import EngineLimits, ModelOptions
from forebay.core.errors import InvalidRequest, NotReady
from forebay.core.events import Observer, ignore
from forebay.core.info import ModelInfo
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Item, Lane, Reply, Request, ScoreReply, ScoreRequest
from forebay.core.tasks import ScoreType, Task
from forebay.engine.join import Join
from forebay.engine.loop import Engine
from forebay.engine.runner import Runner
from forebay.engine.sequence import Job, SequenceTraits
from forebay.loading.assemble import LoadedModel, load_model
from forebay.text.listing import TokenList
from forebay.text.spans import Spans
from forebay.text.tokenizer import Encoded, TextTokenizer

# Requests with at most so many characters or ids are tokenized at once on the caller's thread: a hand-over to
# another thread costs more than that.
_INLINE_SIZE = 2000
_TOKENIZER_THREADS = 2
_CLOSED = "this model is closed; load it again"
_FORKED = "this process was forked after the model was loaded, and threads do not survive that; load it in the child"


class AsyncEngine:
    """A loaded model that answers requests until it is closed."""

    def __init__(
        self,
        model: LoadedModel,
        limits: EngineLimits,
        observer: Observer = ignore,
        processor: IOProcessor | None = None,
    ) -> None:
        self._model = model
        self._processor = processor
        self._info = model.info if processor is None else _with_plugin(model.info)
        self._engine = Engine(
            Runner(model.pipelines, model.device), limits, observer, longest=model.info.abilities.max_len
        )
        if self._engine.reserved is not None:
            self._info = replace(self._info, decisions=(*self._info.decisions, self._engine.reserved))
        self._tokenizing = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="forebay-tokenize")
        self._is_closed = False
        self._pid = os.getpid()

    @classmethod
    def load(
        cls,
        options: ModelOptions,
        limits: EngineLimits | None = None,
        *,
        observer: Observer = ignore,
        on_stage: Callable[[str], None] | None = None,
        processor: type[IOProcessor] | None = None,
    ) -> "AsyncEngine":
        """Load a model and warm it up; blocks. ``on_stage`` hears what is going on, in a word or two.
        ``processor`` is an IO processor's class, for one that is not installed under a name.

        Raises LoadError where the checkpoint can't be loaded, InvalidRequest where the options don't fit it.
        """
        on_stage = on_stage or _ignore_stage
        model = load_model(options, on_stage)
        if processor is None and options.io_processor is not None:
            processor = find_processor(options.io_processor)
        on_stage("warming up")
        info = _with_plugin(model.info)
        engine = cls(model, limits or EngineLimits(), observer, None if processor is None else processor(info))
        try:
            engine._warm_up()
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def info(self) -> ModelInfo:
        """What was loaded, and who decided what."""
        return self._info

    async def run_plugin(self, data: Any) -> Any:
        """Answer a request of the IO processor: parse, run, render, the first and the last off the event loop."""
        processor = self._require_processor()
        request, context = await asyncio.to_thread(parse_checked, processor, data)
        reply = await self.run(request)
        reply.raise_errors()
        return await asyncio.to_thread(processor.render, reply, context)

    def plugin(self, data: Any) -> Any:
        """The same, blocking."""
        processor = self._require_processor()
        request, context = parse_checked(processor, data)
        reply = self.submit(request).result()
        reply.raise_errors()
        return processor.render(reply, context)

    def _require_processor(self) -> IOProcessor:
        if self._processor is None:
            known = ", ".join(f"'{task}'" for task in self.info.abilities.tasks)
            raise InvalidRequest(
                f"this model has no IO processor (load it with one: --io-processor); it has the tasks {known}",
                field="task",
            )
        return self._processor

    def submit(self, request: Request, *, lends_thread: bool = False) -> "Future[Reply]":
        """Start a request and return at once. ``cancel()`` of the future drops the work that has not begun.

        A request that does not fit the model fails the future with a RequestError. A caller that will only wait for
        the reply lends its thread: a short request that meets an idle engine is computed before this returns.
        """
        future: Future[Reply] = Future()
        if self._is_closed:
            future.set_exception(NotReady(_CLOSED))
        elif os.getpid() != self._pid:
            future.set_exception(NotReady(_FORKED))
        elif _is_small(request):
            self._start(request, future, lends_thread=lends_thread)
        else:
            self._start_on_thread(request, future)
        return future

    async def run(self, request: Request) -> Reply:
        """Answer a request; cancelling the awaiting task drops the work."""
        return await asyncio.wrap_future(self.submit(request))

    def submit_score(self, request: ScoreRequest) -> "Future[ScoreReply]":
        """Start a comparison of texts and return at once; ``cancel()`` of the future drops all its work."""
        return start_score(self.submit, self._info, request)

    async def run_score(self, request: ScoreRequest) -> ScoreReply:
        """Answer a comparison; cancelling the awaiting task drops the work."""
        return await asyncio.wrap_future(self.submit_score(request))

    def count_queued(self) -> tuple[int, int]:
        """(sequences, tokens) that wait for a step."""
        return self._engine.count_queued()

    def count_reserved(self) -> tuple[int, int]:
        """(blocks, bytes) that are reserved for keys and values."""
        return self._engine.count_reserved()

    def spans(self, items: Sequence[Item], text: TextParams) -> list[Spans]:
        """Tell where the tokens of each item stand in its text, as a request with these parameters had them."""
        prompt = self._model.prompts.choose(text)
        tokenizer = self._model.texts[self._choose_route(text.input_type)]
        return [tokenizer.spans(item, text, prompt) for item in items]

    def list_tokens(self, texts: Sequence[str], prompt_name: str | None, *, has_specials: bool) -> list[TokenList]:
        """Return every token of each text; blocks. ``prompt_name`` None is the checkpoint's default prompt."""
        text = TextParams(prompt_name=prompt_name)
        text.check(self._info.abilities)
        prompt = self._model.prompts.choose(text)
        return [self._any_text.list_tokens(one, prompt, has_specials=has_specials) for one in texts]

    def decode(self, items: Sequence[Sequence[int]], *, skips_specials: bool) -> list[str]:
        """Return the text of each list of token ids, which must lie in the vocabulary; blocks."""
        return [self._any_text.decode(ids, skips_specials=skips_specials) for ids in items]

    @property
    def _any_text(self) -> TextTokenizer:
        return next(iter(self._model.texts.values()))

    def token_of(self, token_id: int) -> str:
        """Return a token id's text ("" for an id without one)."""
        return self._any_text.token_of(token_id)

    def close(self, *, drain: float = 0.0) -> None:
        """Refuse new requests, give those under way up to ``drain`` seconds, abort the rest, free the threads."""
        self._is_closed = True
        self._tokenizing.shutdown(wait=True, cancel_futures=drain <= 0)
        self._engine.close(drain)

    def _start_on_thread(self, request: Request, future: "Future[Reply]") -> None:
        def see_dropped(task: "Future[None]") -> None:
            if task.cancelled() and future.set_running_or_notify_cancel():
                future.set_exception(NotReady(_CLOSED))

        try:
            self._tokenizing.submit(self._start, request, future).add_done_callback(see_dropped)
        except RuntimeError:  # the pool was shut down in the meantime
            future.set_exception(NotReady(_CLOSED))

    def _start(self, request: Request, future: "Future[Reply]", *, lends_thread: bool = False) -> None:
        """Check, tokenize and queue; any error goes to the caller through the future."""
        if future.cancelled():
            return
        try:
            self._engine.submit(self._make_job(request, future), lends_thread=lends_thread)
        except Exception as error:
            if not future.cancelled() and future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _make_job(self, request: Request, future: "Future[Reply]") -> Job:
        abilities = self._info.abilities
        request.pooling.check(abilities)
        request.text.check(abilities)
        _check_items(request)
        route = self._choose_route(request.text.input_type)
        start = time.perf_counter()
        prompt = self._model.prompts.choose(request.text)
        encoded = self._encode(request, self._model.texts[route], prompt)
        job = Job(
            future,
            lane=request.lane,
            deadline=request.deadline,
            tokenize_seconds=time.perf_counter() - start,
        )
        pooling = request.pooling
        if request.text.input_type == "query" and self._info.abilities.score_type is ScoreType.LATE_INTERACTION:
            pooling = replace(pooling, side="query")
        traits = SequenceTraits(pooling, route, self._choose_join(request), request.cache_salt or "")
        job.fill(encoded, encoded.truncated, traits, request.against)
        return job

    def _choose_join(self, request: Request) -> Join:
        """How the windows of one long text become one output."""
        if request.seconds is not None or request.against is not None:
            return self._model.window_scores
        wish = request.pooling.use_activation
        is_unit = (self._info.abilities.is_normalized if wish is None else wish) and (
            request.pooling.truncate_dim is None
        )
        return "unit_mean" if is_unit else "mean"

    def _encode(self, request: Request, tokenizer: TextTokenizer, prompt: str) -> Encoded:
        if request.seconds is not None:
            return tokenizer.encode_pairs(request.items, request.seconds, request.text, prompt)
        return tokenizer.encode(request.items, request.text, prompt, splits=_can_join(request))

    def _choose_route(self, input_type: str | None) -> str:
        routes = self._model.route_of_input_type
        if input_type is not None and input_type in routes:
            return routes[input_type]
        if self._model.default_route is None:
            raise InvalidRequest(
                f"this model has a route for each kind of text; give input_type, one of {', '.join(routes)}",
                field="input_type",
            )
        return self._model.default_route

    def _warm_up(self) -> None:
        """Run a short and a long text through every route, so that no request pays for first-time costs."""
        pooling = PoolingParams(outputs=(self.info.abilities.default_task,))
        for input_type in self._model.route_of_input_type or (None,):
            pairs_only = any(text.reads_pairs_only for text in self._model.texts.values())
            text = TextParams(input_type=input_type, add_special_tokens=not pairs_only)
            self.submit(Request(["warm", "warm " * 256], pooling, text, lane=Lane.BULK)).result()


def _with_plugin(info: ModelInfo) -> ModelInfo:
    return replace(info, abilities=replace(info.abilities, tasks=(*info.abilities.tasks, Task.PLUGIN)))


def _ignore_stage(stage: str) -> None:
    """Hear nothing."""


def _is_small(request: Request) -> bool:
    size = 0
    for item in (*request.items, *(request.seconds or ())):
        size += len(item) if _is_item(item) else 0
        if size > _INLINE_SIZE:
            return False
    return True


def _check_items(request: Request) -> None:
    """Refuse what is neither a text nor a list of ids; what the ids are is the tokenizer's to check."""
    for index, item in enumerate(request.items):
        if not _is_item(item):
            raise InvalidRequest(
                f"input[{index}] is of type {type(item).__name__}; expected a text or a list of token ids",
                index=index,
            )
    _check_against(request)
    if request.text.split and not _can_join(request):
        asked = " and ".join(f"'{task}'" for task in request.pooling.outputs)
        raise InvalidRequest(
            f"'split' reads a long text by windows, but {asked} of its windows can't be joined; leave it out, or ask "
            "for embeddings or scores of pairs alone",
            field="split",
        )
    if request.pooling.pool_factor is not None and request.text.input_type == "query":
        raise InvalidRequest("token vectors of documents are joined, never a query's", field="pool_factor")
    if request.seconds is None:
        return
    if request.pooling.outputs != (Task.CLASSIFY,):
        raise InvalidRequest("pairs of texts are read by classifiers only: ask for the task 'classify'", field="task")
    if len(request.seconds) != len(request.items):
        raise InvalidRequest(
            f"{len(request.items)} first texts can't be paired with {len(request.seconds)} second ones; send as many "
            "of both"
        )


def _can_join(request: Request) -> bool:
    """Whether the outputs of a long text's windows become one: embeddings and scores of pairs do."""
    is_score = request.seconds is not None or request.against is not None
    return is_score or request.pooling.outputs == (Task.EMBED,)


def _check_against(request: Request) -> None:
    """Refuse query vectors that are not one matrix an item, or beside other outputs than token vectors."""
    if request.against is None:
        return
    if request.pooling.outputs != (Task.TOKEN_EMBED,):
        raise InvalidRequest("query vectors are compared with token vectors: ask for 'token_embed' alone", field="task")
    if len(request.against) != len(request.items):
        raise InvalidRequest(
            f"{len(request.items)} items can't be compared with {len(request.against)} queries; give each item its own"
        )
    for index, matrix in enumerate(request.against):
        if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype != np.float32:
            raise InvalidRequest(
                f"the query of input[{index}] must be a float32 array of token vectors, [tokens, d]", index=index
            )


def _is_item(item: Item) -> bool:
    if isinstance(item, str):
        return True
    is_scalar = getattr(item, "ndim", 1) == 0  # an array of no dimension has a length by name only
    return hasattr(item, "__len__") and not is_scalar and not isinstance(item, bytes | bytearray | dict)
