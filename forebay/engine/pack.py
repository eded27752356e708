"""From the sequences of a step to one flat batch and its cursor. Pure; no queue, no model."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.core.params import PoolingParams
from forebay.engine.sequence import Sequence
from forebay.layers.batch import FlatBatch, Run
from forebay.layers.kv import BatchKV, KVPool, Segment
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


def pack(sequences: Seq[Sequence], device: torch.device, pool: KVPool | None = None) -> Packed:
    """Lay the chunks of distinct sequences end to end, ordered by length, and group them by what they ask for.

    Three sequences ``[5 6 7] [8] [5 6 7]`` become the ids ``8 5 6 7`` with borders ``0 1 4``; the first and the
    third share the batch's second place. Of equal lengths, those with as much before this chunk lie side by side.
    """
    distinct: dict[tuple[object, ...], Sequence] = {}
    for seq in sequences:
        if seq.step_key not in distinct or seq.table:
            distinct[seq.step_key] = seq  # of equal ones, the one that holds blocks
    ordered = sorted(
        distinct.items(), key=lambda item: (item[1].end - item[1].start, item[1].start, item[1].num_attended)
    )
    row_of = {key: row for row, (key, _) in enumerate(ordered)}
    asked: dict[PoolingParams, list[Sequence]] = {}
    for seq in sequences:
        asked.setdefault(seq.params, []).append(seq)
    groups = {}
    for params, members in asked.items():
        rows = [row_of[seq.step_key] for seq in members]
        distinct_rows = sorted(set(rows))
        place_of = {row: place for place, row in enumerate(distinct_rows)}
        groups[params] = Group(
            distinct_rows, [Member(seq, place_of[row]) for seq, row in zip(members, rows, strict=True)]
        )
    batch, cursor = _lay_out([seq for _, seq in ordered], device)
    if pool is not None and any(seq.table for _, seq in ordered):
        batch = replace(batch, kv=_place([seq for _, seq in ordered], pool, device))
    return Packed(batch, cursor, groups)


def _lay_out(ordered: list[Sequence], device: torch.device) -> tuple[FlatBatch, Cursor]:
    sizes = [seq.end - seq.start for seq in ordered]
    borders = np.array([0, *accumulate(sizes)], np.int64)
    starts, lens = borders[:-1], np.array(sizes, np.int64)
    offsets = np.array([seq.start for seq in ordered], np.int64)
    ids = np.concatenate([seq.ids[seq.start : seq.end] for seq in ordered], dtype=np.int64)
    positions = np.concatenate([np.arange(seq.start, seq.end) for seq in ordered])
    runs, row = [], 0
    for length, members in groupby(sizes):
        run = Run(row, sum(1 for _ in members), length)
        runs.append(run)
        row = run.rows.stop
    prompt_lens = np.array([seq.prompt_len for seq in ordered], np.int64)
    batch = FlatBatch(
        input_ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        cu_seqlens=torch.from_numpy(borders).to(device),
        type_ids=_types(ordered, device),
        runs=tuple(runs),
        key_lens=_key_lens(ordered),
    )
    return batch, Cursor(starts, lens, prompt_lens, offsets, ids, tuple(runs), _kept(ordered))


def _key_lens(ordered: list[Sequence]) -> NDArray[np.int64] | None:
    """How many first tokens of each sequence are seen; None where all of all are."""
    if all(seq.num_attended >= len(seq.ids) for seq in ordered):
        return None
    return np.fromiter((min(seq.num_attended, seq.end) - seq.start for seq in ordered), np.int64, len(ordered))


def _kept(ordered: list[Sequence]) -> NDArray[np.bool_] | None:
    """The tokens whose vectors are given [T]; None where it is all of them."""
    if all(seq.reading is None or seq.reading.is_kept.all() for seq in ordered):
        return None
    return np.concatenate(
        [
            np.ones(seq.end - seq.start, np.bool_) if seq.reading is None else seq.reading.is_kept[seq.start : seq.end]
            for seq in ordered
        ]
    )


def _place(ordered: list[Sequence], pool: KVPool, device: torch.device) -> BatchKV:
    """Where each token's keys and values go, and what each sequence has there already."""
    slots, segments, row = [], [], 0
    for (length, start), members in groupby(ordered, key=lambda seq: (seq.end - seq.start, seq.start)):
        whole = np.stack([_slots(seq, pool.block_size) for seq in members])
        slots.append(whole[:, start:].reshape(-1))
        kept = torch.from_numpy(whole).to(device) if start else None
        segments.append(Segment(row, len(whole), length, kept))
        row += len(whole) * length
    return BatchKV(pool, torch.from_numpy(np.concatenate(slots)).to(device), segments)


def _slots(seq: Sequence, block_size: int) -> NDArray[np.int64]:
    """The slots of a sequence's tokens up to this step's last; 0, which nobody reads, where it holds no blocks."""
    if not seq.table:
        return np.zeros(seq.end, np.int64)
    places = np.arange(seq.end)
    return np.array(seq.table, np.int64)[places // block_size] * block_size + places % block_size


def _types(ordered: list[Sequence], device: torch.device) -> torch.Tensor | None:
    """Token types [T]; None where no sequence has any."""
    if all(seq.type_ids is None for seq in ordered):
        return None
    rows = [
        np.zeros(seq.end - seq.start, np.int64) if seq.type_ids is None else seq.type_ids[seq.start : seq.end]
        for seq in ordered
    ]
    return torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device)
