"""One step: pack, forward, pool, copy to the host. No policy: what to run and what to do on failure is the loop's.

Of a sequence whose chunk is not its last nothing comes back: what pooling took of it is carried in the sequence.
"""

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch

from forebay.core.params import PoolingParams
from forebay.core.request import Row
from forebay.engine.pack import Group, Member, Packed, pack
from forebay.engine.query import Query
from forebay.engine.sequence import Sequence
from forebay.layers.kv import KVPool
from forebay.pooling.cursor import Cursor
from forebay.pooling.pooler import Pipeline
from forebay.pooling.results import Matrices, is_finite
from forebay.pooling.results import Result as Pooled


class Result(NamedTuple):
    """A sequence's outputs on the host, in the order asked for; ``is_finite`` is False where one holds NaN or inf."""

    sequence: Sequence
    rows: tuple[Row, ...]
    is_finite: bool


class Ran(NamedTuple):
    """The results of a step and how long its two parts took, in seconds."""

    results: list[Result]
    pack_seconds: float
    forward_seconds: float


class Runner:
    """Runs steps on one device; ``pipelines`` by route."""

    def __init__(self, pipelines: Mapping[str, Pipeline], device: torch.device) -> None:
        self._pipelines = pipelines
        self.device = device
        self._pools: dict[str, KVPool] = {}

    @property
    def is_causal(self) -> bool:
        """True where every model attends only to what came before, so that its keys and values can be kept."""
        return all(_is_causal(pipeline.model) for pipeline in self._pipelines.values())

    def reserve(self, num_blocks: int, block_size: int) -> int:
        """Make room for the keys and values of so many blocks in each model; returns the bytes reserved.

        Raises RuntimeError or MemoryError where there is none, which on a GPU means half of what is free.
        """
        models: dict[int, Any] = {id(pipeline.model): pipeline.model for pipeline in self._pipelines.values()}
        if self.device.type == "cuda":
            num_bytes = sum(_bytes_of(model) * num_blocks * block_size for model in models.values())
            if num_bytes > torch.cuda.mem_get_info(self.device)[0] // 2:
                raise MemoryError(f"{num_bytes} bytes for keys and values are more than half of the free memory")
        pools = {
            key: KVPool.reserve(model, num_blocks, self.device, block_size=block_size) for key, model in models.items()
        }
        self._pools = {route: pools[id(pipeline.model)] for route, pipeline in self._pipelines.items()}
        return sum(pool.num_bytes for pool in pools.values())

    def count_spare(self, seq: Sequence) -> int:
        """How many first tokens of a sequence need no states, whatever its outputs make of them."""
        return self._pipelines[seq.route].count_spare(seq.params, seq.ids, seq.prompt_len)

    def run(self, sequences: Seq[Sequence]) -> Ran:
        """Compute all sequences, which must share a route, in one forward pass."""
        start = time.perf_counter()
        packed = pack(sequences, self.device, self._pools.get(sequences[0].route))
        packed_at = time.perf_counter()
        results = list(self._results(packed, self._pipelines[sequences[0].route]))
        return Ran(results, packed_at - start, time.perf_counter() - packed_at)

    def _results(self, packed: Packed, pipeline: Pipeline) -> Iterator[Result]:
        hidden = pipeline.forward(packed.batch)
        for params, group in packed.groups.items():
            whole, cut = _split(group)
            if whole.members:
                yield from _pool(pipeline, hidden, packed.cursor.select(whole.rows), params, whole)
            for seq, place in cut:
                cursor = packed.cursor.select([group.rows[place]])
                former = seq.carried or [None] * len(params.outputs)
                seq.carried = [
                    pipeline.carry(task, hidden, cursor, part)
                    for task, part in zip(params.outputs, former, strict=True)
                ]
                if seq.is_last_chunk:
                    yield _finish(pipeline, seq, params)


def _split(group: Group) -> tuple[Group, list[Member]]:
    """Divide a group into what this step computes to its end alone, and what is cut over several."""
    cut = [member for member in group.members if member.sequence.is_cut]
    if not cut:
        return group, []
    whole = [member for member in group.members if not member.sequence.is_cut]
    places = sorted({place for _, place in whole})
    place_of = {place: new for new, place in enumerate(places)}
    members = [Member(seq, place_of[place]) for seq, place in whole]
    return Group([group.rows[place] for place in places], members), cut


def _pool(
    pipeline: Pipeline, hidden: torch.Tensor, cursor: Cursor, params: PoolingParams, group: Group
) -> Iterator[Result]:
    pooled = [pipeline.pool(task, hidden, cursor, params) for task in params.outputs]
    compared = [member for member in group.members if member.sequence.query is not None]
    if compared:
        yield from _compare(pipeline, pooled[0], compared)
        group = Group(group.rows, [member for member in group.members if member.sequence.query is None])
        if not group.members:
            return
    rows = list(zip(*(result.to_host() for result in pooled), strict=True))
    finite = [all(is_finite(row) for row in row_set) for row_set in rows]
    is_given = [False] * len(rows)
    for seq, place in group.members:  # each caller may write into its own
        yield Result(seq, deepcopy(rows[place]) if is_given[place] else rows[place], finite[place])
        is_given[place] = True


def _compare(pipeline: Pipeline, documents: Pooled, members: list[Member]) -> Iterator[Result]:
    """Score the token vectors of sequences by their queries, each query once; nothing but scores leaves the device."""
    assert isinstance(documents, Matrices), "only token vectors are compared"
    by_query: dict[Query, list[Member]] = {}
    for member in members:
        assert member.sequence.query is not None
        by_query.setdefault(member.sequence.query, []).append(member)
    for query, own in by_query.items():
        chosen = documents.select([place for _, place in own])
        scores = pipeline.score(query.on(documents.values.device), chosen).cpu().numpy()
        for (seq, _), score in zip(own, scores, strict=True):
            yield Result(seq, (np.array([score], np.float32),), bool(np.isfinite(score)))


def _finish(pipeline: Pipeline, seq: Sequence, params: PoolingParams) -> Result:
    parts = zip(params.outputs, seq.carried or (), strict=True)
    pooled = [pipeline.finish(task, part, params) for task, part in parts]
    if seq.query is not None:
        return next(_compare(pipeline, pooled[0], [Member(seq, 0)]))
    rows = tuple(result.to_host()[0] for result in pooled)
    return Result(seq, rows, all(is_finite(row) for row in rows))


def _is_causal(model: object) -> bool:
    """Causal, and without a rotation that depends on the length of the whole text."""
    return bool(getattr(model, "is_causal", False)) and not getattr(model, "reads_length", False)


def _bytes_of(model: Any) -> int:
    """Bytes of one token's keys and values."""
    return 2 * int(model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize)
