"""How a late-interaction checkpoint reads queries and documents: markers, lengths, expansion, tokens left out.

Three formats say it: ``artifact.metadata`` of Stanford's ColBERT, the sentence-transformers file as PyLate writes it,
and the modules of sentence-transformers' MultiVectorEncoder. Knows no tokenizer and no tensors.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.checkpoint.documents import Document, describe, read_optional_document
from forebay.checkpoint.stages import MultiVectorMaskStage, Stage, TransformerStage
from forebay.core.errors import UnsupportedCheckpoint

STANFORD_FILE = "artifact.metadata"
STANFORD_ARCHITECTURE = "HF_ColBERT"
SIDES = ("query", "document")
PYLATE_FIELDS = (
    "query_prefix",
    "document_prefix",
    "query_length",
    "document_length",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "skiplist_words",
)
_PUNCTUATION = tuple(string.punctuation)
_QUERY_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Expansion:
    """Queries are filled up to ``length`` tokens; ``is_fixed`` tells that longer ones are cut to it.

    ``is_attended`` tells whether the other tokens see the fillers. ``token`` None means the mask token.
    """

    length: int
    is_fixed: bool = True
    is_attended: bool = False
    token: str | None = None


@dataclass(frozen=True, slots=True)
class LateReading:
    """``markers`` and ``lengths`` by side ("query", "document"), where the checkpoint has any.

    Vectors of ``skipped_words`` are left out on ``skipped_sides``; of documents, those of ``kept_ids`` alone are kept
    where it is not empty.
    """

    markers: Mapping[str, str]
    lengths: Mapping[str, int]
    expansion: Expansion | None
    skipped_words: tuple[str, ...]
    skipped_sides: tuple[str, ...]
    kept_ids: tuple[int, ...]
    source: str


def read_stanford(path: Path) -> LateReading:
    """Read artifact.metadata, or take its authors' defaults where it is absent."""
    document = read_optional_document(path / STANFORD_FILE, path) or Document(STANFORD_FILE, {})
    if (document.optional("similarity", str) or "cosine") != "cosine":
        raise document.refuse("similarity", f"is {describe(document.values['similarity'])}; Forebay knows 'cosine'")
    markers = {
        "query": document.optional("query_token_id", str) or "[unused0]",
        "document": document.optional("doc_token_id", str) or "[unused1]",
    }
    is_attended = document.optional("attend_to_mask_tokens", bool) or False
    skips = document.optional("mask_punctuation", bool) is not False
    return LateReading(
        markers,
        _lengths({"document": document.optional_size("doc_maxlen")}),
        Expansion(document.size("query_maxlen", _QUERY_LENGTH), is_attended=is_attended),
        _PUNCTUATION if skips else (),
        ("document",),
        (),
        STANFORD_FILE,
    )


def read_pylate(document: Document) -> LateReading:
    """Read the fields that PyLate adds to config_sentence_transformers.json."""
    prefixes = {side: document.optional(f"{side}_prefix", str) for side in SIDES}
    defaults = {"query": "[Q] ", "document": "[D] "}
    markers = {side: defaults[side] if prefix is None else prefix for side, prefix in prefixes.items()}
    query_length = document.size("query_length", _QUERY_LENGTH)
    lengths = {"query": query_length, "document": document.optional_size("document_length")}
    expansion = None
    if document.optional("do_query_expansion", bool) is not False:
        is_attended = document.optional("attend_to_expansion_tokens", bool) or False
        expansion = Expansion(query_length, is_attended=is_attended)
    words = document.optional("skiplist_words", list)
    return LateReading(
        {side: marker for side, marker in markers.items() if marker},
        _lengths(lengths),
        expansion,
        _PUNCTUATION if words is None else _words(document, words),
        ("document",),
        (),
        document.label,
    )


def read_modules(stages: tuple[Stage, ...]) -> LateReading:
    """Take what the modules of a MultiVectorEncoder say; its markers stand in the prompts."""
    backbone = stages[0]
    document = backbone.late if isinstance(backbone, TransformerStage) else None
    mask = next((stage for stage in stages if isinstance(stage, MultiVectorMaskStage)), MultiVectorMaskStage())
    if document is None:
        document = Document("sentence_bert_config.json", {})
    expansion = _read_expansion(document)
    if expansion is not None and not any(isinstance(stage, MultiVectorMaskStage) for stage in stages):
        raise UnsupportedCheckpoint("modules.json: a query expansion needs a MultiVectorMask module, and there is none")
    lengths = {side: document.optional_size(f"{side}_length") for side in SIDES}
    query_length = lengths["query"]
    if expansion is not None and query_length is not None and query_length < expansion.length:
        raise document.refuse("query_length", f"is {query_length}, less than the expansion's {expansion.length}")
    return LateReading(
        {},
        _lengths(lengths),
        expansion,
        mask.skipped_words,
        mask.skipped_sides,
        mask.kept_ids,
        "modules.json",
    )


def _read_expansion(document: Document) -> Expansion | None:
    if document.optional("query_expansion", dict) is None:
        return None
    section = document.section("query_expansion")
    unknown = set(section.values) - {"strategy", "attend", "token", "length"}
    if unknown:
        name = min(unknown)
        raise section.refuse(name, f"is {describe(section.values[name])}, which Forebay does not understand")
    strategy = section.required("strategy", str)
    if strategy not in ("fixed", "min"):
        raise section.refuse("strategy", f"is {describe(strategy)}; Forebay knows fixed and min")
    return Expansion(
        section.size("length"),
        strategy == "fixed",
        section.optional("attend", bool) or False,
        section.optional("token", str),
    )


def _lengths(lengths: Mapping[str, int | None]) -> dict[str, int]:
    return {side: length for side, length in lengths.items() if length is not None}


def _words(document: Document, words: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(word, str) for word in words):
        raise document.refuse("skiplist_words", "must be a list of texts")
    return tuple(words)
