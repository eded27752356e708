"""The OpenAI dialect: embeddings as the ``openai`` package asks for them, with vLLM's and our own extra fields.

It knows the words of that API; the engine behind it only as Request and Reply.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.request import Reply
from forebay.core.tasks import Task, parse_task
from forebay.server.dialect import Answer, Call, Dialect, Operation, Served
from forebay.server.envelope import ArrayList
from forebay.server.fields import ROUTES, VECTORS, ArraysBody, require
from forebay.server.schema import read
from forebay.server.token_notes import find_spans, window_notes

ERROR_TYPES: dict[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class EmbeddingsBody(ArraysBody):
    """``POST /embeddings``: a vector for each item, or with ``task`` one for each of its tokens."""

    task: str | None = None


def parse_embeddings(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /embeddings``."""
    asked = read(EmbeddingsBody, body)
    task = _vector_task(asked.task)
    require(task, info.abilities)
    request = asked.request((task,), info)
    listing = ArrayList("embd", "embedding", "embedding", (task,), asked.spelling((task,), info.abilities))

    def render(reply: Reply, served: Served) -> Answer:
        size = request.pooling.chunk_size
        if size is None:
            return listing.render(reply, served, ())
        found = find_spans(task, "late_chunking_params", request, reply, served)
        return listing.render(reply, served, window_notes(found, size))

    return Call(request, render)


def _vector_task(name: str | None) -> Task:
    task = Task.EMBED if name is None else parse_task(name)
    if task not in VECTORS:
        raise InvalidRequest(
            f"this route gives 'embed' and 'token_embed'; for '{task}' use POST {ROUTES.get(task, '/pooling')}",
            field="task",
        )
    return task


def render_error(error: ForebayError) -> bytes:
    """Say an error in OpenAI's shape, with the top-level ``detail`` that other clients of these paths read."""
    default = "server_error" if error.status >= 500 else "invalid_request_error"
    said = {
        "message": error.message,
        "type": ERROR_TYPES.get(error.status, default),
        "param": error.field,
        "code": error.code,
    }
    return orjson.dumps({"error": said, "detail": error.message})


OPENAI = Dialect(
    name="openai",
    operations=(Operation("/embeddings", parse_embeddings),),
    render_error=render_error,
)
