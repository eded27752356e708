"""Makers of flat batches, sequences and jobs, of the pipeline and the runner around a FakeModel that knows its tokens.

They know neither texts nor files. A hidden state tells its token's id and position, so that whatever comes out of
the engine shows which tokens went in.
"""

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import torch

from forebay.core.params import PoolingParams
from forebay.core.request import Lane, Reply
from forebay.engine.pack import pack
from forebay.engine.sequence import Job, SequenceTraits
from forebay.engine.sequence import Sequence as EngineSequence
from forebay.layers.batch import FlatBatch
from forebay.pooling.cursor import Cursor

CPU = torch.device("cpu")


def make_job(
    ids: Sequence[Sequence[int]],
    *,
    lane: Lane = Lane.INTERACTIVE,
    deadline: float | None = None,
    params: PoolingParams | None = None,
    route: str = "",
    prompt_lens: Sequence[int] | None = None,
) -> Job:
    """A filled job that nobody has submitted yet; one item a list of ids."""
    job = Job(Future[Reply](), lane=lane, deadline=deadline, tokenize_seconds=0.25)
    rows = [np.array(row, np.int32) for row in ids]
    skipped = np.array(prompt_lens if prompt_lens is not None else [0] * len(ids), np.int64)
    job.fill(rows, np.zeros(len(ids), np.bool_), skipped, SequenceTraits(params or PoolingParams(), route))
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
