"""Corpora without data files: sentences of the standard library's docstrings, joined or cut to wanted lengths.

A length is counted in pieces (words and punctuation signs), of which the WordPiece vocabulary of BERT makes about
TOKENS_A_PIECE tokens on average. It knows no model. Another Python release has other docstrings, and so other texts.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

SEED = 20
TOKENS_A_PIECE = 1.15
SPECIAL_TOKENS = 2

PIECE = re.compile(r"\w+|[^\w\s]")
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def sentences() -> tuple[str, ...]:
    """All sentences of three words or more in the docstrings of the standard library's top-level modules, once each."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for docstring in read_docstrings(path):
            for paragraph in docstring.split("\n\n"):
                if ">>>" not in paragraph:
                    found.update(dict.fromkeys(SENTENCE_END.split(" ".join(paragraph.split()))))
    return tuple(sentence for sentence in found if len(sentence.split()) >= 3)


def read_docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield docstring


def make_text(num_tokens: int, chance: random.Random) -> str:
    """Neighbouring sentences from a random place on, cut to about so many tokens (special ones included)."""
    wanted = max(1, round((num_tokens - SPECIAL_TOKENS) / TOKENS_A_PIECE))
    place = chance.randrange(len(sentences()))
    text, num_pieces = "", 0
    while num_pieces < wanted:
        sentence = sentences()[place % len(sentences())]
        text, num_pieces, place = f"{text} {sentence}".strip(), num_pieces + len(PIECE.findall(sentence)), place + 1
    ends = [match.end() for match in PIECE.finditer(text)]
    return text[: ends[wanted - 1]]


def short(chance: random.Random) -> int:
    """About 12 tokens."""
    return chance.randint(8, 16)


def mixed(chance: random.Random) -> int:
    """5 to 500 tokens, lognormal: half of them up to 85, 110 on average."""
    return min(500, max(5, round(chance.lognormvariate(4.44, 0.78))))


def long(chance: random.Random) -> int:
    """About 450 tokens."""
    return chance.randint(400, 500)


LENGTHS: dict[str, Callable[[random.Random], int]] = {"short": short, "mixed": mixed, "long": long}


def make_texts(kind: str, count: int) -> list[str]:
    """Make texts of one of the LENGTHS."""
    chance = random.Random(f"{SEED} {kind}")
    return make_different(count, lambda: make_text(LENGTHS[kind](chance), chance))


def make_texts_of(num_tokens: int, count: int) -> list[str]:
    """Make texts of about the same length."""
    chance = random.Random(f"{SEED} {num_tokens}")
    return make_different(count, lambda: make_text(num_tokens, chance))


def make_different(count: int, make: Callable[[], str]) -> list[str]:
    """Call ``make`` until there are so many different texts: no library shall gain by computing equal ones once."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[make()] = None
    return list(texts)
