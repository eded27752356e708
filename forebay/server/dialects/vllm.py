"""The vLLM dialect: pooling and classification in its shapes, and token classification with entities beside them.

It knows the words of that API; the engine behind it only as Request and Reply.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from forebay.core.errors import EngineError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.params import Abilities
from forebay.core.request import Reply, Request
from forebay.core.tasks import Task, parse_outputs
from forebay.server.dialect import Answer, Call, Dialect, Operation, PluginCall, Served
from forebay.server.dialects.openai import render_error
from forebay.server.encode import Spelling, finite
from forebay.server.envelope import ArrayList, Notes, answer_list
from forebay.server.fields import TOKENS, ArraysBody, ItemsBody, refuse_outputs, require
from forebay.server.schema import Body, read
from forebay.server.token_notes import entity_notes, find_spans, mask_notes, offset_notes, window_notes
from forebay.text.entities import Aggregation

LABELLED = (Task.CLASSIFY, Task.TOKEN_CLASSIFY)


class PoolingBody(ArraysBody):
    """``POST /pooling``: any output of the model, or several ``outputs`` of one forward."""

    task: str | None = None
    outputs: list[str] | None = None
    special_tokens_mask: bool | None = None
    return_tokens: bool | None = None

    def field_names(self) -> Mapping[str, str]:
        """Where ``outputs`` names the tasks, an unfit task is its fault."""
        names = super().field_names()
        return names if self.outputs is None else {**names, "task": "outputs"}


class PluginBody(Body):
    """``POST /pooling`` with ``data``: whatever the model's IO processor understands."""

    task: str | None = None
    data: Any


def parse_pooling(body: Mapping[str, Any], info: ModelInfo) -> Call | PluginCall:
    """Read the body of ``POST /pooling``."""
    if body.get("data") is not None or body.get("task") == Task.PLUGIN:
        return _parse_plugin(body, info.abilities)
    asked = read(PoolingBody, body)
    outputs = _outputs(asked, info.abilities)
    request = asked.request(outputs, info)
    spelling = asked.spelling(outputs, info.abilities)
    _check_notes(asked, outputs, spelling)
    listing = ArrayList("pooling", "pooling", "data", outputs, spelling, names_tokens=asked.return_tokens is True)
    labels = {"labels": info.abilities.labels} if set(outputs) & set(LABELLED) else {}

    def render(reply: Reply, served: Served) -> Answer:
        return listing.render(reply, served, _pooling_notes(asked, request, reply, served), labels)

    return Call(request, render)


def _parse_plugin(body: Mapping[str, Any], abilities: Abilities) -> PluginCall:
    if Task.PLUGIN not in abilities.tasks:
        known = ", ".join(f"'{task}'" for task in abilities.tasks)
        raise InvalidRequest(
            f"this model has no IO processor to take 'data' (serve it with --io-processor); it has {known}",
            field="task",
        )
    asked = read(PluginBody, body)
    if asked.task not in (None, Task.PLUGIN):
        raise InvalidRequest(
            "'data' is for an IO processor, but 'task' names another task; send 'input', or task 'plugin'", field="task"
        )
    return PluginCall(asked.data, _render_plugin)


def _render_plugin(made: Any, served: Served) -> Answer:
    value = {"request_id": f"pooling-{served.request_id}", "created_at": int(time.time()), "data": made}
    try:
        return Answer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise EngineError(f"the IO processor's answer is no JSON: {error}") from None


def _outputs(asked: PoolingBody, abilities: Abilities) -> tuple[Task, ...]:
    """The outputs that are asked for; the model's default task where none is named."""
    if asked.outputs is None:
        return parse_outputs([asked.task or abilities.default_task])
    if asked.task is not None:
        raise InvalidRequest("'task' names one output and 'outputs' several; send one of them", field="outputs")
    if not asked.outputs:
        raise InvalidRequest("'outputs' is an empty list; name at least one task, or leave it out", field="outputs")
    try:
        return parse_outputs(asked.outputs)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field="outputs") from None


def _check_notes(asked: PoolingBody, outputs: tuple[Task, ...], spelling: Spelling) -> None:
    if asked.special_tokens_mask:
        refuse_outputs("special_tokens_mask", outputs, TOKENS)
        if spelling.encoding == "bytes_only":
            raise InvalidRequest(
                "encoding_format 'bytes_only' has no place for 'special_tokens_mask'; send 'bytes'",
                field="special_tokens_mask",
            )
    if asked.return_tokens:
        refuse_outputs("return_tokens", outputs, (Task.SPARSE,))


