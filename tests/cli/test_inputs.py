"""Readers: what they take, and what they say where they can't."""

import gc
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.cli import inputs
from forebay.cli.inputs import Fields, InputError, Record, Source

TEXT = Fields()


def read(kind, data, fields=TEXT, *, skips=False):
    return list(inputs._checked(inputs.READERS[kind](io.BytesIO(data), "file", fields), skips=skips))


@pytest.mark.parametrize(
    ("kind", "data", "fields", "places"),
    [
        ("txt", b"a\n\xff\nb\n", TEXT, [1]),
        ("jsonl", b'"a"\n{\n[1]\n{"text": 5}\n"b"', TEXT, [1, 2, 3]),
        ("csv", b'text,n\na,1\nb\n"c"d,2\n\xff,3\nb,4\n', TEXT, [1, 2, 3]),
        ("csv", b'text\na\n"x\n', TEXT, [1]),
    ],
)
def test_bad_rows_keep_their_places(kind, data, fields, places):
    records = read(kind, data, fields, skips=True)
    assert [index for index, record in enumerate(records) if record.error is not None] == places
    assert all(record.text == "" for record in records if record.error is not None)
    assert records[0] == Record("a")


def test_a_bad_row_keeps_its_id_where_it_has_one():
    data = b'{"n": 1}\n{"text": "a", "n": null}\n'
    first, second = read("jsonl", data, Fields(id="n"), skips=True)
    assert (first.id, second.id) == (1, None)
    assert "field 'text' is missing" in first.error.message
    assert "field 'n' (--id-field) is NoneType" in second.error.message


def test_txt_splits_at_newlines_only():
    data = "\ufeffa\r\n\nb\u2028c\x0cd\ne".encode()
    assert [record.text for record in read("txt", data)] == ["a", "", "b\u2028c\x0cd", "e"]


def test_jsonl_takes_strings_and_objects():
    data = b'\xef\xbb\xbf"a"\n  \n{"text": "b", "more": [1]}\r\n"c"'
    assert read("jsonl", data) == [Record("a"), Record("b"), Record("c")]


def test_csv_takes_quotes_and_line_breaks():
    data = '\ufeffkey,text\n1,"a, b\nc"\n\n2,"say ""x"""\n'.encode()
    assert read("csv", data, Fields(id="key")) == [Record("a, b\nc", "1"), Record('say "x"', "2")]


def test_parquet_takes_large_and_dictionary_strings(tmp_path):
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        stream = io.BytesIO()
        table = pa.table({"x": [1, 2], "text": pa.array(["a", "b"]).cast(kind)})
        pq.write_table(table, stream)
        assert read("parquet", stream.getvalue(), Fields(id="x")) == [Record("a", 1), Record("b", 2)]


@pytest.mark.parametrize(
    ("kind", "data", "fields", "message"),
    [
        ("txt", b"fine\n\xff\n", TEXT, "file, line 2: not UTF-8"),
        ("jsonl", b'"a"\n{"a\n', TEXT, "file, line 2: not JSON"),
        ("jsonl", b"[1]", TEXT, "file, line 1: found list; expected a string or an object"),
        ("jsonl", b'{"text": null}', TEXT, "file, line 1: field 'text' is NoneType; expected a string"),
        ("jsonl", b"{}", Fields("body"), "file, line 1: field 'body' is missing; expected a string (--field"),
        ("jsonl", b'"a"', Fields(id="n"), "file, line 1: found str; expected an object with field 'n'"),
        ("jsonl", b'{"text": "a"}', Fields(id="n"), "field 'n' (--id-field) is missing"),
        ("jsonl", b'{"text": "a", "n": true}', Fields(id="n"), "field 'n' (--id-field) is bool"),
        ("csv", b"a,b\n", TEXT, "file, line 1: no field 'text' in the header ('a', 'b'); --field"),
        ("csv", b"text\nx\n", Fields(id="n"), "file, line 1: no field 'n' in the header ('text'); --id-field"),
        ("csv", b"n,text\n1,x\n2\n", TEXT, "file, line 3: 1 fields, but the header has 2"),
        ("csv", b'text\n"x\n', TEXT, "file, line 2: not CSV"),
        ("csv", b"text\n\xff\n", TEXT, "not UTF-8"),
        ("parquet", b"no parquet at all", TEXT, "file: not a Parquet file"),
    ],
)
def test_malformed_input_names_file_line_and_field(kind, data, fields, message):
    with pytest.raises(InputError) as caught:
        read(kind, data, fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("column", [[None], [1]])
def test_parquet_names_the_row_of_what_is_no_text(column):
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": column}), stream)
    with pytest.raises(InputError, match="file, row 1: field 'text' is"):
        read("parquet", stream.getvalue())


def test_parquet_without_the_field_lists_its_columns():
    stream = io.BytesIO()
    pq.write_table(pa.table({"body": ["a"]}), stream)
    with pytest.raises(InputError, match=r"no field 'text' in the header \('body'\)"):
        read("parquet", stream.getvalue())


@pytest.mark.parametrize(
    ("kind", "data"), [("txt", b"a\nb\nc"), ("txt", b"a\nb\nc\n"), ("csv", b'text\n"a\nb"\nc\nd\n'), ("txt", b"")]
)
def test_counts_are_what_is_read(tmp_path, kind, data):
    path = tmp_path / "in"
    path.write_bytes(data)
    assert inputs.count_records([Source(path, kind)]) == len(read(kind, data))


def test_pipes_are_not_counted():
    assert inputs.count_records([Source(None, "txt")]) is None


@pytest.mark.parametrize(("name", "data"), [("in.csv", "text,n\na,1\nb\n"), ("in.jsonl", '"a"\n5\n')])
def test_a_reader_is_closed_before_its_file(tmp_path, name, data):
    """What a reader raises when it is thrown away can't be caught, but pytest makes it an error."""
    path = tmp_path / name
    path.write_text(data)
    records = inputs.read_records(inputs.find_sources((str(path),), None, TEXT), TEXT)
    next(records)
    with pytest.raises(InputError, match="line"):
        next(records)
    records = inputs.read_records(inputs.find_sources((str(path),), None, TEXT), TEXT)
    next(records)
    del records
    gc.collect()
