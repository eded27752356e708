"""Each decision has a source, and what does not fit is refused by name. Pure: no files, no weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.checkpoint.pipeline import (
    DenseStage,
    LayerNormStage,
    NormalizeStage,
    PoolingStage,
    Routes,
    Stage,
    StaticEmbeddingStage,
    TransformerStage,
    WeightedLayerPoolingStage,
)
from forebay.checkpoint.spec import ModelSpec
from forebay.checkpoint.stages import SENTENCE, TOKENS
from forebay.core.config import ModelOptions, PoolerConfig
from forebay.core.errors import ForebayError, InvalidRequest, UnsupportedCheckpoint
from forebay.loading.plan import Plan, RoutePlan, make_plan

PATH = Path("checkpoint")
BERT = TransformerStage(PATH, {"model_type": "bert", "architectures": ["BertModel"]}, None, False, {})
MEAN = PoolingStage(("mean",), True, "1_Pooling/config.json")
NORMALIZE = NormalizeStage(SENTENCE)
LAYERS = WeightedLayerPoolingStage(PATH, 1, 2)
LAYER_NORM = LayerNormStage(PATH, 8)


def dense(feature: str = SENTENCE) -> DenseStage:
    return DenseStage(PATH, 8, 8, True, "torch.nn.modules.activation.Tanh", feature, feature, False)


def bert(**config: Any) -> TransformerStage:
    return replace(BERT, config={**BERT.config, **config})


def spec_of(*stages: Stage, **more: Any) -> ModelSpec:
    values: dict[str, Any] = {
        "path": PATH,
        "routes": Routes({"": stages}, ""),
        "prompts": {},
        "default_prompt_name": None,
        "similarity": "cosine",
        "truncate_dim": None,
        "matryoshka": None,
        "sources": {"pipeline": "modules.json", "similarity": "a file", "truncate_dim": "another file"},
    }
    return ModelSpec(**{**values, **more})


def plan_of(spec: ModelSpec, *, has_cuda: bool = False, pooler: dict[str, Any] | None = None, **options: Any) -> Plan:
    return make_plan(spec, ModelOptions(pooler=PoolerConfig(**pooler or {}), **options), has_cuda=has_cuda)


def route_of(*stages: Stage, **pooler: Any) -> RoutePlan:
    return plan_of(spec_of(*stages), pooler=pooler).routes[""]


def said(plan: Plan, name: str) -> tuple[str, str]:
    """A decision's value and source."""
    (decision,) = [decision for decision in plan.decisions if decision.name == name]
    return decision.value, decision.source


@pytest.mark.parametrize(
    ("modes", "methods"),
    [
        (("cls",), ("CLS",)),
        (("lasttoken",), ("LAST",)),
        (("weightedmean", "max"), ("WEIGHTED", "MAX")),
        (("mean", "mean_sqrt_len_tokens"), ("MEAN", "MEAN_SQRT_LEN")),
    ],
)
def test_pooling_is_the_checkpoints(modes: tuple[str, ...], methods: tuple[str, ...]) -> None:
    plan = plan_of(spec_of(BERT, PoolingStage(modes, False, "1_Pooling/config.json")))
    assert plan.routes[""].methods == methods
    assert plan.routes[""].include_prompt is False
    assert said(plan, "pooling") == (" + ".join(methods), "1_Pooling/config.json")


def test_pooling_is_the_users_word() -> None:
    plan = plan_of(spec_of(BERT, MEAN), pooler={"pooling_type": "cls+last"})
    assert plan.routes[""].methods == ("CLS", "LAST")
    assert said(plan, "pooling") == ("CLS + LAST", "user")
    assert route_of(BERT, pooling_type="MAX").methods == ("MAX",)


def test_a_static_embedding_is_averaged() -> None:
    plan = plan_of(spec_of(StaticEmbeddingStage(PATH)))
    assert plan.routes[""].methods == ("MEAN",)
    assert said(plan, "pooling")[0] == "MEAN"


def test_stages_find_their_places() -> None:
    route = route_of(BERT, LAYERS, dense(TOKENS), NormalizeStage(TOKENS), MEAN, dense(), LAYER_NORM, NORMALIZE)
    assert route.layer_mix == LAYERS
    assert route.token_stages == (dense(TOKENS), NormalizeStage(TOKENS))
    assert route.vector_stages == (dense(), LAYER_NORM)
    assert route.is_normalized


@pytest.mark.parametrize(
    ("behind", "vector_stages", "is_normalized"),
    [
        ((), (), False),
        ((NORMALIZE,), (), True),
        ((NORMALIZE, dense()), (NORMALIZE, dense()), False),
        ((NORMALIZE, NORMALIZE), (NORMALIZE,), True),
    ],
)
def test_only_a_last_normalize_is_left_to_the_head(
    behind: tuple[Stage, ...], vector_stages: tuple[Stage, ...], is_normalized: bool
) -> None:
    route = route_of(BERT, MEAN, *behind)
    assert (route.vector_stages, route.is_normalized) == (vector_stages, is_normalized)


