"""The dialect of text-embeddings-inference: its native routes, whose answers are bare lists, and its shape of errors.

It knows the words of that API; the engine behind it only as Request and Reply.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import PlainValidator

from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.params import Abilities, PoolingParams, TextParams
from forebay.core.request import Item, Reply, Request, SparseVector
from forebay.core.tasks import Task
from forebay.server.dialect import Answer, Call, Dialect, Operation, Served
from forebay.server.dialects.tei_tokens import parse_decode, parse_tokenize
from forebay.server.encode import finite
from forebay.server.errors import named_as
from forebay.server.fields import check_vocabulary, require
from forebay.server.schema import Body, json_type, read, read_items

ERROR_TYPES: dict[int, str] = {429: "Overloaded", 503: "Unhealthy"}

Inputs = Annotated[tuple[Item, ...], PlainValidator(partial(read_items, field="inputs"))]

_SIDES: dict[str | None, Literal["left", "right"] | None] = {
    None: None,
    "Left": "left",
    "left": "left",
    "Right": "right",
    "right": "right",
}


def in_inputs(index: int) -> str:
    """Where an item stands in most bodies of this dialect."""
    return f"inputs[{index}]"


class ReadingBody(Body):
    """How texts are read."""

    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    prompt_name: str | None = None

    def text(self, abilities: Abilities) -> TextParams:
        """The same, checked, in the engine's words."""
        text = TextParams(
            prompt_name=self.prompt_name,
            truncate=self.truncate is not False,
            truncation_side=_SIDES[self.truncation_direction],
        )
        text.check(abilities)
        return text


class ItemsBody(ReadingBody):
    """Texts and how they are read."""

    inputs: Inputs

    def call(self, pooling: PoolingParams, info: ModelInfo, render: Any) -> Call:
        """What is to be made of the texts."""
        (task,) = pooling.outputs
        require(task, info.abilities)
        pooling.check(info.abilities)
        text = self.text(info.abilities)
        with named_as(in_inputs):
            check_vocabulary(self.inputs, info.abilities.vocab_size)
        return Call(Request(self.inputs, pooling, text), render, "inputs", in_inputs)


class EmbedBody(ItemsBody):
    """``POST /embed``: a vector for each text, of unit length unless ``normalize`` is false."""

    normalize: bool | None = None
    dimensions: int | None = None


def parse_embed(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /embed``."""
    asked = read(EmbedBody, body)
    pooling = PoolingParams((Task.EMBED,), dimensions=asked.dimensions, use_activation=asked.normalize is not False)
    return asked.call(pooling, info, render_arrays)


class EmbedAllBody(ItemsBody):
    """``POST /embed_all``: a vector for each token of each text."""


def parse_embed_all(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /embed_all``."""
    return read(EmbedAllBody, body).call(PoolingParams((Task.TOKEN_EMBED,)), info, render_arrays)


def render_arrays(reply: Reply, served: Served) -> Answer:
    """Say each array as lists of numbers, without an envelope."""
    rows = [np.ascontiguousarray(row, np.float32) for row in finite(reply.rows)]
    return Answer(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY))


class EmbedSparseBody(ItemsBody):
    """``POST /embed_sparse``; ``max_active_dims`` is ours."""

    max_active_dims: int | None = None


