"""How many tokens are the prompt's, where a checkpoint leaves prompts out of pooling."""

import pytest

from forebay.core.params import TextParams
from tests.support.text import KINDS, reference_ids, text_tokenizer
from tests.support.texts import sentence

PROMPT = "search the document: "


def prompt_size(kind: str) -> int:
    """Tokens of the prompt with the special token in front, without the one behind."""
    return len(reference_ids(kind, PROMPT)) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_token_and_the_prompts_own(kind: str) -> None:
    encoded = text_tokenizer(kind, skips_prompt=True).encode(["the lake", "", "fish"], TextParams(), PROMPT)
    assert encoded.prompt_lens.tolist() == [prompt_size(kind)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_is_nothing_to_leave_out(kind: str) -> None:
    assert text_tokenizer(kind, skips_prompt=True).encode(["the lake"], TextParams(), "").prompt_lens.tolist() == [0]
    assert text_tokenizer(kind).encode(["the lake"], TextParams(), PROMPT).prompt_lens.tolist() == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_got_no_prompt(kind: str) -> None:
    """With the checkpoint's default prompt texts get it and ids do not."""
    items = [reference_ids(kind, "the lake"), "the lake"]
    encoded = text_tokenizer(kind, skips_prompt=True).encode(items, TextParams(), PROMPT)
    assert encoded.prompt_lens.tolist() == [0, prompt_size(kind)]
    assert encoded.ids[0].tolist() == reference_ids(kind, "the lake")


@pytest.mark.parametrize("kind", KINDS)
def test_without_special_tokens(kind: str) -> None:
    params = TextParams(add_special_tokens=False)
    encoded = text_tokenizer(kind, skips_prompt=True).encode(["the lake"], params, PROMPT)
    assert encoded.prompt_lens.tolist() == [prompt_size(kind) - 1]


def test_a_prompt_longer_than_the_limit_leaves_the_end_token() -> None:
    encoded = text_tokenizer("bert", skips_prompt=True).encode(["the lake"], TextParams(max_tokens=4), PROMPT)
    assert encoded.prompt_lens.tolist() == [3]


@pytest.mark.parametrize("max_tokens", range(2, 14))
def test_a_prompt_cut_from_the_left_counts_what_is_left_of_it(max_tokens: int) -> None:
    params = TextParams(max_tokens=max_tokens, truncation_side="left")
    encoded = text_tokenizer("bert", skips_prompt=True).encode(["the lake"], params, PROMPT)
    body = reference_ids("bert", PROMPT + "the lake")[1:-1][2 - max_tokens :] if max_tokens > 2 else []
    of_the_text = min(len(body), 2)
    assert encoded.ids[0][1:-1].tolist() == body
    assert encoded.prompt_lens.tolist() == [1 + len(body) - of_the_text]


def test_a_long_text_cut_from_the_left_has_no_prompt_left() -> None:
    params = TextParams(truncation_side="left")
    encoded = text_tokenizer("bert", skips_prompt=True).encode([sentence(5000, 1), "fish"], params, PROMPT)
    assert encoded.prompt_lens.tolist() == [1, prompt_size("bert")]
