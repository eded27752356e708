"""From a folder to a loaded model: whose word counts for the length, and options that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.core.config import ModelOptions, PoolerConfig
from forebay.core.errors import ForebayError, InvalidRequest, UnsupportedCheckpoint, WeightsMismatch
from forebay.core.info import Decision
from forebay.loading.assemble import LoadedModel, load_model
from tests.loading.tiny_bert import HIDDEN, POSITIONS, write


def load(folder: Path, *, pooler: dict[str, Any] | None = None, **options: Any) -> LoadedModel:
    stages: list[str] = []
    model = load_model(ModelOptions(str(folder), pooler=PoolerConfig(**pooler or {}), **options), stages.append)
    assert stages == ["locating", "loading weights"]
    return model


def decision(model: LoadedModel, name: str) -> Decision:
    (found,) = [one for one in model.info.decisions if one.name == name]
    return found


@pytest.mark.parametrize(
    ("said", "wish", "expected", "source"),
    [
        ({}, None, POSITIONS, "config.json"),
        ({"max_seq_length": 16}, None, 16, "sentence_bert_config.json"),
        ({"max_seq_length": 16, "model_max_length": 8}, None, 16, "sentence_bert_config.json"),
        ({"max_seq_length": 512}, None, POSITIONS, "sentence_bert_config.json"),
        ({"model_max_length": 8}, None, 8, "tokenizer_config.json"),
        ({"model_max_length": 512}, None, POSITIONS, "config.json"),
        ({"model_max_length": 1e30}, None, POSITIONS, "config.json"),
        ({"max_seq_length": 16}, 24, 24, "user"),
        ({"max_seq_length": 16}, 4, 4, "user"),
        ({}, POSITIONS, POSITIONS, "user"),
    ],
    ids=str,
)
def test_the_length(tmp_path: Path, said: dict[str, Any], wish: int | None, expected: int, source: str) -> None:
    model = load(write(tmp_path, **said), max_model_len=wish)
    assert model.info.abilities.max_len == model.texts[""].max_len == expected
    found = decision(model, "max_model_len")
    assert found.value == str(expected)
    assert source in found.source


@pytest.mark.parametrize("wish", [0, -1, POSITIONS + 1])
def test_a_length_that_the_model_has_not(tmp_path: Path, wish: int) -> None:
    with pytest.raises(InvalidRequest, match=str(POSITIONS)) as caught:
        load(write(tmp_path), max_model_len=wish)
    assert caught.value.field == "max_model_len"


def test_what_is_known_of_the_model(tmp_path: Path) -> None:
    sentence = {"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": "query", "truncate_dim": 4}
    info = load(write(tmp_path, sentence=sentence)).info
    assert (info.architecture, info.dtype, info.device) == ("BertModel", "float32", "cpu")
    assert (info.abilities.dimension, info.abilities.default_dimension) == (HIDDEN, 4)
    assert (dict(info.prompts), info.default_prompt_name) == ({"query": "find: "}, "query")
    assert all(one.value and one.source for one in info.decisions)


@pytest.mark.parametrize(
    ("said", "pooler", "error", "shown"),
    [
        ({"sentence": {"truncate_dim": 9}}, {}, UnsupportedCheckpoint, "truncate_dim is 9"),
        ({}, {"dimensions": 9}, InvalidRequest, "dimensions is 9"),
        ({}, {"dimensions": 0}, InvalidRequest, "dimensions is 0"),
        ({"matryoshka_dimensions": [2, 4]}, {"dimensions": 3}, InvalidRequest, "dimensions is 3"),
        ({}, {"task": "classify"}, InvalidRequest, "task is 'classify'"),
    ],
    ids=str,
)
def test_sizes_and_tasks_that_do_not_fit(
    tmp_path: Path, said: dict[str, Any], pooler: dict[str, Any], error: type[ForebayError], shown: str
) -> None:
    with pytest.raises(error, match=shown):
        load(write(tmp_path, **said), pooler=pooler)


@pytest.mark.parametrize(("said", "size"), [({}, 3), ({"matryoshka_dimensions": [2, 4]}, 4), ({}, HIDDEN)])
def test_the_users_default_size(tmp_path: Path, said: dict[str, Any], size: int) -> None:
    model = load(write(tmp_path, **said), pooler={"dimensions": size})
    assert model.info.abilities.default_dimension == size


@pytest.mark.parametrize(
    ("change", "error", "shown"),
    [
        ({"vocab_size": 127}, WeightsMismatch, "word_embeddings"),
        ({"num_hidden_layers": 3}, WeightsMismatch, r"layers\.2"),
        ({"num_hidden_layers": 1}, WeightsMismatch, r"encoder\.layer\.1"),
        ({"num_attention_heads": 3}, UnsupportedCheckpoint, "heads"),
        ({"hidden_act": "unheard"}, UnsupportedCheckpoint, "unheard"),
        ({"position_embedding_type": "relative_key"}, UnsupportedCheckpoint, "position_embedding_type"),
        ({"model_type": "unheard"}, UnsupportedCheckpoint, "unheard"),
        ({"hidden_size": "8"}, UnsupportedCheckpoint, "hidden_size"),
        ({"vocab_size": None}, UnsupportedCheckpoint, "vocab_size"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_names_what(
    tmp_path: Path, change: dict[str, Any], error: type[ForebayError], shown: str
) -> None:
    with pytest.raises(error, match=shown):
        load(write(tmp_path, **change))


def small_module(folder: Path, kind: str, index: int, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Append a module to the pipeline of the folder."""
    import torch
    from safetensors.torch import save_file

    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": index, "name": str(index), "path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling", f"2_{kind}"):
        (folder / name).mkdir()
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / f"2_{kind}" / "config.json").write_text(json.dumps(config))
    weights = {name: torch.zeros(shape) for name, shape in tensors.items()}
    save_file(weights, folder / f"2_{kind}" / "model.safetensors")


