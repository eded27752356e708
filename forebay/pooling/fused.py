"""MaxSim by a fused kernel of the package late-interaction-kernels, where it is installed and the device is CUDA.

The kernel multiplies in half precision (bfloat16 where the vectors are, else float16) and sums in float32; no product
is written to memory. FOREBAY_MAXSIM in the environment decides: auto (the fused one if it can run), plain, or fused,
which fails the load where it can't. It knows no documents without vectors: their scores mean nothing.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.core.errors import InvalidRequest
from forebay.pooling.maxsim import max_sim

SWITCH = "FOREBAY_MAXSIM"
PACKAGE = "late_interaction_kernels"
INSTALL = "pip install 'forebay[fused-maxsim]'"

# What the kernel's tiles can hold.
_MULTIPLE, _MAX_SIZE = 8, 256

Sums = Callable[[Tensor, Tensor, NDArray[np.int64]], Tensor]
"""Scores float32 [n] of a query [q, d] for n documents [sum(lens), d]: sums over the query's vectors."""


class Choice(NamedTuple):
    """How scores are computed, what that is called, and why."""

    sums: Sums
    name: str
    why: str


def choose_sums(device: torch.device) -> Choice:
    """Choose once, at load. Raises InvalidRequest where the environment asks for what can't be had."""
    wish = os.environ.get(SWITCH, "").lower() or "auto"
    if wish not in ("auto", "plain", "fused"):
        raise InvalidRequest(f"{SWITCH} is '{wish[:32]}'; expected auto, plain or fused", field=SWITCH)
    if wish == "plain":
        return Choice(max_sim, "plain", f"{SWITCH}=plain")
    kernel, why = (None, f"on {device.type}") if device.type != "cuda" else _find_kernel()
    if kernel is not None:
        return Choice(_Fused(kernel), f"{PACKAGE}, products in half precision", f"{SWITCH}={wish}, {why}")
    if wish == "fused":
        raise InvalidRequest(
            f"{SWITCH}=fused asks for a fused kernel, which can't be had: {why}. It needs a CUDA device and {INSTALL}; "
            f"or set {SWITCH} to auto",
            field=SWITCH,
        )
    return Choice(max_sim, "plain", why)


def _find_kernel() -> tuple[Any, str]:
    try:
        return import_module(PACKAGE).maxsim_varlen, "the package is installed"
    except ImportError:
        return None, f"the package {PACKAGE} is not installed"
    except Exception as error:  # whatever a foreign package does on a device that it does not like
        return None, f"the package {PACKAGE} can't be used ({type(error).__name__})"


class _Fused:
    """The package's kernel, and the plain form for vectors that do not fit its tiles."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __call__(self, query: Tensor, documents: Tensor, lens: NDArray[np.int64]) -> Tensor:
        size = documents.shape[1]
        if size % _MULTIPLE or size > _MAX_SIZE or not documents.numel() or not query.numel():
            return max_sim(query, documents, lens)
        device = documents.device
        ends = torch.from_numpy(np.concatenate([np.zeros(1, np.int64), np.cumsum(lens)]).astype(np.int32)).to(device)
        query_ends = torch.tensor([0, len(query)], dtype=torch.int32, device=device)
        scores: Tensor = self._kernel(query, documents, query_ends, ends, len(query), int(lens.max()))
        return scores[0]
