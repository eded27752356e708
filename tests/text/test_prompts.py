"""Which prompt wins: the request's own, a named one, that of the text's side, the default, none."""

import pytest

from forebay.core.params import TextParams
from forebay.text.prompts import Prompts

TEXTS = {"query": "find: ", "passage": "text: ", "corpus": "book: ", "clustering": "group: "}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (TextParams(), "group: "),
        (TextParams(prompt="own: "), "own: "),
        (TextParams(prompt=""), ""),
        (TextParams(prompt_name="query"), "find: "),
        (TextParams(input_type="query"), "find: "),
        (TextParams(input_type="document"), "text: "),
        (TextParams(input_type="clustering"), "group: "),
        (TextParams(prompt="own: ", input_type="query"), "own: "),
        (TextParams(prompt="", input_type="query"), ""),
        (TextParams(prompt_name="corpus", input_type="query"), "book: "),
    ],
    ids=str,
)
def test_the_more_precise_word_wins(params: TextParams, expected: str) -> None:
    assert Prompts(TEXTS, "clustering").choose(params) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("document", "passage", "corpus"), "document"),
        (("passage", "corpus"), "passage"),
        (("corpus",), "corpus"),
        (("query",), None),
    ],
)
def test_documents_have_three_names(names: tuple[str, ...], expected: str | None) -> None:
    prompts = Prompts({name: f"{name}: " for name in names})
    assert prompts.choose(TextParams(input_type="document")) == (f"{expected}: " if expected else "")


def test_a_side_without_a_prompt_takes_the_default() -> None:
    assert Prompts({"std": "read: "}, "std").choose(TextParams(input_type="query")) == "read: "


def test_no_prompts_at_all() -> None:
    assert Prompts({}).choose(TextParams()) == ""
    assert Prompts({"query": "find: "}).choose(TextParams()) == ""
