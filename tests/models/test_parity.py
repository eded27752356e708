"""Every architecture against sentence-transformers on the same folder, each with mistakes that must be seen."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.models.cases import CASES, MUTANT_FACTOR, TOLERANCE, Case
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

CASE_NAMES = [case.name for case in CASES]
MUTANTS = [pytest.param(case, name, id=f"{case.name}: {name}") for case in CASES for name in case.mutants]
OFFSET_FAMILIES = ("roberta", "xlm-roberta", "camembert", "mpnet")
FAMILIES = ("bert", "distilbert", *OFFSET_FAMILIES)


def largest_difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_embeddings_are_the_reference_librarys(store: Store, case: Case) -> None:
    folder = store.mean_pipeline(case.family, **case.changes)
    expected = store.reference(folder).embed(MIXED)
    output = store.engine(folder).embed(MIXED)
    assert output.embeddings.dtype == np.float32
    assert output.embeddings.shape == expected.shape
    assert largest_difference(output, expected) <= case.tolerance


@pytest.mark.parametrize(("case", "mutant"), MUTANTS)
def test_a_mistake_would_be_seen(store: Store, case: Case, mutant: str) -> None:
    folder = store.mean_pipeline(case.family, **case.changes)
    reference = store.reference(folder)
    wrong = case.mutants[mutant](reference, MIXED)
    assert largest_difference(wrong, reference.embed(MIXED)) >= MUTANT_FACTOR * case.tolerance


@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_tokens_are_counted_and_truncation_is_told(store: Store, case: Case) -> None:
    folder = store.mean_pipeline(case.family, **case.changes)
    tokenizer = store.reference(folder).model.tokenizer
    limit = store.engine(folder).info.abilities.max_len
    full = [len(tokenizer(text, truncation=False)["input_ids"]) for text in MIXED]
    output = store.engine(folder).embed(MIXED)
    assert limit == case.changes.get("max_position_embeddings", 64) or limit == 64
    assert output.num_tokens.tolist() == [min(count, limit) for count in full]
    assert output.truncated.tolist() == [count > limit for count in full]


@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids_give_what_the_text_gives(store: Store, family: str) -> None:
    folder = store.mean_pipeline(family)
    texts = [text for text in MIXED if len(text) < 150]
    ids = store.reference(folder).model.tokenizer(texts, truncation=True, max_length=64)["input_ids"]
    engine = store.engine(folder)
    assert largest_difference(engine.embed(ids), engine.embed(texts)) <= 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_one_list_of_ids_is_one_item(store: Store, family: str) -> None:
    folder = store.mean_pipeline(family)
    ids = [7, 21, 40, 33, 8]
    output = store.engine(folder).embed(ids)
    assert output.embeddings.shape[0] == 1
    reference = store.reference(folder)
    assert output.num_tokens.tolist() == [len(ids) + 2]
    assert largest_difference(output[0], reference.mean_of_ids(reference.frame(ids))) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_ids_inside_token_ids(store: Store, family: str) -> None:
    """RoBERTa's positions skip the padding id; MPNet has the same rule, BERT and DistilBERT have none."""
    folder = store.mean_pipeline(family)
    rows = [[0, 7, 1, 8, 1, 1, 23, 2], [1, 9, 9, 2], [0, 30, 2, 1], [5, 6, 7]]
    reference = store.reference(folder)
    expected = np.stack([reference.mean_of_ids(reference.frame(row)) for row in rows])
    assert largest_difference(store.engine(folder).embed(rows), expected) <= TOLERANCE


@pytest.mark.parametrize("family", OFFSET_FAMILIES)
def test_counting_padding_ids_would_be_seen(store: Store, family: str) -> None:
    reference = store.reference(store.mean_pipeline(family))
    row = [0, 7, 1, 8, 1, 1, 23, 2]
    wrong = reference.mean_of_ids(row, position_ids=torch.arange(2, 2 + len(row))[None])
    assert largest_difference(wrong, reference.mean_of_ids(row)) >= MUTANT_FACTOR * TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_fifty_calls_give_one_result(store: Store, family: str) -> None:
    """Positions that are changed in place drift from call to call."""
    engine = store.engine(store.mean_pipeline(family))
    texts = [sentence(9, 1), sentence(20, 2), "a"]
    first = engine.embed(texts).embeddings
    for _ in range(50):
        assert np.array_equal(engine.embed(texts).embeddings, first)


@pytest.mark.parametrize("family", FAMILIES)
def test_truncation_from_the_left_keeps_the_end(store: Store, family: str) -> None:
    folder = store.mean_pipeline(family)
    reference, text = store.reference(folder), sentence(200, 9)
    expected = reference.mean_of_ids(_cut(reference.model.tokenizer, text, "left", 64))
    right = reference.mean_of_ids(_cut(reference.model.tokenizer, text, "right", 64))
    output = store.engine(folder).embed([text], truncation_side="left")
    assert output.truncated.tolist() == [True]
    assert largest_difference(output[0], expected) <= TOLERANCE
    assert largest_difference(right, expected) >= MUTANT_FACTOR * TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_tokens", [3, 10, 64])
def test_max_tokens_lowers_the_limit(store: Store, family: str, max_tokens: int) -> None:
    folder = store.mean_pipeline(family)
    reference, text = store.reference(folder), sentence(200, 9)
    expected = reference.mean_of_ids(_cut(reference.model.tokenizer, text, "right", max_tokens))
    output = store.engine(folder).embed([text, "a"], max_tokens=max_tokens)
    assert output.num_tokens.tolist() == [max_tokens, 3]
    assert largest_difference(output[0], expected) <= TOLERANCE


def _cut(tokenizer: object, text: str, side: str, length: int) -> Sequence[int]:
    """The ids as transformers truncates them, worked out by hand: the special tokens stay, the words give way."""
    ids: list[int] = tokenizer(text, truncation=False)["input_ids"]  # type: ignore[operator]
    first, *words, last = ids
    kept = words[-(length - 2) :] if side == "left" else words[: length - 2]
    return [first, *kept, last]
