"""Reward models and process reward models against their formulas on transformers' hidden states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay import PoolingModel
from forebay.core.errors import LoadError
from tests.support.language_models import edit, ids_of, logits_of, save, states_of, tokenizer
from tests.support.texts import sentence

LOGITS, SCORES, FACTOR = 1e-4, 1e-5, 100
TEXTS = ("a river", sentence(30, 1), "Deep, cold water!")
STEPS = tuple(f"{text}<extra_0>then {text}<extra_0>" for text in TEXTS)


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def two_layers(folder: Path, name: str, num_labels: int) -> dict[str, torch.Tensor]:
    """A Qwen2 backbone with the head of Qwen2.5's reward models: Linear, ReLU, Linear."""
    save(folder, "qwen2", "CausalLM", ends="$A </s>", tie_word_embeddings=True)
    generator = torch.Generator().manual_seed(5)
    sizes = {"score.0.weight": (32, 32), "score.0.bias": (32,), "score.2.weight": (num_labels, 32)}
    sizes["score.2.bias"] = (num_labels,)
    head = {key: 0.3 * torch.randn(*size, generator=generator) for key, size in sizes.items()}
    save_file({**load_file(folder / "model.safetensors"), **head}, folder / "model.safetensors")
    labels = {str(index): f"L{index}" for index in range(num_labels)}
    edit(folder / "config.json", architectures=[name], num_labels=num_labels, id2label=labels)
    return head


def by_hand(head: dict[str, torch.Tensor], rows: np.ndarray, *, relu: bool = True) -> np.ndarray:
    x = torch.from_numpy(rows) @ head["score.0.weight"].T + head["score.0.bias"]
    return ((x.relu() if relu else x) @ head["score.2.weight"].T + head["score.2.bias"]).numpy()  # type: ignore[no-any-return]


def test_qwen2_reward_model(tmp_path: Path) -> None:
    head = two_layers(tmp_path / "model", "Qwen2ForRewardModel", 1)
    states = states_of(tmp_path / "model", ids_of(tmp_path / "model", TEXTS))
    expected = np.stack([by_hand(head, rows)[-1] for rows in states])
    with PoolingModel(str(tmp_path / "model")) as model:
        assert difference(model.classify(TEXTS).scores, expected) <= LOGITS
        for one, rows in zip(model.token_classify(TEXTS).scores, states, strict=True):
            assert difference(one, by_hand(head, rows)) <= LOGITS
    assert difference(torch.from_numpy(expected).sigmoid(), expected) >= FACTOR * LOGITS
    assert difference(np.stack([by_hand(head, rows, relu=False)[-1] for rows in states]), expected) >= FACTOR * LOGITS


def test_process_reward_model(tmp_path: Path) -> None:
    head = two_layers(tmp_path / "model", "Qwen2ForProcessRewardModel", 2)
    ids = ids_of(tmp_path / "model", STEPS)
    states = states_of(tmp_path / "model", ids)
    tag = tokenizer().token_to_id("<extra_0>")
    with PoolingModel(str(tmp_path / "model")) as model:
        found = model.token_classify(STEPS).scores
        said = {decision.name: decision.value for decision in model.info.decisions}
    with PoolingModel(str(tmp_path / "model"), pooler_config={"tok_pooling_type": "ALL"}) as model:
        everything = model.token_classify(STEPS).scores
    assert said["token pooling"] == f"STEP at token {tag}"
    for one, whole, rows, own in zip(found, everything, states, ids, strict=True):
        probabilities = torch.from_numpy(by_hand(head, rows)).softmax(-1).numpy()
        is_tag = np.array(own) == tag
        assert one.shape == (2, 2)
        assert difference(one, probabilities[is_tag]) <= SCORES
        assert difference(np.roll(probabilities, 1, 0)[is_tag], one) >= FACTOR * SCORES, "the row before"
        assert difference(whole, probabilities) <= SCORES


def test_answers_at_each_step(tmp_path: Path) -> None:
    """math-shepherd: the logits of two tokens at the tag's, from a plain language model."""
    folder = save(tmp_path / "model", "mistral", "CausalLM", ends="<s> $A")
    vocabulary = tokenizer()
    answers = [vocabulary.token_to_id(word) for word in ("1", "0")]
    tag = vocabulary.token_to_id("<extra_0>")
    ids = ids_of(folder, STEPS)
    pooler = {"tok_pooling_type": "STEP", "step_tag_id": tag, "returned_token_ids": answers}
    with PoolingModel(str(folder), pooler_config=pooler) as model:
        found = model.token_classify(STEPS).scores
        assert model.info.abilities.labels == tuple(f"token {id_}" for id_ in answers)
    for one, rows, own in zip(found, logits_of(folder, "CausalLM", ids), ids, strict=True):
        expected = torch.from_numpy(rows[np.array(own) == tag][:, answers]).softmax(-1)
        assert difference(one, expected) <= SCORES


def test_a_classifier_of_one_label_is_a_reward_model(tmp_path: Path) -> None:
    folder = save(tmp_path / "skywork", "llama", "SequenceClassification", num_labels=1)
    expected = np.stack(logits_of(folder, "SequenceClassification", ids_of(folder, TEXTS)))
    with PoolingModel(str(folder)) as model:
        assert difference(model.classify(TEXTS, use_activation=False).scores, expected) <= LOGITS


def test_a_head_that_lacks_its_rows_is_refused(tmp_path: Path) -> None:
    """An untied head that is not stored would else answer 0.5 to everything."""
    folder = save(tmp_path / "Qwen3-Reranker", "qwen3", "CausalLM", tie_word_embeddings=True)
    edit(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(LoadError, match=r"lack tensors of this architecture: head\.out\.weight"):
        PoolingModel(str(folder))
    edit(folder / "config.json", tie_word_embeddings=True)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    tokens["added_tokens"] = [token for token in tokens["added_tokens"] if token["content"] != "yes"]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(LoadError, match="'yes' is no single token"):
        PoolingModel(str(folder))
