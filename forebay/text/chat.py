"""A checkpoint's chat template as a template of pairs: messages of the roles query and document, and one of the role
system for the instruction.

The template runs in a sandbox, with stand-ins for the texts, once at load; what it does with them is read off.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay.core.errors import UnsupportedCheckpoint
from forebay.text.templates import DOCUMENT, INSTRUCTION, QUERY, PairTemplate, Piece

FILE = "chat_template.jinja"
# Stand-ins that no template holds, and what might be taken away or changed around them: blanks, signs, long texts.
_STAND_INS = {QUERY: "Qzq1", DOCUMENT: "Dzd2", INSTRUCTION: "Izi3"}
_PADS = (("", ""), (" \n", "\n "), ("<&'\"", "\\n\t}"), ("long " * 20_000, " text" * 20_000))
_ROLES = {QUERY: "query", DOCUMENT: "document", INSTRUCTION: "system"}
# By these signs sentence-transformers tells a template that takes apart a message's content, where no file says so.
_STRUCTURED_SIGNS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
_FLAT_FAMILIES = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")


def read_chat_template(folder: Path, variables: Mapping[str, Any]) -> str | None:
    """Return the chat template that a checkpoint's tokenizer has; ``variables`` may name one of several, or be one."""
    wanted = variables.get("chat_template")
    if isinstance(wanted, str) and ("{{" in wanted or "{%" in wanted):
        return wanted
    if isinstance(wanted, str):
        named = folder / "additional_chat_templates" / f"{Path(wanted).name}.jinja"
        if named.is_file():
            return named.read_text(encoding="utf-8")
    if wanted in (None, "default") and (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="utf-8")
    stored = _stored(folder / "tokenizer_config.json")
    if isinstance(stored, str):
        return stored
    entries = [entry for entry in stored or () if isinstance(entry, dict)]
    by_name = {entry.get("name"): entry.get("template") for entry in entries}
    found = by_name.get(wanted or "default")
    return found if isinstance(found, str) else None


def _stored(path: Path) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("chat_template") if isinstance(values, dict) else None


def read_pair_template(
    source: str, folder: Path, variables: Mapping[str, Any], *, is_structured: bool
) -> PairTemplate | None:
    """Return what the template makes of a pair; None where it has no place for the roles query and document."""
    render = _Renderer(source, _special_tokens(folder), variables, is_structured)
    bare = render.pieces((QUERY, DOCUMENT))
    if bare is None:
        return None
    pieces, stripped = render.pieces((INSTRUCTION, QUERY, DOCUMENT)) or bare
    return PairTemplate((pieces,), (bare[0],), stripped=stripped | bare[1])


def is_structured(source: str, model_type: object) -> bool:
    """Whether a template wants a content as a list of typed parts, where the checkpoint does not say."""
    return model_type not in _FLAT_FAMILIES and any(sign in source for sign in _STRUCTURED_SIGNS)


def names_roles(source: str) -> bool:
    """Whether a template was written for pairs; many pass on any role that they are given."""
    return all(re.search(f"['\"]{_ROLES[place]}['\"]", source) for place in (QUERY, DOCUMENT))


def _special_tokens(folder: Path) -> dict[str, str]:
    """The tokens that templates name: bos_token and its like."""
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


class _Renderer:
    def __init__(self, source: str, tokens: Mapping[str, str], variables: Mapping[str, Any], structured: bool) -> None:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        from forebay.text.chat_tags import Generation

        self._failure = TemplateError
        tags = [loopcontrols, Generation]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=tags)
        environment.globals["raise_exception"] = self._refuse
        environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UnsupportedCheckpoint(f"the chat template is no valid Jinja template: {error}") from None
        own = {name: value for name, value in variables.items() if name != "chat_template"}
        self._variables = {"add_generation_prompt": False, "tools": None, "documents": None, **tokens, **own}
        self._is_structured = structured

    def _refuse(self, message: str) -> None:
        raise self._failure(message)

    def pieces(self, places: Sequence[str]) -> tuple[Piece, frozenset[str]] | None:
        """The template as a piece with these places, and the places that are stripped; None if one has no place."""
        values = {place: _STAND_INS[place] for place in places}
        plain = self._render(values)
        if plain is None or any(plain.count(value) != 1 for value in values.values()):
            return None
        names = {value: place for place, value in values.items()}
        parts = re.split("(" + "|".join(names) + ")", plain)
        piece = Piece(tuple(parts[::2]), tuple(names[part] for part in parts[1::2]))
        padded = {place: f"{_PADS[1][0]}{value}{_PADS[1][1]}" for place, value in values.items()}
        rendered = self._render(padded) or ""
        stripped = frozenset(place for place, value in padded.items() if value not in rendered)
        for before, after in _PADS:
            texts = {place: f"{before}{value}{after}" for place, value in values.items()}
            expected = piece.fill({p: text.strip() if p in stripped else text for p, text in texts.items()})
            if self._render(texts) != expected:
                raise UnsupportedCheckpoint(
                    "the chat template changes the texts of a pair, or itself by them; Forebay supports one that puts "
                    "them in as they are (give another with the option 'template')"
                )
        return piece, stripped

    def _render(self, values: Mapping[str, str]) -> str | None:
        messages = [{"role": _ROLES[place], "content": self._content(text)} for place, text in values.items()]
        try:
            return self._template.render(messages=messages, **self._variables)
        except Exception:  # whatever a template's own code raises: it can't take such messages
            return None

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self._is_structured else text
