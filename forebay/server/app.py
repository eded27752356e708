"""The HTTP app: one endpoint for every operation of every dialect, the routes of operation, the gate around them.

It knows the walk (read, parse, admit, run, render) and no dialect's words.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from forebay.core.config import EngineLimits, ModelOptions, ServerOptions
from forebay.core.errors import ForebayError
from forebay.core.events import Observer
from forebay.core.request import Reply, ScoreReply, SparseVector, Timings
from forebay.server.admission import admit, admit_score, check_count, unless_gone, within
from forebay.server.body import Room, Share, decode, read_body
from forebay.server.dialect import Answer, AnyCall, Call, Operation, PluginCall, ScoreCall, Served, TextCall
from forebay.server.dialects import DIALECTS
from forebay.server.errors import MethodNotAllowed, UnknownRoute, in_fields, named_as, raise_item_errors
from forebay.server.gate import Gate, Paths
from forebay.server.metrics import Metrics
from forebay.server.ops import Operations
from forebay.server.process import run
from forebay.server.service import Load, Service

if TYPE_CHECKING:
    from forebay.api.async_engine import AsyncEngine

T = TypeVar("T")

LARGE_BODY = 256 << 10
"""Bytes from which a body is parsed off the event loop."""

LARGE_REPLY = 1 << 14
"""Numbers from which a reply is encoded off the event loop."""


_SHARE_OF_BODY = 0.9
"""Of the time that a request has, the part that its body may take to come."""


class Endpoint:
    """An operation as a route: the walk of one request."""

    def __init__(
        self, operation: Operation, service: Service, metrics: Metrics, options: ServerOptions, room: Room
    ) -> None:
        self._operation = operation
        self._room = room
        self._service = service
        self._metrics = metrics
        self._options = options

    async def answer(self, http: HttpRequest) -> Response:
        """Read, parse, admit, run, render."""
        self._service.check_ready()
        deadline = time.monotonic() + self._options.request_timeout
        async with within(self._options.request_timeout):
            # The share is held until the answer is there: texts take as much while they wait.
            with in_fields(), self._room.share() as share:
                return await self._walk(http, share, deadline)

    async def _walk(self, http: HttpRequest, share: Share, deadline: float) -> Response:
        options = self._options
        name, engine, call = await self._receive(http, share)
        served = Served(name, http.state.request_id, engine)
        if isinstance(call, Call):
            return await self._compute(call, http, served, deadline)
        if isinstance(call, TextCall):
            check_count(call.num_items, call.field, options)
            return _said(await asyncio.to_thread(call.answer, served))
        if isinstance(call, PluginCall):
            made = await unless_gone(http.receive, engine.run_plugin(call.data))
            return _said(await asyncio.to_thread(call.render, made, served))
        scoring = admit_score(call.request, call.documents.field, options, deadline)
        scored = await self._score(call, engine.run_score(scoring), http)
        answer = await _apart(len(scored.scores) >= LARGE_REPLY, lambda: call.render(scored, served))
        return _said(answer, scored.timings)

    async def _receive(self, http: HttpRequest, share: Share) -> "tuple[str, AsyncEngine, AnyCall]":
        options = self._options
        raw = await read_body(http, options.max_body_bytes, share, options.request_timeout * _SHARE_OF_BODY)
        return await _apart(len(raw) >= LARGE_BODY, lambda: self._parse(raw, http))

    async def _compute(self, call: Call, http: HttpRequest, served: Served, deadline: float) -> Response:
        with named_as(call.place):
            request = admit(call.request, call.field, self._options, deadline)
            reply = await unless_gone(http.receive, served.engine.run(request))
            raise_item_errors(reply.errors, len(reply.rows), "input")
            started = time.perf_counter()
            answer = await _apart(_count_numbers(reply) >= LARGE_REPLY, lambda: call.render(reply, served))
        self._metrics.count_reply(time.perf_counter() - started)
        return _said(answer, reply.timings)

    async def _score(self, call: ScoreCall, work: Coroutine[Any, Any, ScoreReply], http: HttpRequest) -> ScoreReply:
        """Await scores; what went wrong is said in the body's own names."""
        try:
            scored = await unless_gone(http.receive, work)
        except ForebayError as error:
            raise call.say(error) from None
        errors = {index: call.say(error) for index, error in scored.errors.items()}
        raise_item_errors(errors, len(scored), call.documents.field)
        return scored

    def _parse(self, raw: bytearray, http: HttpRequest) -> "tuple[str, AsyncEngine, AnyCall]":
        body = decode(raw)
        if self._operation.errors_of is not None:
            http.state.render_error = self._operation.errors_of(body)
        name, engine = self._service.find(body.get("model"))
        return name, engine, self._operation.parse(body, engine.info)


