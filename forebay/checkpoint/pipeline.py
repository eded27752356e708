"""Reads ``modules.json`` and the folders it names into ordered stages, one a sentence-transformers module.

Both layouts of the files are understood, the one up to 5.3 and the one since. Whatever is not understood is an error
that names it: no module is left out. Builds no modules, reads no weights, imports no torch.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from forebay.checkpoint.documents import (
    Document,
    describe,
    label_of,
    path_below,
    read_document,
    read_json,
    read_optional_document,
)
from forebay.checkpoint.late import STANFORD_ARCHITECTURE
from forebay.checkpoint.poolings import (
    declared_mode,
    read_logit_score,
    read_pooling,
    read_splade_pooling,
    read_token_pooling,
)
from forebay.checkpoint.routes import Routes, expand_routes
from forebay.checkpoint.stages import (
    SCORES,
    SENTENCE,
    TOKENS,
    DenseStage,
    LayerNormStage,
    LogitScoreStage,
    Modality,
    MultiVectorMaskStage,
    NormalizeStage,
    PoolingStage,
    RouterStage,
    SparseStaticEmbeddingStage,
    SpladePoolingStage,
    Stage,
    StaticEmbeddingStage,
    TransformerStage,
    WeightedLayerPoolingStage,
)
from forebay.checkpoint.transformer_files import TransformerFiles, read_transformer_files
from forebay.checkpoint.weights import iter_weights
from forebay.core.errors import CheckpointNotFound, UnsupportedCheckpoint, WeightsMismatch

__all__ = [
    "STAGES",
    "DenseStage",
    "LayerNormStage",
    "LogitScoreStage",
    "NormalizeStage",
    "PoolingStage",
    "RouterStage",
    "Routes",
    "SparseStaticEmbeddingStage",
    "SpladePoolingStage",
    "Stage",
    "StaticEmbeddingStage",
    "TransformerStage",
    "WeightedLayerPoolingStage",
    "expand_routes",
    "read_pipeline",
]


def read_pipeline(path: Path) -> tuple[Stage, ...]:
    """Return every module of the checkpoint in order, or raise UnsupportedCheckpoint naming the one not understood."""
    if not (path / "modules.json").exists():
        return _default_pipeline(path)
    entries = read_json(path / "modules.json", path)
    if not isinstance(entries, list) or not entries:
        raise UnsupportedCheckpoint(f"modules.json in {path} must hold a list with at least one module")
    stages = [_read_entry(index, entry, path) for index, entry in enumerate(entries)]
    return tuple(stage for stage in stages if stage is not None)


def _default_pipeline(path: Path) -> tuple[Stage, ...]:
    """Return what a checkpoint without modules.json means to sentence-transformers."""
    document = read_optional_document(path / "config.json", path)
    config: Mapping[str, Any] = document.values if document is not None else {}
    if _is_static(path, config):
        normalize = document is not None and document.optional("normalize", bool)
        static = StaticEmbeddingStage(path)
        return (static, NormalizeStage(SENTENCE)) if normalize else (static,)
    transformer = _read_transformer(path, path)
    if STANFORD_ARCHITECTURE in (transformer.config.get("architectures") or ()):
        return transformer, _read_projection(path), NormalizeStage(TOKENS)
    declared = declared_mode(transformer.config)
    if declared is not None:
        return transformer, PoolingStage((declared,), include_prompt=True, source="config.json: pooling")
    architectures = transformer.config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    is_causal = str(name).endswith("ForCausalLM") and transformer.config.get("is_causal", True) is not False
    source = f"sentence-transformers' default for a plain {'causal ' if is_causal else ''}checkpoint"
    return transformer, PoolingStage(("lasttoken" if is_causal else "mean",), include_prompt=True, source=source)


def _read_projection(path: Path) -> DenseStage:
    """The layer that Stanford's ColBERT keeps among the tensors of its encoder."""
    shape = next((tensor.shape for name, tensor in iter_weights(path) if name == PROJECTION), None)
    if shape is None:
        raise WeightsMismatch(f"the weight files in {path} lack '{PROJECTION}', the projection of a ColBERT model")
    return DenseStage(
        path,
        in_features=int(shape[-1]),
        out_features=int(shape[0]),
        bias=False,
        activation=IDENTITY,
        input_name=TOKENS,
        output_name=TOKENS,
        use_residual=False,
        tensor=PROJECTION,
    )


def _is_static(path: Path, config: Mapping[str, Any]) -> bool:
    """Tell whether a folder without modules.json is a static model: a table of token vectors and a tokenizer."""
    if config.get("model_type") == "model2vec":
        return True
    if config.get("architectures") or config.get("model_type") or not (path / "tokenizer.json").exists():
        return False
    try:
        with safe_open(path / "model.safetensors", framework="numpy") as tensors:
            return "embeddings" in tensors.keys()  # noqa: SIM118 (the handle is no mapping)
    except (OSError, SafetensorError):
        return False


