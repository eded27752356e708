"""Plan → LoadedModel: the text side, the pipelines and the report, joined once.

The only place that knows both files and modules. Routes that share a backbone's folder share its weights.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forebay.checkpoint.locate import Location, locate
from forebay.checkpoint.pipeline import (
    DenseStage,
    LayerNormStage,
    NormalizeStage,
    StaticEmbeddingStage,
    TransformerStage,
    WeightedLayerPoolingStage,
)
from forebay.checkpoint.spec import ModelSpec, architectures_of, read_spec
from forebay.checkpoint.weights import iter_weights, load_tensors
from forebay.core.config import ModelOptions, PoolerConfig
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint, WeightsMismatch
from forebay.core.info import Decision, ModelInfo
from forebay.core.params import Abilities
from forebay.core.tasks import Task
from forebay.loading.fill import fill
from forebay.loading.plan import Log, Plan, RoutePlan, make_plan
from forebay.models.base import Encoder
from forebay.models.registry import build_encoder
from forebay.models.static import StaticEmbedding, fold_model2vec
from forebay.pooling.heads import Dense, EmbedHead, LayerNorm, Stage, module_activation, normalize
from forebay.pooling.pooler import LayerMix, Pipeline, Pooler
from forebay.text.files import TokenizerFiles, load_tokenizer
from forebay.text.prompts import Prompts
from forebay.text.tokenizer import TextTokenizer, lowercase_first

log = logging.getLogger(__name__)

# A static embedding reads texts of any length; so many tokens bound the memory that one text may take.
STATIC_MAX_LEN = 131_072

OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run. ``texts`` and ``pipelines`` are by route; ``default_route`` None: a request names it."""

    info: ModelInfo
    device: torch.device
    prompts: Prompts
    texts: Mapping[str, TextTokenizer]
    pipelines: Mapping[str, Pipeline]
    default_route: str | None
    route_of_input_type: Mapping[str, str]


@dataclass(slots=True)
class _Loader:
    """What the routes of one checkpoint share while it is loaded."""

    plan: Plan
    options: ModelOptions
    log: Log
    backbones: dict[Path, Encoder]
    num_parameters: int = 0

    @property
    def device(self) -> torch.device:
        return torch.device(self.plan.device)

    def backbone(self, stage: TransformerStage | StaticEmbeddingStage) -> Encoder:
        """Build and fill a backbone, once for each folder."""
        if stage.folder not in self.backbones:
            is_static = isinstance(stage, StaticEmbeddingStage)
            self.backbones[stage.folder] = self._load_static(stage.folder) if is_static else self._load_encoder(stage)
        return self.backbones[stage.folder]

    def _load_encoder(self, stage: TransformerStage | StaticEmbeddingStage) -> Encoder:
        assert isinstance(stage, TransformerStage)
        with torch.device("meta"):
            model = build_encoder(stage.config)
        dtype = getattr(torch, self.plan.dtype)
        self.num_parameters += fill(model, iter_weights(stage.folder), dtype, self.device)
        return model.eval()

    def _load_static(self, folder: Path) -> Encoder:
        tensors = load_tensors(folder)
        if "embedding.weight" in tensors:
            table = tensors.pop("embedding.weight").float()
        elif "embeddings" in tensors:
            table = fold_model2vec(
                tensors.pop("embeddings"), tensors.pop("mapping", None), tensors.pop("weights", None)
            )
        else:
            raise WeightsMismatch("a static embedding needs the tensor 'embedding.weight' or 'embeddings'")
        if tensors:
            raise WeightsMismatch(f"unknown tensors beside a static embedding: {', '.join(sorted(tensors))}")
        with torch.device("meta"):
            model = StaticEmbedding(*table.shape)
        self.num_parameters += fill(model, [("embedding.weight", table)], torch.float32, self.device)
        return model

    def dense(self, stage: DenseStage) -> Dense:
        """Read a Dense module's weights in float32."""
        tensors = self._small(stage.folder)
        residual = stage.use_residual and stage.in_features != stage.out_features
        shape = (stage.out_features, stage.in_features)
        dense = Dense(
            weight=_take(tensors, "linear.weight", shape, stage.folder),
            bias=_take(tensors, "linear.bias", shape[:1], stage.folder) if stage.bias else None,
            activation=module_activation(stage.activation),
            use_residual=stage.use_residual,
            residual=_take(tensors, "residual.weight", shape, stage.folder) if residual else None,
        )
        _finish(tensors, stage.folder)
        return dense

    def layer_norm(self, stage: LayerNormStage) -> LayerNorm:
        """Read a LayerNorm module's weights in float32."""
        tensors = self._small(stage.folder)
        size = (stage.dimension,)
        norm = LayerNorm(
            _take(tensors, "norm.weight", size, stage.folder), _take(tensors, "norm.bias", size, stage.folder)
        )
        _finish(tensors, stage.folder)
        return norm

    def layer_mix(self, stage: WeightedLayerPoolingStage, num_layers: int) -> LayerMix:
        """Read the weights of a mean over layers."""
        tensors = self._small(stage.folder)
        size = (num_layers + 1 - stage.layer_start,)
        if size[0] < 1:
            raise UnsupportedCheckpoint(
                f"{stage.folder.name}: layer_start is {stage.layer_start}, but the model has {num_layers} layers"
            )
        weights = _take(tensors, "layer_weights", size, stage.folder)
        _finish(tensors, stage.folder)
        return LayerMix(weights, stage.layer_start)

    def _small(self, folder: Path) -> dict[str, Tensor]:
        tensors = {name: tensor.to(self.device, torch.float32) for name, tensor in load_tensors(folder).items()}
        self.num_parameters += sum(tensor.numel() for tensor in tensors.values())
        return tensors


