"""The embeddings of encoders: rows of the word, position and type tables, added up and normalised."""

from torch import nn

from forebay.layers.norm import LayerNorm
from forebay.layers.program import IDS, POSITIONS, TYPES, Inputs, Recorder, State


class Embeddings(nn.Module):
    """LayerNorm(words[id] + positions[position] + types[type]); ``num_types`` 0: there is no table of types."""

    def __init__(self, vocab_size: int, num_positions: int, num_types: int, width: int, norm_eps: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(num_positions, width)
        self.types = nn.Embedding(num_types, width) if num_types else None
        self.norm = LayerNorm(width, eps=norm_eps)

    def forward(self, inputs: Inputs | Recorder) -> State:
        """Return the states [T, width] that enter the first layer."""
        if isinstance(inputs, Recorder):
            tables = [(self.words, IDS), (self.positions, POSITIONS)]
            return self.norm(inputs.embed(tables if self.types is None else [*tables, (self.types, TYPES)]))  # type: ignore[no-any-return]
        batch = inputs.batch
        x = self.words(batch.input_ids) + self.positions(inputs.positions)
        if self.types is not None:
            x += self.types.weight[0] if batch.type_ids is None else self.types(batch.type_ids)
        return self.norm(x)  # type: ignore[no-any-return]
