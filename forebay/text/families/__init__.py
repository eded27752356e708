"""What is known of families of models and stands in none of their files: templates of rerankers, prompts of embedders.

The knowledge itself is data, in the TOML files of this folder; a user's own file of one template has the same form.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from forebay.core.errors import InvalidRequest
from forebay.text.templates import INSTRUCTION, PairTemplate, check_places, parse_piece

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "names": list,
    "configs": list,
    "mark": str,
    "pieces": list,
    "instruction": str,
    "instruction_format": str,
    "true": str,
    "false": str,
    "end_ids": list,
    "logit_mean": (int, float),
    "description": str,
}


@dataclass(frozen=True, slots=True)
class RerankerFamily:
    """How a family of rerankers reads a pair and answers.

    ``true`` and ``false`` are the answers, as tokens or their ids; where there is no ``false``, the score is the logit
    of the other alone. ``logit_mean`` is taken off the logit before its activation.
    """

    name: str
    template: PairTemplate
    true: str | int | None = None
    false: str | int | None = None
    logit_mean: float = 0.0
    source: str = ""


def find_reranker(
    config: Mapping[str, Any], chat_template: str | None, names: Sequence[tuple[str, str]]
) -> RerankerFamily | None:
    """Return the family that a checkpoint's files tell: fields of its config, its chat template, then its names.

    ``names`` are pairs of who says so and what.
    """
    table = _table("rerankers.toml")
    for family, entry in table.items():
        for fields in entry.get("configs", ()):
            if all(config.get(name) == value for name, value in fields.items()):
                return _make_family(family, entry, f"config.json: {', '.join(fields)}")
    for family, entry in table.items():
        if "mark" in entry and entry["mark"] in (chat_template or ""):
            return _make_family(family, entry, "the text of the chat template")
    for source, name in names:
        for family, entry in table.items():
            if any(re.search(pattern, name, re.IGNORECASE) for pattern in entry.get("names", ())):
                return _make_family(family, entry, source)
    return None


def load_reranker(wanted: str) -> RerankerFamily:
    """Return a family by its name, or the one that a TOML file describes."""
    table = _table("rerankers.toml")
    if wanted in table:
        return _make_family(wanted, table[wanted], "user: template")
    path = Path(wanted).expanduser()
    if path.suffix != ".toml":
        raise InvalidRequest(
            f"template is '{wanted}'; expected the path of a .toml file, or one of {', '.join(table)}",
            field="template",
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the template {path} can't be read: {error}", field="template") from None
    return _make_family(path.stem, values, f"user: {path.name}")


def load_prompts(family: str) -> dict[str, str]:
    """Return a family's prompts by their names."""
    table = _table("prompts.toml")
    if family not in table:
        raise InvalidRequest(f"prompts is '{family}'; known families: {', '.join(table)}", field="prompts")
    return dict(table[family]["prompts"])


def list_families() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all rerankers' templates and of all families with prompts."""
    return tuple(_table("rerankers.toml")), tuple(_table("prompts.toml"))


@cache
def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))


def _make_family(name: str, values: Mapping[str, Any], source: str) -> RerankerFamily:
    for field, value in values.items():
        if field not in _FIELDS or not isinstance(value, _FIELDS[field]):
            known = ", ".join(_FIELDS)
            raise InvalidRequest(
                f"template {name}: '{field}' is unknown or of a wrong type; a template has {known}", field="template"
            )
    pieces = values.get("pieces") or []
    if not all(isinstance(piece, str) for piece in pieces):
        raise InvalidRequest(f"template {name}: 'pieces' must be a list of texts", field="template")
    parsed = tuple(map(parse_piece, pieces))
    check_places(parsed, f"template {name}")
    template = PairTemplate(
        parsed,
        tuple(parse_piece(text) for piece in pieces if (text := piece.replace(f"{{{INSTRUCTION}}}", ""))),
        values.get("instruction", ""),
        values.get("instruction_format", "{instruction}"),
        end_ids=tuple(values.get("end_ids", ())),
    )
    return RerankerFamily(
        name, template, values.get("true"), values.get("false"), float(values.get("logit_mean", 0.0)), source
    )
