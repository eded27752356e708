"""What a checkpoint is: embedder, classifier, tagger or sparse encoder. The user's word first, then what is saved.

The order: the user's runner and convert, sentence-transformers' modules, the architecture's name. Pure.
"""

from dataclasses import fields
from typing import Literal

from forebay.checkpoint.pipeline import DenseStage, Stage, TransformerStage
from forebay.checkpoint.spec import ModelSpec, architectures_of
from forebay.checkpoint.stages import SCORES
from forebay.core.config import ModelOptions, PoolerConfig
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint

Kind = Literal["embed", "sequence", "token", "masked_lm", "late", "yes_no"]

# The first suffix that an architecture's name ends with tells what it was trained for.
SUFFIXES: dict[str, Kind | Literal["generate"]] = {
    "ForCausalLM": "generate",
    "ForConditionalGeneration": "generate",
    "ChatModel": "generate",
    "LMHeadModel": "generate",
    "ForSequenceClassification": "sequence",
    "ClassificationModel": "sequence",
    "ForTokenClassification": "token",
    "ForProcessRewardModel": "token",
    "ForRewardModel": "sequence",
    "VLForRanking": "sequence",
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "embed",
    "ForTextEncoding": "embed",
    "EmbeddingModel": "embed",
    "Model": "embed",
}


def check_runner(options: ModelOptions) -> None:
    """Refuse runners that Forebay does not have."""
    if options.runner not in ("auto", "pooling"):
        raise InvalidRequest(
            f"runner is '{options.runner}', but Forebay runs pooling models only and never generates; "
            "leave it out, or use 'pooling'",
            field="runner",
        )
    if options.convert not in ("auto", "none", "embed", "classify"):
        raise InvalidRequest(f"convert is '{options.convert}'; expected auto, none, embed or classify", field="convert")


_ALWAYS = frozenset({"task"})
_SEQUENCE = frozenset({"pooling_type", "seq_pooling_type", "use_activation"})
_TOKEN = frozenset({"pooling_type", "tok_pooling_type", "use_activation", "step_tag_id"})
_SCORES = frozenset({"logit_mean", "logit_sigma"})
_CHUNKS = frozenset({"enable_chunked_processing", "max_embed_len", "chunk_overlap"})

# Which overrides mean something to which kind of model; the others are refused, not ignored.
ALLOWED_OVERRIDES: dict[Kind, frozenset[str]] = {
    "embed": _ALWAYS | _SEQUENCE | _TOKEN | _CHUNKS | {"dimensions", "chunk_scores"},
    "sequence": _ALWAYS | _SEQUENCE | _SCORES | _CHUNKS | {"chunk_scores"},
    "token": _ALWAYS | _TOKEN | _SCORES | {"returned_token_ids"},
    "masked_lm": _ALWAYS,
    "yes_no": _ALWAYS | _SCORES | _CHUNKS | {"use_activation", "chunk_scores"},
    "late": _ALWAYS | _CHUNKS | {"use_activation", "dimensions", "chunk_scores"},
}


def check_overrides(kind: Kind, config: PoolerConfig) -> None:
    """Refuse overrides that mean nothing to a model of this kind."""
    allowed = ALLOWED_OVERRIDES[kind]
    for field in fields(config):
        if field.name not in allowed and getattr(config, field.name) != field.default:
            raise InvalidRequest(
                f"pooler config: {field.name} means nothing to this model ({kind}); understood: "
                f"{', '.join(sorted(allowed))}",
                field="pooler_config",
            )


_KIND_OF_TASK: dict[str, Kind] = {"sequence-classification": "sequence", "fill-mask": "masked_lm"}


def resolve_kind(
    stages: tuple[Stage, ...], spec: ModelSpec, options: ModelOptions, reranker: str | None = None
) -> tuple[Kind, str]:
    """Return what a route is, and who said so. Raises where the checkpoint and the user's word contradict.

    ``reranker`` tells who said that it is a reranker of pairs.
    """
    backbone = stages[0]
    if not isinstance(backbone, TransformerStage):
        return "embed", "modules.json" if not spec.is_default_pipeline else "a static embedding's files"
    if spec.late is not None:
        return "late", spec.late.source
    names = architectures_of(backbone.config)
    trained = trained_for(names)
    if options.convert == "embed":
        return "embed", "user: convert"
    if options.pooler.returned_token_ids is not None and trained == "generate":
        return "token", "user: returned_token_ids of the language model's head"
    if backbone.task == "text-generation":
        return "yes_no", "modules.json: LogitScore"
    is_language_model = trained == "generate" or "classifier_from_token" in backbone.config
    if is_language_model and reranker is not None and spec.is_default_pipeline:
        return "yes_no", reranker
    if options.convert == "classify":
        return _as_classifier(names, trained), "user: convert"
    if not spec.is_default_pipeline:
        default: Kind = "sequence" if makes_scores(stages) else "embed"
        return _KIND_OF_TASK.get(backbone.task, default), "modules.json"
    saved = _KIND_OF_TASK.get(backbone.task)
    return _from_architecture(names, trained) if saved is None else (saved, "modules.json")


def makes_scores(stages: tuple[Stage, ...]) -> bool:
    """Whether a layer behind the pooling makes a classifier's scores of its vector."""
    return any(isinstance(stage, DenseStage) and stage.output_name == SCORES for stage in stages)


def _as_classifier(names: tuple[str, ...], trained: Kind | Literal["generate"] | None) -> Kind:
    if trained is None or trained not in ("sequence", "token"):
        remedy = "; one that answers yes or no to pairs needs the option 'template'" if trained == "generate" else ""
        raise UnsupportedCheckpoint(
            f"convert is 'classify', but the architecture {_shown(names)} has no trained classifier; "
            f"use convert 'auto' or 'embed'{remedy}"
        )
    return trained


def _from_architecture(names: tuple[str, ...], trained: Kind | Literal["generate"] | None) -> tuple[Kind, str]:
    if trained == "generate":
        raise UnsupportedCheckpoint(
            f"the architecture {_shown(names)} generates text, and nothing in the checkpoint says how to pool it; "
            "use convert 'embed' for its last token's vector, or 'classify' where it has a classifier"
        )
    if trained is None and names:
        raise UnsupportedCheckpoint(
            f"the architecture {_shown(names)} has a head that Forebay does not pool; "
            "use convert 'embed' to take its encoder without the head"
        )
    if trained == "masked_lm":
        return "embed", "config.json: architectures (encoder with a language model's head)"
    return trained or "embed", "config.json: architectures"


def trained_for(names: tuple[str, ...]) -> Kind | Literal["generate"] | None:
    """Return what the first architecture's name ends with, None where that is nothing known."""
    if not names:
        return None
    return next((kind for suffix, kind in SUFFIXES.items() if names[0].endswith(suffix)), None)


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "of this checkpoint"
