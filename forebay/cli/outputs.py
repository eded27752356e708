"""Vectors → npy, JSON lines or Parquet, written as they come and continued where a stopped run left them.

A writer gets chunks of rows. ``sync`` makes all of them durable and returns the offset from which a later run may
go on; ``finish`` makes the file complete. Writers know no texts, no model and no journal.
"""

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from forebay.cli.inputs import Id, InputError
from forebay.core.errors import ForebayError, InvalidRequest


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to write. ``vectors`` is float32 [n, dim], NaN in the rows that ``failed`` names; ``ids`` are [n]."""

    vectors: NDArray[np.float32]
    failed: Mapping[int, ForebayError]
    ids: Sequence[Id]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a row holds: so many floats, and an id or none."""

    dimension: int
    has_ids: bool = False


class Writer(Protocol):
    """What a run needs of an output. A sync is due after ``sync_seconds``, or once ``pending`` bytes are many."""

    layout: Layout
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


def without_place(message: str) -> str:
    """Take an item's number off a message: it counts within a chunk, which nobody outside has seen."""
    return re.sub(r"^(item \d+:|input\[\d+\]) ", "", message)


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


class NpyWriter:
    """A float32 matrix [rows, dim]; the header's row count is filled in at the end, in the room NumPy leaves for it."""

    sync_seconds = 1.0
    pending = 0

    def __init__(self, path: Path, layout: Layout, *, offset: int | None = None) -> None:
        self.layout = layout
        self._stream = open_at(path, offset)
        if offset is None:
            self._stream.write(self._make_header(0))

    def _make_header(self, num_rows: int) -> bytes:
        header = io.BytesIO()
        shape = (num_rows, self.layout.dimension)
        npy_format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        self._stream.write(np.ascontiguousarray(chunk.vectors, dtype="<f4").data)

    def sync(self) -> int:
        """Make all rows durable; return the offset after them."""
        sync_to_disk(self._stream)
        return self._stream.tell()

    def finish(self) -> None:
        """Complete the file."""
        num_bytes = self._stream.tell() - len(self._make_header(0))
        self._stream.seek(0)
        self._stream.write(self._make_header(num_bytes // (4 * self.layout.dimension)))
        sync_to_disk(self._stream)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._stream.close()


class JsonlWriter:
    """One object a line: ``id`` where asked for, and ``embedding`` or ``error``."""

    sync_seconds = 1.0
    pending = 0

    def __init__(self, stream: BinaryIO, layout: Layout, *, is_file: bool) -> None:
        self.layout = layout
        self._stream = stream
        self._is_file = is_file

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        for index, vector in enumerate(chunk.vectors):
            line: dict[str, Any] = {"id": chunk.ids[index]} if self.layout.has_ids else {}
            if error := chunk.failed.get(index):
                line["error"] = {"code": error.code, "message": without_place(error.message)}
            else:
                line["embedding"] = vector
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
    """Columns ``id`` (where asked for) and ``embedding`` (a fixed-size list of float32, null where it failed).

    A Parquet file can't be continued, so rows go to numbered part files, which ``finish`` joins. The offset is
    the number of complete parts.
    """

    sync_seconds = 60.0

    def __init__(self, path: Path, parts: Path, layout: Layout, *, offset: int | None = None) -> None:
        self._path, self._parts, self.layout = path, parts, layout
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
        self.pending += chunk.vectors.nbytes

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

        vectors = np.concatenate([chunk.vectors for chunk in chunks])
        starts = np.cumsum([0] + [len(chunk.vectors) for chunk in chunks])
        nulls = np.zeros(len(vectors), dtype=bool)
        for start, chunk in zip(starts[:-1], chunks, strict=True):
            nulls[[start + index for index in chunk.failed]] = True
        embeddings = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.ravel()), self.layout.dimension, mask=pa.array(nulls)
        )
        columns = {"embedding": embeddings}
        if self.layout.has_ids:
            columns = {"id": self._to_ids([key for chunk in chunks for key in chunk.ids]), **columns}
        return pa.table(columns)

    def _to_ids(self, ids: Sequence[Id]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._num_parts:
            wanted = pq.read_schema(self._part(0)).field("id").type
        else:
            wanted = pa.int64() if ids and isinstance(ids[0], int) else pa.string()
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
            self.write(Chunk(np.empty((0, self.layout.dimension), dtype=np.float32), {}, ()))
            self.sync()
        with self._path.open("wb") as stream:
            with pq.ParquetWriter(stream, pq.read_schema(self._part(0)), use_dictionary=False) as joined:
                for number in range(self._num_parts):
                    joined.write_table(pq.read_table(self._part(number)))
            sync_to_disk(stream)

    def close(self) -> None:
        """Close what is open."""
        self._chunks = []
