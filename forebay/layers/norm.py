"""Layer normalisation (Ba et al. 2016): torch's, which can also record itself."""

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
