"""Writers on their own: what a sync promises, and ids of several types."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.cli.inputs import InputError
from forebay.cli.outputs import Chunk, JsonlWriter, ParquetWriter, open_at

TYPES = {"embedding": pa.list_(pa.float32(), 3)}


def make_chunk(count, ids=None):
    vectors = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return Chunk([{"embedding": vector} for vector in vectors], {}, [None] * count if ids is None else ids)


def test_a_continued_jsonl_has_no_torn_line(tmp_path):
    path = tmp_path / "out"
    first = JsonlWriter(open_at(path, None), has_ids=True, is_file=True)
    first.write(make_chunk(1, ["a"]))
    offset = first.sync()
    first.write(make_chunk(1, ["lost"]))
    first.close()
    second = JsonlWriter(open_at(path, offset), has_ids=True, is_file=True)
    second.write(make_chunk(1, [7]))
    second.finish()
    assert path.read_text() == '{"id":"a","embedding":[0.0,1.0,2.0]}\n{"id":7,"embedding":[0.0,1.0,2.0]}\n'


def make_parquet(tmp_path, offset=None):
    return ParquetWriter(tmp_path / "out", tmp_path / "parts", TYPES, has_ids=True, offset=offset)


def test_a_parquet_part_holds_what_came_since_the_last_sync(tmp_path):
    writer = make_parquet(tmp_path)
    writer.write(make_chunk(2, ["a", "b"]))
    writer.write(make_chunk(1, ["c"]))
    assert writer.pending == 36
    assert (writer.sync(), writer.sync(), writer.pending) == (1, 1, 0)
    writer.write(make_chunk(1, ["d"]))
    writer.finish()
    assert [path.name for path in sorted((tmp_path / "parts").iterdir())] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("ids", [["a", 1], [1, "a"], [1, 2**63]])
def test_ids_of_two_types_are_refused_by_parquet(tmp_path, ids):
    writer = make_parquet(tmp_path)
    writer.write(make_chunk(2, ids))
    with pytest.raises(InputError, match="--id-field"):
        writer.sync()


def test_ids_keep_their_type_across_parts(tmp_path):
    writer = make_parquet(tmp_path)
    writer.write(make_chunk(1, [1]))
    offset = writer.sync()
    resumed = make_parquet(tmp_path, offset)
    resumed.write(make_chunk(1, ["a"]))
    with pytest.raises(InputError, match="int64"):
        resumed.sync()
