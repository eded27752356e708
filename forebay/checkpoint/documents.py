"""Reads the JSON files of a checkpoint and gives typed access to their fields.

Every complaint names the file, relative to the checkpoint, and the field. Knows no field's meaning.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from forebay.core.errors import CheckpointNotFound, UnsupportedCheckpoint

T = TypeVar("T")

KIND_NAMES: dict[type[object], str] = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON object of a checkpoint; ``label`` is its path below the checkpoint's folder."""

    label: str
    values: Mapping[str, Any]

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Return a field, or None where it is absent or null; a value of another type is refused."""
        value = self.values.get(name)
        if value is None:
            return None
        # In Python a bool is an int; in a config file it is a mistake.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.refuse(name, f"is {describe(value)}, expected {KIND_NAMES[kind]}")
        return value

    def required(self, name: str, kind: type[T]) -> T:
        """Return a field that must be there."""
        value = self.optional(name, kind)
        if value is None:
            raise self.refuse(name, f"is missing, expected {KIND_NAMES[kind]}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a field that must be a number of at least 1."""
        value = self.required(name, int) if default is None else self.optional(name, int)
        if value is None:
            assert default is not None
            return default
        if value < 1:
            raise self.refuse(name, f"is {value}, expected at least 1")
        return value

    def optional_size(self, name: str) -> int | None:
        """The same, or None where the field is absent or null."""
        return None if self.optional(name, int) is None else self.size(name)

    def section(self, name: str) -> "Document":
        """Return the object under a field as a document of its own; absent and null give an empty one."""
        return Document(f"{self.label}: {name}", self.optional(name, dict) or {})

    def refuse(self, name: str, complaint: str) -> UnsupportedCheckpoint:
        """Make the error that a field's value deserves."""
        return UnsupportedCheckpoint(f"{self.label}: '{name}' {complaint}")


def describe(value: object) -> str:
    """Name a JSON value's type, with the value itself where it is short."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= 60 else f"a text of {len(value)} characters"
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else "an object"


def path_below(parent: Path, path: object, document: Document, expected: str = "a folder") -> Path:
    """Join a relative path that ``document`` gives as its field 'path'; one that leaves the checkpoint is refused."""
    if not isinstance(path, str):
        raise document.refuse("path", f"is {describe(path)}, expected a text")
    pure = PureWindowsPath(path)  # splits at both kinds of slash and knows drives
    if pure.anchor or ".." in pure.parts or "\0" in path:
        raise document.refuse("path", f"is '{path}', expected {expected} inside the checkpoint")
    return parent / path


def label_of(path: Path, root: Path) -> str:
    """Return a path as messages show it: relative to the checkpoint."""
    return path.relative_to(root).as_posix()


def read_json(path: Path, root: Path) -> Any:
    """Parse one JSON file; absent, unreadable and malformed files are errors that name it."""
    label = label_of(path, root)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointNotFound(f"{label} is missing in {root}; download the checkpoint completely") from None
    except OSError as error:
        raise CheckpointNotFound(f"{label} in {root} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UnsupportedCheckpoint(f"{label} in {root} is not valid JSON ({error}); download it again") from None


def read_document(path: Path, root: Path) -> Document:
    """Parse a JSON file that must hold an object."""
    values = read_json(path, root)
    label = label_of(path, root)
    if not isinstance(values, dict):
        raise UnsupportedCheckpoint(f"{label} in {root} holds {describe(values)}, expected an object")
    return Document(label, values)


def read_optional_document(path: Path, root: Path) -> Document | None:
    """Parse a JSON file that must hold an object where it exists at all."""
    return read_document(path, root) if path.exists() else None
