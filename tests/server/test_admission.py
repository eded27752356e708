import asyncio
import threading
from dataclasses import replace

import pytest

from forebay.core.config import ServerOptions
from forebay.core.errors import Cancelled, DeadlineExceeded, InvalidRequest, Unauthorized
from forebay.core.request import Lane, Request
from forebay.server.admission import admit, check_key, unless_gone, within

OPTIONS = ServerOptions(max_items=4, bulk_items=3)


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer k\xc3\xa9y"),
        (b"authorization", b"bearer  k\xc3\xa9y "),
        (b"authorization", b"k\xc3\xa9y"),
        (b"x-api-key", b"k\xc3\xa9y"),
        (b"api-key", b"k\xc3\xa9y"),
    ],
)
def test_ways_to_send_the_key(header):
    check_key("kéy", [(b"host", b"x"), header])
    check_key("kéy", [(b"authorization", b"Bearer other"), header])


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "required"),
        ([(b"authorization", b"")], "required"),
        ([(b"authorization", b"Bearer ")], "required"),
        ([(b"x-api-key", b"")], "required"),
        ([(b"authorization", b"Bearer ke")], "wrong"),
        ([(b"authorization", b"Bearer keyy")], "wrong"),
        ([(b"authorization", b"Basic key")], "wrong"),
        ([(b"cookie", b"key")], "required"),
    ],
)
def test_no_key_or_a_wrong_one(headers, words):
    with pytest.raises(Unauthorized, match=words):
        check_key("key", headers)
    check_key(None, headers)


@pytest.mark.parametrize(("num_items", "lane"), [(1, Lane.INTERACTIVE), (2, Lane.INTERACTIVE), (3, Lane.BULK)])
def test_lane_and_deadline(num_items, lane):
    request = Request(items=["x"] * num_items)
    assert admit(request, "input", OPTIONS, 7.0) == replace(request, lane=lane, deadline=7.0)


def test_too_many_items():
    admit(Request(items=["x"] * 4), "input", OPTIONS, 7.0)
    with pytest.raises(InvalidRequest, match="5 items, but this server takes at most 4") as caught:
        admit(Request(items=["x"] * 5), "input", OPTIONS, 7.0)
    assert caught.value.code == "too_many_items"


def test_running_out_of_time():
    async def wait() -> None:
        async with within(0.01):
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded):
        asyncio.run(wait())


async def stays() -> dict[str, str]:
    await asyncio.Event().wait()
    raise AssertionError("never")


def test_work_of_a_client_that_stays():
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    async def fail() -> int:
        raise ZeroDivisionError

    assert asyncio.run(unless_gone(stays, work())) == 5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(unless_gone(stays, fail()))


def test_work_of_a_client_that_leaves_is_cancelled():
    cancelled = threading.Event()
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def leaves() -> dict[str, str]:
        return next(messages)

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(Cancelled):
        asyncio.run(unless_gone(leaves, work()))
    assert cancelled.is_set()
