"""Pairs of texts as a template makes them, in tokens: what is too long is cut in the document, never in the frame.

Each distinct piece is tokenized once for all pairs of a request that share it. It knows no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forebay.core.errors import InputTooLong, InvalidRequest
from forebay.core.params import TextParams
from forebay.core.request import Item
from forebay.text.cuts import MARGIN, Side, cut_text, first_limit, last_limit
from forebay.text.pairs import check_pairs
from forebay.text.templates import DOCUMENT, QUERY, PairTemplate, Piece

Ids = NDArray[np.int32]

# Of a pair that is too long the query may keep so much of the room, if it needs it.
_QUERY_SHARE = 3, 4


@dataclass(frozen=True, slots=True)
class PairLimits:
    """Tokens that a whole pair, its query and its document may have."""

    pair: int
    query: int | None = None
    document: int | None = None
    keeps_end: bool = False

    @classmethod
    def of(cls, params: TextParams, max_len: int, side: Side) -> "PairLimits":
        """What a request allows, of a model that reads ``max_len`` tokens."""
        most = min(params.max_tokens or max_len, max_len)
        return cls(most, params.max_tokens_per_query, params.max_tokens_per_doc, side == "left")


class FramedPairs:
    """Makes token ids of pairs. ``encode`` is the tokenizer's batch call without special tokens."""

    def __init__(self, tokenizer: Tokenizer, template: PairTemplate, encode: Callable[[list[str]], list[Ids]]) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self._encode = encode

    def read(
        self, queries: Sequence[Item], documents: Sequence[str], params: TextParams, prompt: str, limits: PairLimits
    ) -> tuple[list[Ids], NDArray[np.bool_]]:
        """Return the ids of each pair, and which pairs were cut; refuse what is no pair, or can't be read as wanted.

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
                f"input[{index}]: the pair has more than the {limits.pair} tokens that are read, "
                "template included; send shorter texts, or allow truncation",
                index=index,
            )
            error.is_first = not was_cut[1, index]
            raise error
        return ids, truncated

    def make(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str, limits: PairLimits
    ) -> tuple[list[Ids], NDArray[np.bool_]]:
        """Return the ids of each pair, and which queries and documents were cut [2, n]."""
        pieces, fill = self.template.choose(instruction)
        end = np.array(self.template.end_ids, np.int32)
        limits = replace(limits, pair=limits.pair - len(end))
        size = first_limit(limits.pair)
        values = [self._values(fill, pair, size, limits) for pair in zip(queries, documents, strict=True)]
        ids = self._tokenize(pieces, values)
        truncated = np.zeros((2, len(ids)), np.bool_)
        for index, pair in enumerate(zip(queries, documents, strict=True)):
            sizes = np.array([len(text) for text in pair])
            has_limits = limits.query is not None or limits.document is not None
            if not (sizes.max() > size or has_limits or len(ids[index]) > limits.pair):
                continue
            size_now = size
            if sizes.max() > size and len(ids[index]) <= limits.pair + MARGIN:
                size_now = last_limit(limits.pair)
                values[index] = self._values(fill, pair, size_now, limits)
            ids[index], is_short = self._fit(pieces, values[index], limits)
            truncated[:, index] = (sizes > size_now) | is_short
        return [np.concatenate([row, end]) for row in ids], truncated

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
    ) -> tuple[Ids, NDArray[np.bool_]]:
        """Cut a pair's texts, token by token, until all fits; tell which of the two was cut."""
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
        keep = _share(lens[QUERY], lens[DOCUMENT], limits.pair - frame, limits)
        ids: list[Ids] = []
        for part, (front, body) in zip(parts, cuts, strict=True):
            num = keep.get(part.places[0], len(body)) if part.places else len(body)
            ids += (front, body[len(body) - num :] if limits.keeps_end else body[:num])
        return np.concatenate(ids), np.array([keep[place] < lens[place] for place in (QUERY, DOCUMENT)])

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
        most, of = _QUERY_SHARE
        query = min(query, max(room - document, room * most // of))
        document = room - query
    return {QUERY: query, DOCUMENT: document}
