"""What a classifier says of itself: labels as transformers reads them, kinds of problems, and activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from forebay.checkpoint.classifier import find_activation, labels_of, problem_type_of
from forebay.checkpoint.documents import Document
from forebay.core.errors import UnsupportedCheckpoint
from tests.checkpoint.checkpoints import write_json

TWO = ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({}, TWO),
        ({"id2label": None}, TWO),
        ({"num_labels": 1}, ("LABEL_0",)),
        ({"num_labels": 3}, (*TWO, "LABEL_2")),
        ({"id2label": {"1": "good", "0": "bad"}}, ("bad", "good")),
        ({"id2label": {str(index): f"n{index}" for index in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)}}, None),
        ({"id2label": {"0": "a"}, "num_labels": 1}, ("a",)),
        ({"id2label": {"0": "a"}, "num_labels": 2}, TWO),
        ({"id2label": {"0": "same", "1": "same"}}, ("same", "same")),
        ({"text_config": {"num_labels": 3, "id2label": {"0": "a"}}}, TWO),
    ],
)
def test_labels_are_those_of_transformers(
    tmp_path: Path, config: dict[str, Any], labels: tuple[str, ...] | None
) -> None:
    write_json(tmp_path / "config.json", {"model_type": "bert"} | config)
    reference = AutoConfig.from_pretrained(tmp_path)
    labels = tuple(f"n{index}" for index in range(11)) if labels is None else labels
    assert labels_of(config) == tuple(reference.id2label[index] for index in range(reference.num_labels)) == labels


def test_labels_that_are_numbers() -> None:
    assert labels_of({"id2label": {"0": 5, "1": -1}}) == ("5", "-1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id2label": ["a"]}, "'id2label' is a list, expected an object"),
        ({"id2label": {"0": "a", "2": "b"}}, "'id2label' has other ids than 0 to 1"),
        ({"id2label": {"0": "a", "00": "b"}}, "'id2label' has other ids than 0 to 1"),
        ({"id2label": {"-1": "a", "0": "b"}}, "'id2label' has other ids than 0 to 1"),
        ({"id2label": {"good": "0"}}, "id2label: 'good' is the name of a label's number"),
        ({"id2label": {"0": None}}, "id2label: '0' is null, expected a text"),
        ({"id2label": {"0": True}}, "id2label: '0' is true, expected a text"),
        ({"id2label": {"0": 0.5}}, "id2label: '0' is 0.5, expected a text"),
        ({"num_labels": 0}, "'num_labels' is 0, expected at least 1"),
        ({"num_labels": "3"}, "'num_labels' is '3', expected a whole number"),
    ],
)
def test_malformed_labels(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        labels_of(fields)
    assert str(caught.value).startswith("config.json")


@pytest.mark.parametrize("value", [None, "regression", "single_label_classification", "multi_label_classification"])
def test_problem_type(value: str | None) -> None:
    assert problem_type_of({"problem_type": value}) == value
    assert problem_type_of({}) is None


@pytest.mark.parametrize("value", ["ranking", "", 3])
def test_malformed_problem_type(value: Any) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json: 'problem_type' is"):
        problem_type_of({"problem_type": value})


SIGMOID = "torch.nn.modules.activation.Sigmoid"
TANH = "torch.nn.modules.activation.Tanh"
IDENTITY = "torch.nn.modules.linear.Identity"
NEW = "saved.json: activation_fn"
OLD = "config.json: sentence_transformers: activation_fn"
OLDEST = "config.json: sbert_ce_default_activation_function"


@pytest.mark.parametrize(
    ("saved", "config", "expected"),
    [
        (None, {}, (None, "")),
        ({}, {}, (None, "")),
        ({"activation_fn": SIGMOID}, {"sentence_transformers": {"activation_fn": TANH}}, (SIGMOID, NEW)),
        ({"activation_fn": None}, {"sentence_transformers": {"activation_fn": TANH}}, (TANH, OLD)),
        (None, {"sentence_transformers": {"activation_fn": "torch.nn.Tanh", "version": "4"}}, ("torch.nn.Tanh", OLD)),
        (
            None,
            {"sentence_transformers": {"activation_fn": TANH}, "sbert_ce_default_activation_function": IDENTITY},
            (TANH, OLD),
        ),
        (None, {"sbert_ce_default_activation_function": IDENTITY}, (IDENTITY, OLDEST)),
        ({}, {"sentence_transformers": {}, "sbert_ce_default_activation_function": IDENTITY}, (IDENTITY, OLDEST)),
        ({}, {"sbert_ce_default_activation_function": None}, (None, "")),
        # A null here says: the default; the oldest place isn't looked at any more.
        (
            None,
            {"sentence_transformers": {"activation_fn": None}, "sbert_ce_default_activation_function": IDENTITY},
            (None, ""),
        ),
    ],
)
def test_activation(saved: dict[str, Any] | None, config: dict[str, Any], expected: tuple[str | None, str]) -> None:
    document = None if saved is None else Document("saved.json", saved)
    assert find_activation(document, Document("config.json", config)) == expected


@pytest.mark.parametrize(
    "value",
    ["os.system", "custom.Scale", "torch.load", "torch.nn.functional.sigmoid", "torch.nn.utils.Tanh", "Sigmoid", ""],
)
def test_activations_come_from_torch(value: str) -> None:
    places: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"activation_fn": value}, {}),
        ({}, {"sentence_transformers": {"activation_fn": value}}),
        ({}, {"sbert_ce_default_activation_function": value}),
    ]
    for saved, config in places:
        with pytest.raises(UnsupportedCheckpoint, match=r"torch\.nn\.modules only"):
            find_activation(Document("saved.json", saved), Document("config.json", config))


def test_malformed_activation() -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"saved\.json: 'activation_fn' is 3, expected a text"):
        find_activation(Document("saved.json", {"activation_fn": 3}), Document("config.json", {}))
