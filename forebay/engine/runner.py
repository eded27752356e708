"""One step: pack, forward, pool, copy to the host. No policy: what to run and what to do on failure is the loop's."""

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from copy import deepcopy
from typing import NamedTuple

import torch

from forebay.core.request import Row
from forebay.engine.pack import Packed, pack
from forebay.engine.sequence import Sequence
from forebay.pooling.pooler import Pipeline
from forebay.pooling.results import is_finite


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
        self._device = device

    @torch.inference_mode()
    def run(self, sequences: Seq[Sequence]) -> Ran:
        """Compute all sequences, which must share a route, in one forward pass."""
        start = time.perf_counter()
        packed = pack(sequences, self._device)
        packed_at = time.perf_counter()
        results = list(self._results(packed, self._pipelines[sequences[0].route]))
        return Ran(results, packed_at - start, time.perf_counter() - packed_at)

    def _results(self, packed: Packed, pipeline: Pipeline) -> Iterator[Result]:
        hidden = pipeline.forward(packed.batch)
        for params, group in packed.groups.items():
            cursor = packed.cursor.select(group.rows)
            outputs = [pipeline.pool(task, hidden, cursor, params).to_host() for task in params.outputs]
            rows = list(zip(*outputs, strict=True))
            finite = [all(is_finite(row) for row in row_set) for row_set in rows]
            is_given = [False] * len(rows)
            for seq, place in group.members:  # each caller may write into its own
                yield Result(seq, deepcopy(rows[place]) if is_given[place] else rows[place], finite[place])
                is_given[place] = True
