"""Pooling methods: which rows are taken from the hidden states, and with which weights.

A sequence method maps hidden states [T, H] of n sequences to float32 [n, H] in three parts, so that a sequence may
come in chunks: ``partial`` takes what one chunk holds, ``merge`` joins what was carried with the next chunk,
``finish`` makes the result. Where prompts are left out (``include_prompt`` false in the checkpoint),
cursor.prompt_lens tells how many tokens each sequence's prompt has; attention has seen them, pooling then does not.
Definitions: Reimers & Gurevych 2019 (arXiv:1908.10084); Muennighoff 2022 (arXiv:2202.08904) for the weighted mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.segments import divide_rows, maxima, rows_at, weighted_sums
from forebay.pooling.cursor import Cursor

# The weight of a row that stands in until the wanted one comes, which has 1.
_FALLBACK = 0.5
_LEAST_WEIGHT = np.float32(1e-9)


class Partial(NamedTuple):
    """What is carried between chunks: ``values`` float32 [n, H] and the weights float32 [n] (host) of their rows."""

    values: Tensor
    weights: NDArray[np.float32]


def _needs_all(ids: NDArray[np.int32], prompt_len: int) -> int:
    return 0


def _needs_last(ids: NDArray[np.int32], prompt_len: int) -> int:
    return max(0, len(ids) - 1)


def _needs_text(ids: NDArray[np.int32], prompt_len: int) -> int:
    """All but the prompt; of a text that is nothing but its prompt, the first token."""
    return prompt_len if prompt_len < len(ids) else 0


@dataclass(frozen=True, slots=True)
class Method:
    """One pooling method; calling it pools whole sequences.

    ``spare(ids, prompt_len)`` tells how many of a sequence's first tokens it can do without the states of, so that
    they need not be computed where their keys and values are at hand.
    """

    partial: Callable[[Tensor, Cursor], Partial]
    merge: Callable[[Partial, Partial], Partial]
    finish: Callable[[Partial], Tensor]
    spare: Callable[[NDArray[np.int32], int], int] = _needs_all

    def __call__(self, hidden: Tensor, cursor: Cursor) -> Tensor:
        """Hidden states [T, H] → float32 [n, H]."""
        return self.finish(self.partial(hidden, cursor))


def _weighted_sum(hidden: Tensor, cursor: Cursor, weights: NDArray[np.int64]) -> Partial:
    """Sum of weights [own rows] times rows over each sequence, accumulated in float32."""
    out = weighted_sums(hidden, cursor.starts, cursor.lens, cursor.runs, weights.astype(np.float32))
    index = np.repeat(np.arange(len(cursor)), cursor.lens)
    totals = np.bincount(index, weights, minlength=len(cursor))
    return Partial(out, totals.astype(np.float32))


def _counted(cursor: Cursor) -> NDArray[np.bool_]:
    """Tell which own rows are pooled: all but the prompts' tokens."""
    return cursor.token_positions() >= np.repeat(cursor.prompt_lens, cursor.lens)


def _sum(hidden: Tensor, cursor: Cursor) -> Partial:
    if not cursor.prompt_lens.any():
        sums = weighted_sums(hidden, cursor.starts, cursor.lens, cursor.runs, None)
        return Partial(sums, cursor.lens.astype(np.float32))
    return _weighted_sum(hidden, cursor, _counted(cursor).astype(np.int64))


def _position_weighted_sum(hidden: Tensor, cursor: Cursor) -> Partial:
    """Weights 1, 2, 3 … by position; a left-out prompt keeps its positions: the first token after it is not 1."""
    return _weighted_sum(hidden, cursor, (cursor.token_positions() + 1) * _counted(cursor))


def _first(hidden: Tensor, cursor: Cursor) -> Partial:
    """The first token's row, or the first after the prompt where there is one; in a later chunk, nothing."""
    wanted = cursor.prompt_lens - cursor.offsets
    is_here = (wanted >= 0) & (wanted < cursor.lens)
    is_fallback = (cursor.offsets == 0) & ~is_here & (cursor.lens > 0)  # a text of nothing but its prompt
    return _rows_where(hidden, cursor, np.where(is_here, wanted, 0), np.where(is_fallback, _FALLBACK, is_here))


def _last(hidden: Tensor, cursor: Cursor) -> Partial:
    return _rows_where(hidden, cursor, np.maximum(cursor.lens - 1, 0), (cursor.lens > 0).astype(np.float64))


