"""Input files → records, one at a time. A reader yields (text, id), or an error that names file, line and field.

Knows no model and no output; memory stays that of one line (of one row group for Parquet).
"""

import csv
import io
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from forebay.cli.formats import INPUT_EXTENSIONS, InputFormat, find_format
from forebay.core.errors import ForebayError, InvalidRequest

BOM = b"\xef\xbb\xbf"
Id = int | str | None


class InputError(ForebayError):
    """A line of the input is not what its format promises."""

    code = "malformed_input"


class Record(NamedTuple):
    """One text, and what the caller calls it; with an ``error`` the row has no text, and an id where it could be read.

    A row with an error is an empty text, so that all rows keep their places.
    """

    text: str
    id: Id = None
    error: InputError | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a line hold the text and, where asked for, the id; ``id_option`` is what names the latter."""

    text: str = "text"
    id: str | None = None
    id_option: str = "--id-field"


@dataclass(frozen=True, slots=True)
class Source:
    """One input: a file, or standard input where ``path`` is None."""

    path: Path | None
    format: InputFormat

    @property
    def name(self) -> str:
        """What messages call it."""
        return "standard input" if self.path is None else str(self.path)

    @property
    def size(self) -> int | None:
        """Bytes of a regular file; None for pipes."""
        if self.path is None:
            return None
        status = self.path.stat()
        return status.st_size if stat.S_ISREG(status.st_mode) else None


def find_sources(files: Sequence[str], input_format: InputFormat | None, fields: Fields) -> tuple[Source, ...]:
    """Resolve the command line's files and their formats; no file, or "-", is standard input."""
    sources = tuple(find_source(name, input_format) for name in files or ("-",))
    if fields.id is not None and any(source.format == "txt" for source in sources):
        raise InvalidRequest(
            f"{fields.id_option} needs an input with fields, but txt has none; use jsonl, csv or parquet"
        )
    return sources


def find_source(name: str, input_format: InputFormat | None) -> Source:
    """Resolve one file name; the format comes from ``input_format``, else from the extension."""
    if name == "-":
        if input_format == "parquet":
            raise InvalidRequest("Parquet can't be read from standard input; give the file's name")
        return Source(None, input_format or "txt")
    path = Path(name)
    if not path.exists() or path.is_dir():
        raise InvalidRequest(f"'{name}' is {'a folder' if path.is_dir() else 'not there'}; expected a file, or '-'")
    return Source(path, input_format or find_format(path, INPUT_EXTENSIONS, "--input-format"))


def read_records(sources: Sequence[Source], fields: Fields, *, skips: bool = False) -> Iterator[Record]:
    """Yield the records of all sources in order; ``skips`` yields bad rows too, which are raised otherwise."""
    for source in sources:
        if source.path is None:
            yield from _checked(READERS[source.format](sys.stdin.buffer, source.name, fields), skips=skips)
            continue
        with source.path.open("rb") as stream:
            yield from _checked(READERS[source.format](stream, source.name, fields), skips=skips)


def _checked(records: Generator[Record], *, skips: bool) -> Iterator[Record]:
    """Pass records on; the reader is closed as soon as no more are wanted, for its file is closed next."""
    try:
        for record in records:
            if record.error is not None and not skips:
                raise InputError(f"{record.error.message}; --on-error skip leaves out such rows")
            yield record
    finally:
        records.close()


def bad(message: str, key: Id = None) -> Record:
    """Return what stands in the place of a row that can't be read."""
    return Record("", key, InputError(message))


