"""Templates that make one text of a query and a document, for rerankers that are language models.

A template is a list of pieces that are tokenized one by one; a piece is fixed text with places for the instruction,
the query and the document. It knows no tokenizer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.core.errors import InvalidRequest

QUERY, DOCUMENT, INSTRUCTION = "query", "document", "instruction"

_PLACE = re.compile(r"\{(query|document|instruction)\}")


@dataclass(frozen=True, slots=True)
class Piece:
    """``texts`` are the fixed parts, ``places`` what stands between them: one fewer."""

    texts: tuple[str, ...]
    places: tuple[str, ...]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with its places filled."""
        parts = [self.texts[0]]
        for place, text in zip(self.places, self.texts[1:], strict=True):
            parts += (values[place], text)
        return "".join(parts)

    def cut_at_places(self) -> tuple["Piece", ...]:
        """The same text as pieces that end with their only place, and what is left after the last."""
        ends = [Piece((text, ""), (place,)) for text, place in zip(self.texts, self.places, strict=False)]
        return (*ends, *([Piece(self.texts[-1:], ())] if self.texts[-1] else []))


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """``pieces`` are used where there is an instruction, ``bare`` where there is none.

    ``instruction`` stands in for one that is not given; ``instruction_format`` is what is made of one ("{instruction}"
    in it). ``stripped`` are the places that lose blanks at their ends, ``end_ids`` tokens without a
    text that stand at the very end.
    """

    pieces: tuple[Piece, ...]
    bare: tuple[Piece, ...]
    instruction: str = ""
    instruction_format: str = "{instruction}"
    stripped: frozenset[str] = frozenset()
    end_ids: tuple[int, ...] = ()

    @property
    def takes_instruction(self) -> bool:
        """Whether there is a place for one."""
        return any(INSTRUCTION in piece.places for piece in self.pieces)

    def choose(self, instruction: str) -> tuple[tuple[Piece, ...], str]:
        """Return the pieces for this instruction ("" for none), and what fills its place."""
        text = instruction or self.instruction
        if not text:
            return self.bare, ""
        return self.pieces, self.instruction_format.replace("{instruction}", text)

    def values(self, instruction: str, query: str, document: str) -> dict[str, str]:
        """What fills the places."""
        values = {INSTRUCTION: instruction, QUERY: query, DOCUMENT: document}
        return {name: text.strip() if name in self.stripped else text for name, text in values.items()}


def parse_piece(text: str) -> Piece:
    """Read a piece in which a place is written as its name in braces."""
    parts = _PLACE.split(text)
    return Piece(tuple(parts[::2]), tuple(parts[1::2]))


def check_places(pieces: tuple[Piece, ...], source: str) -> None:
    """Refuse a template that lacks a text, or has one twice."""
    places = [place for piece in pieces for place in piece.places]
    for name in (QUERY, DOCUMENT):
        if places.count(name) != 1:
            raise InvalidRequest(
                f"{source}: the template has {{{name}}} {places.count(name)} times, expected once", field="template"
            )
