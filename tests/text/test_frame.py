"""The frame of special tokens: found in every kind of template, put once, taken off again."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from forebay.core.errors import UnsupportedCheckpoint
from forebay.text.tokenizer import Frame, lowercase_first, read_frame
from tests.support.text import KINDS


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [("bert", "[CLS]", "[SEP]"), ("mpnet", "<s>", "</s>"), ("roberta", "<s>", "</s>"), ("xlm-roberta", "<s>", "</s>")],
)
def test_it_is_read_from_the_template(kind: str, start: str, end: str) -> None:
    tokenizer = KINDS[kind]()
    frame = read_frame(tokenizer)
    assert frame.prefix.tolist() == [tokenizer.token_to_id(start)]
    assert frame.suffix.tolist() == [tokenizer.token_to_id(end)]
    assert frame.prefix.dtype == frame.suffix.dtype == np.int32
    assert len(frame) == 2


def word_level(template: str | None) -> Tokenizer:
    """Whole words, each its own id; special tokens are x, y and z."""
    vocabulary = {word: index for index, word in enumerate(["?", "x", "y", "z", "river", "lake"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if template is not None:
        specials = [(name, vocabulary[name]) for name in "xyz"]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=specials)
    return tokenizer


@pytest.mark.parametrize(
    ("template", "prefix", "suffix"),
    [
        (None, [], []),
        ("$A", [], []),
        ("$A z", [], [3]),
        ("x $A", [1], []),
        ("x y $A z", [1, 2], [3]),
        ("x $A y z", [1], [2, 3]),
    ],
)
def test_any_number_of_special_tokens(template: str | None, prefix: list[int], suffix: list[int]) -> None:
    frame = read_frame(word_level(template))
    assert (frame.prefix.tolist(), frame.suffix.tolist()) == (prefix, suffix)


def test_a_template_that_drops_the_text_is_refused() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="template"):
        read_frame(word_level("x z"))


FRAME = Frame(np.array([1, 2], np.int32), np.array([3], np.int32))


@pytest.mark.parametrize(
    ("ids", "body"),
    [
        ([1, 2, 7, 8, 3], [7, 8]),
        ([1, 2, 3], []),
        ([1, 2, 1, 2, 7, 3, 3], [1, 2, 7, 3]),  # one frame is taken off, not two
        ([7, 8], [7, 8]),
        ([1, 2, 7], [1, 2, 7]),  # half a frame is none
        ([7, 3], [7, 3]),
        ([1, 3], [1, 3]),
        ([3], [3]),
        ([], []),
    ],
    ids=str,
)
def test_it_is_taken_off_where_it_is_whole(ids: list[int], body: list[int]) -> None:
    assert FRAME.unwrap(np.array(ids, np.int32)).tolist() == body


def test_it_is_put_around() -> None:
    wrapped = FRAME.wrap(np.array([7, 8], np.int32))
    assert wrapped.tolist() == [1, 2, 7, 8, 3]
    assert wrapped.dtype == np.int32


@pytest.mark.parametrize("kind", ["cased", "roberta"])
def test_lower_case_first(kind: str) -> None:
    """With a normaliser there already, and with none."""
    tokenizer, plain = KINDS[kind](), KINDS[kind]()
    lowercase_first(tokenizer)
    for text in ("River LAKE Stone", "ÉTÉ Straße"):
        assert tokenizer.encode(text).ids == plain.encode(text.lower()).ids
    assert tokenizer.encode("RIVER").ids != plain.encode("RIVER").ids
