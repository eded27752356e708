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
    lock = threading.Lock()
    num_left = len(parts)
    is_over = False

    def drop(_: object) -> None:
        for part in parts:
            part.cancel()

    def see_whole(done: "Future[Any]") -> None:
        if done.cancelled():
            drop(done)

    def see_part(part: "Future[Any]") -> None:
        nonlocal num_left, is_over
        error = None if part.cancelled() else part.exception()
        with lock:
            if is_over:
                return
            num_left -= 1
            is_over = num_left == 0 or error is not None or part.cancelled()
            if not is_over:
                return
        if error is not None:
            drop(part)
            end(error)
        elif not part.cancelled() and not whole.cancelled():
            then()

    whole.add_done_callback(see_whole)
    if not parts:
        then()
    for part in parts:
        part.add_done_callback(see_part)