def load_model(options: ModelOptions, on_stage: OnStage) -> LoadedModel:
    """Find, resolve and load a checkpoint. Raises LoadError or InvalidRequest; never half a model."""
    on_stage("locating")
    location = locate(options.model, revision=options.revision, cache_dir=options.cache_dir)
    spec = read_spec(location.path)
    plan = make_plan(spec, options, has_cuda=torch.cuda.is_available())
    on_stage("loading weights")
    loader = _Loader(plan, options, Log(list(plan.decisions)), {})
    texts, pipelines, dims, max_lens = {}, {}, set(), set()
    for name, route in plan.routes.items():
        model = loader.backbone(route.backbone)
        pipelines[name], dim = _make_pipeline(loader, route, model, spec, options.pooler)
        texts[name], max_len = _make_text(loader, route, model, name)
        dims.add(dim)
        max_lens.add(max_len)
    if len(dims) > 1:
        raise UnsupportedCheckpoint(f"the routes {', '.join(pipelines)} give vectors of different sizes: {dims}")
    abilities = _abilities(spec, plan, next(iter(dims)), max(max_lens), loader)
    return LoadedModel(
        info=_make_info(location, spec, plan, abilities, loader),
        device=loader.device,
        prompts=Prompts(spec.prompts, spec.default_prompt_name),
        texts=texts,
        pipelines=pipelines,
        default_route=spec.routes.default,
        route_of_input_type=spec.routes.by_input_type,
    )


def _make_pipeline(
    loader: _Loader, route: RoutePlan, model: Encoder, spec: ModelSpec, overrides: PoolerConfig
) -> tuple[Pipeline, int]:
    """Return the route's pipeline and the size of its vectors."""
    size = model.hidden_size
    for stage in route.token_stages:
        size = _next_size(stage, size)
    size *= len(route.methods)
    for vector_stage in route.vector_stages:
        size = _next_size(vector_stage, size)
    wants = overrides.use_activation
    head = EmbedHead(
        stages=[_make_stage(loader, stage) for stage in route.vector_stages],
        is_normalized=route.is_normalized if wants is None else wants,
        truncate_dim=spec.truncate_dim,
        default_dimensions=overrides.dimensions,
    )
    pooler = Pooler(
        methods=route.methods,
        head=head,
        token_stages=[_make_stage(loader, stage) for stage in route.token_stages],
        layer_mix=None if route.layer_mix is None else loader.layer_mix(route.layer_mix, model.num_layers),
    )
    return Pipeline(model, pooler), size


def _make_stage(loader: _Loader, stage: DenseStage | LayerNormStage | NormalizeStage) -> Stage:
    if isinstance(stage, DenseStage):
        return loader.dense(stage)
    if isinstance(stage, LayerNormStage):
        return loader.layer_norm(stage)
    return normalize


def _next_size(stage: DenseStage | LayerNormStage | NormalizeStage, size: int) -> int:
    """Return the size of a stage's output, checking that of its input."""
    if isinstance(stage, NormalizeStage):
        return size
    expected = stage.in_features if isinstance(stage, DenseStage) else stage.dimension
    if expected != size:
        raise UnsupportedCheckpoint(f"{stage.folder.name} reads vectors of {expected}, but gets {size} from before it")
    return stage.out_features if isinstance(stage, DenseStage) else size


