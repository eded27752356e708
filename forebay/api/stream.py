"""Many requests, answered in order, a bounded number of them under way. Knows no model and no kind of request."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from forebay.core.errors import Overloaded

# While one request is computed the next is tokenized.
_IN_FLIGHT = 3

R = TypeVar("R")
A = TypeVar("A")


def answer_in_order(requests: Iterable[R], submit: Callable[[R], "Future[A]"]) -> Iterator[A]:
    """Yield the answer of each request in turn; an error is raised in its place, and the rest is cancelled."""
    source = iter(requests)
    under_way: deque[tuple[R, Future[A]]] = deque()
    try:
        while True:
            while len(under_way) < _IN_FLIGHT and (request := next(source, None)) is not None:
                under_way.append((request, submit(request)))
            if not under_way:
                return
            answer = _wait_for_first(under_way, submit)
            under_way.popleft()
            yield answer
    finally:
        for _, future in under_way:
            future.cancel()


def _wait_for_first(under_way: "deque[tuple[R, Future[A]]]", submit: Callable[[R], "Future[A]"]) -> A:
    """Return the first request's answer; one that found the queue full, of our own maybe, is sent again."""
    while True:
        request, future = under_way[0]
        try:
            return future.result()
        except Overloaded as error:
            others = [other for _, other in under_way if not other.done()]
            if others:
                wait(others, timeout=error.retry_after, return_when=FIRST_COMPLETED)
            else:
                time.sleep(error.retry_after)
            under_way[0] = (request, submit(request))
