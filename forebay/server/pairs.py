"""What the routes of scoring share: texts and token vectors to compare, and how they are to be read and compared.

It knows no dialect's envelope.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from forebay.core.errors import InvalidRequest, ItemFailed
from forebay.core.info import ModelInfo
from forebay.core.params import TextParams
from forebay.core.request import Scorable, ScoreReply, ScoreRequest
from forebay.core.sides import SideName, check_one_query
from forebay.server.fields import max_tokens_of
from forebay.server.matrices import VECTOR_KEYS, is_matrix, read_entry, read_rows
from forebay.server.schema import Body, json_type


class PairOptions(Body):
    """How pairs are read. ``raw_scores`` true and ``use_activation`` false both ask for logits."""

    prompt: str | None = None
    prompt_name: str | None = None
    instruction: str | None = None
    truncate: bool | None = None
    truncation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    split: bool | None = None
    max_tokens_per_query: int | None = None
    max_tokens_per_doc: int | None = None
    use_activation: bool | None = None
    raw_scores: bool | None = None
    cache_salt: str | None = None

    def request(self, queries: Sequence[Scorable], documents: Sequence[Scorable], info: ModelInfo) -> ScoreRequest:
        """What the engine shall compare. The engine itself checks whether the model can."""
        for name, other in (("truncation", "truncate"), ("truncation_direction", "truncation_side")):
            if getattr(self, name) is not None and getattr(self, other) is not None:
                raise InvalidRequest(f"'{name}' and '{other}' say the same thing; send one of them", field=name)
        direction = self.truncation_side or (self.truncation_direction or "").lower() or None
        text = TextParams(
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            instruction=self.instruction,
            truncate=False not in (self.truncate, self.truncation),
            truncation_side=direction,  # type: ignore[arg-type]  # the body admits these words only
            split=self.split,
            max_tokens=max_tokens_of(self.truncate_prompt_tokens, info.abilities.max_len),
            max_tokens_per_query=self.max_tokens_per_query or None,
            max_tokens_per_doc=self.max_tokens_per_doc or None,
        )
        return ScoreRequest(queries, documents, self._use_activation(), text, cache_salt=self.cache_salt)

    def _use_activation(self) -> bool | None:
        """None where nothing is asked for: then the model's own activation is applied, if it has any."""
        if self.raw_scores and self.use_activation:
            raise InvalidRequest(
                "'raw_scores' asks for logits and 'use_activation' for scores; send one of them", field="raw_scores"
            )
        return False if self.raw_scores or self.use_activation is False else None


def read_side(value: Any, field: str, rank_fields: Sequence[str] | None = None) -> tuple[Scorable, ...]:
    """Read one side of a comparison: a text, an object with one, token vectors, or a list of such.

    Token vectors are a list of lists of numbers; ``rank_fields`` name the fields of an object whose values, one a
    line, are its text (Cohere).
    """
    if not isinstance(value, list) or is_matrix(value):
        return (_read_one(value, field, rank_fields),)
    if not value:
        raise InvalidRequest(f"'{field}' is an empty list; send at least one text", field=field)
    return tuple(_read_one(item, f"{field}[{index}]", rank_fields) for index, item in enumerate(value))


def read_query(value: Any) -> Scorable:
    """Read the one query of a ranking."""
    sides = read_side(value, "query")
    check_one_query(len(sides))
    return sides[0]


def _read_one(item: Any, field: str, rank_fields: Sequence[str] | None) -> Scorable:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        return _read_object(item, field, rank_fields)
    if isinstance(item, list) and is_matrix(item):
        return read_rows(item, field)
    got = json_type(item)
    if isinstance(item, list):
        got = f"a list that begins with {json_type(item[0])}" if item else "an empty list"
    raise InvalidRequest(
        f"'{field}' must be a string, an object with a 'text', or a list of token vectors, which are lists of numbers; "
        f"got {got}",
        field=field,
    )


def _read_object(item: Mapping[str, Any], field: str, rank_fields: Sequence[str] | None) -> Scorable:
    """Read what stands under ``rank_fields``, else a text, parts of a chat, or an entry of a reply of vectors."""
    if rank_fields is None and item.get("text") is None:
        if item.get("content") is not None:
            return _read_content(item["content"], f"{field}.content")
        key = next((key for key in VECTOR_KEYS if item.get(key) is not None), None)
        if key is not None:
            return read_entry(item, key, f"{field}.{key}")
    names = rank_fields or ("text",)
    lines = [_read_value(item[name], f"{field}.{name[:64]}") for name in names if item.get(name) is not None]
    if not lines:
        wanted = " or ".join(f"'{name[:64]}'" for name in names)
        remedy = "" if rank_fields else "; name other fields by 'rank_fields'"
        raise InvalidRequest(f"'{field}' must have a string under {wanted}{remedy}", field=field)
    return "\n".join(lines)


def _read_value(value: Any, field: str) -> str:
    if isinstance(value, str):
        return value
    if type(value) in (int, float):
        return str(value)
    raise InvalidRequest(f"'{field}' must be a string or a number; got {json_type(value)}", field=field)


def _read_content(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(
            f"'{field}' must be a string or a list of parts with a 'text'; got {json_type(content)}", field=field
        )
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(
                f"'{field}[{index}]' has no 'text'; this model reads texts, no images or sounds", field=field
            )
    return "\n".join(texts)  # type: ignore[arg-type]


def name_side(body: Mapping[str, Any], field: str) -> SideName:
    """What the body calls one side of a comparison."""
    value = body[field]
    return SideName(field, isinstance(value, list) and not is_matrix(value))


def check_scores(reply: ScoreReply, documents: SideName) -> None:
    """Refuse scores that JSON has no word for."""
    bad = ~np.isfinite(reply.scores)
    if bad.any():
        index = int(bad.argmax())
        failed = ItemFailed(f"{documents.place(index)} gave a non-finite score", index=index)
        failed.field = documents.place(index)
        raise failed
