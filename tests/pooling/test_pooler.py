"""Poolers of all tasks: method and head joined, layers mixed, windows averaged."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.core.tasks import Task
from forebay.layers.batch import FlatBatch
from forebay.pooling.activations import Calibration, choose_activation
from forebay.pooling.heads import ClassifyHead, EmbedHead
from forebay.pooling.methods import METHODS, all_rows, step_rows
from forebay.pooling.pooler import (
    ClassifyPooler,
    EmbedPooler,
    LayerMix,
    Pipeline,
    TokenClassifyPooler,
    TokenEmbedPooler,
)
from tests.support.engine import FakeModel, flat_cursor, make_pipeline

LENS = [0, 1, 2, 2, 5]
ROWS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
PLAIN = EmbedHead((), is_normalized=False)
PARTS = [[], [0], [1, 2], [3, 4], [5, 6, 7, 8, 9]]


def test_several_methods_are_joined_in_their_order() -> None:
    _, cursor = flat_cursor(LENS)
    found = EmbedPooler([METHODS["MAX"], METHODS["CLS"]], PLAIN)(ROWS, cursor, PoolingParams()).values
    torch.testing.assert_close(found[4], torch.cat([ROWS[5:].amax(0), ROWS[5]]))
    assert found.shape == (5, 6)


def test_stages_on_tokens_come_before_the_method() -> None:
    _, cursor = flat_cursor(LENS)
    pooler = EmbedPooler([METHODS["MEAN"]], PLAIN, [torch.exp, lambda x: x + 1])
    found = pooler(ROWS.bfloat16(), cursor, PoolingParams()).values
    torch.testing.assert_close(found[4], (ROWS[5:].bfloat16().float().exp() + 1).mean(0))


def test_one_vector_a_token() -> None:
    _, cursor = flat_cursor(LENS)
    pooler = TokenEmbedPooler(all_rows, EmbedHead((), is_normalized=True))
    rows = pooler(ROWS, cursor, PoolingParams(dimensions=2)).to_host()
    for row, part in zip(rows, PARTS, strict=True):
        expected = ROWS[part][:, :2] / ROWS[part][:, :2].norm(dim=1, keepdim=True)
        np.testing.assert_allclose(row, expected.numpy(), rtol=1e-5)


def test_the_first_token_is_skipped() -> None:
    _, cursor = flat_cursor(LENS)
    rows = TokenEmbedPooler(all_rows, PLAIN, skips_first=True)(ROWS, cursor, PoolingParams()).to_host()
    for row, part in zip(rows, PARTS, strict=True):
        np.testing.assert_array_equal(row, ROWS[part[1:]].numpy())


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_windows_are_means(size: int) -> None:
    _, cursor = flat_cursor(LENS)
    rows = TokenEmbedPooler(all_rows, PLAIN)(ROWS, cursor, PoolingParams(chunk_size=size)).to_host()
    for row, part in zip(rows, PARTS, strict=True):
        windows = [ROWS[part[start : start + size]].mean(0) for start in range(0, len(part), size)]
        expected = torch.stack(windows) if windows else torch.zeros(0, 3)
        np.testing.assert_allclose(row, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_scores_of_a_text_and_of_its_tokens() -> None:
    _, cursor = flat_cursor(LENS)
    head = ClassifyHead(lambda rows: rows * 2, choose_activation(None, None, "", 3), Calibration())
    scores = (ROWS * 2).softmax(1)
    found = ClassifyPooler(METHODS["LAST"], head)(ROWS, cursor, PoolingParams(outputs=(Task.CLASSIFY,))).values
    torch.testing.assert_close(found[1:], scores[[0, 2, 4, 9]])
    params = PoolingParams(outputs=(Task.TOKEN_CLASSIFY,))
    rows = TokenClassifyPooler(all_rows, head, columns=(2, 0))(ROWS, cursor, params).to_host()
    for row, part in zip(rows, PARTS, strict=True):
        np.testing.assert_allclose(row, scores[part][:, [2, 0]].numpy(), rtol=1e-5)


def test_scores_of_steps() -> None:
    """The n-th sequence of a fake batch has the ids n, n, n …"""
    _, cursor = flat_cursor(LENS)
    head = ClassifyHead(lambda rows: rows, choose_activation("regression", None, "", 3), Calibration())
    rows = TokenClassifyPooler(step_rows(3), head)(
        ROWS, cursor, PoolingParams(outputs=(Task.TOKEN_CLASSIFY,))
    ).to_host()
    assert [len(row) for row in rows] == [0, 0, 0, 2, 0]  # type: ignore[arg-type]
    np.testing.assert_allclose(rows[3], ROWS[3:5].numpy())  # type: ignore[arg-type]


class Layered(FakeModel):
    """Four layers; the state of layer i is i + 1 everywhere."""

    def __call__(self, batch: FlatBatch, on_layer: Callable[[int, Tensor], None] | None = None) -> Tensor:
        hidden = super().__call__(batch)
        if on_layer is not None:
            for index in range(4):
                on_layer(index, torch.full_like(hidden, index + 1.0, dtype=torch.bfloat16))
        return hidden


@pytest.mark.parametrize(
    ("start", "weights", "expected"),
    [(0, [1.0, 1.0, 1.0, 1.0], 2.5), (2, [1.0, 3.0], 3.75), (3, [7.0], 4.0), (1, [1.0, 0.0, 1.0], 3.0)],
)
def test_layers_are_mixed_by_their_weights(start: int, weights: list[float], expected: float) -> None:
    pipeline = Pipeline(Layered(), make_pipeline(FakeModel()).poolers, LayerMix(torch.tensor(weights), start))
    batch, _ = flat_cursor([1, 2])
    mixed = pipeline.forward(batch)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, torch.full((3, 3), expected))


def test_only_empty_sequences_need_no_model() -> None:
    model = FakeModel()
    for mix in (None, LayerMix(torch.ones(1), 3)):
        batch, cursor = flat_cursor([0, 0])
        pipeline = Pipeline(model, make_pipeline(model).poolers, mix)
        hidden = pipeline.forward(batch)
        for task, shape in ((Task.EMBED, (3,)), (Task.TOKEN_EMBED, (0, 3))):
            rows = pipeline.pool(task, hidden, cursor, PoolingParams()).to_host()
            assert [row.shape for row in rows] == [shape, shape]  # type: ignore[union-attr]
    assert model.batches == []
