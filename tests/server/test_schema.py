from typing import Literal

import pytest
from pydantic import AliasChoices, Field

from forebay.core.errors import InvalidRequest
from forebay.server.schema import Body, read, read_items


class Example(Body):
    count: int | None = None
    name: str
    side: Literal["left", "right"] | None = None
    size: int | None = Field(None, validation_alias=AliasChoices("size", "length"))
    flag: bool | None = None


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "name", "is missing"),
        ({"name": None}, "name", "must be a string"),
        ({"name": "n", "count": "7 secret"}, "count", "must be an integer, or null; got a string"),
        ({"name": "n", "count": 1.5}, "count", "must be an integer, or null; got a number"),
        ({"name": "n", "count": True}, "count", "must be an integer, or null; got a boolean"),
        ({"name": "n", "flag": []}, "flag", "must be true or false, or null; got a list"),
        ({"name": "n", "side": "secret"}, "side", "must be 'left' or 'right', or null; got another string"),
        ({"name": "n", "side": {}}, "side", "must be 'left' or 'right', or null; got an object"),
        ({"name": "n", "length": "secret"}, "length", "'length' must be an integer"),
    ],
)
def test_the_sentence_names_field_expectation_and_type(body, field, words):
    with pytest.raises(InvalidRequest) as caught:
        read(Example, body)
    assert caught.value.field == field
    assert words in caught.value.message
    assert f"'{field}'" in caught.value.message
    assert "secret" not in caught.value.message
    assert "http" not in caught.value.message


def test_unknown_fields_and_nulls_are_accepted():
    body = {"name": "n", "count": None, "side": None, "size": None, "flag": None, "unheard_of": 1}
    assert read(Example, body) == Example(name="n")


@pytest.mark.parametrize(
    ("value", "items"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ([1, 2],)),
        ([[1], [2, 3]], ([1], [2, 3])),
        (["a", [1]], ("a", [1])),
    ],
)
def test_forms_of_input(value, items):
    assert read_items(value) == items


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "documents"),
        ([], "documents"),
        ({}, "documents"),
        ([1, "a"], "documents[0]"),
        (["a", None], "documents[1]"),
        (["a", []], "documents[1]"),
        (["a", [True]], "documents[1]"),
        ([True], "documents[0]"),
        ([1.0], "documents[0]"),
    ],
)
def test_what_is_no_input(value, field):
    with pytest.raises(InvalidRequest) as caught:
        read_items(value, "documents")
    assert caught.value.field == field
    assert f"'{field}'" in caught.value.message
