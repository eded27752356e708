"""Static embeddings, as sentence-transformers and as model2vec save them, against sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer

from forebay import PoolingModel
from tests.models.cases import MUTANT_FACTOR, TOLERANCE
from tests.support import pipelines, tiny
from tests.support.store import Store
from tests.support.texts import MIXED, sentence

LONG = (*MIXED, sentence(3000, 8))
"""Static embeddings read texts of any length."""


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def table_folder(store: Store, layout: str) -> Path:
    return store.folder(f"table-{layout}", {"rows": tiny.static, "model2vec": tiny.model2vec}[layout])


def pipeline_folder(store: Store, layout: str, schema: pipelines.Schema) -> Path:
    table = pipelines.static_embedding(table_folder(store, layout))
    return store.folder(
        f"static-{layout}-{schema}",
        lambda place: pipelines.save_pipeline(place, [table, pipelines.normalize()], schema=schema),
    )


@pytest.mark.parametrize("schema", ["old", "new"])
@pytest.mark.parametrize("layout", ["rows", "model2vec"])
def test_a_pipeline_with_a_table(store: Store, layout: str, schema: pipelines.Schema) -> None:
    folder = pipeline_folder(store, layout, schema)
    expected = store.reference(folder).embed(LONG)
    output = store.engine(folder).embed(LONG)
    assert difference(output, expected) <= TOLERANCE
    assert not output.truncated.any()
    assert not output.embeddings[LONG.index("")].any()


@pytest.mark.parametrize("normalize", [None, True, False])
def test_a_bare_folder_of_model2vec(normalize: bool | None, tmp_path: Path) -> None:
    """It has no modules.json, but config.json says whether vectors are normalised."""
    folder = tiny.model2vec(tmp_path / "bare")
    if normalize is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": normalize}))
    modules = [pipelines.static_embedding(folder)] + [pipelines.normalize()] * bool(normalize)
    expected = pipelines.Reference(modules).embed(LONG)
    with PoolingModel(str(folder)) as model:
        assert difference(model.embed(LONG), expected) <= TOLERANCE


def test_rows_weights_and_special_tokens_would_be_seen(store: Store) -> None:
    folder = table_folder(store, "model2vec")
    tensors = load_file(folder / "model.safetensors")
    mapping, weights = tensors["mapping"], tensors["weights"].float()[:, None]
    right = tensors["embeddings"][mapping] * weights
    expected = pipelines.Reference([pipelines.static_embedding(folder)]).embed(MIXED)
    assert difference(_means(folder, right), expected) <= TOLERANCE
    mistakes = {
        "no weights": _means(folder, tensors["embeddings"][mapping]),
        "weights of the rows": _means(folder, (tensors["embeddings"] * weights[: len(tensors["embeddings"])])[mapping]),
        "special tokens": _means(folder, right, add_special_tokens=True),
    }
    for name, wrong in mistakes.items():
        assert difference(wrong, expected) >= MUTANT_FACTOR * TOLERANCE, name


def _means(folder: Path, table: torch.Tensor, *, add_special_tokens: bool = False) -> NDArray[np.float32]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [tokenizer.encode(text, add_special_tokens=add_special_tokens).ids for text in MIXED]
    means = [table[row].mean(0) if row else torch.zeros(table.shape[1]) for row in rows]
    vectors: NDArray[np.float32] = torch.stack(means).numpy()
    return vectors