def last_by_id(padding_id: int) -> Method:
    """The rightmost token whose id is not ``padding_id``: the rule of transformers' causal sequence classifiers.

    A text that itself ends in that id is pooled earlier than by LAST; one of nothing but that id, at its first token.
    """

    def partial(hidden: Tensor, cursor: Cursor) -> Partial:
        places, weights = np.zeros(len(cursor), np.int64), np.zeros(len(cursor))
        for index, (start, length) in enumerate(zip(cursor.starts, cursor.lens, strict=True)):
            real = np.flatnonzero(cursor.ids[start : start + length] != padding_id)
            if len(real):
                places[index], weights[index] = real[-1], 1
            elif length and cursor.offsets[index] == 0:
                weights[index] = _FALLBACK
        return _rows_where(hidden, cursor, places, weights)

    def spare(ids: NDArray[np.int32], prompt_len: int) -> int:
        real = np.flatnonzero(ids != padding_id)
        return int(real[-1]) if len(real) else 0

    return Method(partial, _keep_newer, _values, spare)


def _rows_where(hidden: Tensor, cursor: Cursor, places: NDArray[np.int64], weights: NDArray[np.float64]) -> Partial:
    """The row at ``places`` [n] within each sequence where ``weights`` [n] is not 0, zeros elsewhere."""
    return Partial(rows_at(hidden, cursor.starts + places, weights > 0), weights.astype(np.float32))


def _maximum(hidden: Tensor, cursor: Cursor) -> Partial:
    """The maximum of all rows, column by column."""
    skipped = np.clip(cursor.prompt_lens - cursor.offsets, 0, cursor.lens)
    lens = cursor.lens - skipped
    return Partial(maxima(hidden, cursor.starts + skipped, lens), lens.astype(np.float32))


def _add(carried: Partial, new: Partial) -> Partial:
    return Partial(carried.values + new.values, carried.weights + new.weights)


def _choose(takes_new: NDArray[np.bool_], carried: Partial, new: Partial) -> Partial:
    from_new = torch.from_numpy(takes_new).to(new.values.device)
    return Partial(
        torch.where(from_new[:, None], new.values, carried.values),
        np.where(takes_new, new.weights, carried.weights),
    )


def _keep_older(carried: Partial, new: Partial) -> Partial:
    return _choose(new.weights > carried.weights, carried, new)


def _keep_newer(carried: Partial, new: Partial) -> Partial:
    return _choose((new.weights > 0) & (new.weights >= carried.weights), carried, new)


def _keep_larger(carried: Partial, new: Partial) -> Partial:
    larger = Partial(torch.maximum(carried.values, new.values), carried.weights + new.weights)
    return _choose(carried.weights == 0, _choose(new.weights == 0, larger, carried), new)


def _values(partial: Partial) -> Tensor:
    return partial.values


def _divide(partial: Partial) -> Tensor:
    """A sequence without weight stays at zero."""
    return divide_rows(partial.values, np.maximum(partial.weights, _LEAST_WEIGHT))


def _divide_by_root(partial: Partial) -> Tensor:
    return divide_rows(partial.values, np.sqrt(np.maximum(partial.weights, _LEAST_WEIGHT)))


METHODS: dict[str, Method] = {
    "CLS": Method(_first, _keep_older, _values, _needs_text),
    "LAST": Method(_last, _keep_newer, _values, _needs_last),
    "MEAN": Method(_sum, _add, _divide, _needs_text),
    "MEAN_SQRT_LEN": Method(_sum, _add, _divide_by_root, _needs_text),
    "WEIGHTED": Method(_position_weighted_sum, _add, _divide, _needs_text),
    "MAX": Method(_maximum, _keep_larger, _values, _needs_text),
}


class TokenRows(NamedTuple):
    """Rows of hidden states, sequence after sequence: ``rows`` [sum(lens), H], ``lens`` int64 [n].

    What is carried between chunks are the rows themselves: the next chunk's are put behind them.
    """

    rows: Tensor
    lens: NDArray[np.int64]


def all_rows(hidden: Tensor, cursor: Cursor) -> TokenRows:
    """Every token's row."""
    return TokenRows(cursor.take_rows(hidden), cursor.lens)


def kept_rows(hidden: Tensor, cursor: Cursor) -> TokenRows:
    """The rows of tokens whose vectors count in late interaction."""
    if cursor.kept is None:
        return all_rows(hidden, cursor)
    own = cursor.own_rows()
    is_kept = cursor.kept[own]
    index = np.repeat(np.arange(len(cursor)), cursor.lens)
    rows = hidden[torch.from_numpy(own[is_kept]).to(hidden.device)]
    return TokenRows(rows, np.bincount(index[is_kept], minlength=len(cursor)))


def step_rows(tag_id: int) -> Callable[[Tensor, Cursor], TokenRows]:
    """Only the rows of tokens with id ``tag_id``: the ends of steps in process reward models."""

    def take(hidden: Tensor, cursor: Cursor) -> TokenRows:
        own = cursor.own_rows()
        is_tag = cursor.ids[own] == tag_id
        index = np.repeat(np.arange(len(cursor)), cursor.lens)
        rows = hidden[torch.from_numpy(own[is_tag]).to(hidden.device)]
        return TokenRows(rows, np.bincount(index[is_tag], minlength=len(cursor)))

    return take
