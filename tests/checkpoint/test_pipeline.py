"""The pipeline: both layouts of the files, every stage, and each thing that is not understood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forebay.checkpoint.pipeline import (
    DenseStage,
    LayerNormStage,
    NormalizeStage,
    PoolingStage,
    StaticEmbeddingStage,
    TransformerStage,
    WeightedLayerPoolingStage,
    read_pipeline,
)
from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint
from tests.checkpoint.checkpoints import OLD, TRANSFORMER, read_module, write_checkpoint, write_json

PLAIN = "sentence-transformers' default for a plain"


@pytest.mark.parametrize("layout", ["old", "new"])
def test_order_of_modules_is_kept(tmp_path: Path, layout: str) -> None:
    new = "sentence_transformers.base.modules."
    names = {
        "old": [OLD + name for name in ("Transformer", "Pooling", "Dense", "Dense", "Normalize")],
        "new": [
            new + "transformer.Transformer",
            "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
            new + "dense.Dense",
            new + "dense.Dense",
            new + "normalize.Normalize",
        ],
    }[layout]
    dense = {"in_features": 8, "out_features": 16, "activation_function": "torch.nn.modules.linear.Identity"}
    configs = [None, {"pooling_mode_cls_token": True}, dense, dense | {"in_features": 16, "bias": False}, None]
    folders = ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
    write_checkpoint(tmp_path, list(zip(folders, names, configs, strict=True)))
    identity = "torch.nn.modules.linear.Identity"
    first = DenseStage(tmp_path / "2_Dense", 8, 16, True, identity, *["sentence_embedding"] * 2, False)
    transformer, *rest = read_pipeline(tmp_path)
    assert isinstance(transformer, TransformerStage)
    assert transformer.folder == tmp_path
    assert rest == [
        PoolingStage(("cls",), True, "1_Pooling/config.json"),
        first,
        replace(first, folder=tmp_path / "3_Dense", in_features=16, bias=False),
        NormalizeStage("sentence_embedding"),
    ]


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode_lasttoken": True}, ("lasttoken",)),
        ({"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_sqrt_len_tokens": False}, ("weightedmean",)),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}, ("mean",)),
        ({}, ("mean",)),
        (
            {
                "pooling_mode_lasttoken": True,
                "pooling_mode_weightedmean_tokens": True,
                "pooling_mode_mean_sqrt_len_tokens": True,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_max_tokens": True,
                "pooling_mode_cls_token": True,
            },
            ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
        ),
        ({"pooling_mode": "max"}, ("max",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, ("cls",)),
        ({"pooling_mode": "mean", "output_key": "x", "embedding_dimension": 3, "pooling_mode_new": False}, ("mean",)),
    ],
)
def test_pooling_modes(tmp_path: Path, config: dict[str, Any], modes: tuple[str, ...]) -> None:
    assert read_module(tmp_path, OLD + "Pooling", config) == PoolingStage(modes, True, "1_Module/config.json")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"pooling_mode": "attention"}, "'pooling_mode' has 'attention'"),
        ({"pooling_mode": ["mean", "attention"]}, "'pooling_mode' has 'attention'"),
        ({"pooling_mode": []}, "'pooling_mode' has a list"),
        ({"pooling_mode": 3}, "'pooling_mode' has 3"),
        ({"pooling_mode": [["mean"]]}, "'pooling_mode' has a list"),
        ({"pooling_mode": {"mean": 1}}, "'pooling_mode' has an object"),
        ({"pooling_mode_attention": True}, "'pooling_mode_attention' is true"),
        ({"pooling_mode_mean_tokens": "yes"}, "'pooling_mode_mean_tokens' is 'yes', expected true or false"),
        ({"pooling_mode": "mean", "include_prompt": 0}, "'include_prompt' is 0, expected true or false"),
        ([], "holds a list, expected an object"),
    ],
)
def test_pooling_not_understood(tmp_path: Path, config: Any, words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        read_module(tmp_path, OLD + "Pooling", config)
    assert "1_Module/config.json" in str(caught.value)


def test_pooling_without_prompt(tmp_path: Path) -> None:
    assert not read_module(tmp_path, OLD + "Pooling", {"include_prompt": False}).include_prompt


SIZES = {"in_features": 4, "out_features": 8}
TANH = "torch.nn.modules.activation.Tanh"
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (True, TANH, "sentence_embedding", "sentence_embedding", False)),
        ({"activation_function": None}, (True, IDENTITY, "sentence_embedding", "sentence_embedding", False)),
        ({"activation_function": "torch.nn.GELU"}, (True, "torch.nn.GELU", *["sentence_embedding"] * 2, False)),
        ({"activation_function": TANH, "bias": False}, (False, TANH, *["sentence_embedding"] * 2, False)),
        ({"module_input_name": "token_embeddings"}, (True, TANH, "token_embeddings", "token_embeddings", False)),
        ({"module_output_name": None, "use_residual": True}, (True, TANH, *["sentence_embedding"] * 2, True)),
        (
            {"module_input_name": "token_embeddings", "module_output_name": "sentence_embedding", "newer": 1},
            (True, TANH, "token_embeddings", "sentence_embedding", False),
        ),
    ],
)
def test_dense(tmp_path: Path, fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    stage = read_module(tmp_path, OLD + "Dense", SIZES | fields)
    assert stage == DenseStage(tmp_path / "1_Module", 4, 8, *expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"activation_function": "os.system"}, "'activation_function' is 'os.system'"),
        ({"activation_function": "torch.load"}, "'activation_function' is 'torch.load'"),
        ({"activation_function": "torch.nn.modules.activation.F.relu"}, "torch.nn.modules only"),
        ({"activation_function": "torch.nn.functional.relu"}, "torch.nn.modules only"),
        ({"activation_function": "torch.nn.utils.Tanh"}, "torch.nn.modules only"),
        ({"activation_function": 3}, "'activation_function' is 3, expected a text"),
        ({"in_features": 0}, "'in_features' is 0, expected at least 1"),
        ({"in_features": True}, "'in_features' is true, expected a whole number"),
        ({"out_features": None}, "'out_features' is missing"),
        ({"out_features": 2.5}, "'out_features' is 2.5, expected a whole number"),
        ({"module_input_name": "scores"}, "'module_input_name' is 'scores'"),
        (
            {"module_input_name": "token_embeddings", "module_output_name": "scores"},
            "'module_output_name' is 'scores'",
        ),
        ({"use_residual": 1}, "'use_residual' is 1, expected true or false"),
    ],
)
def test_dense_not_understood(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        read_module(tmp_path, OLD + "Dense", SIZES | fields)
    assert "1_Module/config.json" in str(caught.value)


def test_dense_of_pylate(tmp_path: Path) -> None:
    fields = SIZES | {"module_input_name": "token_embeddings"}
    assert read_module(tmp_path, "pylate.models.Dense.Dense", fields).input_name == "token_embeddings"


def test_small_stages(tmp_path: Path) -> None:
    assert read_module(tmp_path, OLD + "LayerNorm", {"dimension": 8}) == LayerNormStage(tmp_path / "1_Module", 8)
    pooling = OLD + "WeightedLayerPooling"
    assert read_module(
        tmp_path, pooling, {"word_embedding_dimension": 8, "layer_start": 0, "num_hidden_layers": 2}
    ) == (WeightedLayerPoolingStage(tmp_path / "1_Module", 0, 2))
    assert read_module(tmp_path, pooling, {}) == WeightedLayerPoolingStage(tmp_path / "1_Module", 4, 12)
    with pytest.raises(UnsupportedCheckpoint, match="'layer_start' is 13, expected 0 to 12"):
        read_module(tmp_path, pooling, {"layer_start": 13})
    with pytest.raises(UnsupportedCheckpoint, match="'dimension' is missing"):
        read_module(tmp_path, OLD + "LayerNorm", {})


def test_normalize(tmp_path: Path) -> None:
    assert read_module(tmp_path, OLD + "Normalize", None) == NormalizeStage("sentence_embedding")
    config = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    assert read_module(tmp_path, OLD + "Normalize", config) == NormalizeStage("token_embeddings")
    with pytest.raises(UnsupportedCheckpoint, match="'module_output_name' differs"):
        read_module(tmp_path, OLD + "Normalize", config | {"module_output_name": "sentence_embedding"})


def test_dropout_leaves_no_stage(tmp_path: Path) -> None:
    modules = [
        ("", OLD + "Transformer", None),
        ("1_D", OLD + "Dropout", {"dropout": 0.2}),
        ("2_P", OLD + "Pooling", {}),
    ]
    write_checkpoint(tmp_path, modules)
    assert [type(stage) for stage in read_pipeline(tmp_path)] == [TransformerStage, PoolingStage]


def test_modules_in_folders(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [("0_Transformer", OLD + "Transformer", TRANSFORMER)])
    (stage,) = read_pipeline(tmp_path)
    assert isinstance(stage, TransformerStage)
    assert stage.folder == tmp_path / "0_Transformer"
    assert stage.config == TRANSFORMER
    assert stage.sources["config"] == "0_Transformer/config.json"


def test_static_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [("0_StaticEmbedding", OLD + "StaticEmbedding", None)])
    with pytest.raises(CheckpointNotFound, match=r"0_StaticEmbedding/tokenizer\.json"):
        read_pipeline(tmp_path)
    write_json(tmp_path / "0_StaticEmbedding" / "tokenizer.json", {})
    assert read_pipeline(tmp_path) == (StaticEmbeddingStage(tmp_path / "0_StaticEmbedding"),)


@pytest.mark.parametrize(
    "class_path",
    [
        *(OLD + name for name in ("CNN", "LSTM", "BoW", "WordWeights", "WordEmbeddings", "CLIPModel", "STAGES", "")),
        "sentence_transformers.sparse_encoder.models.SparseAutoEncoder",
        "sentence_transformers.sparse_encoder.modules.csr.CSRSparsity",
        "transformers_modules.org.name.custom_st.Transformer",
        "custom_st.Pooling",
        "Pooling",
        "sentence_transformersX.models.Pooling",
        "sentence_transformers.util.Pooling",
        "sentence_transformers.models.Pooling\n",
        "pylate.models.Dense.Other",
    ],
)
def test_unknown_classes_are_named(tmp_path: Path, class_path: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"modules\.json: module 1: ") as caught:
        read_module(tmp_path, class_path, {"pooling_mode": "mean"})
    assert f"'{class_path}'" in str(caught.value)


@pytest.mark.parametrize(
    "path", ["../x", "/etc", "a/../../x", "C:\\x", "\\\\host\\x", "..\\x", "a\0b", "~/../x", 3, None]
)
def test_folders_stay_inside_the_checkpoint(tmp_path: Path, path: Any) -> None:
    entry = {"idx": 0, "name": "0", "path": path, "type": OLD + "Pooling"}
    write_json(tmp_path / "modules.json", [entry])
    with pytest.raises(UnsupportedCheckpoint, match=r"modules\.json: module 0: 'path'"):
        read_pipeline(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("\xff", "not valid JSON"),
        ("{}", "must hold a list"),
        ("[]", "must hold a list"),
        ("[3]", "module 0 is 3, expected an object"),
        ('[{"path": ""}]', "module 0: 'type' is missing"),
        ('[{"path": "", "type": 5}]', "module 0: 'type' is 5, expected a text"),
        (
            '[{"path": "", "type": "sentence_transformers.models.Pooling", "kwargs": ["task"]}]',
            "'kwargs' asks for task",
        ),
        (
            '[{"path": "", "type": "sentence_transformers.models.Pooling", "kwargs": 1}]',
            "'kwargs' is 1, expected a list",
        ),
    ],
)
def test_malformed_modules(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "modules.json").write_text(text, encoding="latin-1")
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        read_pipeline(tmp_path)
    assert "modules.json" in str(caught.value)


@pytest.mark.parametrize("name", ["Pooling", "Dense", "LayerNorm", "WeightedLayerPooling", "Transformer", "Router"])
def test_missing_folders_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"1_Module/config\.json is missing"):
        read_module(tmp_path, OLD + name, None)


def test_config_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "1_Module" / "config.json").mkdir(parents=True)
    with pytest.raises(CheckpointNotFound, match=r"1_Module/config\.json .*can't be read"):
        read_module(tmp_path, OLD + "Pooling", None)


@pytest.mark.parametrize(
    ("fields", "mode", "source"),
    [
        ({"architectures": ["BertModel"]}, "mean", f"{PLAIN} checkpoint"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "lasttoken", f"{PLAIN} causal checkpoint"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": True}, "lasttoken", f"{PLAIN} causal checkpoint"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, "mean", f"{PLAIN} checkpoint"),
        ({"architectures": ["BertModel", "QForCausalLM"]}, "mean", f"{PLAIN} checkpoint"),
        ({"architectures": None, "model_type": "bert"}, "mean", f"{PLAIN} checkpoint"),
    ],
)
def test_plain_checkpoint(tmp_path: Path, fields: dict[str, Any], mode: str, source: str) -> None:
    write_json(tmp_path / "config.json", fields)
    write_json(tmp_path / "tokenizer.json", {})
    transformer, pooling = read_pipeline(tmp_path)
    assert isinstance(transformer, TransformerStage)
    assert transformer.config == fields
    assert pooling == PoolingStage((mode,), True, source)


@pytest.mark.parametrize(
    ("config", "is_normalized"),
    [
        (None, False),
        ({"normalize": False}, False),
        ({"normalize": True, "embedding_dtype": "int8"}, True),
        ({"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}, True),
    ],
)
def test_static_checkpoint(tmp_path: Path, config: dict[str, Any] | None, *, is_normalized: bool) -> None:
    if config is not None:
        write_json(tmp_path / "config.json", config)
    write_json(tmp_path / "tokenizer.json", {})
    save_file({"embeddings": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    static = StaticEmbeddingStage(tmp_path)
    assert read_pipeline(tmp_path) == ((static, NormalizeStage("sentence_embedding")) if is_normalized else (static,))


def test_plain_transformer_that_names_no_architecture(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"hidden_size": 3})
    write_json(tmp_path / "tokenizer.json", {})
    save_file({"embeddings.word_embeddings.weight": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    assert isinstance(read_pipeline(tmp_path)[0], TransformerStage)


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"config\.json is missing"):
        read_pipeline(tmp_path)
