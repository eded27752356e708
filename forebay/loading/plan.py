"""From what the checkpoint says and what the user wants to one Plan, each decision with its source.

Pure: reads no weights and builds no modules. Nothing behind it asks the checkpoint or the user again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from forebay.checkpoint.pipeline import (
    DenseStage,
    LayerNormStage,
    LogitScoreStage,
    NormalizeStage,
    PoolingStage,
    Stage,
    StaticEmbeddingStage,
    TransformerStage,
    WeightedLayerPoolingStage,
)
from forebay.checkpoint.poolings import declared_mode
from forebay.checkpoint.spec import ModelSpec, architectures_of, dtype_of
from forebay.checkpoint.stages import (
    SCORES,
    TOKENS,
    MultiVectorMaskStage,
    SparseStaticEmbeddingStage,
    SpladePoolingStage,
    TokenPoolingStage,
    features_of,
    name_of,
)
from forebay.core.config import DType, ModelOptions
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint
from forebay.core.info import Decision
from forebay.loading.reranker import choose_reranker
from forebay.loading.resolve import Kind, check_overrides, check_runner, makes_scores, resolve_kind, trained_for
from forebay.models.base import HeadKind
from forebay.models.registry import is_decoder
from forebay.text.families import RerankerFamily

_METHOD_OF_MODE = {
    "cls": "CLS",
    "lasttoken": "LAST",
    "mean": "MEAN",
    "mean_sqrt_len_tokens": "MEAN_SQRT_LEN",
    "weightedmean": "WEIGHTED",
    "max": "MAX",
}
_USER = "user"

# The token that Qwen2.5-Math-PRM scores at.
PROCESS_TAG = "<extra_0>"

Backbone = TransformerStage | StaticEmbeddingStage | SparseStaticEmbeddingStage
VectorStage = DenseStage | LayerNormStage | NormalizeStage


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """One straight pipeline: backbone and its head, what happens to tokens, how they are pooled, what follows.

    ``methods`` is empty where the route makes no embedding, but has the one that a classifier's config names;
    ``splade`` is set where it makes sparse vectors of the language model's head. ``reranker`` tells how pairs are read,
    ``rows`` which tokens' logits are answers (known once the tokenizer is), ``step_tag`` the token at which a process
    reward model scores, ``joining`` which token vectors become fewer in late interaction.
    """

    backbone: Backbone
    kind: Kind
    head: HeadKind | None = None
    layer_mix: WeightedLayerPoolingStage | None = None
    token_stages: tuple[DenseStage | NormalizeStage, ...] = ()
    methods: tuple[str, ...] = ()
    include_prompt: bool = True
    vector_stages: tuple[VectorStage, ...] = ()
    is_normalized: bool = False
    splade: SpladePoolingStage | None = None
    reranker: RerankerFamily | None = None
    rows: tuple[int, ...] = ()
    step_tag: str | int | None = None
    joining: TokenPoolingStage | None = None

    @property
    def other_tensors(self) -> frozenset[str]:
        """Tensors in the backbone's files that belong to other modules."""
        stages = (stage for stage in self.vector_stages if isinstance(stage, DenseStage))
        return frozenset(stage.tensor for stage in stages if stage.tensor is not None)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before weights are read. ``dtype`` is a name of DType, but auto."""

    routes: Mapping[str, RoutePlan]
    dtype: str
    device: str
    decisions: tuple[Decision, ...]


@dataclass(slots=True)
class Log:
    """Collects decisions as they are made."""

    decisions: list[Decision] = field(default_factory=list)

    def say(self, name: str, value: object, source: str) -> None:
        """Note one decision."""
        self.decisions.append(Decision(name, str(value), source))


def make_plan(spec: ModelSpec, options: ModelOptions, *, has_cuda: bool) -> Plan:
    """Decide routes, device and dtype. Raises UnsupportedCheckpoint or InvalidRequest naming what does not fit."""
    check_runner(options)
    options.pooler.check()
    log = Log()
    log.say("runner", "pooling", _USER if options.runner != "auto" else "Forebay has no other")
    device = _choose_device(options, has_cuda, log)
    routes = {
        name: _plan_route(f" of route '{name}'" if name else "", stages, spec, options, log)
        for name, stages in spec.routes.stages.items()
    }
    dtype = _choose_dtype(routes, options, device, log)
    if len(routes) > 1:
        log.say("routes", ", ".join(routes), "modules.json: Router")
        log.say("default route", spec.routes.default or "none: input_type must be given", "router_config.json")
    log.say("similarity", spec.similarity, spec.sources["similarity"])
    if spec.default_prompt_name is not None:
        log.say("default prompt", spec.default_prompt_name, spec.sources["default_prompt_name"])
    if spec.truncate_dim is not None:
        log.say("truncate_dim", spec.truncate_dim, spec.sources["truncate_dim"])
    return Plan(routes, dtype, device, tuple(log.decisions))


def _choose_device(options: ModelOptions, has_cuda: bool, log: Log) -> str:
    if options.device == "auto":
        device = "cuda" if has_cuda else "cpu"
        log.say("device", device, "what the machine has")
        return device
    if not re.fullmatch(r"cpu|cuda(:\d+)?", options.device):
        raise InvalidRequest(f"device is '{options.device}'; expected auto, cpu, cuda or cuda:N", field="device")
    if options.device != "cpu" and not has_cuda:
        raise InvalidRequest("device is 'cuda', but this torch sees no CUDA device; use 'cpu'", field="device")
    log.say("device", options.device, _USER)
    return options.device


def _choose_dtype(routes: Mapping[str, RoutePlan], options: ModelOptions, device: str, log: Log) -> str:
    backbones = [route.backbone for route in routes.values()]
    stored = {dtype_of(stage.config) for stage in backbones if isinstance(stage, TransformerStage)} - {None}
    if options.dtype not in get_args(DType):
        known = ", ".join(get_args(DType))
        raise InvalidRequest(f"dtype is '{options.dtype}'; expected one of {known}", field="dtype")
    if options.dtype != "auto":
        if options.dtype == "float16" and device == "cpu":
            raise InvalidRequest("float16 is not computed on CPU; use bfloat16 or float32", field="dtype")
        if options.dtype == "int8" and device != "cpu":
            raise InvalidRequest(
                f"int8 is computed on CPU only, not on {device}; use bfloat16 or float16", field="dtype"
            )
        log.say("dtype", options.dtype, _USER)
        return options.dtype
    if device != "cpu" and stored == {"bfloat16"}:
        log.say("dtype", "bfloat16", "config.json")
        return "bfloat16"
    shown = f"stored as {', '.join(sorted(map(str, stored)))}; " if stored else ""
    log.say("dtype", "float32", f"default ({shown}--dtype overrides)")
    return "float32"


def _plan_route(label: str, stages: tuple[Stage, ...], spec: ModelSpec, options: ModelOptions, log: Log) -> RoutePlan:
    reranker = choose_reranker(stages, spec, options)
    kind, source = resolve_kind(stages, spec, options, reranker.source if reranker is not None else None)
    check_overrides(kind, options.pooler)
    log.say(f"kind{label}", kind, source)
    backbone, rest = stages[0], stages[1:]
    assert isinstance(backbone, Backbone), "the reader puts the backbone first"
    log.say(f"stages{label}", " → ".join(map(name_of, stages)), spec.sources["pipeline"])
    if kind == "masked_lm":
        return _plan_sparse(backbone, rest, label)
    if kind == "yes_no":
        return _plan_yes_no(backbone, rest, label, reranker)
    if kind == "late":
        return _plan_late(label, backbone, rest, log)
    if makes_scores(stages) and kind == "sequence":
        return _plan_scores(label, backbone, rest, options, log, reranker)
    if kind != "embed":
        return _plan_classifier(backbone, kind, options, reranker)
    if isinstance(backbone, SparseStaticEmbeddingStage):
        return RoutePlan(backbone, "masked_lm")
    route = _plan_embed(label, backbone, list(rest), options, log)
    if not (spec.is_default_pipeline and isinstance(backbone, TransformerStage)):
        return route
    trained = trained_for(architectures_of(backbone.config))
    if trained == "generate":
        log.say(f"normalize{label}", True, "convert of a language model: the vector is made unit length")
        is_causal = backbone.config.get("is_causal") is not False
        if is_causal and options.pooler.sequence_methods is None and route.methods != ("LAST",):
            log.say(f"pooling{label}", "LAST", "convert of a language model")
            route = replace(route, methods=("LAST",))
        return replace(route, is_normalized=True)
    has_language_model = trained == "masked_lm"
    return replace(route, head="masked_lm") if has_language_model else route


def _plan_yes_no(backbone: Backbone, rest: tuple[Stage, ...], label: str, reranker: RerankerFamily | None) -> RoutePlan:
    """A language model whose answer to a pair is the score. Without modules.json, nothing follows it."""
    scores = [stage for stage in rest if not isinstance(stage, PoolingStage)]
    if reranker is None or any(not isinstance(stage, LogitScoreStage) for stage in scores) or len(scores) > 1:
        raise UnsupportedCheckpoint(
            f"modules.json{label}: a language model's logits must be followed by LogitScore alone, found "
            f"{', '.join(map(name_of, rest)) or 'nothing'}; its pairs need a template"
        )
    return RoutePlan(backbone, "yes_no", head="lm_rows", reranker=reranker)


def _plan_classifier(
    backbone: Backbone, kind: Kind, options: ModelOptions, reranker: RerankerFamily | None
) -> RoutePlan:
    """A trained classifier; decoders call their heads by other names."""
    assert isinstance(backbone, TransformerStage), "only a transformer has such a head"
    names = architectures_of(backbone.config)
    if kind == "token" and trained_for(names) == "generate":
        return RoutePlan(backbone, kind, head="lm_rows", rows=options.pooler.returned_token_ids or ())
    if names and names[0].endswith("RewardModel"):
        is_process = names[0].endswith("ForProcessRewardModel")
        tag = (options.pooler.step_tag_id or PROCESS_TAG) if is_process else None
        return RoutePlan(backbone, kind, head="reward", step_tag=tag)
    if names and names[0].endswith("VLForRanking"):
        return RoutePlan(backbone, kind, head="ranking", reranker=reranker)
    head: HeadKind = "token" if kind == "token" else "score" if is_decoder(backbone.config) else "sequence"
    mode = declared_mode(backbone.config)
    methods = () if mode is None or head != "score" else (_METHOD_OF_MODE[mode],)
    return RoutePlan(backbone, kind, head=head, methods=methods, reranker=reranker)


def _plan_scores(
    label: str,
    backbone: Backbone,
    rest: tuple[Stage, ...],
    options: ModelOptions,
    log: Log,
    reranker: RerankerFamily | None,
) -> RoutePlan:
    """A classifier made of an embedder: the last of the layers behind its pooling makes scores."""
    route = _plan_embed(label, backbone, list(rest), options, log)
    last = route.vector_stages[-1] if route.vector_stages else None
    is_last = isinstance(last, DenseStage) and last.output_name == SCORES and not route.is_normalized
    if not is_last or route.token_stages or route.layer_mix is not None or len(route.methods) > 1:
        raise UnsupportedCheckpoint(
            f"modules.json{label}: scores are read from one pooled vector by a Dense at the very end, found "
            f"{', '.join(map(name_of, rest))}"
        )
    if not route.include_prompt:
        raise UnsupportedCheckpoint(
            f"modules.json{label}: a Pooling with include_prompt false is not supported where pairs are scored"
        )
    return replace(route, kind="sequence", reranker=reranker)


def _plan_sparse(backbone: Backbone, rest: tuple[Stage, ...], label: str) -> RoutePlan:
    if len(rest) != 1 or not isinstance(rest[0], SpladePoolingStage):
        raise UnsupportedCheckpoint(
            f"modules.json{label}: a language model's head must be followed by SpladePooling alone, found "
            f"{', '.join(map(name_of, rest)) or 'nothing'}"
        )
    return RoutePlan(backbone, "masked_lm", head="masked_lm", splade=rest[0])


def _plan_late(label: str, backbone: Backbone, rest: tuple[Stage, ...], log: Log) -> RoutePlan:
    """Stages on tokens alone; what the mask leaves out is told by the reading of texts."""
    last = rest[-1] if rest else None
    joining = last if isinstance(last, TokenPoolingStage) else None
    if joining is not None:
        rest = rest[:-1]
        on = " and ".join(joining.sides) or "nothing"
        log.say(f"alike vectors{label}", f"joined to one for {joining.factor:g}, of {on}", joining.source)
    stages = [stage for stage in rest if not isinstance(stage, MultiVectorMaskStage)]
    is_normalized = bool(stages) and isinstance(stages[-1], NormalizeStage)
    stages = stages[:-1] if is_normalized else stages
    chain: list[VectorStage] = []
    for stage in stages:
        if not isinstance(stage, DenseStage | NormalizeStage) or features_of(stage) != (TOKENS, TOKENS):
            raise UnsupportedCheckpoint(
                f"modules.json{label}: the module {name_of(stage)} has no place in a model for late interaction; "
                "expected Dense and Normalize on tokens, and a HierarchicalTokenPooling at the end"
            )
        chain.append(stage)
    log.say(f"token vectors{label}", "normalized" if is_normalized else "as they are", "modules")
    return RoutePlan(
        backbone,
        "late",
        vector_stages=tuple(chain),
        is_normalized=is_normalized,
        joining=joining,
    )


def _plan_embed(label: str, backbone: Backbone, rest: list[Stage], options: ModelOptions, log: Log) -> RoutePlan:
    first = rest.pop(0) if rest and isinstance(rest[0], WeightedLayerPoolingStage) else None
    token_stages: list[DenseStage | NormalizeStage] = []
    while rest and isinstance(rest[0], DenseStage | NormalizeStage) and features_of(rest[0]) == (TOKENS, TOKENS):
        stage = rest.pop(0)
        assert isinstance(stage, DenseStage | NormalizeStage)
        token_stages.append(stage)
    pooling = rest.pop(0) if rest and isinstance(rest[0], PoolingStage) else None
    vector_stages = [_vector_stage(stage, label) for stage in rest]
    is_normalized = bool(vector_stages) and isinstance(vector_stages[-1], NormalizeStage)
    return RoutePlan(
        backbone,
        "embed",
        layer_mix=first if isinstance(first, WeightedLayerPoolingStage) else None,
        token_stages=tuple(token_stages),
        methods=_choose_methods(backbone, pooling, options, label, log),
        include_prompt=pooling.include_prompt if isinstance(pooling, PoolingStage) else True,
        vector_stages=tuple(vector_stages[:-1] if is_normalized else vector_stages),
        is_normalized=is_normalized,
    )


def _vector_stage(stage: Stage, label: str) -> VectorStage:
    if isinstance(stage, DenseStage | LayerNormStage | NormalizeStage) and TOKENS not in features_of(stage):
        return stage
    raise UnsupportedCheckpoint(
        f"modules.json{label}: the module {name_of(stage)} stands where it can't change the embedding, or twice; "
        "expected the backbone, then stages on tokens, one Pooling, then stages on the vector"
    )


def _choose_methods(
    backbone: Backbone, pooling: Stage | None, options: ModelOptions, label: str, log: Log
) -> tuple[str, ...]:
    wish = options.pooler.sequence_methods
    if isinstance(backbone, StaticEmbeddingStage):
        if wish is not None:
            raise InvalidRequest("a static embedding is always averaged; leave out pooling_type", field="pooler_config")
        log.say(f"pooling{label}", "MEAN", "what a static embedding is")
        return ("MEAN",)
    if wish is not None:
        log.say(f"pooling{label}", " + ".join(wish), _USER)
        return wish
    if not isinstance(pooling, PoolingStage):
        raise UnsupportedCheckpoint(
            f"modules.json{label} has no Pooling module, so nothing says how tokens become one vector; "
            "give it with pooler_config {'pooling_type': 'MEAN'}"
        )
    methods = tuple(_METHOD_OF_MODE[mode] for mode in pooling.modes)
    log.say(f"pooling{label}", " + ".join(methods), pooling.source)
    return methods
