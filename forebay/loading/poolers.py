"""From a route's plan and its modules to its pipeline: one pooler for each task that the checkpoint can do."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forebay.checkpoint.classifier import labels_of, problem_type_of
from forebay.checkpoint.pipeline import DenseStage, NormalizeStage, TransformerStage
from forebay.checkpoint.spec import ModelSpec
from forebay.core.config import PoolerConfig
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint
from forebay.core.tasks import Task
from forebay.loading.modules import Loader
from forebay.loading.plan import RoutePlan, VectorStage
from forebay.models.base import Encoder, read
from forebay.pooling.activations import Calibration, Choice, choose_activation, identity
from forebay.pooling.alike import Joining, find_hierarchy
from forebay.pooling.chunks import Pooler
from forebay.pooling.fused import Sums, choose_sums
from forebay.pooling.heads import ClassifyHead, Dense, EmbedHead
from forebay.pooling.methods import METHODS, Method, all_rows, kept_rows, last_by_id, step_rows
from forebay.pooling.pooler import (
    ClassifyPooler,
    EmbedPooler,
    Pipeline,
    TokenClassifyPooler,
    TokenEmbedPooler,
)
from forebay.pooling.sparse import LexicalPooler, SpladePooler

M3_SPARSE, M3_MULTI_VECTOR = "sparse_linear.pt", "colbert_linear.pt"


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A route's pipeline, the size of its embeddings (0 without), its labels, and whether it normalises.

    ``token_size`` is that of its token vectors where they are of another size than its embeddings.
    """

    pipeline: Pipeline
    dimension: int = 0
    token_size: int | None = None
    labels: tuple[str, ...] = ()
    is_normalized: bool = False


def build_pipeline(
    loader: Loader, route: RoutePlan, model: Encoder, spec: ModelSpec, marker_ids: frozenset[int]
) -> Built:
    """Make a route's poolers. ``marker_ids`` are what BGE-M3's lexical weights leave out."""
    overrides = loader.options.pooler
    if route.kind == "embed":
        return _build_embed(loader, route, model, spec, marker_ids)
    if route.kind == "late":
        return _build_late(loader, route, model, spec)
    if route.kind == "masked_lm":
        return Built(Pipeline(model, {Task.SPARSE: _sparse_pooler(route, model, spec)}))
    return _build_classifier(loader, route, model, spec, overrides)


def _build_classifier(
    loader: Loader, route: RoutePlan, model: Encoder, spec: ModelSpec, overrides: PoolerConfig
) -> Built:
    assert isinstance(route.backbone, TransformerStage)
    labels, activation = _labels_and_activation(route, spec)
    loader.log.say("activation", activation.name, activation.source)
    source = "modules.json: Dense" if route.vector_stages else "config.json"
    loader.log.say("labels", len(labels), "tokens that answer" if route.rows else source)
    shift = route.reranker.logit_mean if route.reranker is not None else 0.0
    sigma = _temperature(route) if overrides.logit_sigma is None else overrides.logit_sigma
    head = ClassifyHead(
        _head_of(model) if not route.vector_stages else _chain(loader, route, model),
        activation,
        Calibration(shift if overrides.logit_mean is None else overrides.logit_mean, sigma),
        use_activation=overrides.use_activation is not False,
    )
    if route.kind in ("sequence", "yes_no"):
        poolers: dict[Task, Pooler] = {Task.CLASSIFY: ClassifyPooler(_row_of(loader, route, model, overrides), head)}
        if route.head == "reward":
            poolers[Task.TOKEN_CLASSIFY] = TokenClassifyPooler(all_rows, head)
        return Built(Pipeline(model, poolers), labels=labels)
    columns = None if route.rows else overrides.returned_token_ids
    if columns is not None and not all(0 <= column < len(labels) for column in columns):
        raise InvalidRequest(
            f"returned_token_ids must lie in 0 to {len(labels) - 1}, the model's outputs", field="pooler_config"
        )
    tag = overrides.step_tag_id if route.step_tag is None or overrides.token_method == "ALL" else route.step_tag
    rows = step_rows(tag) if isinstance(tag, int) else all_rows
    loader.log.say(
        "token pooling", "ALL" if tag is None else f"STEP at token {tag}", "user, or what the architecture is"
    )
    kept = labels if columns is None else tuple(labels[column] for column in columns)
    return Built(Pipeline(model, {Task.TOKEN_CLASSIFY: TokenClassifyPooler(rows, head, columns)}), labels=kept)


def _chain(loader: Loader, route: RoutePlan, model: Encoder) -> Callable[[Tensor], Tensor]:
    """The layers behind the pooling as one function; the last makes scores."""
    _sizes(route, model)
    stages = [loader.stage(stage) for stage in route.vector_stages]

    def logits(rows: Tensor) -> Tensor:
        for stage in stages:
            rows = stage(rows)
        return rows

    return logits


