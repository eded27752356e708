"""The packed layer against the plain one and against the written formula."""

import pytest
import torch
from torch import Tensor

from forebay.layers.activation import ACTIVATIONS, IDENTITY, Activation, find_activation
from forebay.layers.linear import Linear, can_pack

SIZES = [(1, 1, 1), (3, 8, 5), (33, 64, 192), (200, 384, 1536)]
needs_packing = pytest.mark.skipif(
    not can_pack(torch.empty(2, 2)), reason="this torch has no oneDNN, so there is no packed form"
)


def make(
    size_in: int, *parts: int, bias: bool = True, activation: Activation = IDENTITY, dtype: torch.dtype = torch.float32
) -> Linear:
    layer = Linear(size_in, *parts, bias=bias, activation=activation).to(dtype)
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / size_in**0.5)
    return layer


def inputs(rows: int, size: int, seed: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def formula(layer: Linear, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """In float64, from the plain weight."""
    assert layer.weight is not None
    y = x.double() @ layer.weight.double().T
    if layer.bias is not None:
        y = y + layer.bias.double()
    return layer.activation.function(y if residual is None else y + residual.double()).float()


def both(layer: Linear, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What the plain layer gives, then what the packed one gives."""
    plain = layer(x, residual)
    layer.pack()
    assert layer.weight is None
    return plain, layer(x, residual)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "size_in", "size_out"), SIZES)
def test_the_plain_layer_is_the_formula(rows: int, size_in: int, size_out: int, bias: bool) -> None:
    layer, x = make(size_in, size_out, bias=bias), inputs(rows, size_in)
    torch.testing.assert_close(layer(x), formula(layer, x), rtol=1e-5, atol=1e-5)


@needs_packing
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "size_in", "size_out"), SIZES[:3])
def test_packed_is_plain(rows: int, size_in: int, size_out: int, bias: bool, name: str) -> None:
    layer, x = make(size_in, size_out, bias=bias, activation=find_activation(name)), inputs(rows, size_in)
    expected = formula(layer, x)
    plain, packed = both(layer, x)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-5)


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "size_in", "size_out"), SIZES)
def test_a_residual_is_added_and_left_alone(rows: int, size_in: int, size_out: int, bias: bool) -> None:
    layer, x, residual = make(size_in, size_out, bias=bias), inputs(rows, size_in), inputs(rows, size_out, seed=6)
    before, expected = residual.clone(), formula(layer, x, residual)
    plain, packed = both(layer, x, residual)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(residual, before)


@needs_packing
def test_parts_stand_side_by_side() -> None:
    layer, x = make(16, 4, 8, 2), inputs(5, 16)
    assert layer.weight is not None
    assert layer.bias is not None
    weights, biases = layer.weight.split([4, 8, 2]), layer.bias.split([4, 8, 2])
    parts = [x @ weight.T + bias for weight, bias in zip(weights, biases, strict=True)]
    plain, packed = both(layer, x)
    torch.testing.assert_close(plain, torch.cat(parts, dim=1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed, torch.cat(parts, dim=1), rtol=1e-5, atol=1e-5)


@needs_packing
@pytest.mark.parametrize("name", ["gelu", "quick_gelu", "linear"])
def test_bfloat16(name: str) -> None:
    layer = make(64, 32, activation=find_activation(name), dtype=torch.bfloat16)
    x = inputs(9, 64, dtype=torch.bfloat16)
    expected = formula(layer, x)
    plain, packed = both(layer, x)
    assert plain.dtype == packed.dtype == torch.bfloat16
    torch.testing.assert_close(plain.float(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(packed.float(), expected, rtol=2e-2, atol=2e-2)


@needs_packing
@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    layer, x = make(8, 5), inputs(rows, 8)
    plain, packed = both(layer, x)
    assert plain.shape == packed.shape == (rows, 5)
    torch.testing.assert_close(plain, packed)


@needs_packing
def test_rows_that_lie_apart() -> None:
    """A view with strides is read as what it shows."""
    layer, x = make(8, 5), inputs(6, 24)[::2, 8:16]
    plain, packed = both(layer, x)
    torch.testing.assert_close(packed, plain)
    torch.testing.assert_close(packed, layer(x.contiguous()))


@needs_packing
def test_packing_twice_changes_nothing() -> None:
    layer, x = make(8, 5), inputs(3, 8)
    plain, packed = both(layer, x)
    layer.pack()
    assert torch.equal(layer(x), packed)
    torch.testing.assert_close(plain, packed)


def test_what_has_no_packed_form_stays_plain() -> None:
    for layer in (make(8, 5, dtype=torch.float64), make(8, 5, dtype=torch.float16)):
        layer.pack()
        assert layer.weight is not None


@needs_packing
def test_each_row_is_its_own() -> None:
    """A row's result does not hang on its neighbours beyond rounding."""
    layer, x = make(64, 48), inputs(40, 64)
    layer.pack()
    alone = torch.cat([layer(x[row : row + 1]) for row in range(40)])
    torch.testing.assert_close(layer(x), alone, rtol=0, atol=1e-6)
