"""From scores of tokens to entities in the text: the aggregations of transformers' token-classification pipeline.

``none`` gives one entity a token; ``simple`` joins neighbours of one label; ``first``, ``average`` and ``max`` first
give every word one label, that of its first token, of the mean of its tokens, or of its surest token.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.core.outputs import Entity
from forebay.text.spans import Spans

Aggregation = Literal["none", "simple", "first", "average", "max"]
_OUTSIDE = "O"


class _Piece(NamedTuple):
    label: str
    score: float
    start: int
    end: int


def _first(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    first: NDArray[np.float32] = scores[0]
    return first


def _average(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    mean: NDArray[np.float32] = scores.mean(axis=0)
    return mean


def _surest(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    surest: NDArray[np.float32] = scores[int(scores.max(axis=1).argmax())]
    return surest


_OF_WORD: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "first": _first,
    "average": _average,
    "max": _surest,
}
AGGREGATIONS = ("none", "simple", *_OF_WORD)


def check_aggregation(name: str) -> None:
    """Refuse an aggregation that there is not."""
    if name not in AGGREGATIONS:
        raise InvalidRequest(f"aggregation is '{name}'; expected one of {', '.join(AGGREGATIONS)}", field="aggregation")


def find_entities(
    scores: NDArray[np.float32], labels: Sequence[str], spans: Spans, text: str, aggregation: str
) -> list[Entity]:
    """Return the entities of one text, without those labelled ``O``. ``scores`` is [L, labels] with L as in spans."""
    words = list(_words(spans, by_token=aggregation in ("none", "simple")))
    combine = _OF_WORD.get(aggregation, _first)
    pieces = [_label(combine(scores[word]), labels, spans.offsets[word]) for word in words]
    groups = [[piece] for piece in pieces] if aggregation == "none" else list(_join(pieces))
    keeps_prefix = aggregation == "none"
    entities = (_entity(group, text, keeps_prefix) for group in groups)
    return [entity for entity in entities if entity.label != _OUTSIDE]


def _words(spans: Spans, *, by_token: bool) -> Iterator[NDArray[np.int64]]:
    """Yield the token places of each word; of each token if ``by_token``."""
    places = np.flatnonzero(~(spans.is_special | spans.is_prompt))
    if not len(places):
        return
    starts_word = np.ones(len(places), np.bool_) if by_token else ~spans.is_subword[places]
    starts_word[0] = True
    borders = [*np.flatnonzero(starts_word).tolist(), len(places)]
    for first, last in pairwise(borders):
        yield places[first:last]


def _label(scores: NDArray[np.float32], labels: Sequence[str], offsets: NDArray[np.int64]) -> _Piece:
    best = int(scores.argmax())
    return _Piece(labels[best], float(scores[best]), int(offsets[0, 0]), int(offsets[-1, 1]))


def _join(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Yield neighbours of one label together; a ``B-`` begins anew."""
    group: list[_Piece] = []
    for piece in pieces:
        if group and (piece.label.startswith("B-") or _bare(piece.label) != _bare(group[-1].label)):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _bare(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _entity(group: Sequence[_Piece], text: str, keeps_prefix: bool) -> Entity:
    start, end = group[0].start, group[-1].end
    label = group[0].label if keeps_prefix else group[0].label.split("-", 1)[-1]
    return Entity(label, float(np.mean([piece.score for piece in group])), start, end, text[start:end])
