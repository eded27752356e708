"""The file formats of bulk runs: their names, and which extension tells which. Reads and writes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

from forebay.core.errors import InvalidRequest

InputFormat = Literal["txt", "jsonl", "csv", "parquet"]
OutputFormat = Literal["npy", "npz", "jsonl", "parquet"]
Format = TypeVar("Format", bound=str)

INPUT_EXTENSIONS: dict[str, InputFormat] = {
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
OUTPUT_EXTENSIONS: dict[str, OutputFormat] = {
    ".npy": "npy",
    ".npz": "npz",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


def find_format(path: Path, extensions: Mapping[str, Format], option: str) -> Format:
    """Return the format that a file's extension tells; ``option`` is the remedy where it tells none."""
    found = extensions.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(
            f"the name '{path.name}' tells no format; pass {option}, or use one of {', '.join(extensions)}"
        )
    return found
