"""Sparse vectors over the vocabulary: SPLADE from a language model's head, lexical weights from one number a token.

The head's logits [tokens, vocabulary] never exist whole: they are made slab by slab and pooled at once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.pooling.cursor import Cursor
from forebay.pooling.results import SparseVectors

# Numbers in a slab of logits: 32 MB in float32.
_SLAB_NUMBERS = 8 << 20


@dataclass(frozen=True, eq=False)
class SpladePooler:
    """w_j = pool over tokens of log(1 + relu(logit_j)) (Formal et al. 2021, arXiv:2109.10086).

    ``head`` maps hidden states [T, H] to logits [T, V]. ``strategy`` max pools the logits first, which is equal
    since the function rises; ``is_twice_logged`` takes log(1 + x) once more (``log1p_relu``). Special tokens
    take part, as in the paper's code.
    """

    head: Callable[[Tensor], Tensor]
    vocab_size: int
    strategy: Literal["max", "sum"] = "max"
    is_twice_logged: bool = False
    max_active_dims: int | None = None

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> SparseVectors:
        """Hidden states [T, H] → one sparse vector a sequence."""
        return self._sparsify(map(self._finish, self._pooled(hidden, cursor)), params, hidden)

    def partial(self, hidden: Tensor, cursor: Cursor) -> Tensor:
        """Hidden states [T, H] of one sequence → what is pooled of them, [V]."""
        (pooled,) = self._pooled(hidden, cursor)
        return pooled

    def merge(self, carried: Tensor, new: Tensor) -> Tensor:
        """Join two chunks."""
        return torch.maximum(carried, new) if self.strategy == "max" else carried + new

    def finish(self, carried: Tensor, params: PoolingParams) -> SparseVectors:
        """All chunks of one sequence → its sparse vector."""
        return self._sparsify([self._finish(carried)], params, carried)

    def _sparsify(self, vectors: Iterable[Tensor], params: PoolingParams, like: Tensor) -> SparseVectors:
        limit = params.max_active_dims or self.max_active_dims
        return _join([_sparsify(vector, limit) for vector in vectors], like)

    def _pooled(self, hidden: Tensor, cursor: Cursor) -> Iterator[Tensor]:
        """Yield each sequence's pooled logits [V], in order."""
        rows = cursor.take_rows(hidden)
        borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(cursor.lens)]).tolist()
        slab_rows = max(1, _SLAB_NUMBERS // self.vocab_size)
        index, pooled = 0, hidden.new_zeros(self.vocab_size, dtype=torch.float32)
        for start in range(0, len(rows), slab_rows):
            slab = self._prepare(self.head(rows[start : start + slab_rows].float()))
            stop = start + len(slab)
            while index < len(cursor) and borders[index] < stop:
                part = slab[max(borders[index], start) - start : min(borders[index + 1], stop) - start]
                if len(part):
                    pooled = self._add(pooled, part)
                if borders[index + 1] > stop:
                    break  # the sequence goes on in the next slab
                yield pooled
                index, pooled = index + 1, torch.zeros_like(pooled)
        for _ in range(index, len(cursor)):  # empty sequences at the end
            yield pooled

    def _prepare(self, logits: Tensor) -> Tensor:
        return logits if self.strategy == "max" else self._activate(logits)

    def _add(self, pooled: Tensor, part: Tensor) -> Tensor:
        """Add rows [m, V] to what is pooled; starting at zero is the relu where the strategy is max."""
        return torch.maximum(pooled, part.amax(0)) if self.strategy == "max" else pooled + part.sum(0)

    def _finish(self, pooled: Tensor) -> Tensor:
        return self._activate(pooled) if self.strategy == "max" else pooled

    def _activate(self, values: Tensor) -> Tensor:
        logged = torch.log1p(values.clamp(min=0))
        return torch.log1p(logged) if self.is_twice_logged else logged


@dataclass(frozen=True, eq=False)
class LexicalPooler:
    """The largest weight of each distinct token id (BGE-M3, arXiv:2402.03216; static sparse embeddings).

    ``head`` maps hidden states [T, H] to one weight a token [T, 1], kept where it is not 0; ``dropped_ids`` (special
    tokens) are left out wherever they stand.
    """

    head: Callable[[Tensor], Tensor]
    dropped_ids: frozenset[int] = frozenset()
    max_active_dims: int | None = None

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> SparseVectors:
        """Hidden states [T, H] → one sparse vector a sequence."""
        limit = params.max_active_dims or self.max_active_dims
        weights = self.head(cursor.take_rows(hidden).float())[:, 0].cpu().numpy()
        ids = cursor.ids[cursor.own_rows()]
        kept = (weights != 0) & ~np.isin(ids, list(self.dropped_ids)) | np.isnan(weights)
        cuts = np.cumsum(cursor.lens)[:-1]
        parts = []
        for own_ids, own_weights, own_kept in zip(
            np.split(ids, cuts), np.split(weights, cuts), np.split(kept, cuts), strict=True
        ):
            distinct, largest = _largest(own_ids[own_kept], own_weights[own_kept])
            parts.append(_keep_largest(torch.from_numpy(distinct), torch.from_numpy(largest), limit))
        return _join(parts, torch.zeros(0))  # on the host, where the parts are


def _largest(ids: NDArray[np.int64], weights: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the distinct ids, ascending, and the largest weight of each."""
    distinct, places = np.unique(ids, return_inverse=True)
    largest = np.full(len(distinct), -np.inf, np.float32)
    with np.errstate(invalid="ignore"):  # NaN goes through, and the check behind finds it
        np.maximum.at(largest, places, weights)
    return distinct, largest


def _sparsify(vector: Tensor, limit: int | None) -> tuple[Tensor, Tensor]:
    ids = torch.nonzero(vector != 0)[:, 0]  # NaN is kept, so that the check behind finds it
    return _keep_largest(ids, vector[ids], limit)


def _keep_largest(ids: Tensor, weights: Tensor, limit: int | None) -> tuple[Tensor, Tensor]:
    if limit is None or len(ids) <= limit:
        return ids, weights
    kept = weights.abs().topk(limit).indices.sort().values
    return ids[kept], weights[kept]


def _join(parts: list[tuple[Tensor, Tensor]], like: Tensor) -> SparseVectors:
    no_ids = torch.zeros(0, dtype=torch.int64, device=like.device)
    return SparseVectors(
        torch.cat([no_ids, *(ids for ids, _ in parts)]),
        torch.cat([no_ids.float(), *(weights for _, weights in parts)]),
        np.array([len(ids) for ids, _ in parts], np.int64),
    )
