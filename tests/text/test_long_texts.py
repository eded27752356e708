"""Only the part of a long text that can matter is tokenized, and the ids are those of the whole text."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from forebay.core.params import TextParams
from forebay.text.tokenizer import TextTokenizer
from tests.support.text import KINDS
from tests.support.tokenizers import WORDS

SIDES = ("left", "right")
TOKENIZERS: dict[str, Tokenizer] = {kind: make() for kind, make in KINDS.items()}


def check(kind: str, text: str, max_len: int, side: str) -> None:
    """The ids, and whether some were left out, are those of the whole text."""
    tokenizer = TOKENIZERS[kind]
    texts = TextTokenizer(tokenizer, max_len=max_len, vocab_size=10**6, side=side)  # type: ignore[arg-type]
    encoded = texts.encode([text], TextParams(), "")
    whole, room = tokenizer.encode(text, add_special_tokens=False).ids, max_len - 2
    expected = whole[:room] if side == "right" else whole[max(0, len(whole) - room) :]
    assert encoded.ids[0][1:-1].tolist() == expected
    assert encoded.truncated.tolist() == [len(whole) > room]


def blob(letters: str, size: int, seed: int) -> str:
    """Letters without a blank between them."""
    return "".join(random.Random(seed).choices(letters, k=size))


def words(count: int, blanks: int, seed: int) -> str:
    return (" " * blanks).join(random.Random(seed).choices(WORDS, k=count)) + " " * blanks


SEEDS = st.integers(0, 10**6)
PIECES = st.one_of(
    st.builds(words, st.integers(1, 300), st.integers(1, 60), SEEDS),
    st.builds(blob, st.just("abcdefghij"), st.integers(1, 3000), SEEDS),
    st.builds(blob, st.just("qz"), st.integers(90, 110), SEEDS),
    st.builds(blob, st.just("水车慢慢转。"), st.integers(1, 2000), SEEDS),
    st.builds(blob, st.just("🌊🏞é\u0301\u200b\u00adẞ한국\u3000\n"), st.integers(1, 1500), SEEDS),
    st.builds(blob, st.just(" \t\n\r"), st.integers(1, 3000), SEEDS),
    st.text(max_size=200),
)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
@given(st.lists(PIECES, min_size=2, max_size=9).map("".join), st.sampled_from([8, 64, 200]), st.sampled_from(SIDES))
@settings(max_examples=25, deadline=None)
def test_ids_are_those_of_the_whole_text(kind: str, text: str, max_len: int, side: str) -> None:
    check(kind, text, max_len, side)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_words", [30, 42, 54, 61])
@pytest.mark.parametrize("num_cut", [10, 64, 90, 99])
@pytest.mark.parametrize("kind", KINDS)
def test_a_word_that_the_cut_divides(kind: str, num_cut: int, num_words: int, side: str) -> None:
    """WordPiece makes one unknown token of 200 letters, but many tokens of the few that stand before the cut."""
    sparse = ("river" + " " * ((4096 - num_cut) // num_words - 5)) * num_words
    near, monster, far = sparse.ljust(4096 - num_cut), "q" * 200, " lake" * 500
    if side == "left":
        near, far = near[::-1].replace("revir", "river"), far[::-1].replace("ekal", "lake")
    check(kind, near + monster + far if side == "right" else far + monster + near, 64, side)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_blanks_that_hide_the_words(kind: str, side: str) -> None:
    """One word in a thousand blanks: the first cut holds far too few tokens, and more is read."""
    check(kind, ("river" + " " * 995) * 90, 64, side)


def test_what_is_beyond_reach_is_told() -> None:
    """A text of blanks, longer than is ever read, counts as cut though nothing of it was seen."""
    texts = TextTokenizer(TOKENIZERS["bert"], max_len=8, vocab_size=10**6)
    encoded = texts.encode(["lake" + " " * 3_000_000, "lake" + " " * 3000], TextParams(), "")
    assert encoded.truncated.tolist() == [True, False]
    assert len({row.tobytes() for row in encoded.ids}) == 1