def _read_entry(index: int, entry: object, root: Path) -> Stage | None:
    """Read one entry of modules.json and the folder it names."""
    if not isinstance(entry, dict):
        raise UnsupportedCheckpoint(f"modules.json: module {index} is {describe(entry)}, expected an object")
    document = Document(f"modules.json: module {index}", entry)
    class_path = document.required("type", str)
    reader = _find_reader(class_path, document.label)
    arguments = document.optional("kwargs", list) or []
    if arguments and not (reader is _read_router and set(map(str, arguments)) <= {"task", "modality"}):
        raise document.refuse("kwargs", f"asks for {', '.join(map(str, arguments))}, which Forebay does not pass on")
    return reader(path_below(root, document.values.get("path"), document), root)


def _find_reader(class_path: str, label: str) -> "Reader":
    """Return the reader for a module's class, as old and new releases write its path."""
    match = CLASS_PATH.fullmatch(class_path)
    if match is None:
        raise UnsupportedCheckpoint(
            f"{label}: the class '{class_path}' is not part of sentence-transformers; no code of checkpoints is run"
        )
    if match["pylate"]:
        return _read_pylate_dense
    reader = STAGES.get(match["name"])
    if reader is None:
        known = ", ".join(sorted(STAGES))
        raise UnsupportedCheckpoint(f"{label}: the class '{class_path}' is not supported; supported are {known}")
    return reader


def _read_transformer(folder: Path, root: Path) -> TransformerStage:
    return _make_transformer(folder, read_transformer_files(folder, root))


def _read_mlm_transformer(folder: Path, root: Path) -> TransformerStage:
    return _make_transformer(folder, read_transformer_files(folder, root, "fill-mask"))


def _make_transformer(folder: Path, files: TransformerFiles) -> TransformerStage:
    return TransformerStage(
        folder,
        files.config,
        files.max_seq_length,
        files.do_lower_case,
        files.sources,
        files.task,
        files.chat,
        files.ends,
        files.late,
    )


def _read_static(folder: Path, root: Path) -> StaticEmbeddingStage:
    _check_tokenizer(folder, root)
    return StaticEmbeddingStage(folder)


def _read_sparse_static(folder: Path, root: Path) -> SparseStaticEmbeddingStage:
    _check_tokenizer(folder, root)
    return SparseStaticEmbeddingStage(folder)


def _check_tokenizer(folder: Path, root: Path) -> None:
    if not (folder / "tokenizer.json").exists():
        raise CheckpointNotFound(f"{label_of(folder / 'tokenizer.json', root)} is missing in {root}")


def _read_layer_pooling(folder: Path, root: Path) -> WeightedLayerPoolingStage:
    document = read_document(folder / "config.json", root)
    num_layers = document.size("num_hidden_layers", 12)
    start = document.optional("layer_start", int)
    start = 4 if start is None else start
    if not 0 <= start <= num_layers:
        raise document.refuse("layer_start", f"is {start}, expected 0 to {num_layers} (num_hidden_layers)")
    return WeightedLayerPoolingStage(folder, start, num_layers)


def _read_dense(folder: Path, root: Path) -> DenseStage:
    document = read_document(folder / "config.json", root)
    # A file without the field comes from a time when tanh was fixed; null is how no activation is written.
    activation = document.optional("activation_function", str)
    if activation is None:
        activation = IDENTITY if "activation_function" in document.values else "torch.nn.modules.activation.Tanh"
    if not ACTIVATION_PATH.fullmatch(activation):
        raise document.refuse(
            "activation_function", f"is '{activation}'; Forebay runs classes of torch.nn.modules only"
        )
    input_name = _feature(document, "module_input_name", SENTENCE)
    makes_scores = input_name == SENTENCE and document.values.get("module_output_name") == SCORES
    bias = document.optional("bias", bool)
    return DenseStage(
        folder,
        in_features=document.size("in_features"),
        out_features=document.size("out_features"),
        bias=bias is not False,
        activation=activation,
        input_name=input_name,
        output_name=SCORES if makes_scores else _feature(document, "module_output_name", input_name),
        use_residual=document.optional("use_residual", bool) or False,
    )


def _read_pylate_dense(folder: Path, root: Path) -> DenseStage:
    """PyLate's layers read tokens, and have no activation where none is written."""
    stage = _read_dense(folder, root)
    names = read_document(folder / "config.json", root).values
    activation = stage.activation if "activation_function" in names else IDENTITY
    return replace(stage, activation=activation, input_name=TOKENS, output_name=TOKENS)


def _read_mask(folder: Path, root: Path) -> MultiVectorMaskStage:
    document = read_document(folder / "config.json", root)
    words, sides, ids = (
        document.optional(name, list) for name in ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
    )
    for name, values, kind in (("skiplist_words", words, str), ("skiplist_tasks", sides, str)):
        if not all(isinstance(value, kind) for value in values or ()):
            raise document.refuse(name, "must be a list of texts")
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in ids or ()):
        raise document.refuse("keep_only_token_ids", "must be a list of token ids")
    return MultiVectorMaskStage(tuple(words or ()), ("document",) if sides is None else tuple(sides), tuple(ids or ()))


