"""Puts a table into a Markdown page, between the two comments that hold its place.

``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; what stood between them is replaced.
"""

import re
from pathlib import Path


def write_between_markers(path: Path, name: str, table: str) -> None:
    """Replace what stands between the markers of a name; the page must have them once."""
    marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    fresh, found = marked.subn(lambda match: match[1] + table + match[2], path.read_text())
    if found != 1:
        raise SystemExit(f"error: {path} has {found} pairs of the markers {name}:begin and {name}:end; expected one")
    path.write_text(fresh)
