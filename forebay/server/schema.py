"""Typed bodies: the base of the dialects' schemas, and one clear sentence for each way a body can be wrong.

It knows JSON types and pydantic, no route and no field. A sentence names field, expectation and the JSON type that
came instead, never the value.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from forebay.core.errors import InvalidRequest
from forebay.core.request import Item

JSON_TYPES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
    list: "a list",
    dict: "an object",
}

EXPECTED: dict[str, str] = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


class Body(BaseModel):
    """A request's body: unknown fields are ignored, and no value is converted to another type."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


BodyT = TypeVar("BodyT", bound=Body)


def read(schema: type[BodyT], body: Mapping[str, Any]) -> BodyT:
    """Validate ``body``; the first thing wrong with it becomes an InvalidRequest."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(_sentence(field, first), field=field) from None


def _sentence(field: str, error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"'{field}' is missing; it is required"
    if kind == "literal_error":
        return f"'{field}' must be {context['expected']}, or null; got {_came(error['input'], 'another string')}"
    if kind in EXPECTED:
        return f"'{field}' must be {EXPECTED[kind]}, or null; got {_came(error['input'], 'a string')}"
    return f"'{field}' is invalid: {error['msg']}"


def _came(value: object, string: str) -> str:
    return string if isinstance(value, str) else json_type(value)


def json_type(value: object) -> str:
    """What JSON calls the type of ``value``, with its article."""
    return JSON_TYPES.get(type(value), "another type")


def read_items(value: object, field: str = "input") -> tuple[Item, ...]:
    """Accept a text, a list of token ids, or a list of texts and id lists in any mixture."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise InvalidRequest(
            f"'{field}' must be a string, a list of strings, a list of token ids or a list of such lists; "
            f"got {json_type(value)}",
            field=field,
        )
    if not value:
        raise InvalidRequest(f"'{field}' is an empty list; send at least one item", field=field)
    if set(map(type, value)) == {int}:
        return (value,)
    for index, item in enumerate(value):
        if not isinstance(item, str):
            _check_ids(item, f"{field}[{index}]")
    return tuple(value)


def _check_ids(item: object, field: str) -> None:
    if not isinstance(item, list):
        raise InvalidRequest(f"'{field}' must be a string or a list of token ids; got {json_type(item)}", field=field)
    if not item:
        raise InvalidRequest(f"'{field}' is an empty list; send at least one token id, or the text ''", field=field)
    wrong = set(map(type, item)) - {int}
    if wrong:
        came = ", ".join(sorted(JSON_TYPES.get(kind, "another type") for kind in wrong))
        raise InvalidRequest(f"'{field}' must hold token ids, which are integers; got {came}", field=field)
