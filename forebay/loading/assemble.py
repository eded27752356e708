"""Plan → LoadedModel: the text side, the pipelines and the report, joined once."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer

from forebay.checkpoint.locate import Location, locate
from forebay.checkpoint.pipeline import StaticEmbeddingStage, TransformerStage
from forebay.checkpoint.spec import ModelSpec, architectures_of, read_spec
from forebay.core.config import ModelOptions, WindowScores
from forebay.core.errors import InvalidRequest, UnsupportedCheckpoint
from forebay.core.info import Decision, ModelInfo
from forebay.core.params import Abilities, PoolingParams
from forebay.core.tasks import DEFAULT_ORDER, SCORE_TYPE_OF_TASK, ScoreType, Task, parse_task
from forebay.loading.late import make_sides
from forebay.loading.modules import Loader
from forebay.loading.plan import Log, Plan, RoutePlan, make_plan
from forebay.loading.poolers import Built, build_pipeline
from forebay.loading.reranker import answer_ids, token_id
from forebay.models.base import Encoder
from forebay.models.decoder import Decoder
from forebay.pooling.pooler import Pipeline
from forebay.text.families import load_prompts
from forebay.text.files import TokenizerFiles, load_tokenizer
from forebay.text.late import LateSide
from forebay.text.prompts import Prompts
from forebay.text.tokenizer import TextTokenizer, lowercase_first
from forebay.text.windows import Windows

log = logging.getLogger(__name__)

# A static embedding reads texts of any length; so many tokens bound the memory that one text may take.
STATIC_MAX_LEN = 131_072


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run. ``texts`` and ``pipelines`` are by route; ``default_route`` None: a request names it.

    ``window_scores`` is how the scores of a long document's windows become one.
    """

    info: ModelInfo
    device: torch.device
    prompts: Prompts
    texts: Mapping[str, TextTokenizer]
    pipelines: Mapping[str, Pipeline]
    default_route: str | None
    route_of_input_type: Mapping[str, str]
    window_scores: WindowScores = "max"


def load_model(options: ModelOptions, on_stage: Callable[[str], None]) -> LoadedModel:
    """Find, resolve and load a checkpoint. Raises LoadError or InvalidRequest; never half a model."""
    options.check()
    on_stage("locating")
    location = locate(options.model, revision=options.revision, cache_dir=options.cache_dir)
    spec = read_spec(location.path)
    if options.prompts is not None:
        sources = {**spec.sources, "prompts": f"user: the family {options.prompts}"}
        spec = replace(spec, prompts={**spec.prompts, **load_prompts(options.prompts)}, sources=sources)
    plan = make_plan(spec, options, has_cuda=torch.cuda.is_available())
    on_stage("loading weights")
    loader = Loader(plan, options, Log(list(plan.decisions)))
    texts: dict[str, TextTokenizer] = {}
    built: dict[str, Built] = {}
    for name, route in plan.routes.items():
        files = load_tokenizer(route.backbone.folder, _ends(route))
        route = settle(route, files.tokenizer)  # noqa: PLW2901  (the same route, known completely)
        model = loader.backbone(route, files.tokenizer.get_vocab_size())
        label = f" of route '{name}'" if name else ""
        late = make_sides(spec.late, model, files, label, loader.log)
        texts[name] = _make_text(loader, route, model, files, label, late)
        built[name] = build_pipeline(loader, route, model, spec, files.marker_ids)
    abilities = _abilities(spec, built, texts, loader)
    return LoadedModel(
        info=_make_info(location, spec, plan, abilities, loader),
        device=loader.device,
        prompts=Prompts(spec.prompts, spec.default_prompt_name),
        texts=texts,
        pipelines={name: route.pipeline for name, route in built.items()},
        default_route=spec.routes.default,
        route_of_input_type=spec.routes.by_input_type,
        window_scores=options.pooler.chunk_scores or "max",
    )


