"""What goes in and what comes out of the engine: requests and replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import ForebayError
from forebay.core.params import PoolingParams, TextParams
from forebay.core.tasks import Task

Item = str | Sequence[int]
"""One text, or its token ids in the model's own vocabulary."""

Matrix = NDArray[np.float32]
"""One vector a token, [tokens, d]."""


class Reading(NamedTuple):
    """How a sequence is read beyond its ids, in late interaction.

    Only its first ``num_attended`` tokens are seen by the others; ``is_kept`` bool [L] tells whose vectors are given.
    """

    num_attended: int
    is_kept: NDArray[np.bool_]


class Lane(IntEnum):
    """Which queue a request waits in; a lower lane is served first."""

    INTERACTIVE = 0
    BULK = 1


@dataclass(frozen=True, slots=True)
class Request:
    """Many items that are tokenized in one call and answered at once.

    ``seconds`` are the other texts of pairs that a cross-encoder reads together, one for each item.
    ``deadline`` is a moment of ``time.monotonic()``; work that has not begun by then is dropped. ``against`` gives
    each item the query vectors [tokens, d] that its own token vectors are compared with inside the engine, so that
    only a score leaves it (items may share one array; it lives as long as they do). Only requests with the same
    ``cache_salt`` find what each other's texts, beginning alike, have left in the prefix cache of a causal model.
    """

    items: Sequence[Item]
    pooling: PoolingParams = field(default_factory=PoolingParams)
    text: TextParams = field(default_factory=TextParams)
    lane: Lane = Lane.INTERACTIVE
    deadline: float | None = None
    seconds: Sequence[str] | None = None
    against: Sequence[Matrix] | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent at the stations of the walk: waiting covers admission to the first step."""

    tokenize: float = 0.0
    queue: float = 0.0
    compute: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """The non-zero entries of a vector over the vocabulary: ``ids`` int32 [k], ascending; ``weights`` float32 [k]."""

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)


Row = NDArray[np.float32] | SparseVector
"""One output of one item: a vector [d], a matrix [tokens, d], or a sparse vector."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Request, in the order of its items.

    ``outputs[task][i]`` is what that task made of item i, or None where ``errors`` holds the reason under ``i``.
    ``num_tokens`` (int32 [n]) counts the tokens that were computed; ``truncated`` (bool [n]) tells where that
    is less than the item had.
    """

    outputs: Mapping[Task, Sequence[Row | None]]
    num_tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    errors: Mapping[int, ForebayError] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)

    def __len__(self) -> int:
        return len(self.num_tokens)

    @property
    def rows(self) -> Sequence[Any]:
        """The first output's rows: all there are where a request asks for one output."""
        return next(iter(self.outputs.values()))

    def raise_errors(self) -> None:
        """Raise the first item's error, if any item failed."""
        if self.errors:
            raise self.errors[min(self.errors)]


Scorable = str | Matrix
"""A text, or its token vectors [tokens, d] that were computed before (late interaction only)."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """How well does each query match its document? Both lists are of one length, or there is one query for all.

    ``use_activation`` False asks a cross-encoder for its logits; ``cache_salt`` is a Request's.
    """

    queries: Sequence[Scorable]
    documents: Sequence[Scorable]
    use_activation: bool | None = None
    text: TextParams = field(default_factory=TextParams)
    lane: Lane = Lane.INTERACTIVE
    deadline: float | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """``scores`` float32 [n] and ``truncated`` bool [n], in the order of the documents.

    A pair that failed has NaN and its reason in ``errors``, which names the text at fault as ``queries[i]`` or
    ``documents[i]``. ``num_tokens`` counts all that was computed.
    """

    scores: NDArray[np.float32]
    truncated: NDArray[np.bool_]
    num_tokens: int
    errors: Mapping[int, ForebayError] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)

    def __len__(self) -> int:
        return len(self.scores)
