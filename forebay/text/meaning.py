"""Refuses inputs that a model would read but could make nothing of: half a pair, pictures that are not there."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.core.request import Item

Ids = NDArray[np.int32]


def refuse_single(items: Sequence[Item]) -> None:
    """Refuse single texts, for a model that reads pairs by a template; token ids are the caller's own affair."""
    index = next((index for index, item in enumerate(items) if isinstance(item, str)), None)
    if index is not None:
        raise InvalidRequest(
            f"input[{index}] is a single text, but this model scores pairs of a query and a document by its template: "
            "use score or rerank. A text that is a whole rendered template is read with add_special_tokens false; load "
            "with template 'plain' where the model is no reranker",
            index=index,
        )


def check_media(ids: Sequence[Ids], media_ids: Ids, owners: NDArray[np.int64]) -> None:
    """Refuse tokens that stand for pictures: what they stand for is not there. ``owners`` are the rows' items."""
    if not len(media_ids):
        return
    for row, owner in zip(ids, owners.tolist(), strict=True):
        if np.isin(row, media_ids).any():
            raise InvalidRequest(
                f"input[{owner}] holds a token that stands for an image or a video; Forebay runs this model's language "
                "side only: send texts",
                index=owner,
            )
