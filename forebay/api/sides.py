"""What may stand on either side of a comparison: texts, and in late interaction token vectors that are fit for it.

Each refusal names the caller's item, what was found and what to send. It knows no route and computes no score.
"""

from typing import Any, NoReturn

import numpy as np

from forebay.core.errors import InvalidRequest
from forebay.core.params import Abilities
from forebay.core.request import Matrix, ScoreRequest
from forebay.core.sides import DOCUMENTS, QUERIES
from forebay.core.tasks import ScoreType

MAX_VECTORS = 8192
"""The most token vectors of one text, where the model itself does not read more tokens."""


def check_sides(request: ScoreRequest, abilities: Abilities) -> None:
    """Refuse what can't be compared by this model."""
    sides = ((QUERIES, request.queries), (DOCUMENTS, request.documents))
    has_texts = any(isinstance(item, str) for _, items in sides for item in items)
    width: int | None = None
    for name, items in sides:
        for index, item in enumerate(items):
            if isinstance(item, str):
                continue
            try:
                matrix = _check_matrix(item, abilities)
                if has_texts:
                    _check_lengths(matrix)
                if not len(matrix):  # all of a text's vectors were left out: no width to compare
                    continue
                _check_width(matrix.shape[1], abilities, width, has_texts=has_texts)
            except InvalidRequest as error:
                raise error.call(name, index) from None
            width = matrix.shape[1]


def _check_matrix(item: Any, abilities: Abilities) -> Matrix:
    if abilities.score_type is not ScoreType.LATE_INTERACTION:
        what = f"is of type {type(item).__name__}"
        if isinstance(item, np.ndarray) and item.ndim == 2:
            what = "is a matrix of token vectors"
        _refuse(f"{what}; this model compares a text, since it is a {abilities.score_type}")
    if not isinstance(item, np.ndarray):
        _refuse(
            f"is of type {type(item).__name__}; this model compares a text, or its token vectors as a float32 array"
        )
    if item.ndim != 2 or item.dtype != np.float32 or (len(item) and not item.size):
        _refuse(f"is an array of {item.dtype}, {list(item.shape)}; token vectors are float32, [tokens, numbers]")
    most = max(MAX_VECTORS, abilities.max_len)
    if len(item) > most:
        _refuse(f"has {len(item)} token vectors; at most {most} of one text are compared: send it in parts")
    if not np.isfinite(item).all():
        _refuse("holds NaN or infinite numbers; send the token vectors as the model gave them")
    return item


def _check_lengths(matrix: Matrix) -> None:
    """A text's vectors are no longer than what float32 holds squared; then neither are the products with them."""
    with np.errstate(over="ignore"):
        if not np.isfinite(np.einsum("td,td->t", matrix, matrix)).all():
            _refuse(
                "has token vectors too long to be compared in float32; send vectors of about unit length, as the model "
                "made them"
            )


def _check_width(width: int, abilities: Abilities, other: int | None, *, has_texts: bool) -> None:
    """Vectors that were sliced by ``dimensions`` can be compared with each other, but not with a text's."""
    full = abilities.token_dimension
    if width > full or (has_texts and width != full):
        _refuse(f"has token vectors of {width} numbers; this model's have {full}: send vectors that it made")
    if other is not None and width != other:
        _refuse(f"has token vectors of {width} numbers, and others before it of {other}; send vectors of one size")


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(f"input[0] {what}", index=0)
