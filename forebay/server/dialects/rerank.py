"""The dialect of rerankers: the API of Cohere, Jina, Voyage and vLLM, and that of text-embeddings-inference.

All share ``/rerank``, and the field names the speaker: ``texts`` is answered by TEI's list and errors, ``documents`` by
an object, which has the results once more under the name that Voyage's clients read where the body has no ``top_n``,
a word that Voyage lacks. The other paths always answer the object. It knows the engine only as ScoreRequest and
ScoreReply.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.outputs import rank
from forebay.core.request import ScoreReply
from forebay.core.sides import SideName
from forebay.server.dialect import Answer, Dialect, Operation, RenderError, ScoreCall, Served
from forebay.server.dialects.openai import render_error as render_openai_error
from forebay.server.dialects.tei import render_error as render_tei_error
from forebay.server.envelope import answer_object
from forebay.server.pairs import PairOptions, check_scores, name_side, read_query, read_side
from forebay.server.schema import read


class RerankBody(PairOptions):
    """``POST /rerank``: everything but query and documents, which have types of their own."""

    top_n: int | None = None
    top_k: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    rank_fields: list[str] | None = None

    def check_limits(self) -> None:
        """Refuse numbers of results that no ranking has, and two different ones."""
        for field, limit in (("top_n", self.top_n), ("top_k", self.top_k)):
            if limit is not None and limit < 0:
                raise InvalidRequest(f"{field} is {limit}; expected 1 or more, or 0 for all documents", field=field)
        if self.top_n is not None and self.top_k is not None and self.top_n != self.top_k:
            raise InvalidRequest("'top_n' and 'top_k' mean the same thing and differ; send one of them", field="top_k")


def _has_texts(body: Mapping[str, Any]) -> bool:
    return body.get("texts") is not None


def parse_rerank(body: Mapping[str, Any], info: ModelInfo, *, takes_texts: bool) -> ScoreCall:
    """Read the body of ``POST /rerank``; ``takes_texts`` where ``texts`` is answered in TEI's words."""
    asked = read(RerankBody, body)
    name = "texts" if _has_texts(body) else "documents"
    is_tei = takes_texts and name == "texts"
    for field in ("query", name):
        if body.get(field) is None:
            raise InvalidRequest(f"'{field}' is missing; it is required", field=field)
    if name == "texts" and body.get("documents") is not None:
        raise InvalidRequest("'texts' and 'documents' say the same thing; send one of them", field="texts")
    documents = read_side(body[name], name, asked.rank_fields)
    asked.check_limits()
    request = asked.request((read_query(body["query"]),), documents, info)
    given = body[name] if isinstance(body[name], list) and len(documents) == len(body[name]) else [body[name]]
    names = name_side(body, "query"), name_side(body, name)
    if is_tei:
        return ScoreCall(request, partial(_render_tei, asked=asked, given=given, side=names[1]), *names)
    render = partial(_render, asked=asked, given=given, side=names[1], has_data="top_n" not in body)
    return ScoreCall(request, render, *names)


def _order(reply: ScoreReply, asked: RerankBody) -> list[int]:
    return rank(reply.scores, asked.top_k if asked.top_n is None else asked.top_n)


def _render(
    reply: ScoreReply, served: Served, *, asked: RerankBody, given: list[Any], side: SideName, has_data: bool
) -> Answer:
    check_scores(reply, side)
    results = []
    for index in _order(reply, asked):
        result: dict[str, Any] = {"index": index, "relevance_score": float(reply.scores[index])}
        if asked.return_documents:
            document = given[index]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    again = {"data": results} if has_data else {}
    return answer_object("rerank", {"results": results, "meta": meta, **again}, reply, served)


def _render_tei(reply: ScoreReply, served: Served, *, asked: RerankBody, given: list[Any], side: SideName) -> Answer:
    check_scores(reply, side)
    said = []
    for index in _order(reply, asked):
        entry: dict[str, Any] = {"index": index, "score": float(reply.scores[index])}
        text = {"text": given[index]} if asked.return_text else {}
        cut = {"truncated": True} if reply.truncated[index] else {}  # a list has no other place to say it
        said.append({**entry, **text, **cut})
    return Answer(orjson.dumps(said))


def render_error(error: ForebayError) -> bytes:
    """Say an error so that each client finds it: OpenAI's and vLLM's object, ``detail`` (Voyage, Jina), ``message``
    (Cohere).
    """
    return orjson.dumps({**orjson.loads(render_openai_error(error)), "message": error.message})


def errors_of(body: Mapping[str, Any]) -> RenderError:
    """Errors as the client that sent this body to ``/rerank`` reads them."""
    return render_tei_error if _has_texts(body) else render_error


_parse_object = partial(parse_rerank, takes_texts=False)

RERANK = Dialect(
    name="rerank",
    operations=(
        Operation("/rerank", partial(parse_rerank, takes_texts=True), errors_of),
        Operation("/v1/rerank", _parse_object),
        Operation("/v2/rerank", _parse_object),
        Operation("/v1/v2/rerank", _parse_object),
    ),
    render_error=render_error,
    prefixes=("",),
)
"""Cohere's client adds ``/v2/rerank`` to a base address that may end in ``/v1``."""
