"""Replies as lists of entries: the envelope of OpenAI and vLLM, as one JSON object or as bytes with metadata.

It knows tasks only as names. The layout of ``bytes``: all arrays end to end, then the metadata as JSON, which begins
at the byte that the header ``metadata-start`` names. Metadata of up to 4 KB also stand in the header ``metadata``.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from forebay.core.request import Reply, Row, SparseVector
from forebay.core.tasks import Task
from forebay.server.dialect import Answer, Served
from forebay.server.encode import Spelling, finite

MAX_HEADER = 4096
"""Bytes of metadata that a header may hold: proxies and clients refuse headers of more than 8 KB."""

OCTETS = "application/octet-stream"

Notes = Sequence[Mapping[str, Any]]
"""What stands beside the arrays of each item."""


def answer_list(
    prefix: str, data: Sequence[Mapping[str, Any]], reply: Reply, served: Served, top: Mapping[str, Any] | None = None
) -> Answer:
    """The envelope in JSON around entries that orjson takes; ``top`` stands beside them."""
    value = {**_head(prefix, served, is_list=True), **(top or {}), "data": data, **_counts(reply)}
    return Answer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


def _head(prefix: str, served: Served, *, is_list: bool) -> dict[str, Any]:
    kind = {"object": "list"} if is_list else {}
    return {"id": f"{prefix}-{served.request_id}", **kind, "created": int(time.time()), "model": served.name}


def _counts(reply: Reply) -> dict[str, Any]:
    """Usage, and ``truncated`` with the items that were cut, if any were."""
    num_tokens = int(reply.num_tokens.sum())
    counts: dict[str, Any] = {"usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}}
    if reply.truncated.any():
        counts["truncated"] = reply.truncated.nonzero()[0]
    return counts


@dataclass(frozen=True, slots=True)
class ArrayList:
    """How a list of arrays is said: ``prefix`` of its id; each entry's ``object`` and the ``key`` of its array.

    Several outputs stand under that key as an object, by task. ``names_tokens`` adds the texts of a sparse vector's
    entries.
    """

    prefix: str
    object: str
    key: str
    outputs: tuple[Task, ...]
    spelling: Spelling
    names_tokens: bool = False

    def render(self, reply: Reply, served: Served, notes: Notes, top: Mapping[str, Any] | None = None) -> Answer:
        """Say a reply; ``notes`` are there for each item or not at all."""
        columns = [finite(reply.outputs[task]) for task in self.outputs]
        items = list(zip(*columns, strict=True))
        notes = notes or [{}] * len(items)
        if self.spelling.encoding == "bytes_only":
            return Answer(b"".join(self.spelling.cast(row).data for (row,) in items), OCTETS)
        if self.spelling.encoding == "bytes":
            return self._answer_bytes(items, reply, served, notes, top)
        data = [
            {"index": index, "object": self.object, **self._say(rows, served), **note}
            for index, (rows, note) in enumerate(zip(items, notes, strict=True))
        ]
        return answer_list(self.prefix, data, reply, served, top)

    def _say(self, rows: tuple[Row, ...], served: Served) -> dict[str, Any]:
        """One item's arrays; base64 has its shape beside it, since the string has none."""
        said = {self.key: self._join([self._say_row(row, served) for row in rows])}
        if self.spelling.encoding == "base64" and not all(isinstance(row, SparseVector) for row in rows):
            said["shape"] = self._join([None if isinstance(row, SparseVector) else self._shape(row) for row in rows])
        return said

    def _join(self, values: Sequence[Any]) -> Any:
        """The only output's value, or all values by task."""
        return dict(zip(self.outputs, values, strict=True)) if len(values) > 1 else values[0]

    def _say_row(self, row: Row, served: Served) -> Any:
        if not isinstance(row, SparseVector):
            return self.spelling.say(row)
        said: dict[str, Any] = {"indices": row.ids, "values": row.weights}
        if self.names_tokens:
            said["tokens"] = [served.engine.token_of(token_id) for token_id in row.ids.tolist()]
        return said

    def _shape(self, row: np.ndarray[Any, Any]) -> list[int]:
        """The shape of what is decoded: packed bits are fewer than the numbers that they stand for."""
        *rows, size = row.shape
        return [*rows, size // 8 if self.spelling.dtype in ("binary", "ubinary") else size]

    def _answer_bytes(
        self,
        items: Sequence[tuple[Row, ...]],
        reply: Reply,
        served: Served,
        notes: Notes,
        top: Mapping[str, Any] | None,
    ) -> Answer:
        parts: list[memoryview] = []
        data: list[dict[str, Any]] = []
        start = 0
        for index, task, row in self._in_order(items):
            values = self.spelling.cast(row)
            parts.append(values.data)
            entry = {
                "index": index,
                "embed_dtype": self.spelling.dtype,
                "endianness": self.spelling.byteorder,
                "start": start,
                "end": start + values.nbytes,
                "shape": values.shape,
            }
            data.append({**entry, **({"task": task} if len(self.outputs) > 1 else {}), **notes[index]})
            start += values.nbytes
        dtype = self.spelling.numpy_dtype
        meta = {**_head(self.prefix, served, is_list=False), "dtype": dtype, **(top or {}), "data": data}
        text = orjson.dumps({**meta, **_counts(reply)}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Answer(b"".join([*parts, text]), OCTETS, {"metadata-start": str(start), **_header(text)})

    def _in_order(self, items: Sequence[tuple[Row, ...]]) -> Iterator[tuple[int, Task, np.ndarray[Any, Any]]]:
        for index, rows in enumerate(items):
            for task, row in zip(self.outputs, rows, strict=True):
                assert not isinstance(row, SparseVector), "the fields' check lets no sparse output through"
                yield index, task, row


def _header(text: bytes) -> dict[str, str]:
    """The metadata as a header's value, in ASCII, where it is small enough."""
    if len(text) > MAX_HEADER:
        return {}
    ascii_text = json.dumps(json.loads(text), separators=(",", ":"))
    return {"metadata": ascii_text} if len(ascii_text) <= MAX_HEADER else {}
