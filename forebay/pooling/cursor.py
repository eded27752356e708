"""Cursor: which rows of the flat batch belong to which sequence. It knows no tokens and no parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.batch import Run


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """The n sequences of a step, in the order of their rows.

    ``starts`` and ``lens`` (int64 [n], host) give each sequence's rows; ``prompt_lens`` (int64 [n], host) how
    many of its first tokens are the prompt's; ``runs`` the neighbours of equal length.
    """

    starts: NDArray[np.int64]
    lens: NDArray[np.int64]
    prompt_lens: NDArray[np.int64]
    runs: Sequence[Run]

    def __len__(self) -> int:
        return len(self.lens)

    def rows_at(self, hidden: Tensor, offsets: NDArray[np.int64]) -> Tensor:
        """Return the row at ``offsets`` [n] within each sequence, float32 [n, H]; an empty sequence gives zeros."""
        filled = self.lens > 0
        if not filled.all():
            out = hidden.new_zeros(len(self), hidden.shape[1], dtype=torch.float32)
            picked = torch.from_numpy((self.starts + offsets)[filled]).to(hidden.device)
            out[torch.from_numpy(filled).to(hidden.device)] = hidden[picked].float()
            return out
        return hidden[torch.from_numpy(self.starts + offsets).to(hidden.device)].float()

    def token_positions(self) -> NDArray[np.int64]:
        """Each row's position within its sequence, from 0, [T]."""
        return np.arange(int(self.lens.sum())) - np.repeat(self.starts, self.lens)
