"""The greatest rate of matrix products that this processor showed, by precision, and that of reading memory:
``python cpu_peak.py`` prints JSON.

The best of PyTorch's products and of Forebay's own linear layers, over the shapes of the two models: each library
reaches its own share of the processor, and the highest that any reaches comes nearest to what it can do.
"""

import json
import time

import numpy as np
import torch

ROWS = 1024
SHAPES = ((384, 1536), (768, 3072), (1024, 4096))
SECONDS = 0.7
"""So long each shape of each library is tried."""

PRECISIONS = ("float32", "bfloat16", "int8")


def best_rate(work, operations):
    work()
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return operations / best


def torch_rate(precision, width, inner):
    if precision == "int8":
        a = torch.randint(-9, 9, (ROWS, width), dtype=torch.int8)
        b = torch.randint(-9, 9, (width, inner), dtype=torch.int8)
        return best_rate(lambda: torch._int_mm(a, b), 2 * ROWS * width * inner)
    dtype = getattr(torch, precision)
    a, b = torch.randn(ROWS, width).to(dtype), torch.randn(inner, width).to(dtype)
    return best_rate(lambda: torch.nn.functional.linear(a, b), 2 * ROWS * width * inner)


def native_rate(precision, width, inner, pairs=4):
    """A model of linear layers alone, there and back a few times, on all threads."""
    try:
        from forebay import _native as native
    except ImportError:
        return 0.0
    kernels = native.kernels()[0]
    if not native.has_precision(kernels, precision):
        return 0.0
    chance = np.random.default_rng(0)
    table = chance.standard_normal((ROWS, width), np.float32)
    up = native.PackedLinear(kernels, chance.standard_normal((inner, width), np.float32) / width, None, precision)
    down = native.PackedLinear(kernels, chance.standard_normal((width, inner), np.float32) / inner, None, precision)
    program = native.Program(kernels, [(width, False), (inner, False)])
    program.embed(0, [(table, 0)])
    for _ in range(pairs):
        program.linear(0, 1, up, "none", -1)
        program.linear(1, 0, down, "none", -1)
    program.show(0, 0)
    ids, borders = np.arange(ROWS), np.arange(0, ROWS + 1, 64)
    out, threads = np.empty((1, ROWS, width), np.float32), torch.get_num_threads()
    return best_rate(lambda: program.run(ids, ids, None, borders, None, out, threads), 4 * pairs * ROWS * width * inner)


def memory_rate():
    """Bytes a second that all threads read of a table no cache holds."""
    table = torch.ones(1 << 26)
    return best_rate(table.sum, table.nbytes)


def main():
    with torch.inference_mode():
        peak = {
            precision: max(
                (rate(precision, *shape), by)
                for by, rate in (("PyTorch", torch_rate), ("Forebay", native_rate))
                for shape in SHAPES
            )
            for precision in PRECISIONS
        }
        print(json.dumps({"peak": peak, "memory": memory_rate()}))


if __name__ == "__main__":
    main()
