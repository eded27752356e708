"""Poolers: method and head joined, one for each task; a Pipeline holds them beside the model they read.

A step may mix tasks and a request may ask several outputs: each pooler is given the cursor of the sequences that
ask for it, and sees no other's rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.core.tasks import Task
from forebay.layers.batch import FlatBatch
from forebay.pooling.alike import Joining, join_alike
from forebay.pooling.chunks import Pooler, carry, count_spare, finish
from forebay.pooling.cursor import Cursor
from forebay.pooling.fused import Sums
from forebay.pooling.heads import ClassifyHead, EmbedHead, Stage
from forebay.pooling.maxsim import NO_MATCH, max_sim
from forebay.pooling.methods import Method, Partial, TokenRows, all_rows
from forebay.pooling.results import Matrices, Result, Vectors


@dataclass(frozen=True, eq=False)
class EmbedPooler:
    """Stages on tokens, then methods (several are concatenated), then the head: one vector a sequence."""

    methods: Sequence[Method]
    head: EmbedHead
    token_stages: Sequence[Stage] = ()

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> Vectors:
        """Hidden states [T, H] → vectors [n, d]."""
        return self.finish(self.partial(hidden, cursor), params)

    def partial(self, hidden: Tensor, cursor: Cursor) -> list[Partial]:
        """Hidden states [T, H] → what each method takes of them."""
        hidden = _through(self.token_stages, hidden)
        return [method.partial(hidden, cursor) for method in self.methods]

    def merge(self, carried: list[Partial], new: list[Partial]) -> list[Partial]:
        """Join two chunks."""
        return [method.merge(*pair) for method, *pair in zip(self.methods, carried, new, strict=True)]

    def finish(self, carried: list[Partial], params: PoolingParams) -> Vectors:
        """All chunks → vectors [n, d]."""
        pooled = [method.finish(part) for method, part in zip(self.methods, carried, strict=True)]
        return Vectors(self.head(pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1), params))

    def spare(self, ids: NDArray[np.int32], prompt_len: int) -> int:
        """How many first tokens no method needs."""
        return min(method.spare(ids, prompt_len) for method in self.methods)


@dataclass(frozen=True, eq=False)
class ClassifyPooler:
    """One row a sequence, then a classifier: scores of all labels."""

    method: Method
    head: ClassifyHead

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> Vectors:
        """Hidden states [T, H] → scores [n, labels]."""
        return self.finish(self.partial(hidden, cursor), params)

    def partial(self, hidden: Tensor, cursor: Cursor) -> Partial:
        """Hidden states [T, H] → what the method takes of them."""
        return self.method.partial(hidden, cursor)

    def merge(self, carried: Partial, new: Partial) -> Partial:
        """Join two chunks."""
        return self.method.merge(carried, new)

    def finish(self, carried: Partial, params: PoolingParams) -> Vectors:
        """All chunks → scores [n, labels]."""
        return Vectors(self.head(self.method.finish(carried), params))

    def spare(self, ids: NDArray[np.int32], prompt_len: int) -> int:
        """How many first tokens the method does not need."""
        return self.method.spare(ids, prompt_len)


@dataclass(frozen=True, eq=False)
class TokenEmbedPooler:
    """One vector a token, or one a window of ``chunk_size`` tokens (late chunking, arXiv:2409.04701).

    Windows are means of all tokens' states before the head, whatever ``method`` and ``skips_first`` (which leaves
    out the first token, for BGE-M3) take of single ones: one window over all is the mean-pooled vector. ``joinings``
    tell by side which vectors the checkpoint itself makes fewer; a request's ``pool_factor`` comes on top.
    """

    method: Callable[[Tensor, Cursor], TokenRows]
    head: EmbedHead
    token_stages: Sequence[Stage] = ()
    skips_first: bool = False
    joinings: Mapping[str, Joining] = field(default_factory=dict)

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> Matrices:
        """Hidden states [T, H] → vectors [sum(lens), d]."""
        hidden = _through(self.token_stages, hidden)
        if params.chunk_size is not None:
            rows, lens = _window_means(*all_rows(hidden, cursor), params.chunk_size)
            return Matrices(self.head(rows, params), lens)
        rows, lens = self.method(hidden, cursor)
        if self.skips_first:
            rows, lens = _skip_first(rows, lens)
        vectors = Matrices(self.head(rows, params), lens)
        if (saved := self.joinings.get(params.side)) is not None:
            vectors = join_alike(vectors, saved)
        return vectors if params.pool_factor in (None, 1) else join_alike(vectors, Joining(params.pool_factor))


@dataclass(frozen=True, eq=False)
class TokenClassifyPooler:
    """A classifier on every row that the method takes: scores of all labels; ``columns`` picks some of them."""

    method: Callable[[Tensor, Cursor], TokenRows]
    head: ClassifyHead
    columns: tuple[int, ...] | None = None

    def __call__(self, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> Matrices:
        """Hidden states [T, H] → scores [sum(lens), labels]."""
        rows, lens = self.method(hidden, cursor)
        scores = self.head(rows, params)
        return Matrices(scores if self.columns is None else scores[:, list(self.columns)], lens)


def _through(stages: Sequence[Stage], hidden: Tensor) -> Tensor:
    for stage in stages:
        hidden = stage(hidden.float())
    return hidden


def _skip_first(rows: Tensor, lens: NDArray[np.int64]) -> TokenRows:
    kept = np.ones(len(rows), np.bool_)
    kept[(np.cumsum(lens) - lens)[lens > 0]] = False
    return TokenRows(rows[torch.from_numpy(kept).to(rows.device)], np.maximum(lens - 1, 0))


def _window_means(rows: Tensor, lens: NDArray[np.int64], size: int) -> TokenRows:
    """Mean of every ``size`` rows of each sequence, in float32; the last window may be short."""
    counts = -(-lens // size)
    window_lens = np.concatenate(
        [np.zeros(0, np.int64), *(np.diff(np.r_[np.arange(0, length, size), length]) for length in lens)]
    ).astype(np.int64)
    index = torch.from_numpy(np.repeat(np.arange(len(window_lens)), window_lens)).to(rows.device)
    sums = rows.new_zeros(len(window_lens), rows.shape[1], dtype=torch.float32).index_add_(0, index, rows.float())
    return TokenRows(sums / torch.from_numpy(window_lens).to(rows.device)[:, None], counts)


@dataclass(frozen=True, eq=False)
class LayerMix:
    """A weighted mean over the states of several layers (sentence-transformers' WeightedLayerPooling).

    ``weights`` float32 [layers from layer_start on]; index 0 is the embedding's output.
    """

    weights: Tensor
    layer_start: int


class LayerMixer:
    """Adds up the layers' states one by one, so that no two of them stand in memory for longer than needed."""

    def __init__(self, mix: LayerMix) -> None:
        self._mix = mix
        self._total = mix.weights.sum()
        self.mixed: Tensor | None = None

    def __call__(self, index: int, hidden: Tensor) -> None:
        """Take the states [T, H] of one layer."""
        if index < self._mix.layer_start:
            return
        part = hidden.float() * (self._mix.weights[index - self._mix.layer_start] / self._total)
        self.mixed = part if self.mixed is None else self.mixed + part


class Model(Protocol):
    """What a pipeline needs of a model: hidden states [T, hidden_size] of a flat batch."""

    hidden_size: int

    def __call__(self, batch: FlatBatch, on_layer: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Return the last hidden states."""
        ...


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A model and its poolers by task: everything between tokens and outputs.

    ``is_mean_score`` tells that scores of token vectors are divided by the number of the query's; ``sums`` computes
    them.
    """

    model: Model
    poolers: Mapping[Task, Pooler]
    layer_mix: LayerMix | None = None
    is_mean_score: bool = False
    sums: Sums = max_sim

    def forward(self, batch: FlatBatch) -> Tensor:
        """Return the hidden states [T, H] that all poolers read."""
        if batch.input_ids.numel() == 0:  # every sequence is empty, and kernels dislike empty operands
            return torch.zeros(0, self.model.hidden_size, device=batch.input_ids.device)
        if self.layer_mix is None:
            return self.model(batch)
        mixer = LayerMixer(self.layer_mix)
        self.model(batch, mixer)
        assert mixer.mixed is not None, "layer_start is checked at load"
        return mixer.mixed

    def pool(self, task: Task, hidden: Tensor, cursor: Cursor, params: PoolingParams) -> Result:
        """Make one output of the hidden states [T, H] for the sequences of a cursor."""
        return self.poolers[task](hidden, cursor, params)

    def score(self, query: Tensor, documents: Matrices) -> Tensor:
        """Compare a query's vectors [q, d] with those of n documents: scores float32 [n].

        A document without vectors, which are all left out, is worse than any other.
        """
        scores = self.sums(query, documents.values, documents.lens)
        if not documents.lens.all():
            scores[torch.from_numpy(documents.lens == 0).to(scores.device)] = NO_MATCH
        return scores / max(len(query), 1) if self.is_mean_score else scores

    def carry(self, task: Task, hidden: Tensor, cursor: Cursor, carried: Any) -> Any:
        """Add a chunk of the cursor's one sequence to what was ``carried`` of it, None before the first."""
        return carry(self.poolers[task], hidden, cursor, carried)

    def finish(self, task: Task, carried: Any, params: PoolingParams) -> Result:
        """Make one output of all chunks of a sequence."""
        return finish(self.poolers[task], carried, params)

    def count_spare(self, params: PoolingParams, ids: NDArray[np.int32], prompt_len: int) -> int:
        """How many of a sequence's first tokens need no states, whatever of the outputs is made of them."""
        return min(count_spare(self.poolers[task], ids, prompt_len) for task in params.outputs)
