"""Each activation against its formula; what is unknown is refused by name."""

import math
from collections.abc import Callable

import pytest
import torch

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.activation import ACTIVATIONS, find_activation


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _silu(x: float) -> float:
    return x * _sigmoid(x)


def _quick_gelu(x: float) -> float:
    return x * _sigmoid(1.702 * x)


def _mish(x: float) -> float:
    return x * math.tanh(math.log1p(math.exp(x)))


FORMULAS: dict[str, Callable[[float], float]] = {
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_accurate": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": lambda x: max(0.0, x),
    "silu": _silu,
    "swish": _silu,
    "tanh": math.tanh,
    "mish": _mish,
    "linear": lambda x: x,
}


def test_every_activation_has_its_formula_here() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_it_is_the_formula(name: str) -> None:
    points = [-8.0, -2.5, -1.0, -0.1, 0.0, 0.1, 1.0, 2.5, 8.0]
    expected = torch.tensor([FORMULAS[name](point) for point in points], dtype=torch.float64)
    found = find_activation(name).function(torch.tensor(points, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_an_unknown_name_is_refused_with_what_is_known() -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"'geglu'.*gelu_new.*silu"):
        find_activation("geglu")
