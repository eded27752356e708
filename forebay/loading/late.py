"""From what a checkpoint says of late interaction to the two sides of its texts: words become ids."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forebay.checkpoint.late import SIDES, Expansion, LateReading
from forebay.core.errors import UnsupportedCheckpoint
from forebay.loading.plan import Log
from forebay.models.base import Encoder
from forebay.text.files import TokenizerFiles
from forebay.text.late import LateSide

Ids = NDArray[np.int32]


def make_sides(
    reading: LateReading | None, model: Encoder, files: TokenizerFiles, label: str, log: Log
) -> Mapping[str, LateSide] | None:
    """Return how queries and documents are read; None in models that are not for late interaction."""
    if reading is None:
        return None
    sides = {side: _make_side(reading, side, model, files) for side in SIDES}
    for name, side in sides.items():
        parts = [f"marker {side.marker.tolist()}"] if len(side.marker) else []
        parts += [f"at most {side.max_len} tokens"] if side.max_len is not None else []
        seen = "seen" if side.is_attended else "not seen"
        parts += [f"filled to {side.fill_to} with token {side.filler}, {seen} by the others"] if side.fill_to else []
        parts += [f"without {len(side.skipped)} words"] if len(side.skipped) else []
        log.say(f"{name} texts{label}", ", ".join(parts) or "as they are", reading.source)
    return sides


def _make_side(reading: LateReading, side: str, model: Encoder, files: TokenizerFiles) -> LateSide:
    is_query = side == "query"
    expansion = reading.expansion if is_query else None
    max_len = reading.lengths.get(side)
    if expansion is not None and expansion.is_fixed:
        max_len = expansion.length
    if expansion is not None and not expansion.is_attended and getattr(model, "is_causal", False):
        raise UnsupportedCheckpoint(
            f"{reading.source}: queries are filled up with tokens that no other sees, which is not supported for "
            "decoders; expected fillers that are attended to"
        )
    return LateSide(
        marker=_marker_ids(reading.markers.get(side), files.tokenizer),
        max_len=max_len,
        fill_to=0 if expansion is None else expansion.length,
        filler=0 if expansion is None else _filler(expansion, files, reading.source),
        is_attended=expansion is not None and expansion.is_attended,
        skipped=_skipped_ids(reading.skipped_words, files) if side in reading.skipped_sides else _ids([]),
        kept=_ids([] if is_query else reading.kept_ids),
    )


def _ids(values: object) -> Ids:
    return np.array(values, np.int32)


def _marker_ids(marker: str | None, tokenizer: Tokenizer) -> Ids:
    """A marker's one id, its blank at the end being part of it or not; the ids of its text where it is no token."""
    if not marker:
        return _ids([])
    for text in (marker, marker.strip()):
        found = tokenizer.token_to_id(text)
        if found is not None:
            return _ids([found])
    return _ids(tokenizer.encode(marker, add_special_tokens=False).ids)


def _skipped_ids(words: tuple[str, ...], files: TokenizerFiles) -> Ids:
    """The ids of the words that are tokens; unknown ones would leave out everything unknown."""
    found = {files.tokenizer.token_to_id(word) for word in words} - {None, files.unknown_id}
    return _ids(sorted(id_ for id_ in found if id_ is not None))


def _filler(expansion: Expansion, files: TokenizerFiles, source: str) -> int:
    found = files.filler_id if expansion.token is None else files.tokenizer.token_to_id(expansion.token)
    if found is None:
        what = "a mask or eos token" if expansion.token is None else f"the token '{expansion.token}'"
        raise UnsupportedCheckpoint(f"{source}: queries are to be filled up with {what}, which the tokenizer lacks")
    return found
