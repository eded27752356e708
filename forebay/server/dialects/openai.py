"""The OpenAI dialect: embeddings as the ``openai`` package asks for them, with vLLM's and our own extra fields.

It knows the words of that API; the engine behind it only as Request and Reply.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import AliasChoices, Field, PlainValidator

from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Item, Reply, Request
from forebay.core.tasks import Task
from forebay.server.dialect import Call, Dialect, Operation
from forebay.server.encode import ENCODERS, finite
from forebay.server.schema import Body, read, read_items

ERROR_TYPES: dict[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class EmbeddingsBody(Body):
    """``POST /embeddings``. ``user`` and vLLM's ``priority`` are accepted and mean nothing here."""

    input: Annotated[tuple[Item, ...], PlainValidator(read_items)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, validation_alias=AliasChoices("dimensions", "output_dimension"))
    prompt: str | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None


def parse_embeddings(body: Mapping[str, Any], info: ModelInfo) -> Call:
    """Read the body of ``POST /embeddings``."""
    asked = read(EmbeddingsBody, body)
    _check_vocabulary(asked.input, info.abilities.vocab_size)
    request = Request(
        items=asked.input,
        pooling=PoolingParams((Task.EMBED,), dimensions=asked.dimensions, use_activation=asked.use_activation),
        text=TextParams(
            prompt=asked.prompt,
            prompt_name=asked.prompt_name,
            input_type=asked.input_type,
            truncate=asked.truncate is not False,
            truncation_side=asked.truncation_side,
            max_tokens=_max_tokens(asked.truncate_prompt_tokens, info.abilities.max_len),
            add_special_tokens=asked.add_special_tokens is not False,
        ),
    )
    return Call(request, partial(render_embeddings, asked.encoding_format or "float"))


def _max_tokens(asked: int | None, limit: int) -> int | None:
    if asked is None or asked == -1:
        return None
    if not 1 <= asked <= limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {asked}, but this model reads 1 to {limit} tokens; -1 asks for all of them",
            field="truncate_prompt_tokens",
        )
    return asked


def _check_vocabulary(items: tuple[Item, ...], vocab_size: int) -> None:
    for index, item in enumerate(items):
        if not isinstance(item, str) and (min(item) < 0 or max(item) >= vocab_size):
            raise InvalidRequest(
                f"input[{index}] holds a token id outside this model's vocabulary of {vocab_size}. Ids must come from "
                "the model's own tokenizer; where a client library made them with another one, make it send text "
                "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)",
                index=index,
            )


def render_embeddings(encoding: str, reply: Reply, model: str) -> bytes:
    """Say a reply as a list of embeddings; ``truncated`` lists the items that were cut, if any were."""
    encode = ENCODERS[encoding]
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":' % index + encode(row) + b"}"
        for index, row in enumerate(finite(reply.rows))
    )
    num_tokens = int(reply.num_tokens.sum())
    rest: dict[str, Any] = {"model": model, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}}
    if reply.truncated.any():
        rest["truncated"] = reply.truncated.nonzero()[0].tolist()
    return b'{"object":"list","data":[' + data + b"]," + orjson.dumps(rest)[1:]


def render_error(error: ForebayError) -> bytes:
    """Say an error in OpenAI's shape, with the top-level ``detail`` that other clients of these paths read."""
    default = "server_error" if error.status >= 500 else "invalid_request_error"
    said = {
        "message": error.message,
        "type": ERROR_TYPES.get(error.status, default),
        "param": error.field,
        "code": error.code,
    }
    return orjson.dumps({"error": said, "detail": error.message})


OPENAI = Dialect(
    name="openai",
    operations=(Operation("/embeddings", parse_embeddings),),
    render_error=render_error,
)
