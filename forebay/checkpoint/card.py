"""Reads the head of a model card, README.md: what the checkpoint was made of, and what for. Knows no other files."""

import re
from pathlib import Path

_HEAD = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_BASE = re.compile(r"^base_model:[ \t]*(?:\n[ \t]*-[ \t]*)?([^\n#]+)", re.MULTILINE)
_TASK = re.compile(r"^pipeline_tag:[ \t]*([\w-]+)", re.MULTILINE)
_LARGEST = 1 << 16


def read_card(folder: Path) -> tuple[str | None, str | None]:
    """Return the card's base model and its task, each None where it has no word of it."""
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            found = _HEAD.match(file.read(_LARGEST))
    except OSError:
        return None, None
    head = found[1] if found is not None else ""
    base, task = (pattern.search(head) for pattern in (_BASE, _TASK))
    return base and base[1].strip().strip("'\""), task and task[1]
