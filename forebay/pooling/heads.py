"""What is made of the pooled rows: the checkpoint's stages, then each item's slice and normalisation.

Heads compute in float32 whatever the model's dtype, so that nothing is lost behind the last layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.core.params import PoolingParams

Stage = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x Wᵀ + b), plus x (or x Rᵀ) where the checkpoint asks for a residual. All float32."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    use_residual: bool
    residual: Tensor | None

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
    return F.normalize(x, dim=-1, eps=1e-12)


@dataclass(frozen=True, eq=False)
class EmbedHead:
    """The stages of the checkpoint and what an item may ask of their result.

    ``is_normalized`` tells that the last stage is a Normalize, which ``finish`` then does after the slice.
    ``truncate_dim`` is the checkpoint's own slice, taken after all stages and not normalised again
    (sentence-transformers' meaning); ``dimensions`` of an item slices first and normalises then.
    """

    stages: Sequence[Stage]
    is_normalized: bool
    truncate_dim: int | None = None
    default_dimensions: int | None = None

    def transform(self, pooled: Tensor) -> Tensor:
        """Apply the stages (a final Normalize left out): [n, H] → [n, D]."""
        for stage in self.stages:
            pooled = stage(pooled)
        return pooled

    def finish(self, vectors: Tensor, params: PoolingParams) -> Tensor:
        """Slice and normalise [n, D] as one set of parameters asks: [n, dimensions]."""
        wants_unit = self.is_normalized if params.use_activation is None else params.use_activation
        size = params.dimensions or self.default_dimensions
        if size is None and self.truncate_dim is not None:
            return (normalize(vectors) if wants_unit else vectors)[:, : self.truncate_dim]
        vectors = vectors[:, :size]
        return normalize(vectors) if wants_unit else vectors


def module_activation(dotted: str) -> Callable[[Tensor], Tensor]:
    """Return the function of a ``torch.nn.modules.*`` class by its dotted name (already checked by the reader)."""
    module: Callable[[Tensor], Tensor] = getattr(torch.nn, dotted.rpartition(".")[2])()
    return module
