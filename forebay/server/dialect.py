"""What a dialect is: a foreign HTTP API said in terms of requests and replies.

It knows the shape of a dialect, none of its words; the dialects lie in ``server/dialects``, their table with them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.core.errors import ForebayError
from forebay.core.info import ModelInfo
from forebay.core.request import Reply, Request, ScoreReply, ScoreRequest
from forebay.core.sides import DOCUMENTS, QUERIES, SideName, call_sides

if TYPE_CHECKING:
    from forebay.api.async_engine import AsyncEngine


@dataclass(frozen=True, slots=True)
class Served:
    """Who answers: the name that was asked for, the request's id, and the engine, which knows tokens and labels."""

    name: str
    request_id: str
    engine: "AsyncEngine"


@dataclass(frozen=True, slots=True)
class Answer:
    """A body, ready to be sent."""

    body: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


RenderError = Callable[[ForebayError], bytes]

Render = Callable[[Reply, Served], Answer]
"""Says a reply without failed items; may raise InvalidRequest where the outcome does not fit what was asked."""


def place_in_input(index: int) -> str:
    """Where an item stands in most bodies."""
    return f"input[{index}]"


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body: what the engine shall do, and how its reply is to be said.

    ``field`` is the body's name for the items and ``place`` tells where one of them stands there, for errors.
    """

    request: Request
    render: Render
    field: str = "input"
    place: Callable[[int], str] = place_in_input


@dataclass(frozen=True, slots=True)
class TextCall:
    """A parsed body that the tokenizer answers alone; ``answer`` blocks. ``field`` holds so many items."""

    answer: Callable[[Served], Answer]
    num_items: int
    field: str


@dataclass(frozen=True, slots=True)
class PluginCall:
    """A parsed body that belongs to the model's IO processor, and how its answer is to be said."""

    data: Any
    render: Callable[[Any, Served], Answer]


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A parsed body that asks how well texts match, and how the scores are to be said.

    ``queries`` and ``documents`` are the body's names for the two sides.
    """

    request: ScoreRequest
    render: Callable[[ScoreReply, Served], Answer]
    queries: SideName = field(default=SideName(QUERIES))
    documents: SideName = field(default=SideName(DOCUMENTS))

    def say(self, error: ForebayError) -> ForebayError:
        """The same error in the body's names."""
        return call_sides(error, self.queries, self.documents)


AnyCall = Call | TextCall | PluginCall | ScoreCall


@dataclass(frozen=True, slots=True)
class Operation:
    """One POST route: ``parse`` turns a JSON object into a call or raises RequestError naming the field.

    Where bodies of several dialects come to one path, ``errors_of`` tells by the body how its errors are to be said.
    """

    path: str
    parse: Callable[[Mapping[str, Any], ModelInfo], AnyCall]
    errors_of: Callable[[Mapping[str, Any]], RenderError] | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One foreign API. Each operation is served under every prefix."""

    name: str
    operations: tuple[Operation, ...]
    render_error: RenderError
    prefixes: tuple[str, ...] = ("", "/v1")

    def routes(self) -> dict[str, Operation]:
        """Every path that the dialect answers."""
        return {prefix + operation.path: operation for prefix in self.prefixes for operation in self.operations}
