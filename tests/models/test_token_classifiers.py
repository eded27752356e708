"""Token classifiers against transformers: scores of every token, and the entities of its pipeline."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay import PoolerConfig, PoolingModel
from forebay.core.errors import InvalidRequest
from tests.models.cases import MUTANT_FACTOR
from tests.support.heads import HeadReference, head_folder, reference_of
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra", "albert", "modernbert")
AGGREGATIONS = ("none", "simple", "first", "average", "max")
LOGITS, PROBABILITIES = 1e-4, 1e-5
NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER", "MISC", "I-X-Y")
TAGS = {"num_labels": len(NAMES), "id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)}}
TEXTS = (
    *MIXED,
    "Riverbanks, mill-wheels & weirs: unbelievable!",
    "Zoë Müller fährt naïve Straße — ｆｕｌｌｗｉｄｔｈ ﬁsh",
    "水车慢慢转 the lake 東京",
    "🌊👩‍🔬 the river🏞️flows",
    "e\u0301te\u0301 in the\u00a0lake\u200bside",
    "   ",
    "!",
    "[SEP] </s> the <mask> lake",
    "a\n\nb\tc  d",
    "İstanbul ǅ ŉ ㎞",
)
MODELS = Path("~/.cache/forebay-models").expanduser()


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max(initial=0))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers(store: Store, family: str) -> None:
    folder = head_folder(store, family, "token", **TAGS)
    reference, engine = reference_of(folder, "token"), store.engine(folder)
    expected = reference.token_logits(TEXTS)
    raw, output = engine.token_classify(TEXTS, use_activation=False), engine.token_classify(TEXTS)
    assert output.labels == NAMES
    for index, logits in enumerate(expected):
        assert raw[index].shape == logits.shape
        assert difference(raw[index], logits) <= LOGITS
        assert difference(output[index], torch.from_numpy(logits).softmax(-1)) <= PROBABILITIES
        assert output.is_special[index].tolist() == [True, *[False] * (len(logits) - 2), True]
    assert output.num_tokens.tolist() == [len(logits) for logits in expected]
    for name, wrong in mistakes(reference, expected).items():
        assert max(map(difference, wrong, expected)) >= MUTANT_FACTOR * LOGITS, name


def mistakes(reference: HeadReference, expected: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    states, mask = reference.states(TEXTS)
    lens = mask[..., 0].sum(1).long().tolist()
    with torch.no_grad():
        after_tanh = reference.model.classifier(states.tanh()).numpy()
    return {
        "the head of a sequence": [rows[:length] for rows, length in zip(after_tanh, lens, strict=True)],
        "one token late": [np.roll(logits, 1, axis=0) for logits in expected],
        "labels turned round": [logits[:, ::-1] for logits in expected],
        "softmax": [torch.from_numpy(logits).softmax(-1).numpy() for logits in expected],
    }


def test_scores_by_problem_type(store: Store) -> None:
    folder = head_folder(store, "bert", "token", problem_type="multi_label_classification", **TAGS)
    expected = reference_of(folder, "token").token_logits(TEXTS)
    for row, logits in zip(store.engine(folder).token_classify(TEXTS), expected, strict=True):
        assert difference(row, torch.from_numpy(logits).sigmoid()) <= PROBABILITIES


def entities_of(reference: HeadReference, texts: list[str], aggregation: str) -> list[list[tuple[Any, ...]]]:
    """(label, start, end, score) as the pipeline tells them."""
    pipeline = transformers.pipeline(
        "token-classification",
        model=reference.model,
        tokenizer=reference.tokenizer,
        aggregation_strategy=aggregation,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that some tokenizers know no words
        answers = [pipeline(text) for text in texts]
    label = "entity" if aggregation == "none" else "entity_group"
    return [[(one[label], one["start"], one["end"], float(one["score"])) for one in row] for row in answers]


def assert_same_entities(engine: PoolingModel, reference: HeadReference, texts: list[str], aggregation: str) -> int:
    found = engine.token_classify(texts, aggregation=aggregation).entities
    assert found is not None
    expected = entities_of(reference, texts, aggregation)
    for text, own, theirs in zip(texts, found, expected, strict=True):
        assert [one[:1] + one[2:4] for one in own] == [one[:3] for one in theirs], text[:60]
        assert difference([one.score for one in own], [one[3] for one in theirs]) <= PROBABILITIES
        assert [one.text for one in own] == [text[one.start : one.end] for one in own]
    return sum(map(len, expected))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_entities_are_those_of_the_pipeline(store: Store, family: str, aggregation: str) -> None:
    folder = head_folder(store, family, "token", **TAGS)
    assert assert_same_entities(store.engine(folder), reference_of(folder, "token"), list(TEXTS), aggregation) > 10


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@given(
    text=st.text(alphabet=st.one_of(st.sampled_from("the lake-, \n[]é水🌊"), st.characters(codec="utf-8")), max_size=60)
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_entities_of_any_text(store: Store, family: str, text: str) -> None:
    folder = head_folder(store, family, "token", **TAGS)
    for aggregation in ("none", "simple", "average"):
        assert_same_entities(store.engine(folder), reference_of(folder, "token"), [text], aggregation)


def test_aggregations_differ(store: Store) -> None:
    folder = head_folder(store, "bert", "token", **TAGS)
    found = [store.engine(folder).token_classify(TEXTS, aggregation=name).entities for name in AGGREGATIONS]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])


@pytest.mark.parametrize("aggregation", [None, "simple", "average"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_cut_texts(store: Store, side: str, aggregation: str | None) -> None:
    """Entities stand where they stand in the whole text, whichever end was cut away."""
    folder = head_folder(store, "bert", "token", **TAGS)
    text = sentence(300, 3)
    output = store.engine(folder).token_classify([text], aggregation=aggregation, truncation_side=side)
    assert output.truncated.tolist() == [True]
    assert len(output[0]) == len(output.is_special[0]) == 64
    if output.entities is not None:
        reference = HeadReference(folder, "token")
        reference.tokenizer.truncation_side = side
        (expected,) = entities_of(reference, [text], str(aggregation))
        assert [(one.label, one.start, one.end) for one in output.entities[0]] == [one[:3] for one in expected]
        assert (output.entities[0][0].start > 500) == (side == "left")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_prompt_has_no_entities(store: Store, aggregation: str) -> None:
    """Its tokens are read, and their characters are not the text's."""
    folder = head_folder(store, "bert", "token", **TAGS)
    prompt, text = "riverbank query: ", "the deep lake flows over stone"
    (entities,) = store.engine(folder).token_classify([text], prompt=prompt, aggregation=aggregation).entities or ()
    (whole,) = entities_of(reference_of(folder, "token"), [prompt + text], aggregation)
    behind = [(one[0], one[1] - len(prompt), one[2] - len(prompt)) for one in whole if one[1] > len(prompt)]
    found = [(one.label, one.start, one.end) for one in entities]
    assert found[-len(behind) :] == behind
    assert all(start < end <= len(text) for _, start, end in found)


