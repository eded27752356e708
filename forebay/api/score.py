"""How well two texts match: three routes behind one question, chosen by what the model is.

A route turns a ScoreRequest into requests of the engine and their replies into scores. It computes nothing that the
engine can: only vectors that are there are compared here.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.api.futures import fail, finish, when_all
from forebay.api.sides import check_sides
from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.params import Abilities, PoolingParams, TextParams
from forebay.core.request import Matrix, Reply, Request, Scorable, ScoreReply, ScoreRequest, Timings
from forebay.core.sides import DOCUMENTS, QUERIES
from forebay.core.tasks import ScoreType, Task
from forebay.pooling.maxsim import NO_MATCH, max_sim_of_matrices
from forebay.pooling.similarity import compare

Submit = Callable[[Request], "Future[Reply]"]
Floats = NDArray[np.float32]


def start_score(submit: Submit, info: ModelInfo, request: ScoreRequest) -> "Future[ScoreReply]":
    """Start a comparison by the model's route; what does not fit fails the future with an InvalidRequest."""
    whole: Future[ScoreReply] = Future()
    try:
        score_type = _check(info.abilities, request)
        if len(request.documents):
            ROUTES[score_type](submit, info, request, whole)
        else:
            finish(whole, lambda: ScoreReply(np.zeros(0, np.float32), np.zeros(0, np.bool_), 0))
    except Exception as error:
        fail(whole, error)
    return whole


def chunks_of(request: ScoreRequest, size: int) -> Iterator[ScoreRequest]:
    """Cut a comparison into ones of at most ``size`` documents. A wrong shape stays whole, and is refused as it is."""
    num = len(request.documents)
    if num <= size or len(request.queries) not in (1, num):
        yield request
        return
    for start in range(0, num, size):
        part = slice(start, start + size)
        queries = request.queries if len(request.queries) == 1 else request.queries[part]
        yield replace(request, queries=queries, documents=request.documents[part])


def why_not(abilities: Abilities) -> str:
    """Tell why a model can't score, and what it can."""
    known = ", ".join(f"'{task}'" for task in abilities.tasks)
    if abilities.default_task is Task.CLASSIFY:
        what = f"is a classifier with {len(abilities.labels)} labels, and only one label is a score of a pair"
    elif abilities.default_task is Task.SPARSE:
        what = "makes sparse vectors, which are compared by the index that keeps them"
    else:
        what = f"makes no score of a pair by its default task '{abilities.default_task}'"
    return f"this model can't score texts: it {what}; it has the tasks {known}"


def _check(abilities: Abilities, request: ScoreRequest) -> ScoreType:
    score_type = abilities.score_type
    if score_type is None:
        raise InvalidRequest(why_not(abilities), field="model")
    num_queries, num_documents = len(request.queries), len(request.documents)
    if num_queries not in (1, num_documents):
        raise InvalidRequest(
            f"{num_queries} queries can't be paired with {num_documents} documents; send one query and one document, "
            "one query for many documents, or as many queries as documents",
            field=QUERIES,
        )
    check_sides(request, abilities)
    if request.text.input_type is not None:
        raise InvalidRequest("'input_type' is given by the side of the comparison; leave it out", field="input_type")
    if request.use_activation is False and score_type is not ScoreType.CROSS_ENCODER:
        raise InvalidRequest(
            f"raw scores are the logits of cross-encoders, and this model is a {score_type}; leave use_activation out",
            field="use_activation",
        )
    request.text.check(abilities)
    return score_type


def cross_encoder(submit: Submit, info: ModelInfo, request: ScoreRequest, whole: "Future[ScoreReply]") -> None:
    """Query and document are read together; the score is the one label's."""
    num = len(request.documents)
    queries = [*request.queries] * num if len(request.queries) == 1 else [*request.queries]
    pooling = PoolingParams((Task.CLASSIFY,), use_activation=request.use_activation)
    part = submit(_request(request, queries, pooling, request.text, seconds=[*request.documents]))  # type: ignore[list-item]

    def make() -> ScoreReply:
        reply = part.result()
        scores = [np.nan if row is None else row[0] for row in reply.rows]
        num_tokens = int(reply.num_tokens.sum())
        errors = {index: tell(error, index) for index, error in reply.errors.items()}
        return ScoreReply(np.array(scores, np.float32), reply.truncated, num_tokens, errors, reply.timings)

    def tell(error: BaseException, index: int) -> ForebayError:
        """The document's, but where its query alone is at fault."""
        if not isinstance(error, ForebayError) or not error.is_first:
            return _called(error, DOCUMENTS, index)
        return _called(error, QUERIES, 0 if len(request.queries) < num else index)

    def end(error: BaseException) -> None:
        fail(whole, error if (index := _index_of(error)) is None else tell(error, index))

    when_all(whole, [part], lambda: finish(whole, make), end)


