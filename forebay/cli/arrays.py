"""Rows → NumPy's files: a matrix (npy) of vectors, or a compressed sparse matrix (npz) of sparse ones.

Neither file can tell its size before its rows are there: npy has room for it in its header; npz is put together at
the end, from a spool on disk, a block of rows at a time. Writers know no texts, no model and no journal.
"""

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from forebay.cli.outputs import Chunk, open_at, sync_to_disk


def make_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what stands before the numbers of an npy file; as long for every number of rows."""
    header = io.BytesIO()
    npy_format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    return header.getvalue()


class NpyWriter:
    """A float32 matrix [rows, width], NaN where a text failed; the header gets its row count at the end."""

    sync_seconds = 1.0
    pending = 0

    def __init__(self, path: Path, width: int, *, offset: int | None = None) -> None:
        self._width = width
        self._stream = open_at(path, offset)
        if offset is None:
            self._stream.write(make_header("<f4", (0, width)))

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        matrix = np.full((len(chunk.rows), self._width), np.nan, dtype="<f4")
        for place, row in zip(matrix, chunk.rows, strict=True):
            if row is not None:
                place[:] = row["embedding"]
        self._stream.write(matrix.data)

    def sync(self) -> int:
        """Make all rows durable; return the offset after them."""
        sync_to_disk(self._stream)
        return self._stream.tell()

    def finish(self) -> None:
        """Complete the file."""
        num_bytes = self._stream.tell() - len(make_header("<f4", (0, self._width)))
        self._stream.seek(0)
        self._stream.write(make_header("<f4", (num_bytes // (4 * self._width), self._width)))
        sync_to_disk(self._stream)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._stream.close()


class Block(NamedTuple):
    """Rows in the spool: ``lens`` entries each (-1: the text failed), and the entries of all of them."""

    lens: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]

    @property
    def num_entries(self) -> NDArray[np.int64]:
        """Entries of each row, none where the text failed."""
        return np.maximum(self.lens, 0)


class NpzWriter:
    """A matrix [rows, width] as ``scipy.sparse.load_npz`` reads it: data, indices, indptr, shape, format.

    A further array, ``failed``, names the rows whose text failed; they have no entries. Until ``finish`` the rows
    lie in a spool in the folder ``parts``: memory is that of one block, however many there are.
    """

    sync_seconds = 1.0
    pending = 0

    def __init__(self, path: Path, parts: Path, width: int, *, offset: int | None = None) -> None:
        self._path, self._width = path, width
        parts.mkdir(exist_ok=True)
        self._spool_path = parts / "rows.spool"
        self._spool = open_at(self._spool_path, offset)

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        if not chunk.rows:
            return
        rows = [row for row in chunk.rows if row is not None]
        lens = [-1 if row is None else len(row["indices"]) for row in chunk.rows]
        num_entries = sum(len(row["indices"]) for row in rows)
        self._spool.write(np.array([len(lens), num_entries, *lens], "<i8").data)
        for name, dtype in (("indices", "<i4"), ("values", "<f4")):
            for row in rows:
                self._spool.write(np.ascontiguousarray(row[name], dtype).data)

    def sync(self) -> int:
        """Make all rows durable; return the offset after them."""
        sync_to_disk(self._spool)
        return self._spool.tell()

    def finish(self) -> None:
        """Put the file together."""
        self._spool.flush()
        num_rows = num_entries = num_failed = 0
        for block in self._blocks():
            num_rows += len(block.lens)
            num_entries += len(block.indices)
            num_failed += int((block.lens < 0).sum())
        with self._path.open("wb") as stream:
            with zipfile.ZipFile(stream, "w") as archive:
                add_array(archive, "data", "<f4", num_entries, (block.values for block in self._blocks()))
                add_array(archive, "indices", "<i4", num_entries, (block.indices for block in self._blocks()))
                add_array(archive, "indptr", "<i8", num_rows + 1, self._row_ends())
                add_array(archive, "failed", "<i8", num_failed, self._failed_rows())
                add_array(archive, "shape", "<i8", 2, [np.array([num_rows, self._width])])
                add_array(archive, "format", "|S3", None, [np.array(b"csr")])
            sync_to_disk(stream)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._spool.close()

    def _blocks(self) -> Iterator[Block]:
        with self._spool_path.open("rb") as stream:
            while len(head := read_array(stream, "<i8", 2)):
                num_rows, num_entries = head.tolist()
                yield Block(
                    read_array(stream, "<i8", num_rows),
                    read_array(stream, "<i4", num_entries),
                    read_array(stream, "<f4", num_entries),
                )

    def _row_ends(self) -> Iterator[NDArray[np.int64]]:
        end = np.zeros(1, np.int64)
        yield end
        for block in self._blocks():
            ends = end[-1] + np.cumsum(block.num_entries)
            yield ends
            end = ends

    def _failed_rows(self) -> Iterator[NDArray[np.int64]]:
        num_before = 0
        for block in self._blocks():
            yield num_before + np.flatnonzero(block.lens < 0)
            num_before += len(block.lens)


def read_array(stream: BinaryIO, dtype: str, count: int) -> NDArray[Any]:
    """Read ``count`` numbers, or none at the end."""
    return np.frombuffer(stream.read(count * np.dtype(dtype).itemsize), dtype)


def add_array(
    archive: zipfile.ZipFile, name: str, dtype: str, count: int | None, parts: Iterable[NDArray[Any]]
) -> None:
    """Write one array of an npz file from its parts; ``count`` None is an array without dimensions."""
    # A name without a time: the same rows make the same file.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        member.write(make_header(dtype, () if count is None else (count,)))
        for part in parts:
            member.write(np.ascontiguousarray(part, dtype).tobytes())
