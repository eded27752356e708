"""Forebay's native kernels for x86-64 processors; absent where the package was installed without a compiler."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
"""The bits of bfloat16."""
Ids = NDArray[np.int64]
Precision = Literal["float32", "bfloat16", "int8"]
Heads = tuple[int, int, int, bool]
"""Heads of queries, of keys, their size; whether a row holds one head's query, key and value after another's."""
Pages = tuple[Floats, Floats, Ids, list[tuple[int, Ids | None]]]
"""Keys and values [layers, slots, width]; slots of the step's tokens; for neighbouring sequences their number and the
slots [number, K] of each one's tokens before and in this step, None where it begins with this step."""
Activation = Literal["none", "gelu_erf", "gelu_tanh", "relu", "silu", "tanh"]

def kernels() -> list[str]:
    """The instruction sets that this processor has, the best first; "plain" is always the last.

    Behind a name, the same with "-basic": without instructions for int8 and bfloat16, if the processor has any.
    """

def has_precision(kernels: str, precision: str) -> bool:
    """Whether these kernels have linear layers of this precision on this processor."""

def form_of(kernels: str, precision: str) -> str:
    """By which instructions these kernels' linear layers of this precision multiply."""

def attends_in_bfloat16(kernels: str, precision: str) -> bool:
    """Whether attention beside linear layers of this precision rounds what it multiplies to bfloat16."""

class PackedLinear:
    """A weight [out, in] and a bias [out] in the layout of one instruction set and precision."""

    def __init__(self, kernels: str, weight: Floats, bias: Floats | None, precision: Precision = "float32") -> None: ...

class Program:
    """Operations on the rows of a flat batch; ``slots`` are (width, is global) of the places of its values."""

    def __init__(self, kernels: str, slots: list[tuple[int, bool]]) -> None: ...
    def embed(self, dst: int, tables: list[tuple[Floats | Halves, int]], factor: float = 1.0) -> None:
        """The sum of one row of each table, times ``factor``; tables may be in bfloat16."""

    def linear(self, src: int, dst: int, weights: PackedLinear, activation: Activation, residual: int) -> None: ...
    def layer_norm(self, src: int, dst: int, weight: Floats, bias: Floats | None, eps: float) -> None: ...
    def rms_norm(self, src: int, dst: int, weight: Floats, eps: float, residual: int) -> None: ...
    def gate(self, src: int, dst: int, activation: Activation) -> None: ...
    def turn(self, src: int, heads: Heads, weights: Floats | None, eps: float, angles: int) -> None:
        """Normalise heads of queries and keys with ``weights`` [2, size], and rotate them by the step's ``angles``."""

    def keep(self, src: int, heads: Heads, layer: int) -> None:
        """Put keys and values where the step keeps them."""

    def attention(
        self,
        src: int,
        dst: int,
        heads: Heads,
        scale: float,
        is_causal: bool = False,
        window: int = 0,
        soft_cap: float = 0.0,
        layer: int = 0,
        precision: Precision = "float32",
    ) -> None: ...
    def show(self, src: int, state: int) -> None: ...
    def run(
        self,
        ids: Ids,
        positions: Ids,
        types: Ids | None,
        borders: Ids,
        bias: Floats | None,
        out: Floats,
        threads: int,
        cut: Literal["automatic", "groups", "rows", "columns"] = "automatic",
        seen: Ids | None = None,
        angles: Sequence[tuple[Floats, Ids]] = (),
        pages: Pages | None = None,
    ) -> None:
        """Run a step; ``out`` is [1, T, width] for the last state or [states, T, width] for all.

        ``seen`` tells how many of a sequence's first tokens are seen; ``angles`` are tables of cosines and sines
        [rows, half | half] with each token's row.
        """

def weighted_sums(rows: Floats, starts: Ids, lens: Ids, weights: Floats | None, out: Floats) -> None:
    """Put the sums of weights [sum(lens)] (None: 1) times rows [T, H] over each segment into ``out`` [n, H]."""

def maxima(rows: Floats, starts: Ids, lens: Ids, out: Floats) -> None:
    """Put the greatest of the rows [T, H] of each segment, column by column, into ``out`` [n, H]; 0 without rows."""

def unit_rows(rows: Floats, out: Floats, least: float) -> None:
    """Put rows [n, H] scaled to unit length into ``out``; those shorter than ``least`` are divided by it."""

def max_sim(kernels: str, query: Floats, arrays: Sequence[Floats], lens: Ids, out: Floats, threads: int) -> None:
    """Put the MaxSim of a query [q, d] and each of n documents into ``out`` [n]; -inf for one without rows.

    Documents lie end to end in each of the arrays [rows, d], none in two of them; ``lens`` counts the rows of all.
    """

def run_linear(
    x: Floats, weights: PackedLinear, residual: Floats | None, activation: Activation, out: Floats
) -> None: ...
def activate(kernels: str, activation: Activation, values: Floats) -> None: ...
