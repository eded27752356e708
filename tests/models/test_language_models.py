"""Language models as embedders, classifiers and reward models against transformers, each with mistakes to be seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from forebay import PoolingModel
from forebay.core.errors import LoadError
from tests.support.language_models import edit, ids_of, logits_of, save, states_of
from tests.support.texts import sentence

LOGITS, VECTORS = 1e-4, 1e-5
FACTOR = 100
FAMILIES = ("qwen3", "qwen2", "llama", "mistral", "gemma", "gemma2", "gpt2", "gpt_neox")
TEXTS = ("a river", "the", sentence(40, 1), "Deep, cold water!", sentence(12, 2))


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def unit(rows: list[np.ndarray]) -> np.ndarray:
    stacked = np.stack(rows)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_a_language_model_becomes_an_embedder(tmp_path: Path, family: str) -> None:
    folder = save(tmp_path / "model", family, "CausalLM", ends="$A </s>")
    states = states_of(folder, ids_of(folder, TEXTS))
    with PoolingModel(str(folder), convert="embed") as model:
        found = model.embed(TEXTS).embeddings
        said = {decision.name: (decision.value, decision.source) for decision in model.info.decisions}
    assert difference(found, unit([rows[-1] for rows in states])) <= VECTORS
    assert difference(found, unit([rows[-2] for rows in states])) >= FACTOR * VECTORS
    assert difference(found, unit([rows.mean(0) for rows in states])) >= FACTOR * VECTORS
    assert said["kind"] == ("embed", "user: convert")
    assert said["pooling"][0] == "LAST"
    assert said["normalize"][0] == "True"


def test_a_language_model_is_not_converted_unasked(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "qwen3", "CausalLM")
    with pytest.raises(LoadError, match="convert 'embed'"):
        PoolingModel(str(folder))


def test_a_language_model_becomes_a_classifier_by_its_template(tmp_path: Path) -> None:
    """It has no head of its own: the rows of its answers are one, where something says which they are."""
    folder = save(tmp_path / "model", "qwen3", "CausalLM", max_position_embeddings=1024)
    edit(folder / "tokenizer_config.json", model_max_length=1024)
    with pytest.raises(LoadError, match="needs the option 'template'"):
        PoolingModel(str(folder), convert="classify")
    with PoolingModel(str(folder), convert="classify", template="qwen3-reranker") as model:
        assert model.info.abilities.tasks == ("classify",)
        found = model.score("a river", "the lake", use_activation=False).scores
    edit(folder / "config.json", classifier_from_token=["no", "yes"])
    with PoolingModel(str(folder), convert="classify") as model:
        assert np.array_equal(model.score("a river", "the lake", use_activation=False).scores, found)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("ends", ["$A", "$A </s>"])
def test_sequence_classifiers(tmp_path: Path, family: str, ends: str) -> None:
    folder = save(tmp_path / "model", family, "SequenceClassification", ends=ends, num_labels=3)
    expected = np.stack(logits_of(folder, "SequenceClassification", ids_of(folder, TEXTS)))
    with PoolingModel(str(folder)) as model:
        assert difference(model.classify(TEXTS, use_activation=False).scores, expected) <= LOGITS
        probabilities = torch.from_numpy(expected).softmax(-1)
        assert difference(model.classify(TEXTS).scores, probabilities) <= VECTORS


def test_the_row_is_chosen_by_the_padding_id(tmp_path: Path) -> None:
    """A text that ends in the padding token is read before it, as transformers does, whatever side is padded."""
    folder = save(tmp_path / "model", "qwen3", "SequenceClassification", ends="$A </s>", num_labels=2, pad_token_id=2)
    ids = ids_of(folder, TEXTS)
    expected = np.stack(logits_of(folder, "SequenceClassification", ids))
    by_last = np.stack(logits_of(folder, "SequenceClassification", [row[:-1] for row in ids]))
    assert difference(expected, by_last) <= LOGITS, "what stands before the end is what is read"
    edit(folder / "config.json", pad_token_id=None)
    (other,) = logits_of(folder, "SequenceClassification", ids[:1])
    edit(folder / "config.json", pad_token_id=2)
    assert difference(expected[0], other) >= FACTOR * LOGITS
    with PoolingModel(str(folder)) as model:
        assert difference(model.classify(TEXTS, use_activation=False).scores, expected) <= LOGITS
    edit(folder / "config.json", pad_token_id=None)
    with PoolingModel(str(folder)) as model:
        assert difference(model.classify(TEXTS[:1], use_activation=False).scores[0], other) <= LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_token_classifiers(tmp_path: Path, family: str) -> None:
    folder = save(tmp_path / "model", family, "TokenClassification", num_labels=4)
    expected = logits_of(folder, "TokenClassification", ids_of(folder, TEXTS))
    with PoolingModel(str(folder)) as model:
        found = model.token_classify(TEXTS, use_activation=False).scores
    for one, other in zip(found, expected, strict=True):
        assert difference(one, other) <= LOGITS
