"""Errors as HTTP says them: the few that only HTTP has, and the headers that go with each.

It knows no dialect: how the body of an error looks is the dialect's matter.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from forebay.core.errors import (
    EngineError,
    ForebayError,
    InvalidRequest,
    ItemFailed,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    RequestError,
)

RETRY_AFTER_NOT_READY = 2
"""Seconds after which a client may ask again while the model loads, the server stops or others' bodies fill it."""


class UnknownRoute(RequestError):
    """No route has that path."""

    status = 404
    code = "route_not_found"


class MethodNotAllowed(RequestError):
    """The path exists, but not for that method; ``allow`` lists those it has."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeout(RequestError):
    """The client did not send its whole body in time."""

    status = 408
    code = "request_timeout"


class HeadTimeout(RequestError):
    """The client began a request and did not send its headers in time."""

    status = 408
    code = "request_timeout"


class HeadTooLarge(RequestError):
    """The request's line and headers exceed the server's limit."""

    status = 431
    code = "headers_too_large"


class BodiesTooLarge(EngineError):
    """The bodies of all requests under way exceed the server's limit; the same request may succeed a little later."""

    status = 503
    code = "server_busy"


class UnsupportedEncoding(RequestError):
    """The body is compressed in a way that the server does not read."""

    status = 415
    code = "unsupported_content_encoding"


def headers_of(error: ForebayError) -> dict[str, str]:
    """Tell clients when to retry, and when not to."""
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    elif isinstance(error, NotReady | BodiesTooLarge):
        headers["retry-after"] = str(RETRY_AFTER_NOT_READY)
    elif isinstance(error, RequestError):
        headers["x-should-retry"] = "false"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allow
    if isinstance(error, UnsupportedEncoding):
        headers["accept-encoding"] = "gzip, deflate"
    if isinstance(error, PayloadTooLarge | BodyTimeout | NotReady | BodiesTooLarge):
        headers["connection"] = "close"  # what is still to come of the body, or of requests, is not waited for
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def raise_item_errors(errors: Mapping[int, ForebayError], num_items: int, field: str) -> None:
    """Raise the first failed item's error, naming its place in ``field``; do nothing where all succeeded."""
    if not errors:
        return
    index = min(errors)
    error = errors[index]
    if isinstance(error, EngineError) and not isinstance(error, ItemFailed):
        raise error
    place = error.field or f"{field}[{index}]"
    message = error.message if place in error.message else f"{place}: {error.message}"
    if isinstance(error, RequestError):
        raise RequestError(message, field=place, code=error.code)
    failed = ItemFailed(
        f"{message} ({len(errors)} of {num_items} items failed; the others can be sent again)", index=index
    )
    failed.field = place
    raise failed


_FIELDS = {"max_tokens": "truncate_prompt_tokens"}
"""What bodies call a parameter that the engine itself may refuse, where it has another name there."""


@contextmanager
def in_fields() -> Iterator[None]:
    """Call a parameter at fault by its name in bodies."""
    try:
        yield
    except InvalidRequest as error:
        if error.field not in _FIELDS:
            raise
        named = copy.copy(error)
        named.field = _FIELDS[error.field]
        named.message = error.message.replace(error.field, named.field)
        raise named from None


_PLACE = re.compile(r"input\[(\d+)\]")


@contextmanager
def named_as(place: Callable[[int], str]) -> Iterator[None]:
    """Call the item at fault, which the engine knows as ``input[i]``, by its place in the body."""
    try:
        yield
    except ForebayError as error:
        found = _PLACE.fullmatch(error.field or "")
        if found is None:
            raise
        named = copy.copy(error)
        named.field = place(int(found[1]))
        named.message = error.message.replace(found[0], named.field)
        raise named from None