def _pooling_notes(asked: PoolingBody, request: Request, reply: Reply, served: Served) -> Notes:
    notes: list[dict[str, Any]] = [{} for _ in request.items]
    size = request.pooling.chunk_size
    if size is not None:
        found = find_spans(Task.TOKEN_EMBED, "late_chunking_params", request, reply, served)
        notes = window_notes(found, size)
    if asked.special_tokens_mask:
        task = next(task for task in request.pooling.outputs if task in TOKENS)
        masks = mask_notes(find_spans(task, "special_tokens_mask", request, reply, served))
        notes = [{**note, **mask} for note, mask in zip(notes, masks, strict=True)]
    return notes


class ClassifyBody(ItemsBody):
    """``POST /classify``: the best label and the scores of all; ``top_k`` (-1 for all) names the best scores too."""

    top_k: int | None = None


def parse_classify(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /classify``."""
    asked = read(ClassifyBody, body)
    require(Task.CLASSIFY, info.abilities)
    request = asked.request((Task.CLASSIFY,), info)
    if asked.top_k is not None and asked.top_k != -1 and asked.top_k < 1:
        raise InvalidRequest(
            f"top_k is {asked.top_k}; expected 1 or more, or -1 for the scores of all labels", field="top_k"
        )
    labels = info.abilities.labels

    def render(reply: Reply, served: Served) -> Answer:
        rows = finite(reply.rows)
        data = [{"index": index, **_classes(row, labels, asked.top_k)} for index, row in enumerate(rows)]
        return answer_list("classify", data, reply, served, {"labels": labels})

    return Call(request, render)


def _classes(row: NDArray[np.float32], labels: Sequence[str], top_k: int | None) -> dict[str, Any]:
    said = {"label": labels[int(row.argmax())], "probs": np.ascontiguousarray(row), "num_classes": len(row)}
    if top_k is not None:
        best = np.argsort(-row, kind="stable")[: None if top_k == -1 else top_k]
        said["scores"] = [{"label": labels[place], "score": row[place]} for place in best.tolist()]
    return said


class TokenClassifyBody(ItemsBody):
    """``POST /token_classify``: scores of all tokens, or the entities that an ``aggregation`` joins them to."""

    aggregation: Aggregation | None = None


def parse_token_classify(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /token_classify``."""
    asked = read(TokenClassifyBody, body)
    require(Task.TOKEN_CLASSIFY, info.abilities)
    request = asked.request((Task.TOKEN_CLASSIFY,), info)
    labels = info.abilities.labels
    if asked.aggregation is not None:
        _check_entities(request, labels)

    def render(reply: Reply, served: Served) -> Answer:
        notes = _token_notes(asked.aggregation, labels, request, reply, served)
        data = [{"index": index, "object": "token_classification", **note} for index, note in enumerate(notes)]
        return answer_list("classify", data, reply, served, {"labels": labels})

    return Call(request, render)


def _check_entities(request: Request, labels: Sequence[str]) -> None:
    if not labels:
        raise InvalidRequest(
            "'aggregation' joins tokens of one label, but this model's scores have no labels; leave it out",
            field="aggregation",
        )
    for index, item in enumerate(request.items):
        if not isinstance(item, str):
            raise InvalidRequest(
                f"'aggregation' finds entities in texts, but input[{index}] came as token ids; send its text, "
                "or leave 'aggregation' out for the scores of its tokens",
                field="aggregation",
            )


def _token_notes(
    aggregation: str | None, labels: Sequence[str], request: Request, reply: Reply, served: Served
) -> list[dict[str, Any]]:
    rows = finite(reply.rows)
    field = "input" if aggregation is None else "aggregation"
    found = find_spans(Task.TOKEN_CLASSIFY, field, request, reply, served)
    if aggregation is not None:
        return entity_notes(found, request.items, rows, labels, aggregation)
    parts = zip(rows, mask_notes(found), offset_notes(found, request.items), strict=True)
    return [{"scores": np.ascontiguousarray(row), **mask, **offsets} for row, mask, offsets in parts]


VLLM = Dialect(
    name="vllm",
    operations=(
        Operation("/pooling", parse_pooling),
        Operation("/classify", parse_classify),
        Operation("/token_classify", parse_token_classify),
    ),
    render_error=render_error,
)
