"""Models as sentence-transformers of today saves them: sparse encoders, a static query side, and cross-encoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from forebay.checkpoint.classifier import labels_of
from forebay.checkpoint.pipeline import SparseStaticEmbeddingStage, SpladePoolingStage, Stage, TransformerStage
from forebay.checkpoint.spec import ModelSpec, read_spec
from forebay.checkpoint.weights import load_sparse_static
from tests.checkpoint.checkpoints import make_tokenizer, write_json

SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"


def save_transformer(root: Path, model_class: Any, **config: Any) -> str:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model_class(BertConfig(vocab_size=8, max_position_embeddings=16, **sizes, **config)).save_pretrained(root)
    make_tokenizer().save_pretrained(root)
    return str(root)


def save(root: Path, make: Callable[..., Any], *args: Any, **options: Any) -> ModelSpec:
    """Let sentence-transformers make and save a model, and read what it wrote."""
    make(*args, device="cpu", **options).save_pretrained(str(root), create_model_card=False)
    return read_spec(root)


def task_of(stage: Stage) -> str:
    assert isinstance(stage, TransformerStage)
    return stage.task


@pytest.mark.parametrize("is_old", [False, True])
def test_splade(tmp_path: Path, *, is_old: bool) -> None:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    folder = save_transformer(tmp_path / "mlm", BertForMaskedLM)
    modules = [MLMTransformer(folder), SpladePooling("sum", "log1p_relu")] if is_old else None
    source = {"modules": modules} if is_old else {"model_name_or_path": folder}
    spec = save(tmp_path / "saved", SparseEncoder, **source, max_active_dims=3)
    transformer, pooling = spec.routes.stages[""]
    assert task_of(transformer) == "fill-mask"
    words = ("sum", "log1p_relu") if is_old else ("max", "relu")
    assert pooling == SpladePoolingStage(*words, "1_SpladePooling/config.json")
    assert (spec.model_type, spec.similarity, spec.max_active_dims) == ("SparseEncoder", "dot", 3)
    assert (spec.is_default_pipeline, spec.classifier_activation) == (False, None)


def test_static_query_side(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    folder = save_transformer(tmp_path / "mlm", BertForMaskedLM)
    query = SparseStaticEmbedding(make_tokenizer(), weight=torch.arange(8.0), frozen=True)
    document = [Transformer(folder, transformer_task="fill-mask"), SpladePooling("max", "log1p_relu")]
    router = Router.for_query_document(query_modules=[query], document_modules=document)
    spec = save(tmp_path / "saved", SparseEncoder, modules=[router])
    (static,), (transformer, pooling) = spec.routes.stages["query"], spec.routes.stages["document"]
    assert isinstance(static, SparseStaticEmbeddingStage)
    assert torch.equal(load_sparse_static(static.folder), torch.arange(8.0))
    assert task_of(transformer) == "fill-mask"
    assert pooling == SpladePoolingStage("max", "log1p_relu", "document_1_SpladePooling/config.json")
    assert spec.routes.default == "document"
    assert spec.routes.by_input_type == {"query": "query", "document": "document"}


def test_static_alone(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    spec = save(tmp_path, SparseEncoder, modules=[SparseStaticEmbedding(make_tokenizer())])
    assert spec.routes.stages[""] == (SparseStaticEmbeddingStage(tmp_path),)
    assert torch.equal(load_sparse_static(tmp_path), torch.ones(8))


@pytest.mark.parametrize(
    ("num_labels", "activation", "path"),
    [
        (1, None, SIGMOID),
        (2, None, IDENTITY),
        (3, torch.nn.Softmax(dim=-1), "torch.nn.modules.activation.Softmax"),
    ],
)
def test_cross_encoder(tmp_path: Path, num_labels: int, activation: Any, path: str) -> None:
    from sentence_transformers import CrossEncoder

    folder = save_transformer(tmp_path / "plain", BertForSequenceClassification, num_labels=num_labels)
    spec = save(tmp_path / "saved", CrossEncoder, folder, activation_fn=activation, prompts={"query": "q: "})
    (stage,) = spec.routes.stages[""]
    assert task_of(stage) == "sequence-classification"
    assert isinstance(stage, TransformerStage)
    assert labels_of(stage.config) == tuple(f"LABEL_{index}" for index in range(num_labels))
    assert (spec.model_type, spec.is_default_pipeline) == ("CrossEncoder", False)
    assert spec.prompts == {"query": "q: "}
    assert spec.classifier_activation == path
    assert spec.sources["classifier_activation"] == "config_sentence_transformers.json: activation_fn"


TANH = "torch.nn.modules.activation.Tanh"


@pytest.mark.parametrize(
    ("config", "saved", "expected"),
    [
        ({}, None, None),
        ({"sbert_ce_default_activation_function": IDENTITY}, None, IDENTITY),
        ({"sentence_transformers": {"activation_fn": TANH, "version": "5.0"}}, None, TANH),
        (
            {"sentence_transformers": {"activation_fn": TANH}, "sbert_ce_default_activation_function": IDENTITY},
            None,
            TANH,
        ),
        ({"sbert_ce_default_activation_function": IDENTITY}, TANH, IDENTITY),
        ({}, TANH, None),
    ],
)
def test_plain_cross_encoder(tmp_path: Path, config: dict[str, Any], saved: str | None, expected: str | None) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.util import fullname

    folder = save_transformer(tmp_path, BertForSequenceClassification, num_labels=1, **config)
    if saved is not None:
        content = {"model_type": "CrossEncoder", "activation_fn": saved}
        write_json(tmp_path / "config_sentence_transformers.json", content)
    spec = read_spec(tmp_path)
    assert spec.is_default_pipeline
    assert spec.model_type == ("SentenceTransformer" if saved is None else "CrossEncoder")
    assert spec.classifier_activation == expected
    reference = CrossEncoder(folder, device="cpu")
    assert fullname(reference.activation_fn) == (expected or SIGMOID)
