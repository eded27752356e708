"""Which kernels this processor has, and which of them are worth a test of their own. It knows no test."""

import pytest

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

ISAS: list[str] = [name for name in native.kernels() if not name.endswith("-basic")]
"""In float32 the basic kernels are the very same."""

LOW_KINDS: list[tuple[str, str]] = [
    (name, precision)
    for name in native.kernels()
    for precision in ("bfloat16", "int8")
    if native.has_precision(name, precision)
]
"""Kernels with linear layers in lower precision."""

KINDS: list[tuple[str, str]] = [(name, "float32") for name in ISAS] + LOW_KINDS

ROUNDING: list[str] = [name for name, _ in LOW_KINDS[::2] if native.attends_in_bfloat16(name, "bfloat16")]
"""Those whose attention rounds what it multiplies to bfloat16, beside linear layers in lower precision."""
