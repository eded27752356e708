"""Reads a checkpoint's folder into one frozen ModelSpec: its pipelines, prompts and declared sizes.

Each value comes with the file that said so. Knows no tensors, no modules and no wishes of users.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forebay.checkpoint.classifier import find_activation
from forebay.checkpoint.documents import Document, read_optional_document
from forebay.checkpoint.late import (
    PYLATE_FIELDS,
    STANFORD_ARCHITECTURE,
    LateReading,
    read_modules,
    read_pylate,
    read_stanford,
)
from forebay.checkpoint.locate import EXTRA_HEADS
from forebay.checkpoint.pipeline import Routes, Stage, TransformerStage, expand_routes, read_pipeline
from forebay.checkpoint.stages import SENTENCE, TOKENS, DenseStage, NormalizeStage
from forebay.core.errors import CheckpointNotFound, UnsupportedCheckpoint

FILE_NAME = "config_sentence_transformers.json"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# The kinds of model that sentence-transformers saves, with the similarity where a checkpoint names none.
MODEL_TYPES = {"SentenceTransformer": "cosine", "SparseEncoder": "dot", "CrossEncoder": "cosine"}
MULTI_VECTOR_TYPES = ("MultiVectorEncoder", "ColBERT")
MULTI_VECTOR_SIMILARITIES = ("maxsim", "meanmaxsim")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a checkpoint says of itself. ``prompts`` holds the non-empty ones; ``sources`` a file for each value.

    ``is_default_pipeline`` tells that no modules.json gave the routes. ``classifier_activation`` is the dotted path of
    a class below ``torch.nn``, ``extra_heads`` the files of further heads beside the backbone. ``late`` tells how texts
    are read for late interaction, None in all other models.
    """

    path: Path
    routes: Routes
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str
    truncate_dim: int | None
    matryoshka: tuple[int, ...] | None
    sources: Mapping[str, str]
    model_type: str = "SentenceTransformer"
    is_default_pipeline: bool = False
    max_active_dims: int | None = None
    classifier_activation: str | None = None
    extra_heads: tuple[str, ...] = ()
    late: LateReading | None = None


def read_spec(path: Path) -> ModelSpec:
    """Read the checkpoint in a local folder, or raise a LoadError naming the file and field that is not understood."""
    document = read_optional_document(path / FILE_NAME, path)
    is_default = not (path / "modules.json").exists()
    sources = {"pipeline": "sentence-transformers' default" if is_default else "modules.json"}
    if document is None:
        document = Document(FILE_NAME, {})
    model_type = _read_model_type(document)
    stages = read_pipeline(path)
    late = _read_late(path, document, stages, model_type)
    if late is not None:
        stages = _token_stages(stages, model_type)
        sources["late interaction"] = late.source
        if is_default:
            sources["pipeline"] = f"config.json: architectures ({STANFORD_ARCHITECTURE})"
    routes = expand_routes(stages)
    config = _config_of(routes)
    matryoshka = _read_matryoshka(config)
    activation, source = find_activation(document if not is_default else None, config)
    if activation is not None:
        sources["classifier_activation"] = source
    for name in ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_active_dims"):
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
        similarity=_read_late_similarity(document) if late else _read_similarity(document, MODEL_TYPES[model_type]),
        truncate_dim=document.optional_size("truncate_dim"),
        matryoshka=matryoshka,
        sources=sources,
        model_type=model_type,
        is_default_pipeline=is_default,
        max_active_dims=document.optional_size("max_active_dims"),
        classifier_activation=activation,
        extra_heads=_find_extra_heads(path),
        late=late,
    )


def _read_late(path: Path, document: Document, stages: tuple[Stage, ...], model_type: str) -> LateReading | None:
    """Return how a late-interaction checkpoint reads texts; None for any other."""
    backbone = stages[0]
    config = backbone.config if isinstance(backbone, TransformerStage) else {}
    if not (path / "modules.json").exists() and STANFORD_ARCHITECTURE in (config.get("architectures") or ()):
        return read_stanford(path)
    if model_type == "ColBERT" or (
        model_type == "MultiVectorEncoder" and any(name in document.values for name in PYLATE_FIELDS)
    ):
        return read_pylate(document)
    if model_type == "MultiVectorEncoder":
        return read_modules(stages)
    if isinstance(backbone, TransformerStage) and backbone.late is not None:
        name = next(iter(backbone.late.values))
        raise backbone.late.refuse(name, f"is set in a model of type {model_type}; expected in a MultiVectorEncoder")
    return None


def _token_stages(stages: tuple[Stage, ...], model_type: str) -> tuple[Stage, ...]:
    """What PyLate leaves unsaid: its layers read tokens, and what comes out is normalised."""
    redirected = tuple(
        replace(stage, input_name=TOKENS, output_name=TOKENS)
        if isinstance(stage, DenseStage) and stage.input_name == SENTENCE
        else stage
        for stage in stages
    )
    return (*redirected, NormalizeStage(TOKENS)) if model_type == "ColBERT" else redirected


def _read_late_similarity(document: Document) -> str:
    name = (document.optional("similarity_fn_name", str) or "maxsim").lower()
    return name if name in MULTI_VECTOR_SIMILARITIES else "maxsim"


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


def _read_model_type(document: Document) -> str:
    """Return the kind of model, refusing those that read texts in another way."""
    model_type = document.optional("model_type", str) or next(iter(MODEL_TYPES))
    if model_type not in (*MODEL_TYPES, *MULTI_VECTOR_TYPES):
        known = ", ".join(f"'{known}'" for known in (*MODEL_TYPES, *MULTI_VECTOR_TYPES))
        raise document.refuse("model_type", f"is '{model_type}'; Forebay supports {known}")
    return model_type


def _find_extra_heads(path: Path) -> tuple[str, ...]:
    """Return the heads beside the backbone: all of them or none."""
    found = tuple(name for name in EXTRA_HEADS if (path / name).exists())
    if len(found) == 1:
        (missing,) = set(EXTRA_HEADS) - set(found)
        raise CheckpointNotFound(
            f"{missing} is missing in {path}, which has {found[0]}; download the checkpoint completely"
        )
    return found


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


def _read_similarity(document: Document, default: str) -> str:
    name = document.optional("similarity_fn_name", str) or default
    if name not in SIMILARITIES:
        raise document.refuse("similarity_fn_name", f"is '{name}', expected one of {', '.join(SIMILARITIES)}")
    return name


def _config_of(routes: Routes) -> Document:
    """Return the config.json of the first transformer, an empty one where there is none."""
    stages = [stage for route in routes.stages.values() for stage in route if isinstance(stage, TransformerStage)]
    return Document("config.json", stages[0].config if stages else {})


def _read_matryoshka(document: Document) -> tuple[int, ...] | None:
    """Return the sizes that a config.json declares its vectors may be cut to."""
    sizes = document.optional("matryoshka_dimensions", list)
    if not sizes:
        return None
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise document.refuse("matryoshka_dimensions", "must be a list of sizes of at least 1")
    return tuple(sorted(set(sizes)))
