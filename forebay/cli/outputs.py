"""Rows → JSON lines or Parquet (arrays.py: npy, npz), written as they come and continued where a stopped run left them.

A writer gets chunks of rows. ``sync`` makes all of them durable and returns the offset from which a later run may
go on; ``finish`` makes the file complete. Writers know no texts, no model and no journal.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson

from forebay.cli.inputs import Id, InputError
from forebay.core.errors import ForebayError, InvalidRequest

Row = Mapping[str, Any]
"""The named values of one text: arrays, numbers, words, or lists and mappings of them."""

OBJECT_BYTES = 128
"""What a Python object takes in memory, more or less."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to write, None where ``failed`` tells why there is none; ``ids`` are as many as rows."""

    rows: Sequence[Row | None]
    failed: Mapping[int, ForebayError]
    ids: Sequence[Id]


class Writer(Protocol):
    """What a run needs of an output. A sync is due after ``sync_seconds``, or once ``pending`` bytes are many."""

    sync_seconds: float
    pending: int

    def write(self, chunk: Chunk) -> None:
        """Append rows."""

    def sync(self) -> int:
        """Make all rows durable; return where a later run may continue."""

    def finish(self) -> None:
        """Make the file complete and close it."""

    def close(self) -> None:
        """Close what is open, complete or not."""


def open_at(path: Path, offset: int | None) -> BinaryIO:
    """Open a file to write: anew, or cut back to ``offset`` and continued there."""
    if offset is None:
        return path.open("wb")
    if not path.exists() or path.stat().st_size < offset:
        raise InvalidRequest(f"'{path}' is missing or shorter than its journal says; start anew by --overwrite")
    stream = path.open("r+b")
    stream.truncate(offset)
    stream.seek(offset)
    return stream


def sync_to_disk(stream: BinaryIO) -> None:
    """Flush through to the disk."""
    stream.flush()
    os.fsync(stream.fileno())


class JsonlWriter:
    """One object a line: ``id`` where asked for, and the row's values or ``error``."""

    sync_seconds = 1.0
    pending = 0

    def __init__(self, stream: BinaryIO, *, has_ids: bool, is_file: bool) -> None:
        self._stream = stream
        self._has_ids, self._is_file = has_ids, is_file

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        for index, (key, row) in enumerate(zip(chunk.ids, chunk.rows, strict=True)):
            line: dict[str, Any] = {"id": key} if self._has_ids else {}
            if row is None:
                error = chunk.failed[index]
                line["error"] = {"code": error.code, "message": error.message}
            else:
                line |= row
            self._stream.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        if not self._is_file:
            self._stream.flush()

    def sync(self) -> int:
        """Make all rows durable; return the offset after them."""
        if not self._is_file:
            return 0
        sync_to_disk(self._stream)
        return self._stream.tell()

    def finish(self) -> None:
        """Complete the file."""
        self.sync()
        self.close()

    def close(self) -> None:
        """Close what is open."""
        if self._is_file:
            self._stream.close()


class ParquetWriter:
    """One column a value, of the Arrow type in ``types``, null where the text failed; before them ``id``, if asked for.

    A Parquet file can't be continued, so rows go to numbered part files, which ``finish`` joins. The offset is
    the number of complete parts.
    """

    sync_seconds = 60.0

    def __init__(
        self, path: Path, parts: Path, types: Mapping[str, Any], *, has_ids: bool, offset: int | None = None
    ) -> None:
        self._path, self._parts = path, parts
        self._types, self._has_ids = types, has_ids
        self._chunks: list[Chunk] = []
        self._num_parts = offset or 0
        self.pending = 0
        parts.mkdir(exist_ok=True)
        kept = {self._part(number) for number in range(self._num_parts)}
        found = set(parts.iterdir())
        if kept - found:
            raise InvalidRequest(f"'{parts}' lacks part files that its journal names; start anew by --overwrite")
        for stale in found - kept:
            stale.unlink()

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:05}.parquet"

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        self._chunks.append(chunk)
        self.pending += sum(estimate_size(value) for row in chunk.rows if row is not None for value in row.values())

    def sync(self) -> int:
        """Make all rows durable; return the offset after them."""
        if self._chunks:
            self._write_part()
        return self._num_parts

    def _write_part(self) -> None:
        import pyarrow.parquet as pq

        table = self._to_table(self._chunks)
        with self._part(self._num_parts).open("wb") as stream:
            pq.write_table(table, stream, use_dictionary=False, row_group_size=max(1, table.num_rows))
            sync_to_disk(stream)
        self._chunks, self.pending = [], 0
        self._num_parts += 1

    def _to_table(self, chunks: Sequence[Chunk]) -> Any:
        import pyarrow as pa

        rows = [row for chunk in chunks for row in chunk.rows]
        columns = {}
        if self._has_ids:
            columns["id"] = self._to_ids([key for chunk in chunks for key in chunk.ids])
        for name, kind in self._types.items():
            columns[name] = pa.array([None if row is None else as_list(row[name]) for row in rows], type=kind)
        return pa.table(columns)

    def _to_ids(self, ids: Sequence[Id]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._num_parts:
            wanted = pq.read_schema(self._part(0)).field("id").type
        else:
            first = next((key for key in ids if key is not None), None)  # a bad row may have none
            wanted = pa.int64() if isinstance(first, int) else pa.string()
        try:
            return pa.array(ids, type=wanted)
        except (pa.ArrowException, OverflowError, TypeError):
            raise InputError(
                f"the first id (--id-field) makes the Parquet column {wanted}, but a later one is of another type "
                "or too large; write them as strings, or choose jsonl output"
            ) from None

    def finish(self) -> None:
        """Complete the file."""
        import pyarrow.parquet as pq

        self.sync()
        if not self._num_parts:
            self.write(Chunk((), {}, ()))
            self.sync()
        with self._path.open("wb") as stream:
            with pq.ParquetWriter(stream, pq.read_schema(self._part(0)), use_dictionary=False) as joined:
                for number in range(self._num_parts):
                    joined.write_table(pq.read_table(self._part(number)))
            sync_to_disk(stream)

    def close(self) -> None:
        """Close what is open."""
        self._chunks = []


def estimate_size(value: Any) -> int:
    """Tell about how many bytes a value takes while it waits."""
    if isinstance(value, list | Mapping):
        return OBJECT_BYTES * len(value)
    return int(getattr(value, "nbytes", OBJECT_BYTES))


def as_list(value: Any) -> Any:
    """Take a matrix apart, since Arrow takes arrays of one dimension only."""
    return list(value) if isinstance(value, np.ndarray) and value.ndim > 1 else value
