"""The stages of a checkpoint's pipeline as plain data: one class a kind of sentence-transformers module.

A stage reads one named feature and writes one; ``features_of`` says which. Knows no files' formats and no tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.checkpoint.documents import Document

SENTENCE = "sentence_embedding"
TOKENS = "token_embeddings"
SCORES = "scores"
CAUSAL_LOGITS = "causal_logits"

Modality = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The checkpoint's chat template makes the text: what it gets besides the messages, and what a content is.

    ``is_structured`` tells that a content is a list of typed parts, not a text; None: the template tells.
    """

    is_structured: bool | None
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TransformerStage:
    """The backbone. ``config`` is its config.json with the saved overrides.

    ``max_seq_length`` is what the sentence-transformers files say, None where they are silent; ``sources`` tells
    for each value which file said so. By ``task`` token ids become ``token_embeddings`` that are hidden states
    (feature-extraction) or logits over the vocabulary (fill-mask), or one row of ``scores`` (sequence-classification),
    or the last token's logits, ``causal_logits`` (text-generation). ``chat`` is set where pairs pass a chat template,
    ``ends`` has what the files say of the tokens at a text's ends (``add_bos_token``, ``add_eos_token``).
    ``late`` has the fields of late interaction (lengths of queries and documents, expansion), where there are any.
    """

    folder: Path
    config: Mapping[str, Any]
    max_seq_length: int | None
    do_lower_case: bool
    sources: Mapping[str, str]
    task: str = "feature-extraction"
    chat: ChatFormat | None = None
    ends: Mapping[str, bool] = field(default_factory=dict)
    late: Document | None = None


@dataclass(frozen=True, slots=True)
class StaticEmbeddingStage:
    """The mean of one vector a token; token ids to ``sentence_embedding``."""

    folder: Path


@dataclass(frozen=True, slots=True)
class SparseStaticEmbeddingStage:
    """One weight for each token of the vocabulary that occurs in the text; token ids to ``sentence_embedding``."""

    folder: Path


@dataclass(frozen=True, slots=True)
class WeightedLayerPoolingStage:
    """A weighted mean of the hidden states of the layers from ``layer_start`` on (0 is the embedding layer)."""

    folder: Path
    layer_start: int
    num_hidden_layers: int


@dataclass(frozen=True, slots=True)
class PoolingStage:
    """``token_embeddings`` to ``sentence_embedding``; the results of several modes are joined in order."""

    modes: tuple[str, ...]
    include_prompt: bool
    source: str


@dataclass(frozen=True, slots=True)
class SpladePoolingStage:
    """Logits over the vocabulary to one weight a word: ``strategy`` is "max" or "sum" over all tokens.

    ``activation`` is "relu" or "log1p_relu": log1p(relu(x)) once or with a second log1p.
    """

    strategy: str
    activation: str
    source: str


@dataclass(frozen=True, slots=True)
class DenseStage:
    """A linear layer and an activation, the dotted path of a class below ``torch.nn``.

    ``tensor`` names its weight where it stands among the backbone's tensors; None: the folder holds nothing else.
    """

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    input_name: str
    output_name: str
    use_residual: bool
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class LayerNormStage:
    """Layer normalisation of ``sentence_embedding`` with weights."""

    folder: Path
    dimension: int


@dataclass(frozen=True, slots=True)
class NormalizeStage:
    """Scales a feature to unit length."""

    input_name: str


@dataclass(frozen=True, slots=True)
class LogitScoreStage:
    """The last token's logit of one answer, less that of the other where there are two; writes ``scores``."""

    true_id: int
    false_id: int | None
    source: str


@dataclass(frozen=True, slots=True)
class MultiVectorMaskStage:
    """Leaves out vectors of ``token_embeddings`` by the tokens that they stand for.

    Those of ``skipped_words`` are left out on ``skipped_sides``; of documents, those of ``kept_ids`` alone are kept
    where it is not empty.
    """

    skipped_words: tuple[str, ...] = ()
    skipped_sides: tuple[str, ...] = ("document",)
    kept_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenPoolingStage:
    """Joins vectors of ``token_embeddings`` that are alike, on some ``sides``, to about one for ``factor``.

    The first ``num_protected`` stay single; ``is_normalized`` tells that all are then scaled to unit length.
    """

    factor: float
    num_protected: int
    is_normalized: bool
    sides: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class RouterStage:
    """Sends a text through one of several pipelines, chosen by (task, modality), where None matches anything."""

    routes: Mapping[str, tuple["Stage", ...]]
    default_route: str | None
    mappings: Mapping[tuple[str | None, Modality], str]


Stage = (
    TransformerStage
    | StaticEmbeddingStage
    | SparseStaticEmbeddingStage
    | WeightedLayerPoolingStage
    | PoolingStage
    | SpladePoolingStage
    | DenseStage
    | LayerNormStage
    | NormalizeStage
    | LogitScoreStage
    | MultiVectorMaskStage
    | TokenPoolingStage
    | RouterStage
)


def features_of(stage: Stage) -> tuple[str | None, str]:
    """Return the feature that a stage reads (None: the tokens) and the one it writes."""
    match stage:
        case TransformerStage():
            return None, {"sequence-classification": SCORES, "text-generation": CAUSAL_LOGITS}.get(stage.task, TOKENS)
        case StaticEmbeddingStage() | SparseStaticEmbeddingStage():
            return None, SENTENCE
        case WeightedLayerPoolingStage() | MultiVectorMaskStage() | TokenPoolingStage():
            return TOKENS, TOKENS
        case PoolingStage() | SpladePoolingStage():
            return TOKENS, SENTENCE
        case DenseStage():
            return stage.input_name, stage.output_name
        case LogitScoreStage():
            return CAUSAL_LOGITS, SCORES
        case NormalizeStage():
            return stage.input_name, stage.input_name
        case _:
            return SENTENCE, SENTENCE


def name_of(stage: Stage) -> str:
    """Return the name of the module that a stage stands for."""
    return type(stage).__name__.removesuffix("Stage")