def _temperature(route: RoutePlan) -> float:
    """What logits are divided by, in the kind of classifier whose config says so."""
    assert isinstance(route.backbone, TransformerStage)
    is_declared = bool(route.methods) and not route.vector_stages
    return float(read(route.backbone.config, "temperature", float, 1.0)) if is_declared else 1.0


def _labels_and_activation(route: RoutePlan, spec: ModelSpec) -> tuple[tuple[str, ...], Choice]:
    assert isinstance(route.backbone, TransformerStage)
    config = route.backbone.config
    source = spec.sources.get("classifier_activation", "")
    if route.rows:  # the config describes a generator
        labels = ("score",) if route.kind == "yes_no" else tuple(f"token {id_}" for id_ in route.rows)
        return labels, choose_activation(None, spec.classifier_activation, source, len(labels))
    last = route.vector_stages[-1] if route.vector_stages else None
    if isinstance(last, DenseStage):  # the config describes its encoder
        labels = ("score",) if last.out_features == 1 else tuple(f"LABEL_{index}" for index in range(last.out_features))
        return labels, choose_activation(None, spec.classifier_activation, source, len(labels))
    labels = labels_of(config)
    if route.head == "reward" and route.kind == "sequence":
        return labels, Choice(identity, "identity", "a reward is no probability")
    return labels, choose_activation(problem_type_of(config), spec.classifier_activation, source, len(labels))


def _row_of(loader: Loader, route: RoutePlan, model: Encoder, overrides: PoolerConfig) -> Method:
    """The row of a sequence that its classifier reads."""
    assert isinstance(route.backbone, TransformerStage)
    wish = overrides.sequence_methods
    if wish is not None:
        if len(wish) > 1:
            raise InvalidRequest("a classifier reads one row: give one seq_pooling_type", field="pooler_config")
        loader.log.say("pooling", wish[0], "user")
        return METHODS[wish[0]]
    if route.methods:
        source = "the pooling of modules.json" if route.vector_stages else "config.json: pooling"
        loader.log.say("pooling", route.methods[0], source)
        return METHODS[route.methods[0]]
    if route.head == "sequence":
        loader.log.say("pooling", model.head_method, "what the architecture's head reads")
        return METHODS[model.head_method]
    padding = route.backbone.config.get("pad_token_id")
    is_behind = route.kind == "yes_no" or route.head == "ranking"
    if is_behind or not isinstance(padding, int):
        loader.log.say("pooling", "LAST", "what the answer stands behind" if is_behind else "no padding id")
        return METHODS["LAST"]
    loader.log.say("pooling", f"last token that is not {padding}", "transformers' rule, config.json: pad_token_id")
    return last_by_id(padding)


def _build_late(loader: Loader, route: RoutePlan, model: Encoder, spec: ModelSpec) -> Built:
    """One vector a token, as the checkpoint's stages make it, and nothing else."""
    overrides = loader.options.pooler
    size = model.hidden_size
    for stage in route.vector_stages:
        size = _next_size(stage, size)
    head = EmbedHead(
        stages=[loader.stage(stage) for stage in route.vector_stages],
        is_normalized=route.is_normalized if overrides.use_activation is None else overrides.use_activation,
        truncate_dim=spec.truncate_dim,
        dimensions=overrides.dimensions,
    )
    pooler = TokenEmbedPooler(kept_rows, head, joinings=_joinings(route))
    pipeline = Pipeline(
        model,
        {Task.TOKEN_EMBED: pooler},
        is_mean_score=spec.similarity == "meanmaxsim",
        sums=_choose_sums(loader),
    )
    return Built(pipeline, size, is_normalized=head.is_normalized and head.truncate_dim is None)


def _choose_sums(loader: Loader) -> Sums:
    choice = choose_sums(loader.device)
    if loader.device.type != "cpu":
        loader.log.say("MaxSim", choice.name, choice.why)
    return choice.sums


def _joinings(route: RoutePlan) -> dict[str, Joining]:
    stage = route.joining
    if stage is None or not stage.sides or (stage.factor <= 1 and not stage.is_normalized):
        return {}
    try:
        find_hierarchy()
    except InvalidRequest as error:
        raise UnsupportedCheckpoint(f"{stage.source}: the checkpoint joins token vectors, which {error}") from None
    return dict.fromkeys(stage.sides, Joining(stage.factor, stage.num_protected, stage.is_normalized))


