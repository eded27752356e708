"""Tables of vectors, and the embeddings of encoders: rows of three tables, added up and normalised."""

import torch
from torch import Tensor, nn

from forebay.layers.norm import LayerNorm
from forebay.layers.program import IDS, POSITIONS, TYPES, Inputs, Recorder, State


class Table(nn.Embedding):
    """A table of vectors that is left as it is until the weights come; ``dtype`` is that of the rows it gives.

    The table itself may stand in bfloat16 where its rows are float32: that loses nothing and takes half the room.
    """

    dtype: torch.dtype | None = None

    def reset_parameters(self) -> None:
        """Do nothing: random numbers for a tensor on the meta device would import torch's compiler, for a second."""

    def forward(self, ids: Tensor) -> Tensor:
        """[T] → [T, width]."""
        rows: Tensor = super().forward(ids)
        return rows if self.dtype is None else rows.to(self.dtype)


def embed(inputs: Inputs | Recorder, words: Table, positions: Table | None = None, factor: float = 1.0) -> State:
    """(words[id] [+ positions[position]]) * factor, the factor rounded to the tables' own type: [T, width]."""
    if isinstance(inputs, Recorder):
        tables: list[tuple[nn.Embedding, int]] = [(words, IDS)]
        return inputs.embed(tables if positions is None else [*tables, (positions, POSITIONS)], factor)
    x: Tensor = words(inputs.batch.input_ids)
    if positions is not None:
        x = x + positions(inputs.positions)
    return x if factor == 1.0 else x * torch.tensor(factor, dtype=x.dtype, device=x.device)


class Embeddings(nn.Module):
    """LayerNorm(words[id] + positions[position] + types[type]); ``num_types`` 0: there is no table of types."""

    def __init__(self, vocab_size: int, num_positions: int, num_types: int, width: int, norm_eps: float) -> None:
        super().__init__()
        self.words = Table(vocab_size, width)
        self.positions = Table(num_positions, width)
        self.types = Table(num_types, width) if num_types else None
        self.norm = LayerNorm(width, eps=norm_eps)

    def forward(self, inputs: Inputs | Recorder) -> State:
        """Return the states [T, width] that enter the first layer."""
        if isinstance(inputs, Recorder):
            tables: list[tuple[nn.Embedding, int]] = [(self.words, IDS), (self.positions, POSITIONS)]
            return self.norm(inputs.embed(tables if self.types is None else [*tables, (self.types, TYPES)]))  # type: ignore[no-any-return]
        batch = inputs.batch
        x = self.words(batch.input_ids) + self.positions(inputs.positions)
        if self.types is not None:
            x += self.types.weight[0] if batch.type_ids is None else self.types(batch.type_ids)
        return self.norm(x)  # type: ignore[no-any-return]
