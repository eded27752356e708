"""Sequence classifiers of every architecture against transformers, each with mistakes that must be seen."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from forebay import PoolerConfig, PoolingModel
from tests.models.cases import MUTANT_FACTOR
from tests.support import pipelines
from tests.support.heads import HeadReference, head_folder, pooled_by, reference_of
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra", "albert", "modernbert")
LOGITS, PROBABILITIES = 1e-4, 1e-5
LABELS = tuple(f"name {index}" for index in range(12))
TWELVE = {"num_labels": 12, "id2label": dict(enumerate(LABELS)), "label2id": {n: i for i, n in enumerate(LABELS)}}

RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "distilbert": torch.relu,
    "electra": nn.functional.gelu,
    "modernbert": nn.functional.gelu,
}
"""What stands between the two linear layers; the tangent for all others."""


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def by_hand(
    reference: HeadReference, *, rows: str = "first", between: Callable[[Tensor], Tensor] | None = torch.tanh
) -> np.ndarray:
    """The head's formula on the body's states; ``between`` None leaves the inner layer out."""
    inner, outer = reference.sequence_layers
    with torch.no_grad():
        x = pooled_by(rows, *reference.states(MIXED))
        return outer(x if between is None else between(inner(x))).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(store: Store, family: str) -> None:
    folder = head_folder(store, family, "sequence", **TWELVE)
    expected = reference_of(folder, "sequence").logits(MIXED)
    output = store.engine(folder).classify(MIXED, use_activation=False)
    assert output.scores.dtype == np.float32
    assert output.scores.shape == (len(MIXED), 12)
    assert output.labels == LABELS
    assert difference(output.scores, expected) <= LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_mistakes_in_the_head_would_be_seen(store: Store, family: str) -> None:
    reference = reference_of(head_folder(store, family, "sequence", **TWELVE), "sequence")
    expected, right = reference.logits(MIXED), RIGHT.get(family, torch.tanh)
    assert difference(by_hand(reference, between=right), expected) <= LOGITS / 10
    mistakes = {
        "no pooler": by_hand(reference, between=None),
        "no activation": by_hand(reference, between=lambda x: x),
        "another activation": by_hand(reference, between=torch.relu if right is not torch.relu else torch.tanh),
        "tanh and GELU exchanged": by_hand(
            reference, between=torch.tanh if right is nn.functional.gelu else nn.functional.gelu
        ),
        "mean of the tokens": by_hand(reference, rows="mean", between=right),
        "last token": by_hand(reference, rows="last", between=right),
        "labels turned round": expected[:, ::-1],
    }
    for name, wrong in mistakes.items():
        assert difference(wrong, expected) >= MUTANT_FACTOR * LOGITS, name


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "five labels": ({"num_labels": 5}, "softmax"),
    "single label": ({"num_labels": 5, "problem_type": "single_label_classification"}, "softmax"),
    "multi label": ({"num_labels": 5, "problem_type": "multi_label_classification"}, "sigmoid"),
    "one label": ({"num_labels": 1}, "sigmoid"),
    "multi label, one": ({"num_labels": 1, "problem_type": "multi_label_classification"}, "sigmoid"),
    "regression": ({"num_labels": 1, "problem_type": "regression"}, "identity"),
    "regression of three": ({"num_labels": 3, "problem_type": "regression"}, "identity"),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sigmoid twice": lambda x: x.sigmoid().sigmoid(),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_scores_are_those_of_the_pipeline(store: Store, family: str, name: str) -> None:
    """transformers' own pipeline chooses the activation by problem_type and the number of labels."""
    changes, activation = PROBLEMS[name]
    folder = head_folder(store, family, "sequence", **changes)
    reference = reference_of(folder, "sequence")
    pipeline = transformers.pipeline("text-classification", model=reference.model, tokenizer=reference.tokenizer)
    engine = store.engine(folder)
    output = engine.classify(MIXED)
    answers = pipeline(list(MIXED), top_k=None, truncation=True, max_length=64)
    expected = np.array(
        [[{one["label"]: one["score"] for one in row}[label] for label in output.labels] for row in answers]
    )
    assert difference(output.scores, expected) <= PROBABILITIES
    said = {decision.name: decision.value for decision in engine.info.decisions}
    assert said["activation"] == activation
    logits = torch.from_numpy(reference.logits(MIXED))
    for other, function in FUNCTIONS.items():
        if other != activation:
            assert difference(function(logits), expected) >= MUTANT_FACTOR * PROBABILITIES, other
    assert difference(engine.classify(MIXED, use_activation=False).scores, logits) <= LOGITS


