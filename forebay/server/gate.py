"""The gate around every route: request ids, keys, errors said in the path's dialect, one count and log line each.

It is plain ASGI and knows the dialects only as a table from path to error renderer, which an endpoint may overrule by
``state["render_error"]``.
"""

import logging
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.core.errors import Cancelled, ForebayError
from forebay.server.admission import check_key
from forebay.server.dialect import RenderError
from forebay.server.errors import headers_of
from forebay.server.metrics import Metrics

log = logging.getLogger("forebay.server")

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
SLASHES = re.compile("/{2,}")
REQUEST_ID = re.compile(rb"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Paths:
    """What the gate must know of the routes: each path's error renderer, and the one of all other paths."""

    render_error: Mapping[str, RenderError]
    default: RenderError

    def label(self, path: str) -> str:
        """The path as metrics and log name it: one of a bounded set."""
        if path in self.render_error:
            return path
        for template in self.render_error:
            stem, brace, _ = template.partition("{")
            if brace and path.startswith(stem):
                return template
        return "unknown"


class Gate:
    """Middleware that everything passes."""

    def __init__(self, app: ASGIApp, paths: Paths, metrics: Metrics, api_key: str | None) -> None:
        self.app = app
        self.paths = paths
        self.metrics = metrics
        self.api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["path"] = path = SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        passage = _Passage(send, _request_id(scope))
        scope.setdefault("state", {})["request_id"] = passage.request_id.decode()
        started = time.perf_counter()
        with self.metrics.under_way.track_inprogress():
            error = await self._pass(path, scope, receive, passage)
            seconds = time.perf_counter() - started
            label = self.paths.label(path)
            self.metrics.count_request(label, passage.status, seconds)
            if error is not None:
                self._note(error, label, passage, seconds)

    async def _pass(self, path: str, scope: Scope, receive: Receive, passage: "_Passage") -> ForebayError | None:
        try:
            if path not in OPEN_PATHS:
                check_key(self.api_key, scope["headers"])
            await self.app(scope, receive, passage.send)
            return None
        except ForebayError as caught:
            error = caught
        except Exception:
            if passage.has_left:
                return Cancelled("the client went away before its whole answer was sent")
            log.exception("request %s failed in an unforeseen way", passage.request_id.decode())
            error = ForebayError("internal error; the server's log tells more under this request's id")
        if not passage.status:
            by_path = self.paths.render_error.get(path, self.paths.default)
            render = scope["state"].get("render_error", by_path)
            response = Response(render(error), error.status, headers_of(error), "application/json")
            await response(scope, receive, passage.send)
        return error

    def _note(self, error: ForebayError, label: str, passage: "_Passage", seconds: float) -> None:
        self.metrics.count_error(error.code)
        log.log(
            logging.WARNING if error.status >= 500 else logging.INFO,
            "request_id=%s route=%s status=%d code=%s seconds=%.3f message=%s",
            passage.request_id.decode(),
            label,
            passage.status,
            error.code,
            seconds,
            ascii(error.message),
        )


class _Passage:
    """One response on its way out: learns its status, adds the request id."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.has_left = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id)]
        try:
            await self._send(message)
        except (OSError, RuntimeError):  # the connection is closed: uvicorn's loops say it in either way
            self.has_left = True
            raise


def _request_id(scope: Scope) -> bytes:
    """The caller's id where it is harmless, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()