def parse_embed_sparse(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /embed_sparse``."""
    asked = read(EmbedSparseBody, body)
    pooling = PoolingParams((Task.SPARSE,), max_active_dims=asked.max_active_dims)
    return asked.call(pooling, info, render_sparse)


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


class SimilarityInputs(Body):
    """``inputs`` of ``POST /similarity``: one text, and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityBody(Body):
    """``POST /similarity``: the cosine of the first text's vector with each of the others'."""

    inputs: SimilarityInputs
    parameters: ReadingBody | None = None


def parse_similarity(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /similarity``."""
    asked = read(SimilarityBody, body)
    require(Task.EMBED, info.abilities)
    if not asked.inputs.sentences:
        raise InvalidRequest("'inputs.sentences' is an empty list; send at least one text", field="inputs.sentences")
    text = (asked.parameters or ReadingBody()).text(info.abilities)
    items = (asked.inputs.source_sentence, *asked.inputs.sentences)
    request = Request(items, PoolingParams((Task.EMBED,), use_activation=True), text)
    return Call(request, render_similarity, "inputs.sentences", _in_similarity)


def _in_similarity(index: int) -> str:
    return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"


def render_similarity(reply: Reply, served: Served) -> Answer:
    """Say how alike the first vector and each of the others are; all are of unit length."""
    first, *others = finite(reply.rows)
    return Answer(orjson.dumps(np.stack(others) @ first, option=orjson.OPT_SERIALIZE_NUMPY))


class PredictBody(ReadingBody):
    """``POST /predict``: the scores of all labels; ``inputs`` is a text, a pair of texts, or a list of such lists."""

    raw_scores: bool | None = None


def parse_predict(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /predict``."""
    asked = read(PredictBody, body)
    require(Task.CLASSIFY, info.abilities)
    firsts, seconds, is_one = _read_sequences(body.get("inputs"))
    pooling = PoolingParams((Task.CLASSIFY,), use_activation=False if asked.raw_scores else None)
    request = Request(firsts, pooling, asked.text(info.abilities), seconds=seconds)
    render = partial(render_scores, labels=info.abilities.labels, is_one=is_one)
    return Call(request, render, "inputs", in_inputs)


def _read_sequences(value: Any) -> tuple[list[str], list[str] | None, bool]:
    """Return the first texts, the second ones where they are pairs, and whether there is one sequence, not a list."""
    is_one = isinstance(value, str) or (isinstance(value, list) and {*map(type, value)} == {str})
    given = [value] if is_one else value
    if not isinstance(given, list):
        raise InvalidRequest(
            f"'inputs' must be a string, a pair of strings or a list of lists of one or two strings; got "
            f"{json_type(value)}",
            field="inputs",
        )
    if not given:
        raise InvalidRequest("'inputs' is an empty list; send at least one text", field="inputs")
    sequences = [_read_sequence(one, "inputs" if is_one else in_inputs(i)) for i, one in enumerate(given)]
    num_pairs = sum(len(sequence) == 2 for sequence in sequences)
    if num_pairs not in (0, len(sequences)):
        raise InvalidRequest(
            f"'inputs' has {num_pairs} pairs and {len(sequences) - num_pairs} single texts; send them in requests of "
            "their own",
            field="inputs",
        )
    firsts = [sequence[0] for sequence in sequences]
    return firsts, [sequence[1] for sequence in sequences] if num_pairs else None, is_one


def _read_sequence(value: Any, field: str) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or {*map(type, value)} != {str}:
        raise InvalidRequest(f"'{field}' must be a string or a list of one or two; got {_what(value)}", field=field)
    if len(value) > 2:
        raise InvalidRequest(
            f"'{field}' is a list of {len(value)} strings, but such a list is one text or one pair; for several texts "
            'send each in a list of its own: [["first"], ["second"], …]',
            field=field,
        )
    return value


def _what(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {', '.join(sorted({json_type(one) for one in value}))}" if value else "an empty list"
    return json_type(value)


def render_scores(reply: Reply, served: Served, *, labels: Sequence[str], is_one: bool) -> Answer:
    """Say the labels of each sequence with their scores, the best first."""
    said = [_ranked(row, labels) for row in finite(reply.rows)]
    return Answer(orjson.dumps(said[0] if is_one else said, option=orjson.OPT_SERIALIZE_NUMPY))


def _ranked(row: NDArray[np.float32], labels: Sequence[str]) -> list[dict[str, Any]]:
    best = np.argsort(-row, kind="stable").tolist()
    return [{"score": row[place], "label": labels[place]} for place in best]


def render_error(error: ForebayError) -> bytes:
    """Say an error in TEI's shape."""
    return orjson.dumps({"error": error.message, "error_type": error_type(error)})


def error_type(error: ForebayError) -> str:
    """TEI's word for an error."""
    return ERROR_TYPES.get(error.status, "Backend" if error.status >= 500 else "Validation")


TEI = Dialect(
    name="tei",
    operations=(
        Operation("/embed", parse_embed),
        Operation("/embed_all", parse_embed_all),
        Operation("/embed_sparse", parse_embed_sparse),
        Operation("/similarity", parse_similarity),
        Operation("/predict", parse_predict),
        Operation("/tokenize", parse_tokenize),
        Operation("/decode", parse_decode),
    ),
    render_error=render_error,
)
