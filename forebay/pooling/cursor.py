"""Cursor: which rows of the flat batch belong to which sequence. It knows no tokens and no parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.batch import Run, find_runs


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """The n sequences of a step, in the order of their rows.

    ``starts`` and ``lens`` (int64 [n], host) give each sequence's rows; ``prompt_lens`` (int64 [n], host) how
    many of its first tokens are the prompt's; ``offsets`` (int64 [n], host) how many of a sequence's tokens
    came in earlier chunks (0 for whole sequences); ``ids`` (int64 [T], host) are the token ids of the whole batch;
    ``runs`` are the neighbours of equal length; ``kept`` (bool [T], host) flags the tokens whose vectors are given in
    late interaction, None where it is all. The rows of a selection are not the whole batch: what is counted
    over "own rows" counts the sequences' rows alone, one sequence after the other.
    """

    starts: NDArray[np.int64]
    lens: NDArray[np.int64]
    prompt_lens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    runs: Sequence[Run]
    kept: NDArray[np.bool_] | None = None

    def select(self, rows: Sequence[int]) -> "Cursor":
        """Return the cursor of some of the sequences (``rows`` ascending); their rows stay where they are."""
        if len(rows) == len(self):
            return self
        picked = np.asarray(rows)
        starts, lens = self.starts[picked], self.lens[picked]
        runs = find_runs(starts, lens)
        return Cursor(starts, lens, self.prompt_lens[picked], self.offsets[picked], self.ids, runs, self.kept)

    def __len__(self) -> int:
        return len(self.lens)

    def token_positions(self) -> NDArray[np.int64]:
        """Each own row's position within its whole sequence, from 0, [sum of lens]."""
        return self._ranks() + np.repeat(self.offsets, self.lens)

    def _ranks(self) -> NDArray[np.int64]:
        """Each own row's rank within this step's part of its sequence."""
        firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lens)[:-1]])
        ranks: NDArray[np.int64] = np.arange(int(self.lens.sum())) - np.repeat(firsts, self.lens)
        return ranks

    def own_rows(self) -> NDArray[np.int64]:
        """Where the own rows stand in the batch, [sum of lens]."""
        return self._ranks() + np.repeat(self.starts, self.lens)

    def take_rows(self, hidden: Tensor) -> Tensor:
        """Return the own rows [sum of lens, H]; a view where they are all of the batch."""
        num_own = int(self.lens.sum())
        if num_own == len(hidden):
            return hidden
        return hidden[torch.from_numpy(self.own_rows()).to(hidden.device)]
