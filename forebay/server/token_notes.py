"""What stands beside outputs of tokens: masks of special tokens, characters of tokens and windows, entities.

It knows rows and spans, no envelope. Characters are code points of the text that the caller sent, without its prompt.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.core.request import Item, Reply, Request
from forebay.core.tasks import Task
from forebay.server.dialect import Served
from forebay.text.entities import find_entities
from forebay.text.spans import Spans, window_spans


def find_spans(task: Task, field: str, request: Request, reply: Reply, served: Served) -> list[Spans]:
    """Return each item's spans; refuse ``field``, which needs them, where the rows do not stand for all tokens."""
    found = served.engine.spans(request.items, request.text)
    size = request.pooling.chunk_size if task is Task.TOKEN_EMBED else None
    for index, (spans, row) in enumerate(zip(found, reply.outputs[task], strict=True)):
        num_tokens = len(spans.offsets)
        expected = num_tokens if size is None else -(-num_tokens // size)
        if row is not None and len(row) != expected:
            raise InvalidRequest(
                f"the tokens behind the rows can't be told: this model gives '{task}' for some tokens only, {len(row)} "
                f"rows where all tokens of input[{index}] would make {expected}; use POST /pooling, and leave out "
                "'special_tokens_mask' and 'late_chunking_params'",
                field=field,
            )
    return found


def mask_notes(found: Sequence[Spans]) -> list[dict[str, Any]]:
    """1 for each special token, 0 for those of the text."""
    return [{"special_tokens_mask": spans.is_special.astype(np.uint8)} for spans in found]


def offset_notes(found: Sequence[Spans], items: Sequence[Item]) -> list[dict[str, Any]]:
    """The first character of each token and the one behind it; null for items that came as token ids."""
    return [
        {"offsets": spans.offsets if isinstance(item, str) else None} for spans, item in zip(found, items, strict=True)
    ]


def window_notes(found: Sequence[Spans], size: int) -> list[dict[str, Any]]:
    """Which tokens and characters each window stands for; no characters where it has special tokens only, or ids."""
    return [
        {
            "late_chunking": {
                "chunk_size": size,
                "input_tokens": len(spans.offsets),
                "strategy": "fixed_tokens",
                "chunks": _windows(window_spans(spans, size), size, len(spans.offsets)),
            }
        }
        for spans in found
    ]


def _windows(chars: NDArray[np.int64], size: int, num_tokens: int) -> list[dict[str, Any]]:
    return [
        {
            "token_range": [first * size, min((first + 1) * size, num_tokens)],
            "char_range": [start, end] if end > start else None,
        }
        for first, (start, end) in enumerate(chars.tolist())
    ]


def entity_notes(
    found: Sequence[Spans], items: Sequence[Item], rows: Sequence[Any], labels: Sequence[str], aggregation: str
) -> list[dict[str, Any]]:
    """The entities of each item, which must be a text."""
    return [
        {"entities": [entity._asdict() for entity in find_entities(row, labels, spans, str(item), aggregation)]}
        for spans, item, row in zip(found, items, rows, strict=True)
    ]