class Side(NamedTuple):
    """One side of a comparison: its distinct texts, and which of them each pair has (-1: none, it is a matrix).

    ``is_one`` tells that all pairs share one text or matrix.
    """

    name: str
    texts: list[str]
    place_of: NDArray[np.int64]
    is_one: bool = False

    def tell(self, error: BaseException, place: int, pair: int | None = None) -> ForebayError:
        """The error of a distinct text, as that of a pair's own (None: the first's that has it)."""
        if pair is None:
            pair = int(np.flatnonzero(self.place_of == place)[0])
        return _called(error, self.name, 0 if self.is_one else pair)


def _side(name: str, items: Sequence[Scorable], num: int) -> Side:
    places: dict[str, int] = {}
    place_of = [places.setdefault(item, len(places)) if isinstance(item, str) else -1 for item in items]
    return Side(name, list(places), np.resize(np.array(place_of, np.int64), num), len(items) < num)


def _query_text(text: TextParams) -> TextParams:
    """The request's own prompt is the query's."""
    return replace(text, input_type="query")


def _document_text(text: TextParams) -> TextParams:
    return replace(text, input_type="document", prompt=None, prompt_name=None)


def bi_encoder(submit: Submit, info: ModelInfo, request: ScoreRequest, whole: "Future[ScoreReply]") -> None:
    """Each distinct text is embedded once, with its side's prompt and route; the vectors are compared as the checkpoint
    says.
    """
    num = len(request.documents)
    sides = (_side(QUERIES, request.queries, num), _side(DOCUMENTS, request.documents, num))
    texts = (_query_text(request.text), _document_text(request.text))
    pooling = PoolingParams((Task.EMBED,))
    parts = [submit(_request(request, side.texts, pooling, text)) for side, text in zip(sides, texts, strict=True)]

    def make() -> ScoreReply:
        queries, documents = (part.result() for part in parts)
        notes = _Notes.join(sides, (queries, documents))
        one, other = (torch.from_numpy(_stack(reply.rows)) for reply in (queries, documents))
        wanted = (torch.from_numpy(sides[0].place_of), torch.from_numpy(sides[1].place_of))
        return notes.reply(compare(info.similarity, one, other, wanted).numpy())

    when_all(whole, parts, lambda: finish(whole, make), lambda error: fail(whole, _place(error, sides, parts)))


def late_interaction(submit: Submit, info: ModelInfo, request: ScoreRequest, whole: "Future[ScoreReply]") -> None:
    """Queries become token vectors; documents are compared with theirs inside the engine, or here if they are given."""
    num = len(request.documents)
    query_side = _side(QUERIES, request.queries, num)
    none = np.zeros((0, info.abilities.token_dimension), np.float32)
    given = [item if len(item) else none for item in request.queries if not isinstance(item, str)]
    pooling = PoolingParams((Task.TOKEN_EMBED,))
    query_text = replace(_query_text(request.text), split=None)  # a query is read whole or cut, as it was trained
    first = submit(_request(request, query_side.texts, pooling, query_text))

    def matrices() -> list[Matrix | None]:
        rest, rows = iter(given), first.result().rows
        per_query = [rows[place] if place >= 0 else next(rest) for place in query_side.place_of[: len(request.queries)]]
        return per_query * num if len(per_query) == 1 else per_query

    def go_on() -> None:
        queries = matrices()
        todo = [
            index
            for index, (item, query) in enumerate(zip(request.documents, queries, strict=True))
            if isinstance(item, str) and query is not None
        ]
        items = [request.documents[index] for index in todo]
        against = [queries[index] for index in todo]
        second = submit(_request(request, items, pooling, _document_text(request.text), against=against))  # type: ignore[arg-type]

        def make() -> ScoreReply:
            given = _score_given(request, queries, is_mean=info.abilities.is_mean_score)
            return _late_reply(request, query_side, (first.result(), second.result()), given, todo)

        def end(error: BaseException) -> None:
            fail(whole, error if (place := _index_of(error)) is None else _called(error, DOCUMENTS, todo[place]))

        when_all(whole, [second], lambda: finish(whole, make), end)

    def begin() -> None:
        try:
            go_on()
        except Exception as error:
            fail(whole, error)

    when_all(whole, [first], begin, lambda error: fail(whole, _place(error, (query_side,), [first])))


def _late_reply(
    request: ScoreRequest, query_side: Side, replies: tuple[Reply, Reply], given: Floats, todo: list[int]
) -> ScoreReply:
    """The scores of given documents, and those that came from the engine for documents ``todo``."""
    texts = np.full(len(request.documents), -1, np.int64)
    texts[todo] = np.arange(len(todo))
    notes = _Notes.join((query_side, Side(DOCUMENTS, [], texts)), replies)
    scores = given.copy()
    for index, item in enumerate(request.documents):
        if not isinstance(item, str) and index not in notes.errors and not np.isfinite(given[index]):
            notes.errors[index] = InvalidRequest(
                f"input[{index}]: its products with the query's vectors are too large for float32; send vectors of "
                "about unit length",
                index=index,
            ).call(DOCUMENTS, index)
    for place, index in enumerate(todo):
        row = replies[1].rows[place]
        scores[index] = np.nan if row is None else np.asarray(row).reshape(-1)[0]
    return notes.reply(scores)