DENSE = {
    "in_features": HIDDEN,
    "out_features": 3,
    "bias": True,
    "activation_function": "torch.nn.modules.linear.Identity",
}
WEIGHTS = {"linear.weight": (3, HIDDEN), "linear.bias": (3,)}


@pytest.mark.parametrize(
    ("config", "weights", "error", "shown"),
    [
        ({}, {"linear.weight": (3, HIDDEN)}, WeightsMismatch, r"linear\.bias"),
        ({"bias": False}, WEIGHTS, WeightsMismatch, r"linear\.bias"),
        ({}, {**WEIGHTS, "linear.weight": (3, 9)}, WeightsMismatch, r"\[3, 9\]"),
        ({"use_residual": True}, WEIGHTS, WeightsMismatch, r"residual\.weight"),
        ({"in_features": 9}, {**WEIGHTS, "linear.weight": (3, 9)}, UnsupportedCheckpoint, "9"),
        ({"activation_function": "torch.nn.modules.linear.Linear"}, WEIGHTS, UnsupportedCheckpoint, "Linear"),
        ({"activation_function": "torch.nn.modules.activation.Unheard"}, WEIGHTS, UnsupportedCheckpoint, "Unheard"),
    ],
    ids=str,
)
def test_a_dense_module_that_does_not_fit(
    tmp_path: Path, config: dict[str, Any], weights: dict[str, Any], error: type[ForebayError], shown: str
) -> None:
    small_module(write(tmp_path), "Dense", 2, {**DENSE, **config}, weights)
    with pytest.raises(error, match=shown):
        load(tmp_path)


def test_a_dense_module_that_fits(tmp_path: Path) -> None:
    small_module(write(tmp_path), "Dense", 2, DENSE, WEIGHTS)
    assert load(tmp_path).info.abilities.dimension == 3
