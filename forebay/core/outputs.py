"""Typed outputs of the Python API: one class a kind of output, for a list of texts, in input order.

All have ``num_tokens`` (int32 [n], what was computed) and ``truncated`` (bool [n], where a text had more).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.core.request import SparseVector
from forebay.core.tasks import Task

Floats = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Output:
    num_tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.num_tokens)


class _Rows(Generic[T]):
    """Indexing and iteration over ``_rows``."""

    __slots__ = ()

    @property
    def _rows(self) -> Sequence[T]:
        raise AssertionError("each output names its rows")

    def __getitem__(self, index: int) -> T:
        return self._rows[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingOutput(_Output, _Rows[Floats]):
    """Embeddings: ``embeddings`` float32 [n, dim]. NumPy functions accept the object itself."""

    embeddings: Floats

    @property
    def _rows(self) -> Sequence[Floats]:
        return self.embeddings  # type: ignore[return-value]  # an array is a sequence of its rows

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> Floats:
        return np.array(self.embeddings, dtype=dtype, copy=copy)


@dataclass(frozen=True, slots=True, eq=False)
class ClassificationOutput(_Output, _Rows[Floats]):
    """Scores of all labels: ``scores`` float32 [n, labels], ``labels`` their names in order."""

    scores: Floats
    labels: tuple[str, ...]

    @property
    def _rows(self) -> Sequence[Floats]:
        return self.scores  # type: ignore[return-value]

    @property
    def top(self) -> list[tuple[str, float]]:
        """The best label of each text and its score."""
        best = self.scores.argmax(axis=1).tolist()
        return [(self.labels[label], float(scores[label])) for label, scores in zip(best, self.scores, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class TokenEmbeddingOutput(_Output, _Rows[Floats]):
    """One vector a token (special ones included), or a window of tokens: float32 [tokens, dim] for each text.

    ``spans`` tells for each vector of each text which characters it stands for, [windows, 2], where windows
    were asked for.
    """

    matrices: Sequence[Floats]
    spans: Sequence[NDArray[np.int64]] | None = None

    @property
    def _rows(self) -> Sequence[Floats]:
        return self.matrices


class Entity(NamedTuple):
    """A stretch of text with one label: characters ``start`` to ``end``, and the mean score of its tokens."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class TokenClassificationOutput(_Output, _Rows[Floats]):
    """Scores of all labels for every token: float32 [tokens, labels] for each text.

    ``is_special`` (bool [tokens]) flags special tokens; ``entities`` are there where an aggregation was asked for.
    """

    scores: Sequence[Floats]
    labels: tuple[str, ...]
    is_special: Sequence[NDArray[np.bool_]]
    entities: Sequence[Sequence[Entity]] | None = None

    @property
    def _rows(self) -> Sequence[Floats]:
        return self.scores


@dataclass(frozen=True, slots=True, eq=False)
class SparseOutput(_Output, _Rows[SparseVector]):
    """Sparse vectors over a vocabulary of ``vocab_size`` tokens; ``token_of`` gives a token id's text."""

    vectors: Sequence[SparseVector]
    vocab_size: int
    token_of: Callable[[int], str]

    @property
    def _rows(self) -> Sequence[SparseVector]:
        return self.vectors

    def tokens(self, index: int) -> list[tuple[str, float]]:
        """One vector as (token, weight), heaviest first."""
        vector = self.vectors[index]
        order = np.argsort(-vector.weights, kind="stable")
        return [(self.token_of(int(vector.ids[place])), float(vector.weights[place])) for place in order]

    def to_csr(self) -> tuple[Floats, NDArray[np.int32], NDArray[np.int64]]:
        """(data, indices, indptr) of the [n, vocab_size] matrix, as ``scipy.sparse.csr_matrix`` takes them."""
        indptr = np.cumsum([0, *map(len, self.vectors)], dtype=np.int64)
        indices = np.concatenate([np.zeros(0, np.int32), *(vector.ids for vector in self.vectors)])
        data = np.concatenate([np.zeros(0, np.float32), *(vector.weights for vector in self.vectors)])
        return data, indices, indptr

    def to_dense(self) -> Floats:
        """The whole matrix, float32 [n, vocab_size]."""
        dense = np.zeros((len(self.vectors), self.vocab_size), np.float32)
        for row, vector in zip(dense, self.vectors, strict=True):
            row[vector.ids] = vector.weights
        return dense


@dataclass(frozen=True, slots=True, eq=False)
class ScoreOutput:
    """How well each document matches its query: ``scores`` float32 [n], higher is better, in the documents' order.

    ``num_tokens`` counts all tokens that were computed; ``truncated`` (bool [n]) tells where a text had more.
    """

    scores: Floats
    num_tokens: int
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: int) -> float:
        return float(self.scores[index])

    def __iter__(self) -> Iterator[float]:
        return iter(self.scores.tolist())

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> Floats:
        return np.array(self.scores, dtype=dtype, copy=copy)


def check_top_n(top_n: Any) -> None:
    """Refuse what is no number of documents to list."""
    if top_n is None:
        return
    if isinstance(top_n, bool) or not isinstance(top_n, Integral):
        raise InvalidRequest(f"top_n is of type {type(top_n).__name__}; expected int", field="top_n")
    if top_n < 0:
        raise InvalidRequest(f"top_n is {top_n}; expected 1 or more, or 0 for all documents", field="top_n")


def rank(scores: Floats, top_n: int | None = None) -> list[int]:
    """Return the places of the ``top_n`` best scores (None or 0: of all), best first; equal ones in their order."""
    check_top_n(top_n)
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order[: top_n or None]


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document of a ranking: its place in the caller's list, its score, and itself where asked for."""

    index: int
    score: float
    document: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class RerankOutput(_Rows[Ranked]):
    """Documents, best first; equal scores keep the caller's order.

    ``num_tokens`` and ``truncated`` (bool [n], in the caller's order) are those of all documents, listed or not.
    """

    results: Sequence[Ranked]
    num_tokens: int
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.results)

    @property
    def _rows(self) -> Sequence[Ranked]:
        return self.results


AnyOutput = EmbeddingOutput | ClassificationOutput | TokenEmbeddingOutput | TokenClassificationOutput | SparseOutput


@dataclass(frozen=True, slots=True, eq=False)
class EncodeOutput(_Output):
    """Several outputs of one forward, by task."""

    outputs: Mapping[Task, AnyOutput]

    def __getitem__(self, task: Task | str) -> AnyOutput:
        return self.outputs[Task(task)]
