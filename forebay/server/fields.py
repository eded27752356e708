"""The fields that the routes share, and what they become: items, text and pooling parameters, the spelling of arrays.

It knows no dialect's envelope. A field that an output does not understand is refused, as PoolingParams.check does.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, PlainValidator

from forebay.core.errors import InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.params import Abilities, PoolingParams, TextParams
from forebay.core.request import Item, Request
from forebay.core.tasks import Task
from forebay.server.encode import PACKED, QUANTIZED, EmbedDtype, Encoding, Endianness, Spelling, check_packable
from forebay.server.schema import Body, read_items

ROUTES: dict[Task, str] = {
    Task.EMBED: "/embeddings",
    Task.CLASSIFY: "/classify",
    Task.TOKEN_EMBED: "/pooling",
    Task.TOKEN_CLASSIFY: "/token_classify",
    Task.SPARSE: "/pooling",
}
"""Where each output is best asked for; ``/pooling`` gives them all."""

VECTORS = (Task.EMBED, Task.TOKEN_EMBED)
TOKENS = (Task.TOKEN_EMBED, Task.TOKEN_CLASSIFY)


class LateChunking(Body):
    """Average token vectors over windows of so many tokens."""

    chunk_size: int


class ItemsBody(Body):
    """What every route takes. ``user`` and vLLM's ``priority`` are accepted and mean nothing here.

    Only requests with the same ``cache_salt`` share prefixes that a causal model has computed.
    """

    input: Annotated[tuple[Item, ...], PlainValidator(read_items)]
    dimensions: int | None = Field(None, validation_alias=AliasChoices("dimensions", "output_dimension"))
    truncate_dim: int | None = None
    use_activation: bool | None = None
    late_chunking_params: LateChunking | None = None
    max_active_dims: int | None = None
    pool_factor: int | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    split: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None

    def field_names(self) -> Mapping[str, str]:
        """What parameters are called in this body, where that differs."""
        return {"chunk_size": "late_chunking_params.chunk_size"}

    def request(self, outputs: tuple[Task, ...], info: ModelInfo) -> Request:
        """What the engine shall do to make these outputs of the items."""
        abilities = info.abilities
        text = TextParams(
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            input_type=self.input_type,
            truncate=self.truncate is not False,
            truncation_side=self.truncation_side,
            split=self.split,
            max_tokens=max_tokens_of(self.truncate_prompt_tokens, abilities.max_len),
            add_special_tokens=self.add_special_tokens is not False,
        )
        pooling = PoolingParams(
            outputs,
            dimensions=self.dimensions,
            truncate_dim=self.truncate_dim,
            use_activation=self.use_activation,
            chunk_size=None if self.late_chunking_params is None else self.late_chunking_params.chunk_size,
            max_active_dims=self.max_active_dims,
            pool_factor=self.pool_factor,
        )
        check_pooling(pooling, abilities, self.field_names())
        text.check(abilities)
        check_vocabulary(self.input, abilities.vocab_size)
        return Request(items=self.input, pooling=pooling, text=text, cache_salt=self.cache_salt)


class ArraysBody(ItemsBody):
    """What routes take that answer arrays; the defaults are plain numbers of float32, and little-endian bytes."""

    encoding_format: Encoding | None = None
    embed_dtype: EmbedDtype | None = None
    endianness: Endianness | None = None

    def spelling(self, outputs: tuple[Task, ...], abilities: Abilities) -> Spelling:
        """How the arrays of these outputs shall be said."""
        spelling = Spelling(self.encoding_format or "float", self.embed_dtype or "float32", self.endianness or "little")
        if spelling.encoding == "float" and self.endianness in ("little", "big"):
            raise InvalidRequest(
                "'endianness' means nothing to numbers in JSON; leave it out, or send encoding_format 'base64' or "
                "'bytes'",
                field="endianness",
            )
        self._check_bytes(spelling, outputs)
        others = [task for task in outputs if task not in (*VECTORS, Task.SPARSE)]
        if spelling.dtype in QUANTIZED and others:
            raise InvalidRequest(
                f"embed_dtype '{spelling.dtype}' is for vectors; for '{others[0]}' ask for a float type",
                field="embed_dtype",
            )
        if spelling.dtype in PACKED and Task.EMBED in outputs:
            check_packable(self.dimensions or self.truncate_dim or abilities.default_dimension)
        return spelling

    def _check_bytes(self, spelling: Spelling, outputs: tuple[Task, ...]) -> None:
        encoding = spelling.encoding
        if encoding in ("bytes", "bytes_only") and Task.SPARSE in outputs:
            raise InvalidRequest(
                f"encoding_format '{encoding}' holds dense arrays only; ask for 'sparse' with 'float' or 'base64'",
                field="encoding_format",
            )
        if encoding == "bytes_only" and len(outputs) > 1:
            raise InvalidRequest(
                "encoding_format 'bytes_only' does not tell several outputs apart; send 'bytes'",
                field="encoding_format",
            )


def check_pooling(pooling: PoolingParams, abilities: Abilities, names: Mapping[str, str]) -> None:
    """Check parameters against the model, and call a field at fault by its name in the body."""
    try:
        pooling.check(abilities)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=names.get(error.field or "", error.field), code=error.code) from None


def require(task: Task, abilities: Abilities) -> None:
    """Refuse a route whose output the model does not have, and name the routes of those it has."""
    if task in abilities.tasks:
        return
    known = ", ".join(f"'{own}' (POST {ROUTES.get(own, '/pooling')})" for own in abilities.tasks)
    raise InvalidRequest(f"this route gives '{task}', which this model does not support; it has {known}", field="model")


def refuse_outputs(field: str, outputs: Sequence[Task], wanted: Sequence[Task]) -> None:
    """Refuse ``field``, unless one of the outputs that it says something about is asked for."""
    if not set(outputs) & set(wanted):
        asked = " and ".join(f"'{task}'" for task in outputs)
        meant = " or ".join(f"'{task}'" for task in wanted)
        raise InvalidRequest(f"'{field}' means nothing to {asked}; it goes with {meant}", field=field)


def max_tokens_of(asked: int | None, limit: int) -> int | None:
    """Read ``truncate_prompt_tokens``: None or -1 is the model's own limit."""
    if asked is None or asked == -1:
        return None
    if not 1 <= asked <= limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {asked}, but this model reads 1 to {limit} tokens; -1 asks for all of them",
            field="truncate_prompt_tokens",
        )
    return asked


def check_vocabulary(items: Sequence[Item], vocab_size: int) -> None:
    """Refuse token ids that the model does not have."""
    for index, item in enumerate(items):
        if not isinstance(item, str) and (min(item) < 0 or max(item) >= vocab_size):
            raise InvalidRequest(
                f"input[{index}] holds a token id outside this model's vocabulary of {vocab_size}. Ids must come from "
                "the model's own tokenizer; where a client library made them with another one, make it send text "
                "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)",
                index=index,
            )
