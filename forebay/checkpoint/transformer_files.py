"""Reads what a folder says of its transformer: config.json and the sentence-transformers file beside it.

Settings that would change the numbers and are not understood are refused; those that only tune loading are let pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.checkpoint.documents import Document, describe, label_of, read_document, read_optional_document
from forebay.checkpoint.stages import CAUSAL_LOGITS, SCORES, TOKENS, ChatFormat

# The first name is today's; the others were written by the first releases, one a model family.
FILE_NAMES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

# What each task takes from the model's output, and the feature it becomes.
TASKS = {
    "feature-extraction": ("last_hidden_state", TOKENS),
    "fill-mask": ("logits", TOKENS),
    "sequence-classification": ("logits", SCORES),
    "text-generation": ("logits", CAUSAL_LOGITS),
}

OLD_NAMES = {"model_kwargs": "model_args", "processor_kwargs": "tokenizer_args", "config_kwargs": "config_args"}

# How queries and documents are read for late interaction.
LATE_FIELDS = ("query_length", "document_length", "query_expansion")

READ_FIELDS = {
    "max_seq_length",
    "do_lower_case",
    "transformer_task",
    "modality_config",
    "module_output_name",
    "processing_kwargs",
    *LATE_FIELDS,
    *OLD_NAMES,
    *OLD_NAMES.values(),
}

# How another library finds, loads or runs the model; the vectors are the same.
HARMLESS_FIELDS = {"unpad_inputs", "backend", "cache_dir", "model_name_or_path", "tokenizer_name_or_path"}
HARMLESS_KWARGS = {
    "add_pooling_layer",
    "attn_implementation",
    "cache_dir",
    "clean_up_tokenization_spaces",
    "code_revision",
    "device_map",
    "experts_implementation",
    "local_files_only",
    "logits_to_keep",
    "low_cpu_mem_usage",
    "pad_to_multiple_of",
    "padding",
    "padding_side",
    "revision",
    "token",
    "trust_remote_code",
    "use_cache",
    "use_fast",
    "use_safetensors",
}
# Where a pair of texts becomes one text by the chat template: messages of the roles query and document.
CHAT_TASKS = {"feature-extraction", "sequence-classification", "text-generation"}
# Settings of the tokenizer that are obeyed, and those of a template's use that are no variables of the template. What
# is too long is cut in the texts, never in the template, whatever restore_suffix says.
END_KWARGS = ("add_bos_token", "add_eos_token")
CUT_KWARGS = {"restore_suffix", "truncation", "max_length", "padding", "return_tensors", "return_dict", "tokenize"}
OTHER_CHAT_KWARGS = ("continue_final_message", "return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs")
CUT_BY_LENGTH = (None, True, "longest_first")
DTYPE_KWARGS = ("dtype", "torch_dtype")
# What a message's content is: a list of typed parts or not; None: the template itself tells.
FORMATS = {"flat": False, "structured": True, "auto": None}


@dataclass(frozen=True, slots=True)
class TransformerFiles:
    """The understood settings; ``sources`` names the file behind each; ``late`` has the fields LATE_FIELDS, if set."""

    config: Mapping[str, Any]
    max_seq_length: int | None
    do_lower_case: bool
    sources: Mapping[str, str]
    task: str = "feature-extraction"
    chat: ChatFormat | None = None
    ends: Mapping[str, bool] = field(default_factory=dict)
    late: Document | None = None


def read_transformer_files(folder: Path, root: Path, task: str = "feature-extraction") -> TransformerFiles:
    """Read config.json and, where there is one, the sentence-transformers file of a transformer's folder.

    ``task`` is what the module's class does unless the file names another.
    """
    config = dict(read_document(folder / "config.json", root).values)
    sources = {"config": label_of(folder / "config.json", root)}
    document = _find_document(folder, root)
    if document is None:
        return TransformerFiles(config, None, False, sources, task)
    _check_fields(document)
    task = _read_task(document, task)
    chat = _read_modalities(document, task)
    overrides = _read_overrides(document, config)
    if overrides:
        sources["config"] += f", with {', '.join(overrides)} from {document.label}"
        config.update(overrides)
    processor = _kwargs_section(document, "processor_kwargs")
    _check_processor(processor)
    max_seq_length, source = _read_length(document, processor, has_chat=chat is not None)
    if max_seq_length is not None:
        sources["max_seq_length"] = source
    sources["do_lower_case"] = document.label
    do_lower_case = document.optional("do_lower_case", bool) or False
    ends = {name: value for name in END_KWARGS if (value := processor.optional(name, bool)) is not None}
    late = {name: document.values[name] for name in LATE_FIELDS if document.values.get(name) is not None}
    found = Document(document.label, late) if late else None
    return TransformerFiles(config, max_seq_length, do_lower_case, sources, task, chat, ends, found)


def _find_document(folder: Path, root: Path) -> Document | None:
    """Return the first of the known files that exists and says anything."""
    for name in FILE_NAMES:
        document = read_optional_document(folder / name, root)
        if document is not None and document.values:
            return document
    return None


def _kwargs_section(document: Document, name: str) -> Document:
    """Return a section under its new or, failing that, its old name."""
    old = OLD_NAMES[name]
    return document.section(old if document.values.get(old) is not None else name)


def _check_fields(document: Document) -> None:
    """Refuse a field that is set and unknown, and processing options."""
    for name, value in document.values.items():
        if name not in READ_FIELDS | HARMLESS_FIELDS and value not in (None, False, "", [], {}):
            raise document.refuse(name, f"is {describe(value)}, which Forebay does not understand")
    processing = document.section("processing_kwargs")
    for part in ("common", "text"):
        section = processing.section(part)
        for name, value in section.values.items():
            is_known = name == "max_length" or (name == "truncation" and value in CUT_BY_LENGTH)
            if name not in HARMLESS_KWARGS and not is_known:
                raise section.refuse(name, f"is {describe(value)}, which Forebay does not understand")


def _read_length(document: Document, processor: Document, *, has_chat: bool) -> tuple[int | None, str]:
    """Return how many tokens are read, and where that stands: processing options come first."""
    processing = document.section("processing_kwargs")
    parts = [processing.section(name) for name in ("common", "text", *(("chat_template",) if has_chat else ()))]
    found = [(part.size("max_length"), part) for part in parts if part.optional("max_length", int) is not None]
    if found:
        size, part = found[0]
        if any(other != size for other, _ in found):
            raise found[1][1].refuse("max_length", f"contradicts {part.label}, which says {size}; give it once")
        return size, f"{part.label}: max_length"
    place, name = (processor, "model_max_length")
    if processor.optional(name, int) is None:
        place, name = (document, "max_seq_length")
    return (place.size(name) if place.optional(name, int) is not None else None), f"{place.label}: {name}"


def _read_task(document: Document, default: str) -> str:
    """Return what the transformer is used for."""
    task = document.optional("transformer_task", str) or default
    if task not in TASKS:
        known = ", ".join(f"'{known}'" for known in TASKS)
        raise document.refuse("transformer_task", f"is '{task}'; Forebay supports {known}")
    return task


def _read_modalities(document: Document, task: str) -> ChatFormat | None:
    """Accept text whose output becomes the feature that the task stands for, and pairs by a chat template."""
    result, feature = TASKS[task]
    output = document.optional("module_output_name", str) or feature
    if output != feature:
        raise document.refuse("module_output_name", f"is '{output}'; Forebay supports '{feature}' for '{task}'")
    if document.optional("modality_config", dict) is None:
        return None
    modalities = document.section("modality_config")
    supported = {"text", "message"} if task in CHAT_TASKS else {"text"}
    if "text" not in modalities.values or not set(modalities.values) <= supported:
        found = ", ".join(f"'{name}'" for name in modalities.values) or "nothing"
        raise document.refuse("modality_config", f"has {found}; Forebay supports 'text' alone, or with 'message'")
    for kind in modalities.values:
        section = modalities.section(kind)
        for name, expected in (("method", "forward"), ("method_output_name", result)):
            if section.values.get(name) != expected:
                raise section.refuse(name, f"is {describe(section.values.get(name))}; Forebay supports '{expected}'")
    return _read_chat(document, modalities.section("message")) if "message" in modalities.values else None


def _read_chat(document: Document, message: Document) -> ChatFormat:
    """Return how a chat template is to be filled in."""
    form = message.optional("format", str) or "auto"
    if form not in FORMATS:
        raise message.refuse("format", f"is '{form}'; Forebay knows {', '.join(FORMATS)}")
    variables = document.section("processing_kwargs").section("chat_template")
    for name in OTHER_CHAT_KWARGS:
        if variables.values.get(name):
            raise variables.refuse(name, "changes how the template is used; Forebay fills it in as it is: take it out")
    kept = {name: value for name, value in variables.values.items() if name not in (*CUT_KWARGS, *OTHER_CHAT_KWARGS)}
    return ChatFormat(FORMATS[form], kept)


def _read_overrides(document: Document, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by which the saved keyword arguments replace those of config.json."""
    overrides = dict(_kwargs_section(document, "config_kwargs").values)
    model = _kwargs_section(document, "model_kwargs")
    for name, value in model.values.items():
        if name in DTYPE_KWARGS:
            # "auto" asks for the dtype that config.json names, which is there already.
            overrides |= {} if value in (None, "auto") else dict.fromkeys(DTYPE_KWARGS, value)
        elif name in config:
            overrides[name] = value
        elif name not in HARMLESS_KWARGS and value not in (None, False):
            raise model.refuse(name, f"is {describe(value)}, which Forebay does not understand")
    return {name: value for name, value in overrides.items() if name not in HARMLESS_KWARGS}


def _check_processor(section: Document) -> None:
    """Refuse tokenizer options that would change the tokens."""
    for name, value in section.values.items():
        known = (
            name in ("model_max_length", *END_KWARGS)
            or name in HARMLESS_KWARGS
            or (name, value) == ("truncation_side", "right")
        )
        if not known and value is not None:
            raise section.refuse(name, f"is {describe(value)}, which Forebay does not understand")
