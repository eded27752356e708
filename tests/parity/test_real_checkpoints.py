"""Other real checkpoints, where they are at hand, against sentence-transformers."""

from pathlib import Path

import numpy as np
import pytest

from forebay import PoolingModel
from tests.parity.test_minilm import TEXTS
from tests.support import pipelines

pytestmark = pytest.mark.parity

MODELS = Path("~/.cache/forebay-models").expanduser()


def checkpoint(name: str) -> Path:
    folder = MODELS / name
    if not folder.exists():
        pytest.skip(f"the checkpoint {name} is not there: expected it in {MODELS}")
    return folder


def test_a_model2vec_table() -> None:
    """The library reads the same folder; its config.json asks for normalised vectors."""
    folder = checkpoint("tokenlearn-static")
    reference = pipelines.Reference([pipelines.static_embedding(folder), pipelines.normalize()])
    expected = reference.embed(TEXTS)
    with PoolingModel(str(folder)) as model:
        output = model.embed(TEXTS)
    assert np.abs(output.embeddings - expected).max() <= 1e-5
    raw = pipelines.Reference([pipelines.static_embedding(folder)]).embed(TEXTS)
    assert np.abs(raw - expected).max() >= 1e-3


def test_a_cls_model_with_nested_sizes() -> None:
    folder = checkpoint("wn-embed-tiny-cls-mrl")
    reference = pipelines.Reference(folder)
    expected = reference.embed(TEXTS)
    with PoolingModel(str(folder)) as model:
        output = model.embed(TEXTS)
        assert np.abs(output.embeddings - expected).max() <= 2e-5
        short = model.embed(TEXTS, dimensions=32).embeddings
    cut = expected[:, :32] / np.linalg.norm(expected[:, :32], axis=1, keepdims=True)
    assert np.abs(short - cut).max() <= 2e-5
    modules = list(reference.model)
    modules[1].pooling_mode = "mean"
    assert np.abs(reference.embed(TEXTS) - expected).max() >= 2e-3
