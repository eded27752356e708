"""The dialect of text-embeddings-inference: sparse vectors as its clients ask for them, and its shape of errors.

It knows the words of that API; the engine behind it only as Request and Reply.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import PlainValidator

from forebay.core.errors import ForebayError
from forebay.core.info import ModelInfo
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Item, Reply, Request, SparseVector
from forebay.core.tasks import Task
from forebay.server.dialect import Answer, Call, Dialect, Operation, Served
from forebay.server.encode import finite
from forebay.server.fields import check_vocabulary, require
from forebay.server.schema import Body, read, read_items

ERROR_TYPES: dict[int, str] = {429: "Overloaded", 503: "Unhealthy"}


class EmbedSparseBody(Body):
    """``POST /embed_sparse``; ``max_active_dims`` is ours."""

    inputs: Annotated[tuple[Item, ...], PlainValidator(partial(read_items, field="inputs"))]
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    prompt_name: str | None = None
    max_active_dims: int | None = None


def parse_embed_sparse(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /embed_sparse``."""
    asked = read(EmbedSparseBody, body)
    require(Task.SPARSE, info.abilities)
    pooling = PoolingParams((Task.SPARSE,), max_active_dims=asked.max_active_dims)
    text = TextParams(
        prompt_name=asked.prompt_name,
        truncate=asked.truncate is not False,
        truncation_side=_SIDES[asked.truncation_direction],
    )
    pooling.check(info.abilities)
    text.check(info.abilities)
    check_vocabulary(asked.inputs, info.abilities.vocab_size)
    return Call(Request(asked.inputs, pooling, text), render_sparse)


_SIDES: dict[str | None, Literal["left", "right"] | None] = {
    None: None,
    "Left": "left",
    "left": "left",
    "Right": "right",
    "right": "right",
}


def render_sparse(reply: Reply, served: Served) -> Answer:
    """Say each sparse vector as a list of objects, without an envelope."""
    return Answer(b"[" + b",".join(map(_pairs, finite(reply.rows))) + b"]")


def _pairs(vector: SparseVector) -> bytes:
    """Index and value side by side, each number as orjson writes it in a plain list."""
    ids, weights = (
        orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        for array in (vector.ids, vector.weights)
    )
    if not len(vector):
        return b"[]"
    return b"[" + b",".join(map(b'{"index":%b,"value":%b}'.__mod__, zip(ids, weights, strict=True))) + b"]"


def render_error(error: ForebayError) -> bytes:
    """Say an error in TEI's shape."""
    return orjson.dumps({"error": error.message, "error_type": error_type(error)})


def error_type(error: ForebayError) -> str:
    """TEI's word for an error."""
    return ERROR_TYPES.get(error.status, "Backend" if error.status >= 500 else "Validation")


TEI = Dialect(
    name="tei",
    operations=(Operation("/embed_sparse", parse_embed_sparse),),
    render_error=render_error,
)
