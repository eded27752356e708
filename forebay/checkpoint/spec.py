"""Reads a checkpoint's folder into one frozen ModelSpec: its pipelines, prompts and declared sizes.

Each value comes with the file that said so. Knows no tensors, no modules and no wishes of users.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.checkpoint.documents import Document, read_optional_document
from forebay.checkpoint.pipeline import Routes, TransformerStage, expand_routes, read_pipeline
from forebay.core.errors import UnsupportedCheckpoint

FILE_NAME = "config_sentence_transformers.json"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
MODEL_TYPE = "SentenceTransformer"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a checkpoint says of itself. ``prompts`` holds the non-empty ones; ``sources`` a file for each value."""

    path: Path
    routes: Routes
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str
    truncate_dim: int | None
    matryoshka: tuple[int, ...] | None
    sources: Mapping[str, str]


def read_spec(path: Path) -> ModelSpec:
    """Read the checkpoint in a local folder, or raise a LoadError naming the file and field that is not understood."""
    document = read_optional_document(path / FILE_NAME, path)
    sources = {"pipeline": "modules.json" if (path / "modules.json").exists() else "sentence-transformers' default"}
    if document is None:
        document = Document(FILE_NAME, {})
    _check_model_type(document)
    routes = expand_routes(read_pipeline(path))
    truncate_dim = document.size("truncate_dim") if document.optional("truncate_dim", int) is not None else None
    matryoshka = _read_matryoshka(routes)
    for name in ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"):
        if document.values.get(name):
            sources[name.removesuffix("_fn_name")] = FILE_NAME
    sources.setdefault("similarity", "sentence-transformers' default")
    if matryoshka is not None:
        sources["matryoshka"] = "config.json: matryoshka_dimensions"
    prompts = _read_prompts(document)
    return ModelSpec(
        path,
        routes,
        prompts,
        default_prompt_name=_read_default_prompt(document, prompts),
        similarity=_read_similarity(document),
        truncate_dim=truncate_dim,
        matryoshka=matryoshka,
        sources=sources,
    )


def architectures_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names that a config.json gives as its architectures."""
    names = config.get("architectures") or ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UnsupportedCheckpoint("config.json: 'architectures' must be a list of class names")
    return tuple(names)


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that a config.json names, as in ``float32``; None where it names none."""
    value = config.get("dtype") or config.get("torch_dtype")
    if value is None:
        return None
    if not isinstance(value, str):
        raise UnsupportedCheckpoint("config.json: 'dtype' must be the name of a dtype, such as 'float32'")
    return value.removeprefix("torch.")


def _check_model_type(document: Document) -> None:
    """Refuse checkpoints whose vectors are made in another way than an embedder's."""
    model_type = document.optional("model_type", str) or MODEL_TYPE
    if model_type != MODEL_TYPE:
        raise document.refuse("model_type", f"is '{model_type}'; Forebay supports '{MODEL_TYPE}' checkpoints")


def _read_prompts(document: Document) -> dict[str, str]:
    """Return the prompts that hold text; releases since 5.0 write empty placeholders for the rest."""
    section = document.section("prompts")
    return {name: text for name in section.values if (text := section.optional(name, str))}


def _read_default_prompt(document: Document, prompts: Mapping[str, str]) -> str | None:
    name = document.optional("default_prompt_name", str)
    if name is None or name in prompts:
        return name
    if name in document.section("prompts").values:
        return None  # a placeholder: the checkpoint asks for no prompt
    known = ", ".join(f"'{known}'" for known in prompts) or "none"
    raise document.refuse("default_prompt_name", f"is '{name}', but the prompts are: {known}")


def _read_similarity(document: Document) -> str:
    name = document.optional("similarity_fn_name", str) or "cosine"
    if name not in SIMILARITIES:
        raise document.refuse("similarity_fn_name", f"is '{name}', expected one of {', '.join(SIMILARITIES)}")
    return name


def _read_matryoshka(routes: Routes) -> tuple[int, ...] | None:
    """Return the sizes that the first transformer's config.json declares its vectors may be cut to."""
    stages = [stage for route in routes.stages.values() for stage in route if isinstance(stage, TransformerStage)]
    if not stages:
        return None
    document = Document("config.json", stages[0].config)
    sizes = document.optional("matryoshka_dimensions", list)
    if not sizes:
        return None
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise document.refuse("matryoshka_dimensions", "must be a list of sizes of at least 1")
    return tuple(sorted(set(sizes)))
