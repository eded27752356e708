"""The tree of errors: each has a status, a stable code and a message of its own."""

import copy
import inspect
from itertools import chain

import pytest

from forebay.core import errors
from forebay.core.errors import (
    ForebayError,
    InputTooLong,
    InvalidRequest,
    ItemFailed,
    LoadError,
    Overloaded,
    RequestError,
)

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ForebayError)]


def make(kind: type[ForebayError]) -> ForebayError:
    return kind("the message", index=3) if kind is ItemFailed else kind("the message")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_status_code_and_text(kind: type[ForebayError]) -> None:
    error = make(kind)
    assert 400 <= error.status < 600
    assert error.code
    assert (str(error), error.message) == ("the message", "the message")
    assert kind.__doc__


def test_callers_are_told_4xx_and_we_are_not() -> None:
    for kind in CLASSES:
        error = make(kind)
        if isinstance(error, RequestError):
            assert error.status < 500
        if isinstance(error, LoadError):
            assert error.status == 500


def test_the_docstring_draws_the_whole_tree() -> None:
    assert errors.__doc__ is not None
    drawn = set(chain.from_iterable(line.split() for line in errors.__doc__.splitlines()))
    assert {kind.__name__ for kind in CLASSES} <= drawn


def test_field_and_code() -> None:
    assert ItemFailed("x", index=7).field == "input[7]"
    assert InputTooLong("x").code == "context_length_exceeded"
    assert InvalidRequest("x", field="dimensions", code="bad").field == "dimensions"
    assert InvalidRequest("x", code="bad").code == "bad"
    assert InvalidRequest("x").code == "invalid_request"
    assert Overloaded("x", retry_after=3.0).retry_after == 3.0


def test_a_copy_can_be_moved_by_itself() -> None:
    """Several pairs may have the one text that failed."""
    first = ItemFailed("input[2]: the forward failed", index=2)
    other = copy.copy(first)
    assert type(other) is ItemFailed
    assert str(other.move(3)) == "input[5]: the forward failed"
    assert (str(first), first.index, first.field) == ("input[2]: the forward failed", 2, "input[2]")
    assert copy.copy(Overloaded("full", retry_after=7.0)).retry_after == 7.0
