"""What is made of pooled vectors: stages, slices and normalisation in their order; logits, calibration, activation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.core.tasks import Task
from forebay.pooling.activations import Calibration, choose_activation
from forebay.pooling.heads import ClassifyHead, Dense, EmbedHead, LayerNorm, normalize

VECTORS = torch.tensor([[3.0, 4.0, 12.0, 0.0], [-1.0, 2.0, -2.0, 4.0], [0.0, 0.0, 0.0, 0.0]])


def unit(x: Tensor) -> Tensor:
    """Rows over their length, by hand."""
    lengths = (x**2).sum(1, keepdim=True) ** 0.5
    return torch.where(lengths > 0, x / lengths.clamp(min=1e-30), x)


def asks(**wishes: Any) -> PoolingParams:
    return PoolingParams(**wishes)


CASES: list[tuple[dict[str, Any], PoolingParams, Callable[[Tensor], Tensor]]] = [
    # what the checkpoint says, what the item asks, what comes out
    ({"is_normalized": False}, asks(), lambda x: x),
    ({"is_normalized": True}, asks(), unit),
    ({"is_normalized": True}, asks(use_activation=False), lambda x: x),
    ({"is_normalized": False}, asks(use_activation=True), unit),
    ({"is_normalized": False}, asks(dimensions=2), lambda x: x[:, :2]),
    ({"is_normalized": True}, asks(dimensions=2), lambda x: unit(x[:, :2])),
    ({"is_normalized": True}, asks(dimensions=2, use_activation=False), lambda x: x[:, :2]),
    ({"is_normalized": False}, asks(dimensions=2, use_activation=True), lambda x: unit(x[:, :2])),
    ({"is_normalized": True}, asks(dimensions=4), unit),
    ({"is_normalized": True}, asks(truncate_dim=2), lambda x: unit(x)[:, :2]),
    ({"is_normalized": False}, asks(truncate_dim=2), lambda x: x[:, :2]),
    # the checkpoint's own slice comes last and is not normalised again …
    ({"is_normalized": True, "truncate_dim": 3}, asks(), lambda x: unit(x)[:, :3]),
    ({"is_normalized": True, "truncate_dim": 3}, asks(use_activation=False), lambda x: x[:, :3]),
    # … and gives way to an item's wish
    ({"is_normalized": True, "truncate_dim": 3}, asks(dimensions=2), lambda x: unit(x[:, :2])),
    ({"is_normalized": True, "truncate_dim": 2}, asks(dimensions=3), lambda x: unit(x[:, :3])),
    ({"is_normalized": True, "truncate_dim": 2}, asks(dimensions=4), unit),
    ({"is_normalized": True, "truncate_dim": 3}, asks(truncate_dim=2), lambda x: unit(x)[:, :2]),
    # the user's default is as if every item asked for it
    ({"is_normalized": True, "dimensions": 2}, asks(), lambda x: unit(x[:, :2])),
    ({"is_normalized": True, "dimensions": 2, "truncate_dim": 3}, asks(), lambda x: unit(x[:, :2])),
    ({"is_normalized": True, "dimensions": 3, "truncate_dim": 2}, asks(), lambda x: unit(x[:, :3])),
    ({"is_normalized": True, "dimensions": 2}, asks(dimensions=3), lambda x: unit(x[:, :3])),
    ({"is_normalized": True, "dimensions": 2}, asks(truncate_dim=3), lambda x: unit(x)[:, :3]),
]


@pytest.mark.parametrize(("said", "asked", "expected"), CASES, ids=[f"{said} {asked}" for said, asked, _ in CASES])
def test_slice_and_normalisation(
    said: dict[str, Any], asked: PoolingParams, expected: Callable[[Tensor], Tensor]
) -> None:
    torch.testing.assert_close(EmbedHead((), **said)(VECTORS, asked), expected(VECTORS))


def test_what_is_pooled_is_left_alone() -> None:
    before = VECTORS.clone()
    EmbedHead((normalize,), is_normalized=True)(VECTORS, asks(dimensions=2))
    assert torch.equal(VECTORS, before)


def test_stages_run_in_their_order_and_in_float32() -> None:
    double, shift = (lambda x: 2 * x), (lambda x: x + 1)
    head = EmbedHead((double, shift), is_normalized=False)
    found = head(VECTORS.bfloat16(), asks())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, 2 * VECTORS + 1)


WEIGHT = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, -1.0, 0.0, 1.0]])


def test_dense() -> None:
    bias = torch.tensor([1.0, -1.0])
    plain = VECTORS @ WEIGHT.T
    torch.testing.assert_close(Dense(WEIGHT, None, torch.tanh)(VECTORS), torch.tanh(plain))
    torch.testing.assert_close(Dense(WEIGHT, bias, torch.tanh)(VECTORS), torch.tanh(plain + bias))


def test_dense_with_a_residual() -> None:
    """The input is added behind the activation, through a matrix where the sizes differ."""
    square, wide = torch.eye(4) * 3, torch.ones(2, 4)
    found = Dense(square, None, torch.tanh, use_residual=True)(VECTORS)
    torch.testing.assert_close(found, torch.tanh(3 * VECTORS) + VECTORS)
    found = Dense(WEIGHT, None, torch.tanh, use_residual=True, residual=wide)(VECTORS)
    torch.testing.assert_close(found, torch.tanh(VECTORS @ WEIGHT.T) + VECTORS.sum(1, keepdim=True))


def test_layer_norm() -> None:
    weight, bias = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.5, -0.5, 1.0])
    centred = VECTORS - VECTORS.mean(1, keepdim=True)
    expected = centred / ((centred**2).mean(1, keepdim=True) + 1e-5) ** 0.5 * weight + bias
    torch.testing.assert_close(LayerNorm(weight, bias)(VECTORS), expected)


def test_normalising_tiny_and_huge_vectors() -> None:
    vectors = torch.tensor([[3e-10, 4e-10], [3e15, 4e15], [0.0, 0.0]])
    torch.testing.assert_close(normalize(vectors), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))


def classifier(**options: Any) -> ClassifyHead:
    activation = choose_activation(None, None, "", num_labels=4)
    return ClassifyHead(lambda rows: 2 * rows, activation, Calibration(mean=1.0, sigma=2.0), **options)


@pytest.mark.parametrize(
    ("default", "asked", "activates"),
    [
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
    ],
)
def test_scores(default: bool, asked: bool | None, activates: bool) -> None:
    logits = (2 * VECTORS - 1) / 2
    params = PoolingParams(outputs=(Task.CLASSIFY,), use_activation=asked)
    found = classifier(use_activation=default)(VECTORS.bfloat16(), params)
    torch.testing.assert_close(found, logits.softmax(1) if activates else logits)
