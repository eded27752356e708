"""Texts and ids become the library's own ids, framed once and cut where the library cuts; errors name their field."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.errors import ForebayError, InputTooLong, InvalidRequest
from forebay.core.params import TextParams
from forebay.core.request import Item
from forebay.text.tokenizer import TextTokenizer
from tests.support.text import KINDS, reference_ids, text_tokenizer
from tests.support.texts import MIXED, sentence

SIDES = ("left", "right")


def ids_of(tokenizer: TextTokenizer, items: list[Item], **params: Any) -> list[list[int]]:
    return [row.tolist() for row in tokenizer.encode(items, TextParams(**params), "").ids]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_len", [2, 3, 9, 64])
def test_texts_are_cut_as_the_library_cuts(kind: str, max_len: int, side: str) -> None:
    encoded = text_tokenizer(kind, max_len, side=side).encode(MIXED, TextParams(), "")
    expected = [reference_ids(kind, text, max_len, side) for text in MIXED]
    assert [row.tolist() for row in encoded.ids] == expected
    whole = [len(reference_ids(kind, text)) for text in MIXED]
    assert encoded.truncated.tolist() == [length > max_len for length in whole]


@given(st.lists(st.text(max_size=60), max_size=5), st.integers(2, 12), st.sampled_from(SIDES))
@settings(max_examples=60, deadline=None)
def test_any_texts_are_cut_as_the_library_cuts(texts: list[str], max_tokens: int, side: str) -> None:
    for kind in ("bert", "roberta", "xlm-roberta"):
        found = ids_of(text_tokenizer(kind), texts, max_tokens=max_tokens, truncation_side=side)  # type: ignore[arg-type]
        assert found == [reference_ids(kind, text, max_tokens, side) for text in texts]


def test_the_requests_side_overrides_the_checkpoints(kind: str) -> None:
    text = sentence(40, 7)
    tokenizer = text_tokenizer(kind, 9, side="left")
    assert ids_of(tokenizer, [text]) == [reference_ids(kind, text, 9, "left")]
    assert ids_of(tokenizer, [text], truncation_side="right") == [reference_ids(kind, text, 9, "right")]


def test_ids_are_framed_exactly_once(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    framed = reference_ids(kind, "the river flows")
    bare = framed[1:-1]
    assert ids_of(tokenizer, [bare, framed, np.array(bare), tuple(framed)]) == [framed] * 4  # type: ignore[list-item]


def test_ids_without_special_tokens_are_left_alone(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    framed = reference_ids(kind, "the river flows")
    found = ids_of(tokenizer, [framed, framed[1:-1], "the river flows", ""], add_special_tokens=False)
    assert found == [framed, framed[1:-1], framed[1:-1], []]


@pytest.mark.parametrize("side", SIDES)
def test_ids_are_cut_like_the_text_they_came_from(kind: str, side: str) -> None:
    text = sentence(30, 8)
    framed = reference_ids(kind, text)
    encoded = text_tokenizer(kind, 11, side=side).encode([framed, framed[1:-1], text], TextParams(), "")
    assert [row.tolist() for row in encoded.ids] == [reference_ids(kind, text, 11, side)] * 3
    assert encoded.truncated.all()


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(2, 20), st.sampled_from(SIDES))
@settings(max_examples=60, deadline=None)
def test_framing_is_idempotent(ids: list[int], max_tokens: int, side: str) -> None:
    """What comes out, sent again, comes out the same."""
    tokenizer = text_tokenizer("bert")
    once = ids_of(tokenizer, [ids], max_tokens=max_tokens, truncation_side=side)
    assert ids_of(tokenizer, once, max_tokens=max_tokens, truncation_side=side) == once  # type: ignore[arg-type]


def test_without_a_frame_of_its_own() -> None:
    """Static embeddings read no special tokens."""
    tokenizer = text_tokenizer("bert", has_specials=False)
    assert ids_of(tokenizer, ["the river", ""]) == [reference_ids("bert", "the river")[1:-1], []]


def test_texts_and_ids_keep_their_places(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    items: list[Item] = ["the lake", reference_ids(kind, "a dam"), "", reference_ids(kind, "fish"), "cold water"]
    texts = ["the lake", "a dam", "", "fish", "cold water"]
    assert ids_of(tokenizer, items) == [reference_ids(kind, text) for text in texts]


def test_nothing_gives_nothing(kind: str) -> None:
    encoded = text_tokenizer(kind).encode([], TextParams(truncate=False), "")
    assert (encoded.ids, len(encoded.truncated), len(encoded.prompt_lens)) == ([], 0, 0)


def test_a_limit_above_the_models_own_does_not_raise_it(kind: str) -> None:
    """Routes of one checkpoint may differ in length; each keeps its own limit."""
    text = sentence(40, 9)
    assert ids_of(text_tokenizer(kind, 9), [text], max_tokens=30) == [reference_ids(kind, text, 9)]


def test_prompts_stand_before_the_text(kind: str) -> None:
    encoded = text_tokenizer(kind).encode(["the lake", ""], TextParams(), "query: ")
    whole = ("query: the lake", "query: ")
    assert [row.tolist() for row in encoded.ids] == [reference_ids(kind, text) for text in whole]
    assert encoded.prompt_lens.tolist() == [0, 0]


SURROGATES = {
    "a\ud800b": "a\ufffdb",
    "\ud83d": "\ufffd",
    "\udc00 river": "\ufffd river",
    "lake \ud83d\ude00 river": "lake \U0001f600 river",  # a pair in two halves is the sign it stands for
    "\ufeffa\ud800": "\ufeffa\ufffd",
}


@pytest.mark.parametrize("text", SURROGATES, ids=ascii)
def test_lone_surrogates_are_replaced(kind: str, text: str) -> None:
    found = ids_of(text_tokenizer(kind), ["the river", text, "a lake"])
    assert found == [reference_ids(kind, good) for good in ("the river", SURROGATES[text], "a lake")]


def refusal(items: list[Any], tokenizer: TextTokenizer | None = None, **params: Any) -> ForebayError:
    with pytest.raises(ForebayError) as caught:
        (tokenizer or text_tokenizer("bert")).encode(items, TextParams(**params), "")
    assert isinstance(caught.value, InvalidRequest)
    return caught.value


SIZE = KINDS["bert"]().get_vocab_size()


@pytest.mark.parametrize(
    "ids",
    [[-1], [5, SIZE], [2**40], [2**70], [1.5], [5, "6"], [[5]], [[5], [6, 7]], [True], [None], {5, 6}, [5, None]],
    ids=str,
)
def test_ids_that_are_none_are_refused_by_their_place(ids: Any) -> None:
    assert refusal(["a text", [5], ids]).field == "input[2]"


def test_the_edges_of_the_vocabulary() -> None:
    assert ids_of(text_tokenizer("bert"), [[0, SIZE - 1]])[0][1:-1] == [0, SIZE - 1]


def test_no_ids_at_all() -> None:
    assert ids_of(text_tokenizer("bert"), [[]]) == [reference_ids("bert", "")]
    assert refusal(["a", []], add_special_tokens=False).field == "input[1]"


def test_too_long_names_the_item_and_the_numbers() -> None:
    exact, longer = sentence(62, 1), sentence(63, 1)
    assert len(ids_of(text_tokenizer("bert"), [exact], truncate=False)[0]) == 64
    error = refusal(["a", exact, longer, longer], truncate=False)
    assert isinstance(error, InputTooLong)
    assert error.field == "input[2]"
    assert "65" in error.message
    assert "64" in error.message


def test_too_long_ids_are_refused_too() -> None:
    assert refusal([[5] * 62, [5] * 63], truncate=False).field == "input[1]"


def test_less_room_than_the_frame_takes() -> None:
    assert refusal(["a"], max_tokens=1).field == "max_tokens"
    assert ids_of(text_tokenizer("bert"), ["the river"], max_tokens=2) == [reference_ids("bert", "")]
    assert ids_of(text_tokenizer("bert"), ["the river"], max_tokens=1, add_special_tokens=False) == [
        reference_ids("bert", "the")[1:-1]
    ]


@pytest.mark.parametrize("params", [{"prompt": "query: "}, {"prompt_name": "query"}])
def test_a_prompt_before_ids_is_refused(params: dict[str, str]) -> None:
    assert refusal(["a", [5]], **params).field == "prompt"


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    narrow = TextTokenizer(KINDS["bert"](), max_len=64, vocab_size=20)
    assert "vocabulary of 20" in refusal(["dam"], narrow).message


def test_errors_do_not_repeat_the_text() -> None:
    secret = "xylophone " * 100
    for error in (refusal([secret], truncate=False), refusal([[secret]]), refusal([[5], secret.split()])):
        assert "xylo" not in error.message