def _build_embed(
    loader: Loader, route: RoutePlan, model: Encoder, spec: ModelSpec, marker_ids: frozenset[int]
) -> Built:
    overrides = loader.options.pooler
    size, token_size = _sizes(route, model)
    token_stages = [loader.stage(stage) for stage in route.token_stages]
    wants = overrides.use_activation
    head = EmbedHead(
        stages=[loader.stage(stage) for stage in route.vector_stages],
        is_normalized=route.is_normalized if wants is None else wants,
        truncate_dim=spec.truncate_dim,
        dimensions=overrides.dimensions,
    )
    poolers: dict[Task, Pooler] = {
        Task.EMBED: EmbedPooler([METHODS[name] for name in route.methods], head, token_stages)
    }
    rows = all_rows if overrides.step_tag_id is None else step_rows(overrides.step_tag_id)
    if size == token_size * len(route.methods) or len(route.methods) == 1:
        poolers[Task.TOKEN_EMBED] = TokenEmbedPooler(rows, _token_head(head, len(route.methods)), token_stages)
    if route.head == "masked_lm":
        poolers[Task.SPARSE] = _sparse_pooler(route, model, spec)
    if spec.extra_heads:
        poolers.update(_m3_poolers(loader, spec, model, marker_ids))
    mix = None if route.layer_mix is None else loader.layer_mix(route.layer_mix, model.num_layers)
    is_mean = bool(spec.extra_heads)  # BGE-M3 divides by the query's length
    pipeline = Pipeline(model, poolers, mix, is_mean_score=is_mean, sums=_choose_sums(loader))
    own = None if len(route.methods) == 1 else token_size
    pooler = poolers.get(Task.TOKEN_EMBED)
    if spec.extra_heads and isinstance(pooler, TokenEmbedPooler):
        own = _next_head_size(pooler.head, size)
    return Built(pipeline, size, own, is_normalized=head.is_normalized and head.truncate_dim is None)


def _next_head_size(head: EmbedHead, size: int) -> int:
    """Return the size of what a head of loaded stages makes."""
    for stage in head.stages:
        size = len(stage.weight) if isinstance(stage, Dense) else size
    return size


def _token_head(head: EmbedHead, num_methods: int) -> EmbedHead:
    """The head that works on single tokens: the vector's own, without stages where several methods are joined."""
    return head if num_methods == 1 else EmbedHead((), head.is_normalized)


def _m3_poolers(loader: Loader, spec: ModelSpec, model: Encoder, marker_ids: frozenset[int]) -> dict[Task, Pooler]:
    """BGE-M3 (arXiv:2402.03216): lexical weights and multi-vectors beside the dense vector, from one forward."""
    lexical = loader.linear(spec.path / M3_SPARSE, model.hidden_size, 1)
    multi_vector = loader.linear(spec.path / M3_MULTI_VECTOR, model.hidden_size, None)
    loader.log.say("heads", "dense, sparse, multi-vector", f"{M3_SPARSE}, {M3_MULTI_VECTOR}")

    def weights(rows: Tensor) -> Tensor:
        return torch.relu(lexical(rows))

    scores = ClassifyHead(lexical, Choice(torch.relu, "relu", "BGE-M3"), Calibration())
    return {
        Task.SPARSE: LexicalPooler(weights, marker_ids, spec.max_active_dims),
        Task.TOKEN_CLASSIFY: TokenClassifyPooler(all_rows, scores),
        Task.TOKEN_EMBED: TokenEmbedPooler(all_rows, EmbedHead([multi_vector], is_normalized=True), skips_first=True),
    }


def _sparse_pooler(route: RoutePlan, model: Encoder, spec: ModelSpec) -> Pooler:
    if not isinstance(route.backbone, TransformerStage):
        return LexicalPooler(_identity_weights, max_active_dims=spec.max_active_dims)
    strategy = "max" if route.splade is None or route.splade.strategy == "max" else "sum"
    is_twice_logged = route.splade is not None and route.splade.activation == "log1p_relu"
    return SpladePooler(
        _head_of(model),
        model.vocab_size,
        "max" if strategy == "max" else "sum",
        is_twice_logged,
        spec.max_active_dims,
    )


def _identity_weights(rows: Tensor) -> Tensor:
    return rows


def _head_of(model: Encoder) -> nn.Module:
    assert model.head is not None, "the plan asked for a head"
    return model.head


def _sizes(route: RoutePlan, model: Encoder) -> tuple[int, int]:
    """Return the size of the route's vectors and of its token vectors, checking each stage's input."""
    size = model.hidden_size
    for stage in route.token_stages:
        size = _next_size(stage, size)
    token_size = size
    size *= len(route.methods)
    for vector_stage in route.vector_stages:
        size = _next_size(vector_stage, size)
    return size, token_size


def _next_size(stage: VectorStage, size: int) -> int:
    """Return the size of a stage's output, checking that of its input."""
    if isinstance(stage, NormalizeStage):
        return size
    expected = stage.in_features if isinstance(stage, DenseStage) else stage.dimension
    if expected != size:
        raise UnsupportedCheckpoint(f"{stage.folder.name} reads vectors of {expected}, but gets {size} from before it")
    return stage.out_features if isinstance(stage, DenseStage) else size
