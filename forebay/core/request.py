"""What goes in and what comes out of the engine: requests and replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import ForebayError
from forebay.core.params import PoolingParams, TextParams
from forebay.core.tasks import Task

Item = str | Sequence[int]
"""One text, or its token ids in the model's own vocabulary."""


class Lane(IntEnum):
    """Which queue a request waits in; a lower lane is served first."""

    INTERACTIVE = 0
    BULK = 1


@dataclass(frozen=True, slots=True)
class Request:
    """Many items that are tokenized in one call and answered at once.

    ``deadline`` is a moment of ``time.monotonic()``; work that has not begun by then is dropped.
    """

    items: Sequence[Item]
    pooling: PoolingParams = field(default_factory=PoolingParams)
    text: TextParams = field(default_factory=TextParams)
    lane: Lane = Lane.INTERACTIVE
    deadline: float | None = None


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

    @property
    def rows(self) -> Sequence[Any]:
        """The first output's rows: all there are where a request asks for one output."""
        return next(iter(self.outputs.values()))

    def raise_errors(self) -> None:
        """Raise the first item's error, if any item failed."""
        if self.errors:
            raise self.errors[min(self.errors)]
