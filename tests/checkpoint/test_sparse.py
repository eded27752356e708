"""Sparse encoders: their modules, the weights of static ones, and pipelines that can't be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forebay.checkpoint.pipeline import (
    SparseStaticEmbeddingStage,
    SpladePoolingStage,
    TransformerStage,
    expand_routes,
    read_pipeline,
)
from forebay.checkpoint.weights import load_sparse_static
from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint, WeightsMismatch
from tests.checkpoint.checkpoints import OLD, TRANSFORMER, make_tokenizer, read_module, write_checkpoint, write_json

SPARSE = "sentence_transformers.sparse_encoder."


@pytest.mark.parametrize("class_path", ["models.SpladePooling", "modules.splade_pooling.SpladePooling"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("max", "relu")),
        ({"pooling_strategy": "sum", "activation_function": "log1p_relu"}, ("sum", "log1p_relu")),
        ({"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 9}, ("max", "relu")),
        ({"pooling_strategy": None, "embedding_dimension": None, "chunk_size": 4}, ("max", "relu")),
    ],
)
def test_splade_pooling(tmp_path: Path, class_path: str, fields: dict[str, Any], expected: tuple[str, str]) -> None:
    stage = read_module(tmp_path, SPARSE + class_path, fields)
    assert stage == SpladePoolingStage(*expected, "1_Module/config.json")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pooling_strategy": "mean"}, "'pooling_strategy' is 'mean'; Forebay knows max, sum"),
        ({"pooling_strategy": ""}, "'pooling_strategy' is ''; Forebay knows max, sum"),
        ({"pooling_strategy": ["max"]}, "'pooling_strategy' is a list, expected a text"),
        ({"activation_function": "gelu"}, "'activation_function' is 'gelu'; Forebay knows relu, log1p_relu"),
    ],
)
def test_splade_pooling_not_understood(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words) as caught:
        read_module(tmp_path, SPARSE + "models.SpladePooling", fields)
    assert str(caught.value).startswith("1_Module/config.json")


@pytest.mark.parametrize("class_path", ["models.MLMTransformer", "modules.mlm_transformer.MLMTransformer"])
def test_mlm_transformer(tmp_path: Path, class_path: str) -> None:
    stage = read_module(tmp_path, SPARSE + class_path, TRANSFORMER)
    assert isinstance(stage, TransformerStage)
    assert (stage.folder, stage.task) == (tmp_path / "1_Module", "fill-mask")
    write_json(tmp_path / "1_Module" / "sentence_bert_config.json", {"transformer_task": "feature-extraction"})
    assert read_pipeline(tmp_path)[1].task == "feature-extraction"  # type: ignore[union-attr]


def test_sparse_static_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [("0_Sparse", SPARSE + "models.SparseStaticEmbedding", {"frozen": True})])
    with pytest.raises(CheckpointNotFound, match=r"0_Sparse/tokenizer\.json"):
        read_pipeline(tmp_path)
    write_json(tmp_path / "0_Sparse" / "tokenizer.json", {})
    assert read_pipeline(tmp_path) == (SparseStaticEmbeddingStage(tmp_path / "0_Sparse"),)


SPARSE_FILES = {
    "fill-mask": {"transformer_task": "fill-mask"},
    "classifier": {"transformer_task": "sequence-classification"},
}


def write_sparse(root: Path, names: list[str]) -> None:
    modules = [
        (
            f"{i}",
            SPARSE + "models." + name
            if name.startswith(("S", "M"))
            else OLD + (name if name.istitle() else "Transformer"),
            {},
        )
        for i, name in enumerate(names)
    ]
    write_checkpoint(root, modules)
    for i, name in enumerate(names):
        write_json(root / f"{i}" / "sentence_bert_config.json", SPARSE_FILES.get(name, {}))


@pytest.mark.parametrize(
    "names",
    [["fill-mask", "SpladePooling"], ["MLMTransformer", "SpladePooling"], ["fill-mask", "SpladePooling", "Normalize"]],
)
def test_logits_go_to_splade_pooling(tmp_path: Path, names: list[str]) -> None:
    write_sparse(tmp_path, names)
    assert len(expand_routes(read_pipeline(tmp_path)).stages[""]) == len(names)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["fill-mask", "Pooling"], "'fill-mask' comes first and 0 SpladePooling in all"),
        (["fill-mask"], "'fill-mask' comes first and 0 SpladePooling in all"),
        (["Transformer", "SpladePooling"], "no Transformer with the task 'fill-mask' comes first and 1 SpladePooling"),
        (["fill-mask", "SpladePooling", "SpladePooling"], "'fill-mask' comes first and 2 SpladePooling in all"),
        (["fill-mask", "Normalize", "SpladePooling"], "reads 'sentence_embedding', which no earlier module writes"),
        (["classifier", "Pooling"], "module 1 (Pooling) reads 'token_embeddings', which no earlier module writes"),
        (["classifier", "SpladePooling"], "reads 'token_embeddings', which no earlier module writes"),
        (["classifier", "Normalize"], "reads 'sentence_embedding', which no earlier module writes"),
    ],
)
def test_logits_that_go_elsewhere(tmp_path: Path, names: list[str], words: str) -> None:
    write_sparse(tmp_path, names)
    with pytest.raises(UnsupportedCheckpoint) as caught:
        expand_routes(read_pipeline(tmp_path))
    assert words in str(caught.value)


FOLDER = "query_0_SparseStaticEmbedding"


def write_static(root: Path, config: Any, weights: Any = None) -> Path:
    folder = root / FOLDER
    write_json(folder / "config.json", config)
    make_tokenizer().save_pretrained(folder)
    if weights is not None:
        write_json(folder / "idf.json", weights)
    return folder


@pytest.mark.parametrize("config", [{}, {"frozen": True}, {"path": None}, {"path": "model.safetensors"}])
@pytest.mark.parametrize("num_weights", [8, 3])
def test_static_weights(tmp_path: Path, config: dict[str, Any], num_weights: int) -> None:
    folder = write_static(tmp_path, config)
    save_file({"weight": torch.arange(num_weights) / 2}, folder / "model.safetensors")
    assert torch.equal(load_sparse_static(folder), torch.arange(num_weights) / 2)


def test_static_weights_without_config(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(4)}, tmp_path / "pytorch_model.bin")
    assert torch.equal(load_sparse_static(tmp_path), torch.ones(4))


@pytest.mark.parametrize(
    "weights", [{"a": 1.5, "c": 3, "[SEP]": 0.1}, {"b": 0, "added": 7.25}, {"c": -1.0, "b": 1e-9, "a": 2}]
)
def test_weights_by_token_are_those_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: dict[str, float]
) -> None:
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    folder = write_static(tmp_path, {"frozen": False, "path": "idf.json"}, weights)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens("added")
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(folder)  # where the reference looks for the file
    reference = SparseStaticEmbedding.load(str(folder)).weight.detach()
    assert len(reference) == 9
    assert torch.equal(load_sparse_static(folder), reference)


@pytest.mark.parametrize(
    ("config", "weights", "error", "words"),
    [
        ({"path": "idf.json"}, None, CheckpointNotFound, f"{FOLDER}/idf.json is missing"),
        ({"path": "idf.json"}, [1.0], UnsupportedCheckpoint, f"{FOLDER}/idf.json in .* holds a list"),
        ({"path": "idf.json"}, {"a": "1"}, UnsupportedCheckpoint, f"{FOLDER}/idf.json: 'a' is '1', expected a number"),
        ({"path": "idf.json"}, {"a": True}, UnsupportedCheckpoint, "'a' is true, expected a number"),
        ({"path": "idf.json"}, {"a": float("nan")}, UnsupportedCheckpoint, "'a' is NaN, expected a number"),
        ({"path": "idf.json"}, {"a": 1, "d": 2}, UnsupportedCheckpoint, "'d' is not in the vocabulary of tokenizer"),
        ({"path": "../idf.json"}, {}, UnsupportedCheckpoint, "'path' is '../idf.json', expected a file inside"),
        ({"path": "/etc/idf.json"}, {}, UnsupportedCheckpoint, "'path' is '/etc/idf.json', expected a file inside"),
        ({"path": 3}, {}, UnsupportedCheckpoint, f"{FOLDER}/config.json: 'path' is 3, expected a text"),
        ({}, {"a": 1}, CheckpointNotFound, "no weights in"),
    ],
)
def test_weights_by_token_not_understood(
    tmp_path: Path, config: dict[str, Any], weights: Any, error: type[LoadError], words: str
) -> None:
    with pytest.raises(error, match=words):
        load_sparse_static(write_static(tmp_path, config, weights))


@pytest.mark.parametrize("text", [None, "{}"])
def test_vocabulary_that_can_not_be_read(tmp_path: Path, text: str | None) -> None:
    folder = write_static(tmp_path, {"path": "idf.json"}, {"a": 1})
    (folder / "tokenizer.json").unlink()
    if text is not None:
        (folder / "tokenizer.json").write_text(text)
    with pytest.raises(LoadError, match=r"tokenizer\.json"):
        load_sparse_static(folder)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"weight": torch.ones(2, 2)}, r"the tensors are 'weight' \[2, 2\]; expected one"),
        ({"embedding.weight": torch.ones(2)}, r"the tensors are 'embedding.weight' \[2\]; expected one"),
        ({"weight": torch.ones(2), "x": torch.ones(1)}, "expected one, 'weight' with one dimension"),
        ({}, "the tensors are none"),
    ],
)
def test_other_tensors_than_weights(tmp_path: Path, tensors: dict[str, torch.Tensor], words: str) -> None:
    folder = write_static(tmp_path, {})
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsMismatch, match=words) as caught:
        load_sparse_static(folder)
    assert str(caught.value).startswith(FOLDER)
