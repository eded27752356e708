"""Makers of flat batches, sequences and jobs, of the pipeline and the runner around a FakeModel that knows its tokens.

They know neither texts nor files. A hidden state tells its token's id and position, so that whatever comes out of
the engine shows which tokens went in.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.core.params import PoolingParams
from forebay.core.request import Lane, Reading, Reply
from forebay.core.tasks import Task
from forebay.engine.pack import pack
from forebay.engine.sequence import Job, SequenceTraits
from forebay.engine.sequence import Sequence as EngineSequence
from forebay.layers.batch import FlatBatch
from forebay.pooling.cursor import Cursor
from forebay.pooling.heads import EmbedHead
from forebay.pooling.methods import METHODS, all_rows
from forebay.pooling.pooler import EmbedPooler, Pipeline, TokenEmbedPooler

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Tokens:
    """What a tokenizer hands to a job."""

    ids: list[NDArray[np.int32]]
    prompt_lens: NDArray[np.int64]
    owners: NDArray[np.int64]
    type_ids: list[NDArray[np.int32]] | None = None
    readings: list[Reading] | None = None


def make_job(
    ids: Sequence[Sequence[int]],
    *,
    lane: Lane = Lane.INTERACTIVE,
    deadline: float | None = None,
    params: PoolingParams | None = None,
    route: str = "",
    prompt_lens: Sequence[int] | None = None,
    owners: Sequence[int] | None = None,
    salt: str = "",
) -> Job:
    """A filled job that nobody has submitted yet; one item a list of ids, or several lists where ``owners`` say so."""
    job = Job(Future[Reply](), lane=lane, deadline=deadline, tokenize_seconds=0.25)
    tokens = Tokens(
        [np.array(row, np.int32) for row in ids],
        np.array(prompt_lens if prompt_lens is not None else [0] * len(ids), np.int64),
        np.array(owners if owners is not None else range(len(ids)), np.int64),
    )
    num_items = len(ids) if owners is None else len(set(owners))
    job.fill(tokens, np.zeros(num_items, np.bool_), SequenceTraits(params or PoolingParams(), route, salt=salt))
    return job


def make_sequences(ids: Sequence[Sequence[int]], **options: object) -> list[EngineSequence]:
    """The sequences of a job of their own."""
    return make_job(ids, **options).sequences  # type: ignore[arg-type]


def flat_batch(lens: Sequence[int]) -> FlatBatch:
    """A batch of sequences of these lengths, which must ascend; no two are equal."""
    return flat_cursor(lens)[0]


def flat_cursor(lens: Sequence[int], prompt_lens: Sequence[int] | None = None) -> tuple[FlatBatch, Cursor]:
    """The same with its cursor; the n-th sequence of equal length has the ids n, n, n …"""
    assert list(lens) == sorted(lens)
    packed = pack(_distinct(lens, prompt_lens), CPU)
    assert packed.cursor.lens.tolist() == list(lens)
    return packed.batch, packed.cursor


def _distinct(lens: Sequence[int], prompt_lens: Sequence[int] | None) -> list[EngineSequence]:
    sequences = make_sequences([[place] * length for place, length in enumerate(lens)], prompt_lens=prompt_lens)
    for place, sequence in enumerate(sequences):
        sequence.key = (f"{place}".encode(), 0)  # empty ones are all alike, and would be laid out once
    return sequences


@dataclass(eq=False)
class FakeModel:
    """Hidden states of three columns: the token's id, its position, and 1.

    A batch with ``boom_id`` in it fails, a row of ``nan_id`` is not finite. ``batches`` notes the ids of every call.
    A model that is ``held`` waits in its forward until ``release`` is set; ``entered`` counts how often it got there.
    """

    boom_id: int = 1_000_001
    nan_id: int = 1_000_002
    hidden_size: int = 3
    batches: list[list[list[int]]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.release.set()

    def hold(self) -> None:
        """Let the next forward wait."""
        self.release.clear()

    def wait_until_held(self) -> None:
        """Return once a forward has begun."""
        assert self.entered.acquire(timeout=60)

    def __call__(self, batch: FlatBatch, on_layer: Callable[[int, Tensor], None] | None = None) -> Tensor:
        borders = batch.cu_seqlens.tolist()
        ids = batch.input_ids.tolist()
        self.batches.append([ids[start:end] for start, end in pairwise(borders)])
        self.entered.release()
        assert self.release.wait(60)
        if self.boom_id in ids:
            raise RuntimeError("the forward failed")
        states = torch.stack([batch.input_ids, batch.positions, torch.ones_like(batch.positions)], dim=1).float()
        states[batch.input_ids == self.nan_id] = float("nan")
        return states


def make_pipeline(model: FakeModel, *methods: str, is_normalized: bool = False) -> Pipeline:
    """The embedder around a model; the mean where no method is named."""
    head = EmbedHead((), is_normalized=is_normalized)
    chosen = [METHODS[method] for method in methods or ("MEAN",)]
    token_pooler = TokenEmbedPooler(all_rows, EmbedHead((), is_normalized=is_normalized))
    return Pipeline(model, {Task.EMBED: EmbedPooler(chosen, head), Task.TOKEN_EMBED: token_pooler})


def mean_of(ids: Sequence[int]) -> list[float]:
    """What the fake embedder makes of an item."""
    return [sum(ids) / len(ids), (len(ids) - 1) / 2, 1.0]