def test_token_ids_have_scores_but_no_entities(store: Store) -> None:
    folder = head_folder(store, "bert", "token", **TAGS)
    reference, engine = reference_of(folder, "token"), store.engine(folder)
    ids = reference.tokenizer(MIXED[3])["input_ids"]
    assert difference(engine.token_classify([ids])[0], engine.token_classify([MIXED[3]])[0]) <= 1e-6
    with pytest.raises(InvalidRequest, match="aggregation"):
        engine.token_classify([ids], aggregation="simple")


def test_steps_have_no_entities(store: Store) -> None:
    folder = head_folder(store, "bert", "token", **TAGS)
    engine = store.engine(folder, pooler_config=PoolerConfig(tok_pooling_type="STEP", step_tag_id=7))
    with pytest.raises(InvalidRequest, match="aggregation"):
        engine.token_classify(["the lake"], aggregation="simple")


def test_an_unknown_aggregation(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="none, simple, first, average, max"):
        store.engine(head_folder(store, "bert", "token", **TAGS)).token_classify("a", aggregation="last")


PRIVATE = [
    "My name is Anna-Maria O'Neill and I live at 12 Baker Street, London NW1 6XE.",
    "Write to jane.doe@example.com or call +44 20 7946 0958; my passport is 533401234.",
    "Ich heiße Jürgen Müßig, IBAN DE89 3704 0044 0532 0130 00.",
    "",
    "Nothing private in here 🌊, is there?",
    "Routing 021000021, account 123456789 for José Ñandú; https://example.org/~josé",
]


@pytest.mark.parity
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_real_model_of_private_data(store: Store, aggregation: str) -> None:
    folder = MODELS / "rampart-pii-ner"
    if not folder.exists():
        pytest.skip(f"the checkpoint rampart-pii-ner is not there: expected it in {MODELS}")
    engine, reference = store.engine(folder), reference_of(folder, "token")
    if aggregation == "none":
        logits = [reference.model(**reference.tokenizer(text, return_tensors="pt")).logits[0] for text in PRIVATE]
        for own, theirs in zip(engine.token_classify(PRIVATE, use_activation=False), logits, strict=True):
            assert difference(own, theirs.detach()) <= LOGITS
    assert assert_same_entities(engine, reference, PRIVATE, aggregation) > 15
