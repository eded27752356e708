"""Pairs of texts as a template makes them, in tokens: what is too long is cut in the document, never in the frame, or
read by windows, each beside the whole query.

Each distinct piece is tokenized once for all pairs of a request that share it. It knows no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forebay.core.errors import InputTooLong, InvalidRequest
from forebay.core.params import TextParams
from forebay.core.request import Item
from forebay.text.cuts import MARGIN, Side, cut_text, first_limit, last_limit
from forebay.text.pairs import check_pairs
from forebay.text.templates import DOCUMENT, QUERY, PairTemplate, Piece
from forebay.text.windows import cut_ids, split

Ids = NDArray[np.int32]

# Of a pair that is too long the query may keep so much of the room, if it needs it; beside windows, so much.
_QUERY_SHARE = 3, 4
_QUERY_SHARE_OF_WINDOWS = 1, 2


@dataclass(frozen=True, slots=True)
class PairLimits:
    """Tokens that a whole pair, its query and its document may have; ``split`` those of a pair whose document is read
    by windows, which overlap by ``overlap`` (0: it is cut).
    """

    pair: int
    query: int | None = None
    document: int | None = None
    keeps_end: bool = False
    split: int = 0
    overlap: int = 0

    @classmethod
    def of(cls, params: TextParams, max_len: int, side: Side) -> "PairLimits":
        """What a request allows, of a model that reads ``max_len`` tokens."""
        most = min(params.max_tokens or max_len, max_len)
        return cls(most, params.max_tokens_per_query, params.max_tokens_per_doc, side == "left")


class Framed(NamedTuple):
    """The sequences of all pairs, whose pair each is, and which pairs were cut [n]."""

    ids: list[Ids]
    owners: NDArray[np.int64]
    truncated: NDArray[np.bool_]


class FramedPairs:
    """Makes token ids of pairs. ``encode`` is the tokenizer's batch call without special tokens."""

    def __init__(self, tokenizer: Tokenizer, template: PairTemplate, encode: Callable[[list[str]], list[Ids]]) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self._encode = encode

    def read(
        self, queries: Sequence[Item], documents: Sequence[str], params: TextParams, prompt: str, limits: PairLimits
    ) -> Framed:
        """Make the sequences of all pairs; refuse what is no pair, or can't be read as wanted.

        A prompt is the instruction of a request that has none.
        """
        check_pairs(queries, documents)
        if (params.prompt or params.prompt_name) and not self.template.takes_instruction:
            raise InvalidRequest(
                "a prompt fills the place of the instruction in a reranker's template, but this model's template has "
                "none; leave it out",
                field="prompt" if params.prompt else "prompt_name",
            )
        instruction = prompt if params.instruction is None else params.instruction
        ids, was_cut = self.make([str(query) for query in queries], documents, instruction, limits)
        truncated = was_cut[0] | was_cut[1]
        if not params.truncate and truncated.any():
            index = int(truncated.argmax())
            error = InputTooLong(
                f"input[{index}]: the pair has more than the {max(limits.pair, limits.split)} tokens that are read, "
                "template included; send shorter texts, or allow truncation",
                index=index,
            )
            error.is_first = not was_cut[1, index]
            raise error
        owners = np.repeat(np.arange(len(ids)), [len(windows) for windows in ids])
        return Framed([row for windows in ids for row in windows], owners, truncated)

    def make(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str, limits: PairLimits
    ) -> tuple[list[list[Ids]], NDArray[np.bool_]]:
        """Return the windows of each pair, and which queries and documents were cut [2, n]."""
        pieces, fill = self.template.choose(instruction)
        end = np.array(self.template.end_ids, np.int32)
        limits = replace(limits, pair=limits.pair - len(end))
        most = max(limits.pair, limits.split)
        size = first_limit(most)
        values = [self._values(fill, pair, size, limits) for pair in zip(queries, documents, strict=True)]
        whole = self._tokenize(pieces, values)
        ids = [[row] for row in whole]
        truncated = np.zeros((2, len(ids)), np.bool_)
        for index, pair in enumerate(zip(queries, documents, strict=True)):
            sizes = np.array([len(text) for text in pair])
            has_limits = limits.query is not None or limits.document is not None
            if not (sizes.max() > size or has_limits or len(whole[index]) > limits.pair):
                continue
            size_now = size
            if sizes.max() > size and len(whole[index]) <= most + MARGIN:
                size_now = last_limit(most)
                values[index] = self._values(fill, pair, size_now, limits)
            ids[index], is_short = self._fit(pieces, values[index], limits)
            truncated[:, index] = (sizes > size_now) | is_short
        return [[np.concatenate([row, end]) for row in windows] for windows in ids], truncated

    def _values(self, fill: str, pair: tuple[str, str], size: int, limits: PairLimits) -> dict[str, str]:
        query, document = (cut_text(text, size, "left" if limits.keeps_end else "right") for text in pair)
        return self.template.values(fill, query, document)

    def _tokenize(self, pieces: Sequence[Piece], values: Sequence[dict[str, str]]) -> list[Ids]:
        rows = [[piece.fill(own) for piece in pieces] for own in values]
        place_of = {text: place for place, text in enumerate(dict.fromkeys(text for row in rows for text in row))}
        found = self._encode(list(place_of))
        return [np.concatenate([found[place_of[text]] for text in row]) for row in rows]

    def _fit(
        self, pieces: Sequence[Piece], values: dict[str, str], limits: PairLimits
    ) -> tuple[list[Ids], NDArray[np.bool_]]:
        """Cut a pair's texts, token by token, until all fits, or the document's into windows; tell which was cut."""
        parts = [part for piece in pieces for part in piece.cut_at_places()]
        cuts = [self._split(part, values) for part in parts]
        lens = {QUERY: 0, DOCUMENT: 0}
        frame = 0
        for part, (front, body) in zip(parts, cuts, strict=True):
            frame += len(front)
            if part.places and part.places[0] in lens:
                lens[part.places[0]] = len(body)
            else:
                frame += len(body)
        room = limits.pair - frame
        keep = _share(lens[QUERY], lens[DOCUMENT], room, limits)
        bodies: list[list[Ids]] = []
        for part, (_, body) in zip(parts, cuts, strict=True):
            place = part.places[0] if part.places else ""
            kept = cut_ids(body, keep.get(place, len(body)), "left" if limits.keeps_end else "right")
            is_split = place == DOCUMENT and limits.split
            bodies.append(split(kept, max(room - keep[QUERY], 1), limits.overlap) if is_split else [kept])
        windows = [
            np.concatenate(
                [
                    ids
                    for (front, _), own in zip(cuts, bodies, strict=True)
                    for ids in (front, own[min(number, len(own) - 1)])
                ]
            )
            for number in range(max(map(len, bodies)))
        ]
        return windows, np.array([keep[place] < lens[place] for place in (QUERY, DOCUMENT)])

    def _split(self, part: Piece, values: dict[str, str]) -> tuple[Ids, Ids]:
        """A part's tokens: those of its fixed text, and those of what fills its place."""
        ids = self._encode([part.fill(values)])[0]
        if not part.places:
            return ids, ids[:0]
        encoding = self._tokenizer.encode(part.fill(values), add_special_tokens=False)
        num_front = sum(end <= len(part.texts[0]) for _, end in encoding.offsets)
        return ids[:num_front], ids[num_front:]


def _share(num_query: int, num_document: int, room: int, limits: PairLimits) -> dict[str, int]:
    """Tell how many tokens the query and the document keep."""
    if room < 0:
        raise InvalidRequest(
            f"the template and the instruction take {-room} tokens more than the {limits.pair} that are read; send a "
            "shorter instruction, or allow more with max_tokens",
            field="instruction",
        )
    query = min(num_query, limits.query or num_query)
    document = min(num_document, limits.document or num_document)
    if query + document > room:
        most, of = _QUERY_SHARE_OF_WINDOWS if limits.split else _QUERY_SHARE
        query = min(query, max(room - document, room * most // of))
        document = min(document, room - query + max(limits.split - limits.pair, 0))
    return {QUERY: query, DOCUMENT: document}