def _make_text(
    loader: Loader,
    route: RoutePlan,
    model: Encoder,
    files: TokenizerFiles,
    label: str,
    late: Mapping[str, LateSide] | None,
) -> TextTokenizer:
    loader.log.say(f"tokenizer{label}", type(files.tokenizer.model).__name__, files.source)
    for end in files.ends:
        loader.log.say(f"special tokens{label}", end, "what the checkpoint's settings ask for")
    if route.reranker is not None:
        loader.log.say(f"template{label}", route.reranker.name, route.reranker.source)
    max_len, source = _choose_max_len(route, model, files, loader.options)
    loader.log.say(f"max_model_len{label}", max_len, source)
    if isinstance(route.backbone, TransformerStage) and route.backbone.do_lower_case:
        lowercase_first(files.tokenizer)
        loader.log.say(f"do_lower_case{label}", True, route.backbone.sources.get("do_lower_case", "checkpoint"))
    is_transformer = isinstance(route.backbone, TransformerStage)
    return TextTokenizer(
        files.tokenizer,
        max_len=max_len,
        vocab_size=model.vocab_size,
        side=files.side,
        has_specials=is_transformer,
        skips_prompt=not route.include_prompt,
        unknown_id=files.unknown_id,
        template=None if route.reranker is None else route.reranker.template,
        frames_once=isinstance(model, Decoder),
        num_types=model.num_types if files.has_types else 1,
        windows=_choose_windows(loader, max_len, label),
        late=late,
        media_ids=model.media_ids,
    )


def _ends(route: RoutePlan) -> Mapping[str, bool]:
    return route.backbone.ends if isinstance(route.backbone, TransformerStage) else {}


def settle(route: RoutePlan, tokenizer: Tokenizer) -> RoutePlan:
    """Give a route the ids of the tokens that it names."""
    if route.kind == "yes_no" and route.reranker is not None:
        route = replace(route, rows=answer_ids(route.reranker, tokenizer))
    if route.step_tag is not None:
        route = replace(route, step_tag=token_id(tokenizer, route.step_tag))
    return route


def _choose_windows(loader: Loader, max_len: int, label: str) -> Windows:
    overrides = loader.options.pooler
    if not overrides.enable_chunked_processing:
        return Windows()
    overlap = overrides.chunk_overlap or 0
    if 2 * overlap > max_len:
        raise InvalidRequest(
            f"pooler config: chunk_overlap is {overlap}, but windows have {max_len} tokens; give at most half of that",
            field="pooler_config",
        )
    windows = Windows(overrides.max_embed_len or Windows().most, overlap, is_default=True)
    loader.log.say(f"chunked processing{label}", f"windows of {max_len}, up to {windows.most} tokens", "user")
    return windows


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
    said = route.backbone.max_seq_length if isinstance(route.backbone, TransformerStage) else None
    if said is not None and isinstance(route.backbone, TransformerStage):
        source = route.backbone.sources.get("max_seq_length", "sentence_bert_config.json")
        return (said, source) if said <= limit else (limit, f"positions of the model ({source} says {said})")
    if files.max_len is not None and files.max_len < limit:
        return files.max_len, "tokenizer_config.json: model_max_length"
    return limit, "config.json: positions of the model"


