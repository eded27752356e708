"""Reads a model card, README.md: what the checkpoint was made of, what for, and its title. Knows no other files."""

import re
from pathlib import Path
from typing import NamedTuple

_HEAD = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_BASE = re.compile(r"^base_model:[ \t]*(?:\n[ \t]*-[ \t]*)?([^\n#]+)", re.MULTILINE)
_TASK = re.compile(r"^pipeline_tag:[ \t]*([\w-]+)", re.MULTILINE)
_TITLE = re.compile(r"^#[ \t]+(.+)$", re.MULTILINE)
_LARGEST = 1 << 16


class Card(NamedTuple):
    """What a card says; None where it has no word of it."""

    base: str | None = None
    task: str | None = None
    title: str | None = None


def read_card(folder: Path) -> Card:
    """Return what is in the card's head, and the first heading below it."""
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            text = file.read(_LARGEST)
    except OSError:
        return Card()
    found = _HEAD.match(text)
    head, body = ("", text) if found is None else (found[1], text[found.end() :])
    base, task, title = (pattern.search(part) for pattern, part in ((_BASE, head), (_TASK, head), (_TITLE, body)))
    return Card(base and base[1].strip().strip("'\""), task and task[1], title and title[1].strip())
