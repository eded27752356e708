"""Sparse vectors against sentence-transformers' SparseEncoder, each with mistakes that must be seen."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from torch import nn
from transformers import AutoTokenizer

from forebay import PoolingModel
from forebay.pooling import sparse
from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.parity.test_minilm import TEXTS
from tests.parity.test_real_checkpoints import checkpoint
from tests.support.heads import head_folder, reference_of
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "electra", "albert", "modernbert")
UNTIED = {"tie_word_embeddings": False}
Floats = NDArray[np.float32]


def difference(one: object, other: object) -> float:
    """The largest difference, of values of order one: larger values are scaled to it."""
    values = np.asarray(other)
    return float(np.abs(np.asarray(one) - values).max() / max(1.0, np.abs(values).max()))


def reference(folder: Path, texts: Sequence[str], way: str = "encode", **options: Any) -> Floats:
    """What the library makes of a folder, [n, V]."""
    model = SparseEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    vectors = getattr(model, way)(list(texts), batch_size=len(texts), convert_to_sparse_tensor=False, **options)
    dense: Floats = vectors.numpy()
    return dense


def made(folder: Path, texts: Sequence[str], **options: Any) -> Floats:
    with PoolingModel(str(folder)) as model:
        return model.sparse(list(texts), **options).to_dense()


@pytest.mark.parametrize("changes", [{}, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_masked_language_model(store: Store, family: str, changes: dict[str, Any]) -> None:
    folder = head_folder(store, family, "masked_lm", **changes)
    expected = reference(folder, MIXED)
    output = store.engine(folder).sparse(MIXED)
    assert difference(output.to_dense(), expected) <= TOLERANCE
    for vector in output.vectors:
        assert vector.ids.dtype == np.int32
        assert vector.weights.dtype == np.float32
        assert (np.diff(vector.ids) > 0).all()
        assert (vector.weights > 0).all()
    for name, wrong in mistakes(store, family, changes).items():
        assert difference(wrong, expected) >= MUTANT_FACTOR * TOLERANCE, name


def mistakes(store: Store, family: str, changes: dict[str, Any]) -> dict[str, Floats]:
    mlm = reference_of(head_folder(store, family, "masked_lm", **changes), "masked_lm")
    logits = torch.from_numpy(mlm.logits(MIXED))
    mask = mlm.features(MIXED)["attention_mask"][..., None]
    inner = mask.clone()
    inner[:, 0] = 0
    inner[torch.arange(len(inner)), mask[..., 0].sum(1) - 1] = 0
    weights = torch.log1p(logits.relu()) * mask
    table = mlm.model.get_input_embeddings().weight
    decoder = mlm.model.get_output_embeddings()
    wrong = {
        "special tokens left out": (weights * inner).amax(1),
        "sum": weights.sum(1),
        "no logarithm": (logits.relu() * mask).amax(1),
        "a second logarithm": torch.log1p(weights).amax(1),
        "no bias": torch.log1p((logits - decoder.bias.detach()).relu() * mask).amax(1),
        "one id further": weights.amax(1).roll(1, 1),
    }
    if changes:
        shift = decoder.weight.detach()
        with torch.no_grad():
            decoder.weight = nn.Parameter(table.detach().clone())
            wrong["tied all the same"] = torch.log1p(torch.from_numpy(mlm.logits(MIXED)).relu() * mask).amax(1)
            decoder.weight = nn.Parameter(shift)
    return {name: values.numpy() for name, values in wrong.items()}


def _old_norms(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {
        ".".join([*name.split(".")[:-2], old.get(".".join(name.split(".")[-2:]), "")]).rstrip(".")
        if ".".join(name.split(".")[-2:]) in old
        else name: tensor
        for name, tensor in tensors.items()
    }


def _all_stored(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The decoder beside the table it is tied to, and its bias under both names."""
    full = dict(tensors)
    full["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    full["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    return full


def _decoder_first(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(reversed(_all_stored(tensors).items()))


def _pooler_too(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Left over from pre-training."""
    extra = {"bert.pooler.dense.weight": torch.ones(32, 32), "cls.seq_relationship.weight": torch.ones(2, 32)}
    return {**tensors, **extra, "bert.embeddings.position_ids": torch.arange(64)[None]}


@pytest.mark.parametrize("layout", [_old_norms, _all_stored, _decoder_first, _pooler_too])
@pytest.mark.parametrize("pickled", [False, True])
def test_layouts_of_the_head(
    store: Store, layout: Callable[[dict[str, torch.Tensor]], Any], pickled: bool, tmp_path: Path
) -> None:
    source = head_folder(store, "bert", "masked_lm")
    expected = store.engine(source).sparse(MIXED).to_dense()
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    stored = load_file(folder / "model.safetensors")
    tensors = layout(stored)
    assert list(tensors) != list(stored)
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    else:
        save_file(tensors, folder / "model.safetensors")
    assert np.array_equal(made(folder, MIXED), expected)


def splade(backbone: Path, strategy: str = "max", activation: str = "relu") -> list[nn.Module]:
    return [
        Transformer(str(backbone), transformer_task="fill-mask"),
        SpladePooling(strategy, activation_function=activation),
    ]


def save(folder: Path, modules: list[nn.Module], **settings: Any) -> Path:
    SparseEncoder(modules=modules, device="cpu", **settings).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize("schema", ["old", "new"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_saved_encoders(store: Store, strategy: str, activation: str, schema: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", splade(head_folder(store, "distilbert", "masked_lm"), strategy, activation))
    if schema == "old":
        _rewrite_as_old(folder)
    expected = reference(folder, MIXED)
    assert difference(made(folder, MIXED), expected) <= TOLERANCE
    for other in (("max", "relu"), ("max", "log1p_relu"), ("sum", "relu"), ("sum", "log1p_relu")):
        if other != (strategy, activation):
            wrong = save(tmp_path / "_".join(other), splade(head_folder(store, "distilbert", "masked_lm"), *other))
            assert difference(reference(wrong, MIXED), expected) >= MUTANT_FACTOR * TOLERANCE


def _rewrite_as_old(folder: Path) -> None:
    names = {"Transformer": "MLMTransformer", "SpladePooling": "SpladePooling"}
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.sparse_encoder.models.{names[module['type'].rsplit('.', 1)[1]]}"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))


def test_the_heaviest_entries(store: Store, tmp_path: Path) -> None:
    backbone = head_folder(store, "bert", "masked_lm")
    folder = save(tmp_path / "limited", splade(backbone), max_active_dims=9)
    expected = reference(folder, MIXED)
    with PoolingModel(str(folder)) as model:
        assert difference(model.sparse(MIXED).to_dense(), expected) <= TOLERANCE
        assert {len(vector) for vector in model.sparse(MIXED)} == {9}
        for size in (1, 4, 20, 10_000):
            wanted = reference(folder, MIXED, max_active_dims=size)
            assert difference(model.sparse(MIXED, max_active_dims=size).to_dense(), wanted) <= TOLERANCE
        assert difference(expected, reference(folder, MIXED, max_active_dims=20)) >= MUTANT_FACTOR * TOLERANCE


def inference_free(store: Store, *, seed: int = 3, negative: bool = False) -> list[nn.Module]:
    """Queries are weighed by a table, documents by a model: no word of the query is expanded."""
    backbone = head_folder(store, "bert", "masked_lm")
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    weight = torch.rand(len(tokenizer), generator=torch.Generator().manual_seed(seed)) * 3
    weight[::7] = 0
    if negative:
        weight[1::3] *= -1
    queries = SparseStaticEmbedding(tokenizer, weight)
    return [Router.for_query_document([queries], splade(backbone))]


@pytest.mark.parametrize("negative", [False, True])
def test_queries_without_a_forward(store: Store, negative: bool, tmp_path: Path) -> None:
    texts = [*MIXED, "the the lake THE lake [SEP] unknown 水 [UNK]"]
    folder = save(tmp_path / "router", inference_free(store, negative=negative))
    queries, documents = (reference(folder, texts, f"encode_{side}") for side in ("query", "document"))
    with PoolingModel(str(folder)) as model:
        assert model.info.abilities.tasks == ("sparse",)
        assert difference(model.sparse(texts, input_type="query").to_dense(), queries) <= TOLERANCE
        assert difference(model.sparse(texts, input_type="document").to_dense(), documents) <= TOLERANCE
        assert difference(model.sparse(texts).to_dense(), documents) <= TOLERANCE
        short = model.sparse(texts, input_type="query", max_active_dims=2).to_dense()
        assert difference(short, reference(folder, texts, "encode_query", max_active_dims=2)) <= TOLERANCE
    assert difference(queries, documents) >= MUTANT_FACTOR * TOLERANCE
    tokenizer = AutoTokenizer.from_pretrained(head_folder(store, "bert", "masked_lm"))
    counts = np.zeros_like(queries)
    framed = np.zeros_like(queries)
    for row, ids in enumerate(tokenizer(texts, add_special_tokens=False, truncation=True, max_length=64)["input_ids"]):
        np.add.at(counts[row], ids, 1)
        framed[row, [2, 3]] = 1
    assert difference(queries * np.maximum(counts, 1), queries) >= MUTANT_FACTOR * TOLERANCE, "counted words"
    assert (framed * queries != framed).any(), "special tokens would be seen"


def test_weights_by_token_in_a_file(store: Store, tmp_path: Path) -> None:
    """The published inference-free models keep idf.json; the product of both sides is their score."""
    folder = save(tmp_path / "router", inference_free(store))
    (side,) = folder.glob("query_0_*")
    weights = load_file(side / "model.safetensors")["weight"].tolist()
    tokenizer = AutoTokenizer.from_pretrained(side)
    expected = [reference(folder, MIXED, f"encode_{name}") for name in ("query", "document")]
    (side / "model.safetensors").unlink()
    named = {token: weights[index] for token, index in tokenizer.get_vocab().items() if weights[index]}
    (side / "idf.json").write_text(json.dumps(named))
    (side / "config.json").write_text(json.dumps({"path": "idf.json", "frozen": False}))
    found = [made(folder, MIXED, input_type=name) for name in ("query", "document")]
    assert difference(found[0] @ found[1].T, expected[0] @ expected[1].T) <= 1e-3
    assert difference(found[0], expected[0]) <= TOLERANCE


SLABS = (1, 2, 3, 7, 64, 65, 1000)


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_slabs_have_no_borders(store: Store, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows of logits stand in memory at once; never all of them."""
    folder = save(tmp_path / "slabs", splade(head_folder(store, "roberta", "masked_lm"), strategy))
    vocab_size = 320
    with PoolingModel(str(folder)) as model:
        expected = model.sparse(MIXED).to_dense()
        head = next(iter(model.engine._model.pipelines.values())).model.head
        seen: list[int] = []
        head.register_forward_hook(lambda module, inputs, logits: seen.append(logits.shape[0]))
        for rows in SLABS:
            monkeypatch.setattr(sparse, "_SLAB_NUMBERS", rows * vocab_size)
            seen.clear()
            output = model.sparse(MIXED)
            assert difference(output.to_dense(), expected) <= (0 if strategy == "max" else TOLERANCE)
            assert max(seen) <= rows
            assert sum(seen) == output.num_tokens.sum()
            assert len(seen) > 1 or rows == max(SLABS)


def unit(vectors: Floats) -> Floats:
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def test_alone_is_as_in_the_batch(store: Store) -> None:
    engine = store.engine(head_folder(store, "distilbert", "masked_lm"))
    together = unit(engine.sparse(MIXED).to_dense())
    for index, text in enumerate(MIXED):
        assert difference(unit(engine.sparse(text).to_dense())[0], together[index]) <= 1e-6


def test_the_mean_of_a_masked_language_model(store: Store) -> None:
    """The same checkpoint is an encoder too; its head has no part in the embedding."""
    folder = head_folder(store, "bert", "masked_lm")
    states, mask = reference_of(folder, "masked_lm").states(MIXED)
    assert difference(store.engine(folder).embed(MIXED), (states * mask).sum(1) / mask.sum(1)) <= TOLERANCE


@pytest.mark.parametrize("options", [{}, {"prompt_name": "lake"}, {"prompt": "over the stone "}], ids=str)
def test_prompts(store: Store, options: dict[str, str], tmp_path: Path) -> None:
    folder = save(
        tmp_path / "prompted",
        splade(head_folder(store, "bert", "masked_lm")),
        prompts={"lake": "deep lake: ", "query": "find "},
        default_prompt_name="query",
    )
    texts = [sentence(5, 1), sentence(60, 2), ""]
    expected = reference(folder, texts, **options)
    assert difference(made(folder, texts, **options), expected) <= TOLERANCE
    assert difference(expected, reference(folder, texts, prompt="")) >= MUTANT_FACTOR * TOLERANCE


def test_csr_and_tokens(store: Store) -> None:
    folder = head_folder(store, "bert", "masked_lm")
    output = store.engine(folder).sparse(MIXED, max_active_dims=5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dense = output.to_dense()
    data, indices, indptr = output.to_csr()
    assert indptr.tolist() == [5 * index for index in range(len(MIXED) + 1)]
    assert np.array_equal(dense[np.repeat(np.arange(len(MIXED)), 5), indices], data)
    for row in range(len(MIXED)):
        best = np.argsort(-dense[row], kind="stable")[:5]
        assert [name for name, _ in output.tokens(row)] == tokenizer.convert_ids_to_tokens(best.tolist())
    assert output.vocab_size == dense.shape[1] == len(tokenizer)


@pytest.mark.parity
def test_a_real_tiny_splade() -> None:
    folder = checkpoint("splade-tiny")
    texts = [text for text in TEXTS if len(text) < 1500]
    expected = reference(folder, texts)
    assert difference(made(folder, texts), expected) <= 2 * TOLERANCE
    assert 20 < (expected > 0).sum(1).max() < expected.shape[1] / 10