def _abilities(
    spec: ModelSpec, built: Mapping[str, Built], texts: Mapping[str, TextTokenizer], loader: Loader
) -> Abilities:
    dims = {route.dimension for route in built.values()}
    task_sets = [set(route.pipeline.poolers) for route in built.values()]
    tasks = tuple(task for task in Task if all(task in tasks for tasks in task_sets))
    if len(dims) > 1 or not tasks:
        raise UnsupportedCheckpoint(
            f"the routes {', '.join(built)} give vectors of different sizes or kinds, which can't be compared"
        )
    dim = dims.pop()
    overrides = loader.options.pooler
    if spec.truncate_dim is not None and spec.truncate_dim > dim > 0:
        raise UnsupportedCheckpoint(
            f"config_sentence_transformers.json: truncate_dim is {spec.truncate_dim}, but the vectors have {dim}"
        )
    default_task = _choose_default(tasks, overrides.task, loader.log)
    labels = next(iter(built.values())).labels
    abilities = Abilities(
        tasks=tasks,
        default_task=default_task,
        dimension=dim,
        default_dimension=overrides.dimensions or spec.truncate_dim or dim,
        max_len=max(text.max_len for text in texts.values()),
        vocab_size=max(model.vocab_size for model in loader.backbones.values()),
        matryoshka=spec.matryoshka,
        prompts=spec.prompts,
        routes=tuple(spec.routes.by_input_type),
        labels=labels,
        is_normalized=all(route.is_normalized for route in built.values()),
        is_mean_score=any(route.pipeline.is_mean_score for route in built.values()),
        token_dimension=_token_dimension(built, overrides.dimensions or spec.truncate_dim or dim),
        score_type=_choose_score_type(default_task, len(labels), loader.log),
        takes_instruction=any(text.takes_instruction for text in texts.values()),
    )
    if overrides.dimensions is not None:
        PoolingParams(dimensions=overrides.dimensions).check(abilities)
    return abilities


def _token_dimension(built: Mapping[str, Built], size: int) -> int:
    """What a token's vector has: as many numbers as an embedding, where its head is not another."""
    first = next(iter(built.values()))
    if Task.TOKEN_EMBED not in first.pipeline.poolers:
        return 0
    return size if first.token_size is None else first.token_size


def _choose_default(tasks: tuple[Task, ...], wish: str | None, log: Log) -> Task:
    log.say("tasks", ", ".join(tasks), "heads of the checkpoint")
    if wish is None:
        return next(task for task in DEFAULT_ORDER if task in tasks)
    task = parse_task(wish)
    if task not in tasks:
        raise InvalidRequest(
            f"pooler config: task is '{wish}', but this model has {', '.join(tasks)}", field="pooler_config"
        )
    log.say("default task", task, "user")
    return task


def _choose_score_type(task: Task, num_labels: int, log: Log) -> ScoreType | None:
    """How texts are compared: by what the default task makes of them; a classifier needs exactly one label."""
    score_type = SCORE_TYPE_OF_TASK.get(task)
    if score_type is ScoreType.CROSS_ENCODER and num_labels != 1:
        score_type = None
    log.say("scores", score_type or "none", f"the default task, {task}")
    return score_type


def _similarity(spec: ModelSpec, abilities: Abilities) -> str:
    """How texts are compared: embeddings as the checkpoint says, token vectors by the sum or the mean of the best."""
    if abilities.score_type is not ScoreType.LATE_INTERACTION or spec.late is not None:
        return spec.similarity
    return "meanmaxsim" if spec.extra_heads else "maxsim"


def _make_info(location: Location, spec: ModelSpec, plan: Plan, abilities: Abilities, loader: Loader) -> ModelInfo:
    backbone = next(iter(plan.routes.values())).backbone
    if isinstance(backbone, TransformerStage):
        names = architectures_of(backbone.config) or (str(backbone.config.get("model_type")),)
    else:
        names = (type(backbone).__name__.removesuffix("Stage"),)
    info = ModelInfo(
        name=location.name,
        path=str(location.path),
        architecture=names[0],
        dtype=plan.dtype,
        device=plan.device,
        abilities=abilities,
        prompts=spec.prompts,
        default_prompt_name=spec.default_prompt_name,
        similarity=_similarity(spec, abilities),
        num_parameters=loader.num_parameters,
        decisions=(Decision("checkpoint", str(location.path), location.source), *loader.log.decisions),
    )
    for decision in info.decisions:
        log.info("%s: %s (%s)", decision.name, decision.value, decision.source)
    return info
