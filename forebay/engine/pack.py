"""From the sequences of a step to one flat batch and its cursor. Pure; no queue, no model."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from forebay.core.params import PoolingParams
from forebay.engine.sequence import Sequence
from forebay.layers.batch import FlatBatch, Run
from forebay.pooling.cursor import Cursor


class Member(NamedTuple):
    """A sequence and the place of its row among its group's rows."""

    sequence: Sequence
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The sequences that ask for the same outputs: ``rows`` are places in the batch, ascending and distinct."""

    rows: list[int]
    members: list[Member]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A step ready to run. Several members may share a row: equal token ids are computed once."""

    batch: FlatBatch
    cursor: Cursor
    groups: dict[PoolingParams, Group]


def pack(sequences: Seq[Sequence], device: torch.device) -> Packed:
    """Lay the distinct sequences end to end, ordered by length, and group them by what they ask for.

    Three sequences ``[5 6 7] [8] [5 6 7]`` become the ids ``8 5 6 7`` with borders ``0 1 4``; the first and the
    third share the batch's second place.
    """
    distinct: dict[tuple[bytes, int], Sequence] = {}
    for seq in sequences:
        distinct.setdefault(seq.key, seq)
    ordered = sorted(distinct.items(), key=lambda item: len(item[1].ids))
    row_of = {key: row for row, (key, _) in enumerate(ordered)}
    asked: dict[PoolingParams, list[Sequence]] = {}
    for seq in sequences:
        asked.setdefault(seq.params, []).append(seq)
    groups = {}
    for params, members in asked.items():
        rows = [row_of[seq.key] for seq in members]
        distinct_rows = sorted(set(rows))
        place_of = {row: place for place, row in enumerate(distinct_rows)}
        groups[params] = Group(
            distinct_rows, [Member(seq, place_of[row]) for seq, row in zip(members, rows, strict=True)]
        )
    batch, cursor = _lay_out([seq for _, seq in ordered], device)
    return Packed(batch, cursor, groups)


def _lay_out(ordered: list[Sequence], device: torch.device) -> tuple[FlatBatch, Cursor]:
    lens = np.fromiter((len(seq.ids) for seq in ordered), np.int64, len(ordered))
    borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(lens)])
    starts = borders[:-1]
    ids = np.concatenate([seq.ids for seq in ordered]).astype(np.int64)
    positions = np.arange(len(ids)) - np.repeat(starts, lens)
    runs, first = [], 0
    for length, members in groupby(lens.tolist()):
        count = sum(1 for _ in members)
        runs.append(Run(int(starts[first]), count, length))
        first += count
    prompt_lens = np.fromiter((seq.prompt_len for seq in ordered), np.int64, len(ordered))
    batch = FlatBatch(
        input_ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        cu_seqlens=torch.from_numpy(borders).to(device),
        type_ids=_types(ordered, device),
        runs=tuple(runs),
    )
    return batch, Cursor(starts, lens, prompt_lens, np.zeros_like(lens), ids, tuple(runs))


def _types(ordered: list[Sequence], device: torch.device) -> torch.Tensor | None:
    """Token types [T]; None where no sequence has any."""
    if all(seq.type_ids is None for seq in ordered):
        return None
    rows = [np.zeros(len(seq.ids), np.int64) if seq.type_ids is None else seq.type_ids for seq in ordered]
    return torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device)
