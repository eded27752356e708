"""Reads a checkpoint's tokenizer: tokenizer.json as it stands, or the slow files converted by transformers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer, normalizers, processors

from forebay.core.errors import CheckpointNotFound, LoadError, UnsupportedCheckpoint
from forebay.text.frames import read_frame
from forebay.text.pairs import read_pair_frame

_SLOW_FILES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
# transformers builds the normaliser of these classes from tokenizer_config.json, whatever tokenizer.json says.
_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
# What transformers gives no token types to, whatever the template says.
_UNTYPED_CLASSES = (
    "AlbertTokenizer",
    "CamembertTokenizer",
    "DistilBertTokenizer",
    "MPNetTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
)
_NO_LIMIT = 10**9  # transformers writes 1e30 where a tokenizer has no limit of its own


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer and what its configuration says: ``max_len`` is None where it says nothing.

    ``marker_ids`` are the ids of its cls, eos, pad and unk tokens: no words of the text. ``unknown_id`` is the last's.
    ``has_types`` tells that the model gets its token types; ``filler_id`` is the id of its mask token or, where it has
    none, its eos token, with which queries are filled up for late interaction;
    ``ends`` tells which special tokens were added to the template.
    """

    tokenizer: Tokenizer
    max_len: int | None
    side: Literal["left", "right"]
    source: str
    marker_ids: frozenset[int]
    unknown_id: int | None
    has_types: bool = True
    filler_id: int | None = None
    ends: tuple[str, ...] = ()


def load_tokenizer(folder: Path, ends: Mapping[str, bool] | None = None) -> TokenizerFiles:
    """Read the tokenizer in ``folder``. Raises a LoadError that tells the true cause.

    ``ends`` overrides what tokenizer_config.json says of ``add_bos_token`` and ``add_eos_token``.
    """
    config = _read_config(folder / "tokenizer_config.json")
    max_len = config.get("model_max_length")
    side = config.get("truncation_side", "right")
    if side not in ("left", "right"):
        raise UnsupportedCheckpoint(f"tokenizer_config.json: truncation_side is {side!r}, expected 'left' or 'right'")
    tokenizer, source = _read_tokenizer(folder)
    _apply_bert_options(tokenizer, config)
    added = _add_ends(tokenizer, {**config, **(ends or {})})
    limit = int(max_len) if isinstance(max_len, int | float) and 0 < max_len < _NO_LIMIT else None
    unknown_id = _id_of_role("unk", tokenizer, config)
    if unknown_id is None and isinstance(unknown := getattr(tokenizer.model, "unk_token", None), str):
        unknown_id = tokenizer.token_to_id(unknown)
    marker_ids = {_id_of_role(role, tokenizer, config) for role in ("cls", "eos", "pad")} | {unknown_id}
    known = frozenset(id_ for id_ in marker_ids if id_ is not None)
    fillers = (_id_of_role("mask", tokenizer, config), _id_of_role("eos", tokenizer, config))
    filler_id = next((id_ for id_ in fillers if id_ is not None), None)
    return TokenizerFiles(tokenizer, limit, side, source, known, unknown_id, _has_types(config), filler_id, added)


def _add_ends(tokenizer: Tokenizer, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Put the tokens around a text that its configuration asks for and tokenizer.json, taken literally, lacks."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    asked = {
        role: _id_of_role(role, tokenizer, config) for role in ("bos", "eos") if config.get(f"add_{role}_token") is True
    }
    if all(id_ is None for id_ in asked.values()):
        return ()
    frame = read_frame(tokenizer)
    present = {"bos": frame.prefix, "eos": frame.suffix}  # each at its own end: both roles may have one token
    missing = {role: id_ for role, id_ in asked.items() if id_ is not None and id_ not in present[role]}
    if not missing:
        return ()
    pair = read_pair_frame(tokenizer)
    before, after = ([missing[role]] if role in missing else [] for role in ("bos", "eos"))
    prefix, suffix = [*before, *frame.prefix.tolist()], [*frame.suffix.tolist(), *after]
    middle = [] if pair is None else pair.middle.tolist()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*_names(tokenizer, prefix), "$A", *_names(tokenizer, suffix)],
        pair=[*_names(tokenizer, prefix), "$A", *_names(tokenizer, middle), "$B:1", *_names(tokenizer, suffix)],
        special_tokens=[(str(tokenizer.id_to_token(id_)), id_) for id_ in {*prefix, *middle, *suffix}],
    )
    texts = {role: str(tokenizer.id_to_token(id_)) for role, id_ in missing.items()}
    return tuple(f"{texts[role]} {'before' if role == 'bos' else 'behind'} every text" for role in missing)


def _names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [str(tokenizer.id_to_token(id_)) for id_ in ids]


def _has_types(config: dict[str, Any]) -> bool:
    """Tell whether token types are among the model's inputs: what the configuration says, else its class."""
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return str(config.get("tokenizer_class")).removesuffix("Fast") not in _UNTYPED_CLASSES


def _id_of_role(role: str, tokenizer: Tokenizer, config: Mapping[str, Any]) -> int | None:
    """Return the id of the token that the configuration names for a role, written as a text or an object."""
    name = config.get(f"{role}_token")
    text = name.get("content") if isinstance(name, dict) else name
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UnsupportedCheckpoint(f"{path.name} can't be read: {error}") from None
    if not isinstance(values, dict):
        raise UnsupportedCheckpoint(f"{path.name} must hold a JSON object, found {type(values).__name__}")
    return values


def _apply_bert_options(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Let tokenizer_config.json decide on letter case and accents of a BERT tokenizer, as the reference does."""
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    if name not in _BERT_CLASSES or not isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        return
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        lowercase=bool(config.get("do_lower_case", True)),
    )


def _read_tokenizer(folder: Path) -> tuple[Tokenizer, str]:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path)), "tokenizer.json"
        except Exception as error:  # the library raises plain Exception
            raise UnsupportedCheckpoint(f"tokenizer.json can't be read: {error}") from None
    slow = next((name for name in _SLOW_FILES if (folder / name).is_file()), None)
    if slow is None:
        known = ", ".join(_SLOW_FILES)
        raise CheckpointNotFound(f"no tokenizer in {folder}: neither tokenizer.json nor one of {known}")
    return _convert(folder, slow), f"{slow}, converted by transformers"


def _convert(folder: Path, slow: str) -> Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise LoadError(
            f"{folder} has only {slow}, no tokenizer.json; pip install 'forebay[slow-tokenizers]' to convert it"
        ) from None
    try:
        backend = AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except Exception as error:
        raise UnsupportedCheckpoint(f"{slow} can't be converted to a fast tokenizer: {error}") from None
    if not isinstance(backend, Tokenizer):
        raise UnsupportedCheckpoint(f"{slow} can't be converted to a fast tokenizer: transformers has no converter")
    return backend
