"""What a row of a bulk output holds: one encoder a kind of output, from the engine's row to named values.

An encoder is made for one model and knows no file: ``encode`` gives one row's values, ``types`` the Arrow type of
each. A Kind is what a command asks for before there is a model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from forebay.cli.formats import OutputFormat
from forebay.core.errors import InvalidRequest
from forebay.core.params import PoolingParams, TextParams
from forebay.core.tasks import Task
from forebay.text.entities import find_entities
from forebay.text.spans import window_spans

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel

CHUNK_ITEMS, CHUNK_MATRICES = 1024, 64
"""Texts that are answered at once; few where an answer grows with its text, since several chunks are in memory."""


class Encoder(Protocol):
    """What the run needs to know of its rows. ``width`` is the length of a vector where all rows make one matrix."""

    chunk_items: int
    pooling: PoolingParams
    width: int

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each value."""

    def encode(self, row: Any, text: str) -> dict[str, Any]:
        """Name the values of one row."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked for: ``contents`` in words, the formats that hold it, and the options that shape it."""

    action: str
    contents: str
    formats: tuple[OutputFormat, ...]
    options: Mapping[str, Any]
    bind: Callable[["PoolingModel", TextParams], Encoder]


class DenseRows:
    """One vector a text."""

    chunk_items = CHUNK_ITEMS

    def __init__(self, model: "PoolingModel", text: TextParams, *, pooling: PoolingParams) -> None:
        self.pooling = pooling
        self.width = pooling.dimensions or pooling.truncate_dim or model.info.abilities.default_dimension

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each value."""
        import pyarrow as pa

        return {"embedding": pa.list_(pa.float32(), self.width)}

    def encode(self, row: Any, text: str) -> dict[str, Any]:
        """Name the vector."""
        return {"embedding": np.ascontiguousarray(row)}


class SparseRows:
    """The entries of a sparse vector, with their tokens if ``has_tokens``."""

    chunk_items = CHUNK_ITEMS

    def __init__(self, model: "PoolingModel", text: TextParams, *, pooling: PoolingParams, has_tokens: bool) -> None:
        self.pooling = pooling
        self.width = model.info.abilities.vocab_size
        self._token_of = model.engine.token_of if has_tokens else None

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each value."""
        import pyarrow as pa

        types = {"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float32())}
        return types if self._token_of is None else types | {"tokens": pa.list_(pa.string())}

    def encode(self, row: Any, text: str) -> dict[str, Any]:
        """Name token ids, weights and tokens."""
        values = {"indices": row.ids, "values": row.weights}
        return values if self._token_of is None else values | {"tokens": [*map(self._token_of, row.ids.tolist())]}


class TokenRows:
    """One vector a token; with ``chunk_size`` one a window of tokens, and which characters it stands for."""

    chunk_items = CHUNK_MATRICES
    width = 0

    def __init__(self, model: "PoolingModel", text: TextParams, *, pooling: PoolingParams) -> None:
        self.pooling = pooling
        self._engine, self._text = model.engine, text

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each value."""
        import pyarrow as pa

        types = {"embeddings": pa.list_(pa.list_(pa.float32()))}
        return types if self.pooling.chunk_size is None else types | {"spans": pa.list_(pa.list_(pa.int64(), 2))}

    def encode(self, row: Any, text: str) -> dict[str, Any]:
        """Name vectors and characters."""
        values = {"embeddings": np.ascontiguousarray(row)}
        if self.pooling.chunk_size is None:
            return values
        (spans,) = self._engine.spans([text], self._text)
        return values | {"spans": window_spans(spans, self.pooling.chunk_size)}


class LabelRows:
    """The best label of a text and its score; with ``has_all`` the scores of all labels too."""

    chunk_items = CHUNK_ITEMS
    width = 0

    def __init__(self, model: "PoolingModel", text: TextParams, *, use_activation: bool | None, has_all: bool) -> None:
        self.pooling = PoolingParams((Task.CLASSIFY,), use_activation=use_activation)
        self._labels = model.info.abilities.labels
        self._has_all = has_all
        if has_all and len(set(self._labels)) < len(self._labels):
            raise InvalidRequest("--all-scores names scores by label, but this model has several labels of one name")

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each value."""
        import pyarrow as pa

        types = {"label": pa.string(), "score": pa.float32()}
        return types | {"scores": pa.struct(dict.fromkeys(self._labels, pa.float32()))} if self._has_all else types

    def encode(self, row: Any, text: str) -> dict[str, Any]:
        """Name label and scores."""
        best = int(row.argmax())
        values = {"label": self._labels[best], "score": row[best]}
        return values | {"scores": dict(zip(self._labels, row, strict=True))} if self._has_all else values


class EntityRows:
    """The entities of a text: which characters have which label."""

    chunk_items = CHUNK_MATRICES
    width = 0

    def __init__(
        self, model: "PoolingModel", text: TextParams, *, use_activation: bool | None, aggregation: str
    ) -> None:
        self.pooling = PoolingParams((Task.TOKEN_CLASSIFY,), use_activation=use_activation)
        self._labels = model.info.abilities.labels
        self._engine, self._text, self._aggregation = model.engine, text, aggregation

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each value."""
        import pyarrow as pa

        places = {"start": pa.int64(), "end": pa.int64()}
        return {
            "entities": pa.list_(
                pa.struct({"label": pa.string(), "score": pa.float32(), **places, "text": pa.string()})
            )
        }

    def encode(self, row: Any, text: str) -> dict[str, Any]:
        """Name the entities."""
        (spans,) = self._engine.spans([text], self._text)
        entities = find_entities(row, self._labels, spans, text, self._aggregation)
        return {"entities": [entity._asdict() for entity in entities]}


def classify_rows(
    model: "PoolingModel", text: TextParams, *, use_activation: bool | None, has_all: bool, aggregation: str | None
) -> Encoder:
    """Choose between labels of texts and entities: what the model can, or what an aggregation asks for."""
    tasks = model.info.abilities.tasks
    if aggregation is None and (Task.CLASSIFY in tasks or Task.TOKEN_CLASSIFY not in tasks):
        return LabelRows(model, text, use_activation=use_activation, has_all=has_all)
    if has_all:
        raise InvalidRequest("--all-scores is for labels of whole texts, not for entities; leave it out")
    if Task.TOKEN_CLASSIFY in tasks and not model.info.abilities.labels:
        raise InvalidRequest("this model scores tokens, but has no labels for them, so that there are no entities")
    return EntityRows(model, text, use_activation=use_activation, aggregation=aggregation or "simple")
