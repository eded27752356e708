"""JSON lines to standard output or to a file that is there only once it is whole. Knows no rows' contents."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from forebay.core.errors import InvalidRequest

Write = Callable[[Mapping[str, Any]], None]


@contextmanager
def open_lines(out: str, *, overwrite: bool) -> Iterator[Write]:
    """Give a function that writes one line; the file gets its name where nothing failed."""
    if out == "-":
        yield lambda line: _write(sys.stdout.buffer, line)
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidRequest(f"'{out}' can't be written: {'it is' if path.is_dir() else 'its parent is not'} a folder")
    if path.exists() and not overwrite:
        raise InvalidRequest(f"'{out}' is there already; pass --overwrite to replace it")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield lambda line: _write(file, line)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def tell_skipped(num_failed: int, num_rows: int) -> int:
    """Tell of rows that have no result; return the exit code."""
    if num_failed:
        sys.stderr.write(f"error: {num_failed:,} of {num_rows:,} rows failed\n")
    return 1 if num_failed else 0


def _write(file: Any, line: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
