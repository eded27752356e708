"""The writers of NumPy's files on their own: what a sync promises, and what other readers find."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.arrays import NpyWriter, NpzWriter
from forebay.cli.outputs import Chunk
from forebay.core.errors import InvalidRequest, ItemFailed

WIDTH = 50


def make_chunk(count):
    vectors = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return Chunk([{"embedding": vector} for vector in vectors], {}, [None] * count)


def test_a_continued_npy_is_one_matrix(tmp_path):
    path = tmp_path / "out"
    first = NpyWriter(path, 3)
    first.write(make_chunk(2))
    offset = first.sync()
    first.write(make_chunk(5))
    first.close()
    second = NpyWriter(path, 3, offset=offset)
    second.write(make_chunk(1))
    second.finish()
    np.testing.assert_array_equal(np.load(path), [[0, 1, 2], [3, 4, 5], [0, 1, 2]])


@pytest.mark.parametrize("count", [0, 9, 10, 99_999])
def test_the_header_has_room_for_every_count(tmp_path, count):
    writer = NpyWriter(tmp_path / "out", 3)
    writer.write(make_chunk(count))
    writer.finish()
    assert np.load(tmp_path / "out").shape == (count, 3)


def make_sparse_chunk(entries):
    """Rows of these entries, id → weight; None is a text that failed."""
    rows = [
        None
        if row is None
        else {"indices": np.array(sorted(row), np.int32), "values": np.array([row[i] for i in sorted(row)], np.float32)}
        for row in entries
    ]
    failed = {index: ItemFailed("failed", index=index) for index, row in enumerate(entries) if row is None}
    return Chunk(rows, failed, [None] * len(rows))


def write_npz(folder, chunks):
    writer = NpzWriter(folder / "out.npz", folder / "parts", WIDTH)
    for chunk in chunks:
        writer.write(make_sparse_chunk(chunk))
    writer.finish()
    return folder / "out.npz"


entries = st.dictionaries(st.integers(0, WIDTH - 1), st.floats(0.5, 9, width=32), max_size=6)
chunks_of_entries = st.lists(st.lists(st.none() | entries, max_size=4), max_size=4)


@given(chunks_of_entries)
def test_an_npz_is_the_matrix_that_scipy_reads(tmp_path_factory, chunks):
    path = write_npz(tmp_path_factory.mktemp("npz"), chunks)
    rows = [row for chunk in chunks for row in chunk]
    wanted = np.zeros((len(rows), WIDTH), np.float32)
    for index, row in enumerate(rows):
        for column, weight in (row or {}).items():
            wanted[index, column] = weight
    matrix = scipy.sparse.load_npz(path)
    assert (matrix.format, matrix.dtype, matrix.shape) == ("csr", np.float32, wanted.shape)
    np.testing.assert_array_equal(matrix.toarray(), wanted)
    with np.load(path) as arrays:
        assert arrays["failed"].tolist() == [index for index, row in enumerate(rows) if row is None]
        assert (arrays["indices"].dtype, arrays["indptr"].dtype) == (np.int32, np.int64)


def test_a_continued_npz_is_byte_for_byte_that_of_one_run(tmp_path):
    chunks = [[{3: 1.5}, None], [{}, {1: 2.0, 7: 0.5}]]
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
    whole = write_npz(tmp_path / "whole", chunks)
    folder = tmp_path / "halves"
    first = NpzWriter(folder / "out.npz", folder / "parts", WIDTH)
    first.write(make_sparse_chunk(chunks[0]))
    offset = first.sync()
    first.write(make_sparse_chunk([{5: 1.0}]))
    first.close()
    second = NpzWriter(folder / "out.npz", folder / "parts", WIDTH, offset=offset)
    second.write(make_sparse_chunk(chunks[1]))
    second.finish()
    assert (folder / "out.npz").read_bytes() == whole.read_bytes()


def test_a_lost_spool_is_told(tmp_path):
    with pytest.raises(InvalidRequest, match="start anew by --overwrite"):
        NpzWriter(tmp_path / "out", tmp_path / "parts", WIDTH, offset=8)
