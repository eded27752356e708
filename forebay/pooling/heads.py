"""What is made of pooled rows: the checkpoint's stages, a slice, normalisation; or scores of a classifier.

Heads compute in float32 whatever the model's dtype, so that nothing is lost behind the last layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.pooling.activations import Calibration, Choice

Stage = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x Wᵀ + b), plus x (or x Rᵀ) where the checkpoint asks for a residual. All float32."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    use_residual: bool = False
    residual: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] → [n, out]."""
        out = self.activation(F.linear(x, self.weight, self.bias))
        if not self.use_residual:
            return out
        return out + (x if self.residual is None else F.linear(x, self.residual))


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Normalise each vector to zero mean and unit variance, with the checkpoint's gain and bias."""

    weight: Tensor
    bias: Tensor
    eps: float = 1e-5

    def __call__(self, x: Tensor) -> Tensor:
        """[n, D] → [n, D]."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def normalize(x: Tensor) -> Tensor:
    """Scale each vector to unit length; a zero vector stays zero. [n, D] → [n, D]."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / lengths.clamp_(min=1e-12)


@dataclass(frozen=True, eq=False)
class EmbedHead:
    """The stages of the checkpoint and what an item may ask of their result.

    ``is_normalized`` tells that the last stage is a Normalize, which is then done after the slice.
    ``truncate_dim`` is the checkpoint's own slice, taken after all stages and not normalised again
    (sentence-transformers' meaning); ``dimensions`` of an item slices first and normalises then.
    """

    stages: Sequence[Stage]
    is_normalized: bool
    truncate_dim: int | None = None
    dimensions: int | None = None

    def __call__(self, pooled: Tensor, params: PoolingParams) -> Tensor:
        """Rows [n, H] → vectors [n, d]."""
        vectors = pooled.float()
        for stage in self.stages:
            vectors = stage(vectors)
        wants_unit = self.is_normalized if params.use_activation is None else params.use_activation
        asks = params.dimensions is not None or params.truncate_dim is not None
        dimensions = params.dimensions if asks else self.dimensions
        truncate_dim = params.truncate_dim if asks or dimensions is not None else self.truncate_dim
        vectors = vectors[:, :dimensions]
        if wants_unit:
            vectors = normalize(vectors)
        return vectors[:, :truncate_dim]


@dataclass(frozen=True, eq=False)
class ClassifyHead:
    """Logits of a trained head, calibrated, then activated unless raw numbers are asked for.

    ``use_activation`` is the default where an item says nothing.
    """

    logits: Callable[[Tensor], Tensor]
    activation: Choice
    calibration: Calibration
    use_activation: bool = True

    def __call__(self, rows: Tensor, params: PoolingParams) -> Tensor:
        """Rows [n, H] → scores float32 [n, labels]."""
        logits = self.calibration(self.logits(rows.float()))
        wants = self.use_activation if params.use_activation is None else params.use_activation
        return self.activation.function(logits) if wants else logits
