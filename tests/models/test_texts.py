"""Texts of every kind, cut before tokenizing or not, become the tokens that the reference library makes of them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.models.cases import TOLERANCE
from tests.support.store import Store
from tests.support.texts import sentence

FAMILIES = ("bert", "mpnet", "roberta", "xlm-roberta", "camembert")

LONG = {
    "one enormous word": "x" * 5000,
    "letters apart": "x " * 20_000,
    "blanks, then words": " " * 10_000 + "the river " * 40,
    "words, then blanks": "the river" + " " * 10_000,
    "words and wide blanks": ("lake" + " " * 700) * 90,
    "marks on one letter": "e" + "\u0301" * 6000 + " river" * 70,
    "signs that vanish": "\u200b\u00ad\x00" * 4000 + "lake stone " * 50,
    "Chinese": "水车慢慢转" * 3000,
    "emoji": "🌊👩‍🔬🏞️" * 2000,
    "special tokens as text": "[SEP] </s> <mask> [MASK] " * 900,
    "one word more than fits": sentence(63, 5),
    "exactly at the cut": "river " * 682 + "lake",
    "a word across the cut": "a" * 4090 + " riverbank " + "lake " * 100,
}


@pytest.mark.parametrize("family", FAMILIES)
@given(texts=st.lists(st.text(max_size=120), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_as_the_reference_reads_it(store: Store, family: str, texts: list[str]) -> None:
    folder = store.mean_pipeline(family)
    reference = store.reference(folder)
    output = store.engine(folder).embed(texts)
    counts = [len(ids) for ids in reference.model.tokenizer(texts, truncation=True, max_length=64)["input_ids"]]
    assert output.num_tokens.tolist() == counts
    assert np.abs(output.embeddings - reference.embed(texts)).max() <= TOLERANCE


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_are_cut_where_the_reference_cuts(store: Store, family: str, name: str) -> None:
    folder, text = store.mean_pipeline(family), LONG[name]
    reference = store.reference(folder)
    output = store.engine(folder).embed([text])
    full = reference.model.tokenizer(text, truncation=False)["input_ids"]
    assert output.truncated.tolist() == [len(full) > 64]
    assert np.abs(output.embeddings - reference.embed([text])).max() <= TOLERANCE


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_are_cut_from_the_left_too(store: Store, family: str, name: str) -> None:
    folder, text = store.mean_pipeline(family), LONG[name]
    reference = store.reference(folder)
    first, *words, last = reference.model.tokenizer(text, truncation=False)["input_ids"]
    expected = reference.mean_of_ids([first, *words[-62:], last])
    output = store.engine(folder).embed([text], truncation_side="left")
    assert np.abs(output.embeddings[0] - expected).max() <= TOLERANCE