def test_the_best_label_and_its_score(store: Store) -> None:
    """Twelve labels: sorted as texts, "10" would stand before "2"."""
    folder = head_folder(store, "bert", "sequence", **TWELVE)
    reference = reference_of(folder, "sequence")
    pipeline = transformers.pipeline("text-classification", model=reference.model, tokenizer=reference.tokenizer)
    expected = pipeline(list(MIXED), truncation=True, max_length=64)
    found = store.engine(folder).classify(MIXED).top
    assert [label for label, _ in found] == [one["label"] for one in expected]
    assert len({label for label, _ in found} & {"name 2", "name 3", "name 10", "name 11"}) > 0
    assert difference([score for _, score in found], [one["score"] for one in expected]) <= PROBABILITIES


def test_the_number_of_labels_stands_at_the_top(store: Store, tmp_path: Path) -> None:
    """A nested config with a default of two labels says nothing of this head."""
    folder = Path(shutil.copytree(head_folder(store, "bert", "sequence", num_labels=5), tmp_path / "nested"))
    _edit(folder / "config.json", text_config={"num_labels": 2, "id2label": {"0": "no", "1": "yes"}})
    expected = reference_of(head_folder(store, "bert", "sequence", num_labels=5), "sequence").logits(MIXED)
    with PoolingModel(str(folder)) as model:
        output = model.classify(MIXED, use_activation=False)
    assert output.labels == tuple(f"LABEL_{index}" for index in range(5))
    assert difference(output.scores, expected) <= LOGITS


IDENTITY, SIGMOID, TANH = (
    f"torch.nn.modules.{name}" for name in ("linear.Identity", "activation.Sigmoid", "activation.Tanh")
)
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "nothing": ({}, None),
    "oldest place, Identity": ({"sbert_ce_default_activation_function": IDENTITY}, None),
    "oldest place, Sigmoid": ({"sbert_ce_default_activation_function": SIGMOID}, None),
    "middle place": ({"sentence_transformers": {"activation_fn": TANH, "version": "4.1.0"}}, None),
    "middle before oldest": (
        {"sentence_transformers": {"activation_fn": TANH}, "sbert_ce_default_activation_function": IDENTITY},
        None,
    ),
    "new place": ({}, {"activation_fn": IDENTITY}),
    "new before middle": ({"sentence_transformers": {"activation_fn": TANH}}, {"activation_fn": IDENTITY}),
    "middle before the kind of problem": (
        {"sentence_transformers": {"activation_fn": TANH}, "problem_type": "regression"},
        None,
    ),
    "oldest before the kind of problem": (
        {"sbert_ce_default_activation_function": IDENTITY, "problem_type": "multi_label_classification"},
        None,
    ),
    "new before the kind of problem": ({"problem_type": "regression"}, {"activation_fn": SIGMOID}),
    "new place, empty": ({"sbert_ce_default_activation_function": IDENTITY}, {"activation_fn": None}),
}


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("place", PLACES)
def test_the_activation_of_a_cross_encoder(store: Store, place: str, num_labels: int, tmp_path: Path) -> None:
    """Pairs go in as token ids: this family marks the second text by separators alone."""
    config, saved = PLACES[place]
    folder = tmp_path / "cross"
    source = head_folder(store, "roberta", "sequence", num_labels=num_labels)
    if saved is None:
        shutil.copytree(source, folder)
    else:
        CrossEncoder(str(source), device="cpu").save_pretrained(str(folder))
        _edit(folder / "config_sentence_transformers.json", **saved)
    _edit(folder / "config.json", **config)
    reference = CrossEncoder(str(folder), device="cpu")
    pairs = [(sentence(7, 1), sentence(20, 2)), ("the lake", "a deep lake"), ("a", sentence(30, 3))]
    is_default = config == {} and saved is None
    expected = reference.predict(pairs, apply_softmax=is_default and num_labels == 3)
    ids = reference.tokenizer([a for a, _ in pairs], [b for _, b in pairs])["input_ids"]
    with PoolingModel(str(folder)) as model:
        scores = model.classify(ids).scores
    assert difference(scores, expected.reshape(len(pairs), num_labels)) <= PROBABILITIES
    with_others = [reference.predict(pairs, activation_fn=fn) for fn in (nn.Identity(), nn.Sigmoid(), nn.Tanh())]
    wrong = [difference(other, expected) for other in with_others]
    assert sum(delta >= MUTANT_FACTOR * PROBABILITIES for delta in wrong) >= 2


