"""Futures that stand for several: what is done when all parts are there, and the end of all when one fails or the
caller goes away. Knows no requests.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def finish(whole: "Future[T]", make: Callable[[], T]) -> None:
    """Give a future what ``make`` returns, or the error that it raises; nothing where the caller has gone away."""
    try:
        result = make()
    except Exception as error:
        fail(whole, error)
        return
    if not whole.done() and whole.set_running_or_notify_cancel():
        whole.set_result(result)


def fail(whole: "Future[Any]", error: BaseException) -> None:
    """Give a future an error unless it is over."""
    if not whole.done() and whole.set_running_or_notify_cancel():
        whole.set_exception(error)


def when_all(
    whole: "Future[Any]", parts: "Sequence[Future[Any]]", then: Callable[[], None], end: Callable[[BaseException], None]
) -> None:
    """Call ``then`` once all parts have their results; with an error of one the others are cancelled and ``end`` is
    called with it. When the caller cancels ``whole``, all parts are cancelled and nothing is called.
    """
    gathering = _Gathering(parts, lambda: None if whole.cancelled() else then(), end)
    whole.add_done_callback(lambda done: gathering.drop() if done.cancelled() else None)
    if not parts:
        then()
    for part in parts:
        part.add_done_callback(gathering.see)


class _Gathering:
    """Counts finished parts; the last one, or the first that did not succeed, ends it."""

    def __init__(
        self, parts: "Sequence[Future[Any]]", then: Callable[[], None], end: Callable[[BaseException], None]
    ) -> None:
        self._parts, self._then, self._end = parts, then, end
        self._lock = threading.Lock()
        self._num_left = len(parts)

    def drop(self) -> None:
        for part in self._parts:
            part.cancel()

    def see(self, part: "Future[Any]") -> None:
        error = None if part.cancelled() else part.exception()
        failed = part.cancelled() or error is not None
        with self._lock:
            was_over = self._num_left <= 0
            self._num_left = 0 if failed else self._num_left - 1
            is_end = self._num_left <= 0 and not was_over
        if not is_end:
            return
        if error is not None:
            self.drop()
            self._end(error)
        elif not failed:
            self._then()