def read_txt(stream: BinaryIO, name: str, fields: Fields) -> Generator[Record]:
    """One text a line; an empty line is an empty text, so that row n is line n."""
    for number, line in enumerate(stream, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield Record((text.removeprefix(BOM) if number == 1 else text).decode())
        except UnicodeDecodeError as error:
            yield bad(f"{name}, line {number}: not UTF-8 ({error.reason} at byte {error.start})")


def read_jsonl(stream: BinaryIO, name: str, fields: Fields) -> Generator[Record]:
    """One JSON string or object a line; blank lines are skipped."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = orjson.loads(line.removeprefix(BOM) if number == 1 else line)
        except orjson.JSONDecodeError as error:
            yield bad(f"{where}: not JSON ({error.msg}); expected a string or an object")
            continue
        yield pick(value, where, fields)


def pick(value: Any, where: str, fields: Fields) -> Record:
    """Take text and id out of one JSON value."""
    if isinstance(value, str) and fields.id is None:
        return Record(value)
    if not isinstance(value, dict):
        wanted = "a string or an object" if fields.id is None else f"an object with field '{fields.id}'"
        return bad(f"{where}: found {type(value).__name__}; expected {wanted}")
    key = None if fields.id is None else value.get(fields.id)
    is_key = isinstance(key, str | int) and not isinstance(key, bool)
    text = value.get(fields.text)
    if not isinstance(text, str):
        found = type(text).__name__ if fields.text in value else "missing"
        message = f"{where}: field '{fields.text}' is {found}; expected a string (--field names the field)"
        return bad(message, key if is_key else None)
    if fields.id is None or is_key:
        return Record(text, key)
    found = type(key).__name__ if fields.id in value else "missing"
    return bad(f"{where}: field '{fields.id}' ({fields.id_option}) is {found}; expected a string or an integer")


def read_csv(stream: BinaryIO, name: str, fields: Fields) -> Generator[Record]:
    """A header line, then one row a text; quoted fields may span lines."""
    csv.field_size_limit(1 << 30)
    text_stream = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text_stream, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            return
        text_column = find_column(header, fields.text, "--field", name)
        id_column = None if fields.id is None else find_column(header, fields.id, fields.id_option, name)
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield bad(f"{name}, line {rows.line_num}: not CSV ({error})")
                continue
            if row is None:
                return
            if len(row) == len(header):
                yield _csv_record(row, text_column, id_column, f"{name}, line {rows.line_num}")
            elif row:
                yield bad(
                    f"{name}, line {rows.line_num}: {len(row)} fields, but the header has {len(header)} "
                    f"(field '{fields.text}' can't be told)"
                )
    finally:
        text_stream.detach()


def _csv_record(row: Sequence[str], text_column: int, id_column: int | None, where: str) -> Record:
    record = Record(row[text_column], None if id_column is None else row[id_column])
    try:
        for value in (record.text, record.id or ""):
            str(value).encode()
    except UnicodeEncodeError:
        return bad(f"{where}: not UTF-8")
    return record


def find_column(header: Sequence[str], column: str, option: str, name: str) -> int:
    """Return where ``column`` stands in the header."""
    if column not in header:
        known = ", ".join(f"'{title}'" for title in header)
        raise InputError(f"{name}, line 1: no field '{column}' in the header ({known}); {option} names the field")
    return header.index(column)


def read_parquet(stream: BinaryIO, name: str, fields: Fields) -> Generator[Record]:
    """One row a text, read in small batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(stream)
    except pa.ArrowInvalid:
        raise InputError(f"{name}: not a Parquet file; --input-format names another format") from None
    columns = {"--field": fields.text} | ({fields.id_option: fields.id} if fields.id is not None else {})
    for option, column in columns.items():
        find_column(table.schema_arrow.names, column, option, name)
    number = 0
    for batch in table.iter_batches(batch_size=1024, columns=list(columns.values())):
        texts = batch.column(fields.text).to_pylist()
        keys = batch.column(fields.id).to_pylist() if fields.id is not None else [None] * len(texts)
        for text, key in zip(texts, keys, strict=True):
            number += 1
            row = {fields.text: text} | ({fields.id: key} if fields.id is not None else {})
            yield pick(row, f"{name}, row {number}", fields)


def count_records(sources: Sequence[Source]) -> int | None:
    """Count the texts of all sources for the progress bar; None where a pipe makes that impossible."""
    total = 0
    for source in sources:
        if source.path is None or source.size is None:
            return None
        with source.path.open("rb") as stream:
            total += COUNTERS[source.format](stream)
    return total


def count_lines(stream: BinaryIO) -> int:
    """Count lines, the last one with or without its newline."""
    total, last = 0, b"\n"
    while block := stream.read(1 << 20):
        total += block.count(b"\n")
        last = block[-1:]
    return total + (last != b"\n")


def count_csv_rows(stream: BinaryIO) -> int:
    """Count rows after the header; a malformed file counts as far as it can be read."""
    csv.field_size_limit(1 << 30)
    with io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="") as text_stream:
        return max(0, sum(1 for row in csv.reader(text_stream) if row) - 1)


def count_parquet_rows(stream: BinaryIO) -> int:
    """Read the number of rows from the footer."""
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(stream).metadata.num_rows)


READERS: dict[InputFormat, Callable[[BinaryIO, str, Fields], Generator[Record]]] = {
    "txt": read_txt,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
}
COUNTERS: dict[InputFormat, Callable[[BinaryIO], int]] = {
    "txt": count_lines,
    "jsonl": count_lines,
    "csv": count_csv_rows,
    "parquet": count_parquet_rows,
}
