"""Who may come in, how much at once, and for how long: keys, item limits, deadlines, clients that left.

It knows nothing of routes and bodies. How many tokens may wait is the engine's own decision (Overloaded).
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from starlette.types import Receive

from forebay.core.config import ServerOptions
from forebay.core.errors import Cancelled, DeadlineExceeded, InvalidRequest, Unauthorized
from forebay.core.request import Lane, Request, ScoreRequest

T = TypeVar("T")

KEY_HEADERS = (b"x-api-key", b"api-key")


def check_key(api_key: str | None, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise Unauthorized unless one of the headers carries the key; without a key everyone may come in."""
    if api_key is None:
        return
    offered = [key for name, value in headers if (key := _credential(name, value))]
    wanted = api_key.encode()
    if not any([hmac.compare_digest(key, wanted) for key in offered]):
        found = "the API key is wrong" if offered else "an API key is required"
        raise Unauthorized(f"{found}; send it as 'Authorization: Bearer <key>' or 'X-Api-Key: <key>'")


def _credential(name: bytes, value: bytes) -> bytes:
    """The key in a header, with or without ``Bearer``; empty where there is none."""
    value = value.strip()
    if name in KEY_HEADERS:
        return value
    if name != b"authorization":
        return b""
    scheme, _, rest = value.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else value


def admit(request: Request, field: str, options: ServerOptions, deadline: float) -> Request:
    """Check the number of items, which stand in ``field``; give the request its lane and its deadline."""
    lane = _choose_lane(len(request.items), field, request.lane, options)
    return replace(request, lane=lane, deadline=deadline)


def admit_score(request: ScoreRequest, field: str, options: ServerOptions, deadline: float) -> ScoreRequest:
    """The same for texts that are to be compared: the longer of the two lists counts."""
    num_items = max(len(request.queries), len(request.documents))
    lane = _choose_lane(num_items, field, request.lane, options)
    return replace(request, lane=lane, deadline=deadline)


def _choose_lane(num_items: int, field: str, lane: Lane, options: ServerOptions) -> Lane:
    check_count(num_items, field, options)
    return Lane.BULK if num_items >= options.bulk_items else lane


def check_count(num_items: int, field: str, options: ServerOptions) -> None:
    """Refuse more items than one request may carry."""
    if num_items > options.max_items:
        raise InvalidRequest(
            f"'{field}' has {num_items} items, but this server takes at most {options.max_items} a request; "
            "send several requests, or start the server with a larger --max-items",
            field=field,
            code="too_many_items",
        )


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Turn running out of time into DeadlineExceeded."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"the request was not answered within {seconds:g} seconds") from None


async def unless_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Await ``work``, but cancel it and raise Cancelled when the client leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("the client went away before its answer was there")
    finally:
        task.cancel()
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