def _feature(document: Document, name: str, default: str) -> str:
    """Return the feature that a field names."""
    feature = document.optional(name, str) or default
    if feature not in (SENTENCE, TOKENS):
        raise document.refuse(name, f"is '{feature}'; Forebay knows '{SENTENCE}' and '{TOKENS}'")
    return feature


def _read_layer_norm(folder: Path, root: Path) -> LayerNormStage:
    return LayerNormStage(folder, read_document(folder / "config.json", root).size("dimension"))


def _read_normalize(folder: Path, root: Path) -> NormalizeStage:
    # Older releases save nothing for this module, and git keeps no empty folders.
    document = read_optional_document(folder / "config.json", root)
    if document is None or folder == root:
        return NormalizeStage(SENTENCE)
    input_name = _feature(document, "module_input_name", SENTENCE)
    if _feature(document, "module_output_name", input_name) != input_name:
        raise document.refuse("module_output_name", f"differs from module_input_name '{input_name}'; expected the same")
    return NormalizeStage(input_name)


def _read_dropout(folder: Path, root: Path) -> None:
    """Return no stage: at inference dropout does nothing."""


def _read_router(folder: Path, root: Path) -> RouterStage:
    document = read_optional_document(folder / "router_config.json", root)
    if document is None:
        document = read_document(folder / "config.json", root)  # the name of its predecessor, Asym
    modules: dict[str, Stage | None] = {}
    types = document.section("types")
    for module_id in types.values:
        reader = _find_reader(types.required(module_id, str), f"{types.label}: '{module_id}'")
        modules[module_id] = reader(path_below(folder, module_id, types), root)
    structure = document.section("structure")
    routes: dict[str, tuple[Stage, ...]] = {}
    for route in structure.values:
        ids = structure.required(route, list)
        missing = [module_id for module_id in ids if not isinstance(module_id, str) or module_id not in modules]
        if missing or not ids:
            raise structure.refuse(route, f"names {describe(missing[0]) if missing else 'no module'}; expected 'types'")
        routes[route] = tuple(stage for module_id in ids if (stage := modules[module_id]) is not None)
    if not routes:
        raise document.refuse("structure", "has no routes")
    parameters = document.section("parameters")
    default = parameters.optional("default_route", str)
    if default is None and parameters.optional("allow_empty_key", bool) is not False:
        default = next(iter(routes))
    mappings = _read_mappings(parameters.section("route_mappings"))
    for name in (default, *mappings.values()):
        if name is not None and name not in routes:
            raise parameters.refuse("default_route", f"or a mapping leads to '{name}'; routes are {', '.join(routes)}")
    return RouterStage(routes, default, mappings)


def _read_mappings(section: Document) -> dict[tuple[str | None, Modality], str]:
    """Parse keys such as ``('query', None)``, which is how pairs are written into JSON."""
    mappings: dict[tuple[str | None, Modality], str] = {}
    for text in section.values:
        try:
            task, modality = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise section.refuse(text, "is not a pair of task and modality") from None
        kinds = modality if isinstance(modality, tuple) else (modality,)
        if not all(value is None or isinstance(value, str) for value in (task, *kinds)):
            raise section.refuse(text, "is not a pair of task and modality")
        mappings[task, tuple(sorted(modality)) if isinstance(modality, tuple) else modality] = section.required(
            text, str
        )
    return mappings


Reader = Callable[[Path, Path], Stage | None]
"""Reads a module's folder (first) of a checkpoint (second); None for a module that does nothing at inference."""

CLASS_PATH = re.compile(
    r"sentence_transformers\.(models|(base|sentence_transformer|sparse_encoder|cross_encoder|multi_vector_encoder)"
    r"\.(models|modules))(\.\w+)?\.(?P<name>\w+)|pylate\.models\.Dense\.(?P<pylate>Dense)"
)
ACTIVATION_PATH = re.compile(r"torch\.nn\.(modules\.([a-z_]+\.)?)?[A-Z]\w*")

IDENTITY = "torch.nn.modules.linear.Identity"
PROJECTION = "linear.weight"

STAGES: dict[str, Reader] = {
    "MultiVectorMask": _read_mask,
    "HierarchicalTokenPooling": read_token_pooling,
    "Transformer": _read_transformer,
    "MLMTransformer": _read_mlm_transformer,
    "StaticEmbedding": _read_static,
    "SparseStaticEmbedding": _read_sparse_static,
    "WeightedLayerPooling": _read_layer_pooling,
    "Pooling": read_pooling,
    "SpladePooling": read_splade_pooling,
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
    "LogitScore": read_logit_score,
    "Dropout": _read_dropout,
    "Router": _read_router,
    "Asym": _read_router,
}
