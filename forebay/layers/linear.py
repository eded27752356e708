"""Linear layers whose weights are packed once, at load, into the layout that the CPU's matrix product wants.

The native kernels have a layout for layers that run in a program; for the others it is oneDNN's (through torch), and
where that is missing, and on other devices, the plain weight serves.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay.layers.activation import IDENTITY, Activation
from forebay.layers.native import extension
from forebay.layers.program import State, Value

if TYPE_CHECKING:
    from forebay._native import PackedLinear, Precision

_PACKED_DTYPES = (torch.float32, torch.bfloat16)


def can_pack(weight: Tensor) -> bool:
    """Tell whether oneDNN can hold this weight in its own layout."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in _PACKED_DTYPES
        and bool(torch._C._has_mkldnn)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class Linear(nn.Module):
    """y = activation(x Wᵀ + b [+ residual]); x is [T, in_features], y is [T, sum(part_sizes)].

    ``part_sizes`` lists the rows of the checkpoint tensors that this layer merges (query, key and value, say);
    a plain layer has one part. Until ``pack`` is called the weight stands in ``weight``. ``kernels`` names the
    native kernels that the layer is packed for, "" where torch runs it; ``native`` is then the packed form, whose
    products are made in ``precision``: what goes in and comes out is float32.
    """

    def __init__(
        self, in_features: int, *part_sizes: int, bias: bool = True, activation: Activation = IDENTITY
    ) -> None:
        super().__init__()
        self.part_sizes = part_sizes
        self.activation = activation
        self.weight: nn.Parameter | None = nn.Parameter(torch.empty(sum(part_sizes), in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(part_sizes)), requires_grad=False) if bias else None
        self.kernels = ""
        self.precision: Precision = "float32"
        self.native: PackedLinear | None = None
        self._packed: Tensor | None = None

    def pack(self) -> None:
        """Move the weight into the packed layout, if there is one for it; the plain one is given up."""
        if self.weight is None:
            return
        if self.kernels:
            bias = None if self.bias is None else self.bias.detach().numpy()
            self.native = extension.PackedLinear(self.kernels, self.weight.detach().numpy(), bias, self.precision)
            self.weight = None
        elif can_pack(self.weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
            self.weight = None

    def forward(self, x: State, residual: State | None = None) -> State:
        """Return y [T, out]; ``residual`` [T, out] is added before the activation, which must then be none."""
        if isinstance(x, Value):
            assert not isinstance(residual, Tensor), "a recording meets no tensors"
            return x.recorder.linear(self, x, residual)
        assert not isinstance(residual, Value), "a recording meets no tensors"
        if self.weight is not None:
            y = F.linear(x, self.weight, self.bias)
            return self.activation.function(y if residual is None else y + residual)
        return self._forward_packed(x, residual)

    def _forward_packed(self, x: Tensor, residual: Tensor | None) -> Tensor:
        y: Tensor
        if residual is not None:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self.bias, "add")
            return y
        post_op, algorithm = self.activation.fused or ("none", "")
        y = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, post_op, [], algorithm)
        return y if self.activation.fused is not None else self.activation.function(y)