@pytest.mark.parametrize(
    ("stages", "name"),
    [
        ((BERT,), "Pooling"),
        ((BERT, dense()), "Pooling"),
        ((BERT, MEAN, MEAN), "Pooling"),
        ((BERT, MEAN, LAYERS), "WeightedLayerPooling"),
        ((BERT, dense(TOKENS), LAYERS, MEAN), "WeightedLayerPooling"),
        ((BERT, MEAN, dense(TOKENS)), "Dense"),
        ((BERT, MEAN, NormalizeStage(TOKENS)), "Normalize"),
        ((BERT, LAYER_NORM, MEAN), "LayerNorm|Pooling"),
    ],
)
def test_a_module_out_of_place_is_named(stages: tuple[Stage, ...], name: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=name):
        route_of(*stages)


@pytest.mark.parametrize(
    ("stored", "has_cuda", "options", "dtype"),
    [
        ("float32", False, {}, "float32"),
        ("bfloat16", False, {}, "float32"),
        ("float16", False, {}, "float32"),
        ("bfloat16", True, {}, "bfloat16"),
        ("float16", True, {}, "float32"),
        (None, True, {}, "float32"),
        ("bfloat16", True, {"device": "cpu"}, "float32"),
        ("float32", False, {"dtype": "bfloat16"}, "bfloat16"),
        ("float32", True, {"dtype": "float16"}, "float16"),
        ("float32", True, {"dtype": "int8", "device": "cpu"}, "int8"),
    ],
)
def test_dtype(stored: str | None, has_cuda: bool, options: dict[str, Any], dtype: str) -> None:
    plan = plan_of(spec_of(bert(torch_dtype=stored), MEAN), has_cuda=has_cuda, **options)
    assert plan.dtype == said(plan, "dtype")[0] == dtype
    assert (said(plan, "dtype")[1] == "user") == ("dtype" in options)


def test_int8_is_for_the_cpu() -> None:
    with pytest.raises(InvalidRequest, match="int8 is computed on CPU only, not on cuda; use bfloat16 or float16"):
        plan_of(spec_of(BERT, MEAN), has_cuda=True, dtype="int8")


@pytest.mark.parametrize(
    ("wish", "has_cuda", "device"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda:1", True, "cuda:1")],
)
def test_device(wish: str, has_cuda: bool, device: str) -> None:
    plan = plan_of(spec_of(BERT, MEAN), has_cuda=has_cuda, device=wish)
    assert plan.device == said(plan, "device")[0] == device


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "tpu"}, "device"),
        ({"device": "cuda"}, "device"),
        ({"device": "cuda:0"}, "device"),
        ({"device": "cpu:0"}, "device"),
        ({"device": "cuda:x", "has_cuda": True}, "device"),
        ({"device": ""}, "device"),
        ({"dtype": "float16"}, "dtype"),
        ({"dtype": "half"}, "dtype"),
        ({"dtype": "int4"}, "dtype"),
        ({"dtype": ""}, "dtype"),
        ({"runner": "generate"}, "runner"),
        ({"convert": "reward"}, "convert"),
        ({"pooler": {"pooling_type": "AVERAGE"}}, "pooler_config"),
    ],
    ids=str,
)
def test_what_can_not_be_done_names_its_option(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan_of(spec_of(BERT, MEAN), **options)
    assert caught.value.field == field


def test_a_static_embedding_takes_no_pooling_type() -> None:
    with pytest.raises(InvalidRequest, match="averaged"):
        plan_of(spec_of(StaticEmbeddingStage(PATH)), pooler={"pooling_type": "MAX"})


def test_each_route_has_its_plan() -> None:
    routes = Routes({"query": (BERT, MEAN), "document": (BERT, PoolingStage(("cls",), True, "x"))}, "document")
    plan = plan_of(spec_of(routes=routes))
    assert {name: route.methods for name, route in plan.routes.items()} == {"query": ("MEAN",), "document": ("CLS",)}
    assert said(plan, "pooling of route 'query'")[0] == "MEAN"
    assert said(plan, "default route")[0] == "document"


def test_every_decision_has_a_source() -> None:
    spec = spec_of(BERT, MEAN, NORMALIZE, truncate_dim=4)
    assert all(decision.value and decision.source for decision in plan_of(spec).decisions)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "T5ForConditionalGeneration", "GPT2LMHeadModel"])
def test_a_model_that_generates_is_refused_with_the_remedy(name: str) -> None:
    spec = replace(spec_of(bert(architectures=[name]), MEAN), is_default_pipeline=True)
    with pytest.raises(ForebayError, match="convert 'embed'"):
        plan_of(spec)
