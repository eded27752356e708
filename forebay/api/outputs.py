"""Replies to typed outputs, and what else stands between a Python call and its requests: items and the progress bar."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from forebay.api.async_engine import AsyncEngine
from forebay.core.errors import InvalidRequest
from forebay.core.outputs import (
    AnyOutput,
    ClassificationOutput,
    EmbeddingOutput,
    EncodeOutput,
    Entity,
    SparseOutput,
    TokenClassificationOutput,
    TokenEmbeddingOutput,
)
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Item, Reply, Scorable
from forebay.core.sides import SideName
from forebay.core.tasks import Task
from forebay.text.entities import find_entities
from forebay.text.spans import Spans, window_spans

Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]

_PROGRESS_ITEMS = 512

S = TypeVar("S", bound=np.generic)


class TextOptions(TypedDict, total=False):
    """Keyword options of every method: the fields of TextParams, and whether to show a progress bar."""

    prompt: str | None
    prompt_name: str | None
    input_type: str | None
    truncate: bool
    truncation_side: Literal["left", "right"] | None
    split: bool | None
    max_tokens: int | None
    add_special_tokens: bool
    show_progress: bool | None


class ScoreOptions(TypedDict, total=False):
    """Keyword options of comparisons: the fields of TextParams that make sense for pairs, and the progress bar."""

    prompt: str | None
    prompt_name: str | None
    instruction: str | None
    truncate: bool
    truncation_side: Literal["left", "right"] | None
    split: bool | None
    max_tokens: int | None
    max_tokens_per_query: int | None
    max_tokens_per_doc: int | None
    show_progress: bool | None


class GivenSide(NamedTuple):
    """One side of a comparison as a list, and what errors call it."""

    items: Sequence[Scorable]
    name: SideName


def as_side(given: Any, name: str) -> GivenSide:
    """Tell one text or one matrix and many of either apart."""
    if isinstance(given, str) or (isinstance(given, np.ndarray) and given.ndim == 2):
        return GivenSide([given], SideName(name, is_list=False))
    is_scalar = getattr(given, "ndim", 1) == 0  # an array of no dimension has a length by name only
    if isinstance(given, Sequence | np.ndarray) and not is_scalar and not isinstance(given, bytes | bytearray):
        return GivenSide(list(given), SideName(name))
    raise InvalidRequest(
        f"{name} is of type {type(given).__name__}; expected a text or a list of texts (late-interaction models also "
        "take token vectors as float32 arrays)",
        field=name,
    )


def as_items(texts: Any) -> Sequence[Item]:
    """Tell one text, one list of ids and many of either apart."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, np.ndarray) and texts.dtype.kind in "iu" and texts.ndim == 1:
        return [texts.tolist()]
    is_sequence = hasattr(texts, "__len__") and hasattr(texts, "__getitem__")
    is_scalar = getattr(texts, "ndim", 1) == 0
    if not is_sequence or is_scalar or isinstance(texts, bytes | bytearray | dict):
        raise InvalidRequest(
            f"texts is of type {type(texts).__name__}; expected a text, a list of texts, or lists of token ids "
            "(stream() takes any iterable)",
            field="texts",
        )
    if len(texts) and all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in texts):
        return [list(texts)]
    return list(texts)


class OutputMaker:
    """Joins the replies to one list of items into typed outputs."""

    def __init__(self, engine: AsyncEngine, items: Sequence[Item], text: TextParams, aggregation: str | None) -> None:
        self._engine = engine
        self._items = items
        self._text = text
        self._aggregation = aggregation

    def make(self, replies: Sequence[Reply], pooling: PoolingParams) -> EncodeOutput:
        """Raise the first item's error, or return all outputs."""
        num_before = 0
        for reply in replies:
            if reply.errors:
                raise reply.errors[min(reply.errors)].move(num_before)
            num_before += len(reply)
        num_tokens = _join([reply.num_tokens for reply in replies], np.int32)
        truncated = _join([reply.truncated for reply in replies], np.bool_)
        outputs = {}
        for task in pooling.outputs:
            rows = [row for reply in replies for row in reply.outputs[task]]
            outputs[task] = self._one(task, rows, num_tokens, truncated, pooling)
        return EncodeOutput(num_tokens, truncated, outputs)

    def _one(
        self,
        task: Task,
        rows: list[Any],
        num_tokens: NDArray[np.int32],
        truncated: NDArray[np.bool_],
        pooling: PoolingParams,
    ) -> AnyOutput:
        abilities = self._engine.info.abilities
        match task:
            case Task.EMBED:
                size = pooling.dimensions or pooling.truncate_dim or abilities.default_dimension
                return EmbeddingOutput(num_tokens, truncated, _stack(rows, size))
            case Task.CLASSIFY:
                scores = _stack(rows, len(abilities.labels))
                return ClassificationOutput(num_tokens, truncated, scores, abilities.labels)
            case Task.TOKEN_EMBED:
                spans = None if pooling.chunk_size is None else self._windows(pooling.chunk_size)
                return TokenEmbeddingOutput(num_tokens, truncated, rows, spans)
            case Task.SPARSE:
                return SparseOutput(num_tokens, truncated, rows, abilities.vocab_size, self._engine.token_of)
        spans_of = self._spans()
        entities = None if self._aggregation is None else self._entities(rows, spans_of, abilities.labels)
        flags = [
            spans.is_special if len(spans.is_special) == len(scores) else np.zeros(len(scores), np.bool_)
            for spans, scores in zip(spans_of, rows, strict=True)
        ]  # rows that STEP picked are no special tokens
        return TokenClassificationOutput(num_tokens, truncated, rows, abilities.labels, flags, entities)

    def _spans(self) -> list[Spans]:
        return self._engine.spans(self._items, self._text)

    def _windows(self, size: int) -> list[NDArray[np.int64]]:
        return [window_spans(spans, size) for spans in self._spans()]

    def _entities(self, rows: list[Any], spans_of: list[Spans], labels: tuple[str, ...]) -> list[list[Entity]]:
        assert self._aggregation is not None
        entities = []
        for index, (item, scores, spans) in enumerate(zip(self._items, rows, spans_of, strict=True)):
            if not isinstance(item, str):
                raise _refuse_aggregation(f"finds entities in texts, but input[{index}] came as token ids")
            if len(scores) != len(spans.offsets) or not labels:
                raise _refuse_aggregation("needs scores for labels of all tokens, which this model does not give")
            entities.append(find_entities(scores, labels, spans, item, self._aggregation))
        return entities


def _refuse_aggregation(reason: str) -> InvalidRequest:
    return InvalidRequest(f"'aggregation' {reason}; leave it out for the scores of the tokens", field="aggregation")


def _join(parts: list[NDArray[S]], dtype: type[S]) -> NDArray[S]:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def _stack(rows: Sequence[NDArray[np.float32]], size: int) -> NDArray[np.float32]:
    return np.array(rows) if len(rows) else np.zeros((0, size), np.float32)


class _Counted(Protocol):
    def __len__(self) -> int: ...


R = TypeVar("R", bound=_Counted)


def with_progress(replies: Iterator[R], total: int, show: bool | None) -> Iterator[R]:
    """Pass replies on, and count their items on a bar where that is wanted."""
    if show is False or (show is None and (total < _PROGRESS_ITEMS or not sys.stderr.isatty())):
        yield from replies
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("texts", total=total)
        for reply in replies:
            yield reply
            progress.advance(task, len(reply))
