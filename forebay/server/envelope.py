"""Replies as lists of entries: the envelope of OpenAI and vLLM, as one JSON object or as bytes with metadata.

It knows tasks only as names. The layout of ``bytes``: all arrays end to end, then the metadata as JSON, which begins
at the byte that the header ``metadata-start`` names. Metadata of up to 4 KB also stand in the header ``metadata``.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from forebay.core.request import Reply, Row, ScoreReply, SparseVector
from forebay.core.tasks import Task
from forebay.server.dialect import Answer, Served
from forebay.server.encode import PACKED, Spelling, finite

MAX_HEADER = 4096
"""Bytes of metadata that a header may hold: proxies and clients refuse headers of more than 8 KB."""

OCTETS = "application/octet-stream"

Notes = Sequence[Mapping[str, Any]]
"""What stands beside the arrays of each item."""


def answer_list(
    prefix: str,
    data: Sequence[Mapping[str, Any]],
    reply: Reply | ScoreReply,
    served: Served,
    top: Mapping[str, Any] | None = None,
) -> Answer:
    """The envelope in JSON around entries that orjson takes; ``top`` stands beside them."""
    return answer_object(prefix, {**(top or {}), "data": data}, reply, served)


def answer_object(prefix: str, fields: Mapping[str, Any], reply: Reply | ScoreReply, served: Served) -> Answer:
    """The same around fields of other names."""
    value = {**_head(prefix, served, is_list=True), **fields, **_counts(reply)}
    return Answer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


def _head(prefix: str, served: Served, *, is_list: bool) -> dict[str, Any]:
    kind = {"object": "list"} if is_list else {}
    return {"id": f"{prefix}-{served.request_id}", **kind, "created": int(time.time()), "model": served.name}


def _counts(reply: Reply | ScoreReply) -> dict[str, Any]:
    """Usage, and ``truncated`` with the items that were cut, if any were."""
    num_tokens = int(np.sum(reply.num_tokens))
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
        notes = notes or [{}] * len(columns[0])
        if self.spelling.encoding in ("bytes", "bytes_only"):
            items = list(zip(*(self.spelling.cast(column) for column in map(_dense, columns)), strict=True))
            if self.spelling.encoding == "bytes_only":
                return Answer(b"".join(values.data for row in items for values in row), OCTETS)
            return self._answer_bytes(items, reply, served, notes, top)
        said = [self._join(values) for values in zip(*(self._say(column, served) for column in columns), strict=True)]
        data = [
            {"index": index, "object": self.object, self.key: value, **shape, **note}
            for index, (value, shape, note) in enumerate(zip(said, self._shapes(columns), notes, strict=True))
        ]
        return answer_list(self.prefix, data, reply, served, top)

    def _join(self, values: Sequence[Any]) -> Any:
        """The only output's value, or all values by task."""
        return dict(zip(map(str, self.outputs), values, strict=True)) if len(values) > 1 else values[0]

    def _say(self, rows: Sequence[Row], served: Served) -> list[Any]:
        """One output of all items."""
        if any(isinstance(row, SparseVector) for row in rows):
            return [self._say_sparse(row, served) for row in rows if isinstance(row, SparseVector)]
        return self.spelling.say(_dense(rows))

    def _say_sparse(self, row: SparseVector, served: Served) -> dict[str, Any]:
        said: dict[str, Any] = {"indices": row.ids, "values": row.weights}
        if self.names_tokens:
            said["tokens"] = [served.engine.token_of(token_id) for token_id in row.ids.tolist()]
        return said

    def _shapes(self, columns: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
        """What stands beside each item's base64, since a string has no shape."""
        if self.spelling.encoding != "base64" or self.outputs == (Task.SPARSE,):
            return [{}] * len(columns[0])
        return [{"shape": self._join([self._shape(row) for row in rows])} for rows in zip(*columns, strict=True)]

    def _shape(self, row: Row) -> list[int] | None:
        """The shape of what is decoded: packed bits are fewer than the numbers that they stand for."""
        if isinstance(row, SparseVector):
            return None
        *rows, size = row.shape
        return [*rows, size // 8 if self.spelling.dtype in PACKED else size]

    def _answer_bytes(
        self,
        items: Sequence[tuple[NDArray[Any], ...]],
        reply: Reply,
        served: Served,
        notes: Notes,
        top: Mapping[str, Any] | None,
    ) -> Answer:
        spelling, start = self.spelling, 0
        data: list[dict[str, Any]] = []
        for index, arrays in enumerate(items):
            for task, values in zip(self.outputs, arrays, strict=True):
                entry = {
                    "index": index,
                    "embed_dtype": spelling.dtype,
                    "endianness": spelling.byteorder,
                    "start": start,
                    "end": start + values.nbytes,
                    "shape": values.shape,
                }
                data.append({**entry, **({"task": task} if len(self.outputs) > 1 else {}), **notes[index]})
                start += values.nbytes
        head = {**_head(self.prefix, served, is_list=False), "dtype": spelling.numpy_dtype, **(top or {})}
        text = orjson.dumps({**head, "data": data, **_counts(reply)}, option=orjson.OPT_SERIALIZE_NUMPY)
        body = b"".join([*(values.data for arrays in items for values in arrays), text])
        return Answer(body, OCTETS, {"metadata-start": str(start), **_header(text)})


def _dense(rows: Sequence[Row]) -> list[NDArray[np.float32]]:
    """The rows, of which none is sparse: the fields' check lets no other through."""
    return [row for row in rows if not isinstance(row, SparseVector)]


def _header(text: bytes) -> dict[str, str]:
    """The metadata as a header's value, in ASCII, where it is small enough."""
    if len(text) > MAX_HEADER:
        return {}
    ascii_text = json.dumps(json.loads(text), separators=(",", ":"))
    return {"metadata": ascii_text} if len(ascii_text) <= MAX_HEADER else {}
