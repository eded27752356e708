"""Normalisation of rows: LayerNorm (Ba et al. 2016), which can also record itself; RMSNorm (Zhang, Sennrich 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay.layers.program import State, Value


class LayerNorm(nn.LayerNorm):
    """Normalises whole rows; has a weight and a bias."""

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

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] → […, width]."""
        weight = self.weight.float()
        y = F.rms_norm(x.float(), weight.shape, weight + self.offset if self.offset else weight, self.eps)
        return y.to(x.dtype)
