"""Activation functions by the names that checkpoints use, and the fused form that the CPU's linear layers have."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.core.errors import UnsupportedCheckpoint


class Activation(NamedTuple):
    """``function`` is the plain form; ``fused`` is oneDNN's (post-op, algorithm), or None where it has none."""

    function: Callable[[Tensor], Tensor]
    fused: tuple[str, str] | None


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _identity(x: Tensor) -> Tensor:
    return x


IDENTITY = Activation(_identity, ("none", ""))
_GELU_ERF = Activation(F.gelu, ("gelu", "none"))
_GELU_TANH = Activation(partial(F.gelu, approximate="tanh"), ("gelu", "tanh"))
_SILU = Activation(F.silu, ("swish", ""))

ACTIVATIONS: dict[str, Activation] = {
    "gelu": _GELU_ERF,
    "gelu_python": _GELU_ERF,
    "gelu_new": _GELU_TANH,
    "gelu_fast": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "gelu_accurate": _GELU_TANH,
    "quick_gelu": Activation(_quick_gelu, None),
    "relu": Activation(F.relu, ("relu", "")),
    "silu": _SILU,
    "swish": _SILU,
    "tanh": Activation(torch.tanh, ("tanh", "")),
    "mish": Activation(F.mish, None),
    "linear": IDENTITY,
}


def find_activation(name: str) -> Activation:
    """Return the activation that a ``config.json`` calls ``name``."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UnsupportedCheckpoint(f"config.json: unknown activation '{name}'; known: {known}") from None
