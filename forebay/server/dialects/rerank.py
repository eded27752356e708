"""The dialect of rerankers: the API of Cohere, Jina, Voyage and vLLM, and that of text-embeddings-inference.

All share a path, and the field names the speaker: ``texts`` is answered by TEI's list, ``documents`` by an object, to
which ``top_k`` adds the name that Voyage's client reads. It knows the engine only as ScoreRequest and ScoreReply.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.outputs import rank
from forebay.core.request import ScoreReply
from forebay.server.dialect import Answer, Dialect, Operation, ScoreCall, Served
from forebay.server.dialects.openai import render_error as render_openai_error
from forebay.server.dialects.tei import error_type
from forebay.server.pairs import PairOptions, counts, read_query, read_side
from forebay.server.schema import read


class RerankBody(PairOptions):
    """``POST /rerank``: everything but query and documents, which have types of their own."""

    top_n: int | None = None
    top_k: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    rank_fields: list[str] | None = None


def parse_rerank(body: Mapping[str, Any], info: ModelInfo, *, takes_texts: bool) -> ScoreCall:
    """Read the body of ``POST /rerank``; ``takes_texts`` where TEI's words are understood too."""
    asked = read(RerankBody, body)
    is_tei = takes_texts and body.get("texts") is not None
    name = "texts" if is_tei else "documents"
    for field in ("query", name):
        if body.get(field) is None:
            raise InvalidRequest(f"'{field}' is missing; it is required", field=field)
    if is_tei and body.get("documents") is not None:
        raise InvalidRequest("'texts' and 'documents' say the same thing; send one of them", field="texts")
    documents = read_side(body[name], name, asked.rank_fields)
    for field in ("top_n", "top_k"):
        limit = getattr(asked, field)
        if limit is not None and limit < 0:
            raise InvalidRequest(f"{field} is {limit}; expected 1 or more, or 0 for all documents", field=field)
    request = asked.request((read_query(body["query"]),), documents, info)
    given = body[name] if isinstance(body[name], list) and len(documents) == len(body[name]) else [body[name]]
    render: Callable[..., Answer] = _render_tei if is_tei else _render
    return ScoreCall(request, partial(render, asked=asked, given=given))


def _order(reply: ScoreReply, asked: RerankBody) -> list[int]:
    return rank(reply.scores, asked.top_k if asked.top_n is None else asked.top_n)


def _render(reply: ScoreReply, served: Served, *, asked: RerankBody, given: list[Any]) -> Answer:
    results = []
    for index in _order(reply, asked):
        result: dict[str, Any] = {"index": index, "relevance_score": float(reply.scores[index])}
        if asked.return_documents:
            document = given[index]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    said = {
        "id": f"rerank-{served.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": served.name,
        "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        **counts(reply),
    }
    if asked.top_k is not None:
        said["data"] = results
    return Answer(orjson.dumps(said))


def _render_tei(reply: ScoreReply, served: Served, *, asked: RerankBody, given: list[Any]) -> Answer:
    said = []
    for index in _order(reply, asked):
        entry: dict[str, Any] = {"index": index, "score": float(reply.scores[index])}
        said.append({**entry, "text": given[index]} if asked.return_text else entry)
    return Answer(orjson.dumps(said))


def render_error(error: ForebayError) -> bytes:
    """Say an error so that each of the clients finds it: OpenAI's object, Cohere's ``message``, TEI's type."""
    said = orjson.loads(render_openai_error(error))
    return orjson.dumps({**said, "message": error.message, "error_type": error_type(error)})


RERANK = Dialect(
    name="rerank",
    operations=(
        Operation("/rerank", partial(parse_rerank, takes_texts=True)),
        Operation("/v2/rerank", partial(parse_rerank, takes_texts=False)),
    ),
    render_error=render_error,
)
"""Cohere's client adds ``/v2/rerank`` to a base address that may end in ``/v1``: all four paths are there."""
