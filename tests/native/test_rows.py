"""RMS norms, gates, and heads that are normalised and rotated: against torch, for every instruction set."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forebay.layers.norm import RMSNorm
from forebay.layers.rotary import rotate
from tests.native.kinds import ISAS
from tests.native.test_kernels import FORMULAS

native = pytest.importorskip("forebay._native", reason="the native kernels are not built")

Floats = NDArray[np.float32]


def spread(rows: int, width: int, seed: int = 0) -> Floats:
    """Rows of very different sizes."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-4, 5, (rows, 1))).astype(np.float32)


def show(program: "native.Program", slot: int, count: int, width: int, **more: object) -> Floats:
    program.show(slot, 0)
    ids, out = np.arange(count), np.empty((1, count, width), np.float32)
    program.run(ids, ids, None, np.array([0, count]), None, out, 2, **more)
    return out[0]


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("width", [1, 3, 16, 20, 100, 384])
@pytest.mark.parametrize("isa", ISAS)
def test_rms_norm(isa: str, width: int, has_residual: bool) -> None:
    table, rest = spread(130, width), spread(130, width, 1)
    weight = np.random.default_rng(2).standard_normal(width).astype(np.float32)
    program = native.Program(isa, [(width, False)] * 3)
    program.embed(0, [(table, 0)])
    program.embed(1, [(rest, 0)], 0.5)
    program.rms_norm(0, 2, weight, 1e-6, 1 if has_residual else -1)
    x = torch.from_numpy(table).double()
    expected = torch.nn.functional.rms_norm(x, (width,), torch.from_numpy(weight).double(), 1e-6).numpy()
    scale = np.abs(expected) + np.abs(weight)
    if has_residual:
        expected = expected + rest * 0.5
        scale = scale + np.abs(rest)
    assert (np.abs(show(program, 2, 130, width) - expected) <= 4e-7 * scale + 1e-7).all()


def test_gemmas_norm_adds_one_to_its_weights() -> None:
    norm = RMSNorm(8, 1e-6, offset=1.0)
    norm.weight.copy_(torch.linspace(-1, 1, 8))
    assert torch.equal(norm.factors, torch.linspace(-1, 1, 8) + 1)


@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh", "silu", "relu", "none"])
@pytest.mark.parametrize("width", [1, 7, 16, 50, 200])
@pytest.mark.parametrize("isa", ISAS)
def test_gate(isa: str, width: int, name: str) -> None:
    table = np.random.default_rng(width).standard_normal((110, 2 * width)).astype(np.float32) * 3
    program = native.Program(isa, [(2 * width, False), (width, False)])
    program.embed(0, [(table, 0)])
    program.gate(0, 1, name)
    x = table.astype(np.float64)
    expected = FORMULAS[name](x[:, :width]) * x[:, width:]
    assert (np.abs(show(program, 1, 110, width) - expected) <= 1e-6 * np.abs(x[:, :width] * x[:, width:]) + 1e-7).all()


@pytest.mark.parametrize("is_alternating", [False, True])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("size", "turned"), [(2, 2), (16, 4), (20, 20), (64, 64), (80, 20), (128, 128)])
@pytest.mark.parametrize("isa", ISAS)
def test_turn(isa: str, size: int, turned: int, has_norms: bool, is_alternating: bool) -> None:
    heads, kv_heads = (3, 3) if is_alternating else (4, 2)
    rng = np.random.default_rng(size)
    table = rng.standard_normal((100, (heads + 2 * kv_heads) * size)).astype(np.float32)
    weights = rng.standard_normal((2, size)).astype(np.float32) if has_norms else None
    angles = rng.uniform(-9, 9, (40, turned // 2)).astype(np.float32)
    cosines, sines, rows = np.cos(angles), np.sin(angles), rng.integers(0, 40, 100)
    program = native.Program(isa, [(table.shape[1], True)])
    program.embed(0, [(table, 0)])
    program.turn(0, (heads, kv_heads, size, is_alternating), weights, 1e-5, 0)
    made = show(program, 0, 100, table.shape[1], angles=[(np.concatenate([cosines, sines], 1), rows)])
    turns = tuple(torch.from_numpy(np.concatenate([x, x], 1)[rows])[:, None].double() for x in (cosines, sines))
    x = torch.from_numpy(table).double()
    if is_alternating:
        parts = list(x.view(100, heads, 3, size).unbind(2))
    else:
        parts = list(x.view(100, -1, size).split([heads, kv_heads, kv_heads], 1))
    for place in range(2):
        if weights is not None:
            weight = torch.from_numpy(weights[place]).double()
            parts[place] = torch.nn.functional.rms_norm(parts[place], (size,), weight, 1e-5)
        parts[place] = rotate(parts[place], turns)
    expected = torch.stack(parts, 2) if is_alternating else torch.cat(parts, 1)
    assert np.abs(made - expected.reshape(100, -1).numpy()).max() <= 4e-6


def test_angles_that_are_missing_or_too_many_are_refused() -> None:
    program = native.Program("plain", [(12, True)])
    program.embed(0, [(np.zeros((3, 12), np.float32), 0)])
    program.turn(0, (1, 1, 4, False), None, 0.0, 0)
    with pytest.raises(ValueError, match="a table of angles is missing, or wider than a head"):
        show(program, 0, 3, 12)
    with pytest.raises(ValueError, match="a table of angles is missing, or wider than a head"):
        show(program, 0, 3, 12, angles=[(np.zeros((3, 6), np.float32), np.arange(3))])
    with pytest.raises(ValueError, match="a token's angles are not in their table"):
        show(program, 0, 3, 12, angles=[(np.zeros((2, 4), np.float32), np.arange(3))])
