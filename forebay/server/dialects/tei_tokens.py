"""The two routes of text-embeddings-inference that show the tokenizer: texts to tokens, and token ids to texts."""

from collections.abc import Mapping
from typing import Any

import orjson

from forebay.core.errors import InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.params import TextParams
from forebay.server.dialect import Answer, Served, TextCall
from forebay.server.errors import named_as
from forebay.server.fields import check_vocabulary
from forebay.server.schema import Body, json_type, read, read_items

MAX_CHARS = 1 << 20
"""Characters that one request may have listed: each token takes a hundred bytes of the answer."""


class TokenizeBody(Body):
    """``POST /tokenize``: every token of each text, however long it is."""

    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class DecodeBody(Body):
    """``POST /decode``: the texts of lists of token ``ids``."""

    skip_special_tokens: bool | None = None


def parse_tokenize(body: Mapping[str, Any], info: ModelInfo) -> TextCall:
    """Read the body of ``POST /tokenize``."""
    asked = read(TokenizeBody, body)
    TextParams(prompt_name=asked.prompt_name).check(info.abilities)
    texts = _read_texts(body.get("inputs"))
    num_chars = sum(map(len, texts))
    if num_chars > MAX_CHARS:
        raise InvalidRequest(
            f"'inputs' has {num_chars} characters, but at most {MAX_CHARS} are listed a request; send several requests",
            field="inputs",
        )

    def answer(served: Served) -> Answer:
        has_specials = asked.add_special_tokens is not False
        lists = served.engine.list_tokens(texts, asked.prompt_name, has_specials=has_specials)
        said = (
            b",".join(map(_token, one.ids, one.names, one.offsets.tolist(), [text] * len(one.ids)))
            for text, one in zip(texts, lists, strict=True)
        )
        return Answer(b"[" + b",".join(b"[" + tokens + b"]" for tokens in said) + b"]")

    return TextCall(answer, len(texts), "inputs")


def _read_texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise InvalidRequest(f"'inputs' must be a string or a list of strings; got {json_type(value)}", field="inputs")
    if not texts:
        raise InvalidRequest("'inputs' is an empty list; send at least one text", field="inputs")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            field = f"inputs[{index}]"
            raise InvalidRequest(f"'{field}' must be a string; got {json_type(text)}", field=field)
    return texts


def _token(id_: int, name: str, place: list[int], text: str) -> bytes:
    """One token: the piece of the text that it stands for, in characters, or its name where it stands for none."""
    start, end = place
    if start < 0:
        return b'{"id":%d,"text":%b,"special":true,"start":null,"stop":null}' % (id_, orjson.dumps(name))
    piece = orjson.dumps(text[start:end])
    return b'{"id":%d,"text":%b,"special":false,"start":%d,"stop":%d}' % (id_, piece, start, end)


def parse_decode(body: Mapping[str, Any], info: ModelInfo) -> TextCall:
    """Read the body of ``POST /decode``."""
    asked = read(DecodeBody, body)
    items = read_items(body.get("ids"), "ids")
    for index, item in enumerate(items):
        if isinstance(item, str):
            field = f"ids[{index}]"
            raise InvalidRequest(f"'{field}' must be a list of token ids; got a string", field=field)
    with named_as("ids[{}]".format):
        check_vocabulary(items, info.abilities.vocab_size)

    def answer(served: Served) -> Answer:
        ids = [list(map(int, item)) for item in items]
        texts = served.engine.decode(ids, skips_specials=asked.skip_special_tokens is not False)
        return Answer(orjson.dumps(texts))

    return TextCall(answer, len(items), "ids")
