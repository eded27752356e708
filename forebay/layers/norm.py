"""Normalisation of rows, run or recorded: LayerNorm (Ba et al. 2016), RMSNorm (Zhang, Sennrich 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay.layers.program import State, Value


class LayerNorm(nn.LayerNorm):
    """Normalises whole rows; has a weight and, mostly, a bias."""

    def forward(self, x: State) -> State:  # type: ignore[override]
        """[T, H] → [T, H]."""
        if isinstance(x, Value):
            return x.recorder.layer_norm(self, x)
        y: Tensor = super().forward(x)
        return y


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · (offset + w), in float32 whatever x is; Gemma stores its weights with offset 1."""

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.eps = eps
        self.offset = offset

    @property
    def factors(self) -> Tensor:
        """What the columns are multiplied by, float32 [width]."""
        weight = self.weight.detach().float()
        return weight + self.offset if self.offset else weight

    def forward(self, x: State, residual: State | None = None) -> State:
        """[…, width] → […, width]; ``residual`` is added to the result."""
        if isinstance(x, Value):
            assert not isinstance(residual, Tensor), "a recording meets no tensors"
            return x.recorder.rms_norm(self, x, residual)
        assert not isinstance(residual, Value), "a recording meets no tensors"
        y = F.rms_norm(x.float(), self.weight.shape, self.factors, self.eps).to(x.dtype)
        return y if residual is None else residual + y
