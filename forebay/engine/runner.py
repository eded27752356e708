"""One step: pack, forward, pool, copy to the host. No policy: what to run and what to do on failure is the loop's."""

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.engine.pack import Packed, pack
from forebay.engine.sequence import Sequence
from forebay.pooling.pooler import Pipeline


class Result(NamedTuple):
    """A sequence's vector, float32 [d], on the host; ``is_finite`` is False where it holds NaN or infinity."""

    sequence: Sequence
    row: NDArray[np.float32]
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
        vectors = pipeline(packed.batch, packed.cursor)
        rows = {params: rows for params, (rows, _) in packed.groups.items()}
        for params, finished in pipeline.pooler.finish(vectors, rows).items():
            host: NDArray[np.float32] = finished.cpu().numpy()
            finite = np.atleast_1d(np.isfinite(host).all(axis=1))
            members = packed.groups[params][1]
            for sequence, row, is_finite in zip(members, host, finite.tolist(), strict=True):
                yield Result(sequence, row, is_finite)