async def _apart(large: bool, work: Callable[[], T]) -> T:
    """Do small work here and large work on a thread, so that it does not hold up the others."""
    return await asyncio.to_thread(work) if large else work()


def _count_numbers(reply: Reply) -> int:
    """How many numbers there are to be said."""
    rows = [row for rows in reply.outputs.values() for row in rows if row is not None]
    return sum(2 * len(row) if isinstance(row, SparseVector) else row.size for row in rows)


def _said(answer: Answer, timings: Timings | None = None) -> Response:
    headers = {} if timings is None else _timing_headers(timings)
    return Response(answer.body, headers={**headers, **answer.headers}, media_type=answer.media_type)


def _timing_headers(timings: Timings) -> dict[str, str]:
    """Milliseconds at the stations of the walk."""
    stations = {"tokenization": timings.tokenize, "queue": timings.queue, "inference": timings.compute}
    return {f"x-{station}-time": f"{seconds * 1000:.1f}" for station, seconds in stations.items()}


def create_app(options: ServerOptions, load: Load, limits: EngineLimits | None = None) -> Starlette:
    """Build the app; ``load`` runs on a thread once the app starts. ``limits`` are shown by ``/info``."""
    metrics = Metrics()
    service = Service(options, load, metrics.observe)

    def watch(engine: "AsyncEngine") -> None:
        metrics.watch_queue(engine.count_queued)
        metrics.note_reserved(*engine.count_reserved())

    service.on_loaded = watch

    room = Room(max(options.max_bodies_bytes, options.max_body_bytes))
    routes = Operations(service, metrics, options, limits).routes()
    render_error = dict.fromkeys((route.path for route in routes), DIALECTS[0].render_error)
    for dialect in DIALECTS:
        for path, operation in dialect.routes().items():
            routes.append(Route(path, Endpoint(operation, service, metrics, options, room).answer, methods=["POST"]))
            render_error[path] = dialect.render_error

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)

    paths = Paths(render_error, DIALECTS[0].render_error)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, paths=paths, metrics=metrics, api_key=options.api_key)],
        exception_handlers={HTTPException: _refuse},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def _refuse(request: HttpRequest, error: Exception) -> Response:
    """Turn the router's own refusals into ours, which the gate knows how to say."""
    assert isinstance(error, HTTPException)
    method = request.method if request.method.isalpha() else "this method"
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        raise MethodNotAllowed(f"this path does not answer {method}; use {allow}", allow=allow)
    known = [route.path for route in request.app.routes]
    near = get_close_matches(request.url.path[:200], known, n=3, cutoff=0.5) or ["/v1/embeddings", "/v1/models"]
    raise UnknownRoute(f"there is no such path; near ones are {', '.join(near)}, and GET / lists all")


def serve(model: ModelOptions, limits: EngineLimits, options: ServerOptions) -> int:
    """Serve until a signal comes, and return the process's exit code."""

    def load(on_stage: Callable[[str], None], observer: Observer) -> "AsyncEngine":
        from forebay.api.async_engine import AsyncEngine  # it brings torch; the port shall be open before

        return AsyncEngine.load(model, limits, observer=observer, on_stage=on_stage)

    app = create_app(options, load, limits)
    return run(app, app.state.service, options)