def _score_given(request: ScoreRequest, queries: Sequence[Matrix | None], *, is_mean: bool) -> Floats:
    """Compare the token vectors that came with the request [n]; NaN for documents that are texts."""
    scores = np.full(len(queries), np.nan, np.float32)
    by_query: dict[int, list[int]] = {}
    for index, (query, document) in enumerate(zip(queries, request.documents, strict=True)):
        if query is not None and not isinstance(document, str):
            by_query.setdefault(id(query), []).append(index)
    for group in by_query.values():
        documents = [request.documents[index] for index in group]
        scores[group] = _max_sim(queries[group[0]], documents, is_mean=is_mean)  # type: ignore[arg-type]
    return scores


def _max_sim(query: Matrix, documents: Sequence[Matrix], *, is_mean: bool) -> Floats:
    scores = np.full(len(documents), NO_MATCH / max(len(query), 1) if is_mean else NO_MATCH, np.float32)
    has_some = [place for place, document in enumerate(documents) if len(document)]
    if has_some:
        scores[has_some] = max_sim_of_matrices(query, [documents[place] for place in has_some], is_mean=is_mean)
    return scores


def _request(
    request: ScoreRequest,
    items: Sequence[Scorable],
    pooling: PoolingParams,
    text: TextParams,
    *,
    seconds: Sequence[str] | None = None,
    against: Sequence[Matrix] | None = None,
) -> Request:
    return Request(
        items,  # type: ignore[arg-type]  # texts: matrices have been taken out
        pooling,
        text,
        lane=request.lane,
        deadline=request.deadline,
        seconds=seconds,
        against=against,
        cache_salt=request.cache_salt,
    )


@dataclass(frozen=True, slots=True)
class _Notes:
    """What stands beside the scores."""

    truncated: NDArray[np.bool_]
    num_tokens: int
    errors: dict[int, ForebayError]
    timings: Timings

    @classmethod
    def join(cls, sides: Sequence[Side], replies: Sequence[Reply]) -> "_Notes":
        """Bring what two replies say of their texts to the pairs that have them."""
        truncated = np.zeros(len(sides[0].place_of), np.bool_)
        errors: dict[int, ForebayError] = {}
        for side, reply in zip(sides, replies, strict=True):
            is_text = side.place_of >= 0
            truncated[is_text] |= reply.truncated[side.place_of[is_text]]
            for place, error in reply.errors.items():
                for pair in np.flatnonzero(side.place_of == place).tolist():
                    errors.setdefault(pair, side.tell(error, place, pair))
        all_timings = [reply.timings for reply in replies]
        timings = Timings(
            sum(part.tokenize for part in all_timings),
            max(part.queue for part in all_timings),
            max(part.compute for part in all_timings),
        )
        return cls(truncated, sum(int(reply.num_tokens.sum()) for reply in replies), errors, timings)

    def reply(self, scores: Floats) -> ScoreReply:
        """Join them with the scores; those of failed pairs are NaN."""
        scores = np.array(scores, np.float32)
        scores[list(self.errors)] = np.nan
        return ScoreReply(scores, self.truncated, self.num_tokens, dict(sorted(self.errors.items())), self.timings)


def _stack(rows: Sequence[Any]) -> Floats:
    """All vectors [n, d]; zeros for what failed, which gets no score."""
    size = next((len(row) for row in rows if row is not None), 1)
    return np.stack([np.zeros(size, np.float32) if row is None else row for row in rows])


def _index_of(error: BaseException) -> int | None:
    return error.index if isinstance(error, ForebayError) else None


def _called(error: BaseException, name: str, index: int) -> ForebayError:
    """The same error, said of the caller's own list."""
    assert isinstance(error, ForebayError)
    return copy.copy(error).call(name, index)


def _place(error: BaseException, sides: Sequence[Side], parts: "Sequence[Future[Reply]]") -> BaseException:
    """Tell an error of a distinct text of the first pair that has it."""
    index = _index_of(error)
    if index is None:
        return error
    for side, part in zip(sides, parts, strict=True):
        if part.done() and not part.cancelled() and part.exception() is error:
            return side.tell(error, index)
    return error


Route = Callable[[Submit, ModelInfo, ScoreRequest, "Future[ScoreReply]"], None]

ROUTES: dict[ScoreType, Route] = {
    ScoreType.BI_ENCODER: bi_encoder,
    ScoreType.CROSS_ENCODER: cross_encoder,
    ScoreType.LATE_INTERACTION: late_interaction,
}
"""Which way a model goes from texts to scores."""