def test_half_precision_keeps_the_order(store: Store, tmp_path: Path) -> None:
    """Logits from 6 to 12 become one number where the sigmoid is computed in bfloat16."""
    folder = Path(shutil.copytree(head_folder(store, "bert", "sequence", num_labels=1), tmp_path / "half"))
    texts = [sentence(length, 40 + length) for length in range(3, 40)]
    raw = reference_of(head_folder(store, "bert", "sequence", num_labels=1), "sequence").logits(texts)
    with PoolingModel(str(folder), dtype="bfloat16") as half:
        spread = half.classify(texts, use_activation=False).scores
    assert difference(spread, raw) >= 1e-3, "the body was not computed in bfloat16"
    low, high = float(spread.min()), float(spread.max())
    sigma = (high - low) / 6
    calibrated = PoolerConfig(logit_mean=low - 6 * sigma, logit_sigma=sigma)
    with PoolingModel(str(folder), dtype="bfloat16", pooler_config=calibrated) as half:
        logits = torch.from_numpy(half.classify(texts, use_activation=False).scores)
        scores = half.classify(texts).scores
    assert 5.9 < float(logits.min()) < float(logits.max()) < 12.1
    assert difference(scores, logits.sigmoid()) <= 1e-7
    assert (np.diff(scores[np.argsort(logits[:, 0].numpy()), 0]) >= 0).all()
    assert len(np.unique(scores)) >= len(texts) - 1
    assert len(logits.bfloat16().sigmoid().unique()) < len(texts) / 2


@pytest.mark.parametrize("num_labels", [1, 4])
def test_calibration_comes_before_the_activation(store: Store, num_labels: int) -> None:
    folder = head_folder(store, "distilbert", "sequence", num_labels=num_labels)
    logits = torch.from_numpy(reference_of(folder, "sequence").logits(MIXED))
    engine = store.engine(folder, pooler_config=PoolerConfig(logit_mean=0.75, logit_sigma=2.5))
    function = FUNCTIONS["sigmoid" if num_labels == 1 else "softmax"]
    moved = (logits - 0.75) / 2.5
    assert difference(engine.classify(MIXED, use_activation=False).scores, moved) <= LOGITS
    assert difference(engine.classify(MIXED).scores, function(moved)) <= PROBABILITIES
    wrong_mean = function(logits / 2.5 - 0.75) if num_labels == 1 else function(logits)  # softmax sees no shift
    for wrong in (function(logits), wrong_mean, (function(logits) - 0.75) / 2.5):
        assert difference(wrong, function(moved)) >= MUTANT_FACTOR * PROBABILITIES


def test_raw_scores_by_default_where_the_user_says_so(store: Store) -> None:
    folder = head_folder(store, "bert", "sequence", num_labels=5)
    logits = torch.from_numpy(reference_of(folder, "sequence").logits(MIXED))
    engine = store.engine(folder, pooler_config=PoolerConfig(use_activation=False))
    assert difference(engine.classify(MIXED).scores, logits) <= LOGITS
    assert difference(engine.classify(MIXED, use_activation=True).scores, logits.softmax(-1)) <= PROBABILITIES


@pytest.mark.parametrize(("method", "rows"), [("MEAN", "mean"), ("LAST", "last"), ("CLS", "first")])
def test_another_method_before_the_head(store: Store, method: str, rows: str) -> None:
    folder = head_folder(store, "roberta", "sequence", num_labels=5)
    engine = store.engine(folder, pooler_config=PoolerConfig(pooling_type=method))
    expected = by_hand(reference_of(folder, "sequence"), rows=rows)
    assert difference(engine.classify(MIXED, use_activation=False).scores, expected) <= LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_is_as_in_the_batch(store: Store, family: str) -> None:
    engine = store.engine(head_folder(store, family, "sequence", num_labels=5))
    together = engine.classify(MIXED).scores
    for index, text in enumerate(MIXED):
        assert difference(engine.classify(text).scores[0], together[index]) <= 1e-6


def test_a_classifier_as_an_embedder(store: Store) -> None:
    folder = head_folder(store, "bert", "sequence", num_labels=5)
    engine = store.engine(folder, convert="embed")
    assert engine.info.abilities.tasks == ("embed", "token_embed")
    states, mask = reference_of(folder, "sequence").states(MIXED)
    assert difference(engine.embed(MIXED), pooled_by("mean", states, mask)) <= PROBABILITIES


def test_an_embedders_pipeline_around_a_classifier(store: Store, tmp_path: Path) -> None:
    """Whatever the architecture's name says, modules.json makes it an embedder, and convert a classifier again."""
    folder = head_folder(store, "roberta", "sequence", num_labels=5)
    modules = [pipelines.transformer(folder), pipelines.pooling("max")]
    place = pipelines.save_pipeline(tmp_path / "pipeline", modules)
    expected = pipelines.Reference(place).embed(MIXED)
    with PoolingModel(str(place)) as model:
        assert model.info.abilities.default_task == "embed"
        assert difference(model.embed(MIXED), expected) <= PROBABILITIES


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}, indent=1))
