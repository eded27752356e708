import pytest

from forebay.core.errors import (
    DeadlineExceeded,
    ForebayError,
    InputTooLong,
    InvalidRequest,
    ItemFailed,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
)
from forebay.server.errors import BodyTimeout, MethodNotAllowed, UnsupportedEncoding, headers_of, raise_item_errors


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (Overloaded("", retry_after=0.2), {"retry-after": "1"}),
        (Overloaded("", retry_after=2.1), {"retry-after": "3"}),
        (NotReady(""), {"retry-after": "2", "connection": "close"}),
        (PayloadTooLarge(""), {"x-should-retry": "false", "connection": "close"}),
        (BodyTimeout(""), {"x-should-retry": "false", "connection": "close"}),
        (InvalidRequest(""), {"x-should-retry": "false"}),
        (Unauthorized(""), {"x-should-retry": "false", "www-authenticate": "Bearer"}),
        (MethodNotAllowed("", allow="POST"), {"x-should-retry": "false", "allow": "POST"}),
        (UnsupportedEncoding(""), {"x-should-retry": "false", "accept-encoding": "gzip, deflate"}),
        (ForebayError(""), {}),
    ],
)
def test_headers(error, headers):
    assert headers_of(error) == headers


def test_failed_items():
    raise_item_errors({}, 4, "input")
    errors: dict[int, ForebayError] = {3: ItemFailed("c", index=3), 2: ItemFailed("out of memory", index=2)}
    with pytest.raises(ItemFailed, match=r"input\[2\]: out of memory \(2 of 4 items failed") as caught:
        raise_item_errors(errors, 4, "input")
    assert (caught.value.index, caught.value.field, caught.value.code) == (2, "input[2]", "item_failed")


def test_items_that_failed_otherwise_keep_their_status():
    with pytest.raises(DeadlineExceeded):
        raise_item_errors({1: DeadlineExceeded("late")}, 4, "input")
    with pytest.raises(ForebayError, match=r"input\[1\]: too long") as caught:
        raise_item_errors({1: InputTooLong("too long")}, 4, "input")
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert caught.value.field == "input[1]"
