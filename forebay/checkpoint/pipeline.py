"""Reads ``modules.json`` and the folders it names into ordered stages, one a sentence-transformers module.

Both layouts of the files are understood, the one up to 5.3 and the one since. Whatever is not understood is an error
that names it: no module is left out. Builds no modules, reads no weights, imports no torch.
"""

import ast
import re
from collections.abc import Callable, Mapping
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
from forebay.checkpoint.routes import Routes, expand_routes
from forebay.checkpoint.stages import (
    CAUSAL_LOGITS,
    SENTENCE,
    TOKENS,
    DenseStage,
    LayerNormStage,
    LogitScoreStage,
    Modality,
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
from forebay.core.errors import CheckpointNotFound, UnsupportedCheckpoint

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
    architectures = transformer.config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    is_causal = str(name).endswith("ForCausalLM") and transformer.config.get("is_causal", True) is not False
    source = f"sentence-transformers' default for a plain {'causal ' if is_causal else ''}checkpoint"
    return transformer, PoolingStage(("lasttoken" if is_causal else "mean",), include_prompt=True, source=source)


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
    reader = STAGES.get(match["name"] or match["pylate"])
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


def _read_pooling(folder: Path, root: Path) -> PoolingStage:
    document = read_document(folder / "config.json", root)
    for name, value in document.values.items():
        if name.startswith("pooling_mode_") and name not in POOLING_FLAGS and value not in (False, None):
            raise document.refuse(name, f"is {describe(value)}, a pooling mode that Forebay does not know")
    include_prompt = document.optional("include_prompt", bool)
    modes = _listed_modes(document) or _flagged_modes(document)
    return PoolingStage(modes, include_prompt is not False, document.label)


def _listed_modes(document: Document) -> tuple[str, ...] | None:
    """Return the modes of the layout since 5.4: one name, or a list of names in the order of the result."""
    value = document.values.get("pooling_mode")
    if value is None:
        return None
    modes = value if isinstance(value, list) and value else [value]
    for mode in modes:
        if mode not in POOLING_FLAGS.values():
            known = ", ".join(POOLING_FLAGS.values())
            raise document.refuse("pooling_mode", f"has {describe(mode)}; Forebay knows {known}")
    return tuple(modes)


def _flagged_modes(document: Document) -> tuple[str, ...]:
    """Return the modes of the older layout: one boolean a mode, joined in a fixed order, none for mean."""
    modes = tuple(mode for flag, mode in POOLING_FLAGS.items() if document.optional(flag, bool))
    return modes or ("mean",)


def _read_splade_pooling(folder: Path, root: Path) -> SpladePoolingStage:
    document = read_document(folder / "config.json", root)
    return SpladePoolingStage(
        strategy=_choice(document, "pooling_strategy", ("max", "sum")),
        activation=_choice(document, "activation_function", ("relu", "log1p_relu")),
        source=document.label,
    )


def _choice(document: Document, name: str, known: tuple[str, ...]) -> str:
    """Return a field that must be one of the known words; the first is the default."""
    value = document.optional(name, str)
    value = known[0] if value is None else value
    if value not in known:
        raise document.refuse(name, f"is {describe(value)}; Forebay knows {', '.join(known)}")
    return value


def _read_dense(folder: Path, root: Path) -> DenseStage:
    document = read_document(folder / "config.json", root)
    # A file without the field comes from a time when tanh was fixed; null is how no activation is written.
    activation = document.optional("activation_function", str)
    if activation is None:
        activation = (
            f"torch.nn.modules.{'linear.Identity' if 'activation_function' in document.values else 'activation.Tanh'}"
        )
    if not ACTIVATION_PATH.fullmatch(activation):
        raise document.refuse(
            "activation_function", f"is '{activation}'; Forebay runs classes of torch.nn.modules only"
        )
    input_name = _feature(document, "module_input_name", SENTENCE)
    bias = document.optional("bias", bool)
    return DenseStage(
        folder,
        in_features=document.size("in_features"),
        out_features=document.size("out_features"),
        bias=bias is not False,
        activation=activation,
        input_name=input_name,
        output_name=_feature(document, "module_output_name", input_name),
        use_residual=document.optional("use_residual", bool) or False,
    )


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


def _read_logit_score(folder: Path, root: Path) -> LogitScoreStage:
    document = read_document(folder / "config.json", root)
    if (document.optional("module_input_name", str) or CAUSAL_LOGITS) != CAUSAL_LOGITS:
        raise document.refuse("module_input_name", f"is no '{CAUSAL_LOGITS}', which is all that Forebay reads here")
    ids = document.required("true_token_id", int), document.optional("false_token_id", int)
    if min(id_ for id_ in ids if id_ is not None) < 0:
        raise document.refuse("true_token_id", "or 'false_token_id' is negative, expected the id of a token")
    return LogitScoreStage(*ids, source=document.label)


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

# In the order in which the results of several modes are joined.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

STAGES: dict[str, Reader] = {
    "Transformer": _read_transformer,
    "MLMTransformer": _read_mlm_transformer,
    "StaticEmbedding": _read_static,
    "SparseStaticEmbedding": _read_sparse_static,
    "WeightedLayerPooling": _read_layer_pooling,
    "Pooling": _read_pooling,
    "SpladePooling": _read_splade_pooling,
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
    "LogitScore": _read_logit_score,
    "Dropout": _read_dropout,
    "Router": _read_router,
    "Asym": _read_router,
}
