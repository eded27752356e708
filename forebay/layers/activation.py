"""Activation functions by the names that checkpoints use, the fused forms that the CPU's linear layers have, gates."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.program import State, Value

if TYPE_CHECKING:
    from forebay._native import Activation as NativeActivation


class Activation(NamedTuple):
    """``function`` is the plain form; ``fused`` is oneDNN's (post-op, algorithm) and ``native`` the native kernels'
    name, each None where there is none."""

    function: Callable[[Tensor], Tensor]
    fused: tuple[str, str] | None
    native: "NativeActivation | None"


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _identity(x: Tensor) -> Tensor:
    return x


IDENTITY = Activation(_identity, ("none", ""), "none")
_GELU_ERF = Activation(F.gelu, ("gelu", "none"), "gelu_erf")
_GELU_TANH = Activation(partial(F.gelu, approximate="tanh"), ("gelu", "tanh"), "gelu_tanh")
_SILU = Activation(F.silu, ("swish", ""), "silu")

ACTIVATIONS: dict[str, Activation] = {
    "gelu": _GELU_ERF,
    "gelu_python": _GELU_ERF,
    "gelu_new": _GELU_TANH,
    "gelu_fast": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "gelu_accurate": _GELU_TANH,
    "quick_gelu": Activation(_quick_gelu, None, None),
    "relu": Activation(F.relu, ("relu", ""), "relu"),
    "silu": _SILU,
    "swish": _SILU,
    "tanh": Activation(torch.tanh, ("tanh", ""), "tanh"),
    "mish": Activation(F.mish, None, None),
    "linear": IDENTITY,
}


def find_activation(name: str) -> Activation:
    """Return the activation that a ``config.json`` calls ``name``."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UnsupportedCheckpoint(f"config.json: unknown activation '{name}'; known: {known}") from None


def gate(x: State, activation: Activation) -> State:
    """[T, 2 * n] → [T, n]: the first half of each row, activated, times the second (Shazeer 2020, arXiv:2002.05202)."""
    if isinstance(x, Value):
        return x.recorder.gate(x, activation)
    first, second = x.chunk(2, -1)
    return activation.function(first) * second