def _make_text(loader: _Loader, route: RoutePlan, model: Encoder, name: str) -> tuple[TextTokenizer, int]:
    files = load_tokenizer(route.backbone.folder)
    label = f" of route '{name}'" if name else ""
    loader.log.say(f"tokenizer{label}", type(files.tokenizer.model).__name__, files.source)
    max_len, source = _choose_max_len(route, model, files, loader.options)
    loader.log.say(f"max_model_len{label}", max_len, source)
    if isinstance(route.backbone, TransformerStage) and route.backbone.do_lower_case:
        lowercase_first(files.tokenizer)
        loader.log.say(f"do_lower_case{label}", True, route.backbone.sources.get("do_lower_case", "checkpoint"))
    tokenizer = TextTokenizer(
        files.tokenizer,
        max_len=max_len,
        vocab_size=model.vocab_size,
        side=files.side,
        has_specials=isinstance(route.backbone, TransformerStage),
        skips_prompt=not route.include_prompt,
    )
    return tokenizer, max_len


def _choose_max_len(route: RoutePlan, model: Encoder, files: TokenizerFiles, options: ModelOptions) -> tuple[int, str]:
    limit = model.max_len if model.max_len is not None else STATIC_MAX_LEN
    if options.max_model_len is not None:
        if not 1 <= options.max_model_len <= limit:
            raise InvalidRequest(
                f"max_model_len is {options.max_model_len}, but this model can read 1 to {limit} tokens",
                field="max_model_len",
            )
        return options.max_model_len, "user"
    if isinstance(route.backbone, StaticEmbeddingStage):
        return limit, "bound on memory; static embeddings have no limit of their own"
    said = route.backbone.max_seq_length
    if said is not None:
        source = route.backbone.sources.get("max_seq_length", "sentence_bert_config.json")
        return (said, source) if said <= limit else (limit, f"positions of the model ({source} says {said})")
    if files.max_len is not None and files.max_len < limit:
        return files.max_len, "tokenizer_config.json: model_max_length"
    return limit, "config.json: positions of the model"


def _abilities(spec: ModelSpec, plan: Plan, dim: int, max_len: int, loader: _Loader) -> Abilities:
    for name, size in (("truncate_dim", spec.truncate_dim), ("dimensions", loader.options.pooler.dimensions)):
        if size is not None and not 1 <= size <= dim:
            raise InvalidRequest(f"{name} is {size}, but the vectors have {dim} numbers", field=name)
    return Abilities(
        tasks=(Task.EMBED,),
        dimension=dim,
        default_dimension=loader.options.pooler.dimensions or spec.truncate_dim or dim,
        max_len=max_len,
        vocab_size=max(model.vocab_size for model in loader.backbones.values()),
        matryoshka=spec.matryoshka,
        prompts=spec.prompts,
        routes=tuple(name for name in plan.routes if name),
    )


def _make_info(location: Location, spec: ModelSpec, plan: Plan, abilities: Abilities, loader: _Loader) -> ModelInfo:
    backbone = next(iter(plan.routes.values())).backbone
    names = architectures_of(backbone.config) if isinstance(backbone, TransformerStage) else ("StaticEmbedding",)
    architecture = names[0] if names else str(backbone.config.get("model_type"))  # type: ignore[union-attr]
    info = ModelInfo(
        name=location.name,
        path=str(location.path),
        architecture=architecture,
        dtype=plan.dtype,
        device=plan.device,
        abilities=abilities,
        prompts=spec.prompts,
        default_prompt_name=spec.default_prompt_name,
        similarity=spec.similarity,
        num_parameters=loader.num_parameters,
        decisions=(Decision("checkpoint", str(location.path), location.source), *loader.log.decisions),
    )
    for decision in info.decisions:
        log.info("%s: %s (%s)", decision.name, decision.value, decision.source)
    return info


def _take(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], folder: Path) -> Tensor:
    if name not in tensors:
        raise WeightsMismatch(f"{folder.name}: the tensor '{name}' is missing")
    tensor = tensors.pop(name)
    if tuple(tensor.shape) != shape:
        raise WeightsMismatch(f"{folder.name}: '{name}' has shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor


def _finish(tensors: dict[str, Tensor], folder: Path) -> None:
    if tensors:
        raise WeightsMismatch(f"{folder.name}: unknown tensors {', '.join(sorted(tensors))}")
