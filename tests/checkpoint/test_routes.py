"""Routers: both file names, the choice of a route against sentence-transformers' own, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.checkpoint.pipeline import RouterStage, Routes, expand_routes, read_pipeline
from forebay.core.errors import UnsupportedCheckpoint
from tests.checkpoint.checkpoints import OLD, TRANSFORMER, write_checkpoint, write_json

TYPES = {
    "query_0_Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "query_1_Pooling": OLD + "Pooling",
    "document_0_StaticEmbedding": OLD + "StaticEmbedding",
    "document_1_Dropout": OLD + "Dropout",
}
STRUCTURE = {
    "query": ["query_0_Transformer", "query_1_Pooling"],
    "document": ["document_0_StaticEmbedding", "document_1_Dropout"],
}
MODULES = [("", OLD + "Router", None), ("1_Normalize", OLD + "Normalize", None)]


def write_router(root: Path, *, name: str = "router_config.json", **fields: Any) -> Path:
    write_checkpoint(root, MODULES)
    write_json(root / name, {"types": TYPES, "structure": STRUCTURE, "parameters": {}} | fields)
    write_json(root / "query_0_Transformer" / "config.json", TRANSFORMER)
    write_json(root / "query_1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write_json(root / "document_0_StaticEmbedding" / "tokenizer.json", {})
    return root


def expand(root: Path) -> Routes:
    return expand_routes(read_pipeline(root))


def names_of(routes: Routes) -> dict[str, list[str]]:
    return {name: [type(stage).__name__ for stage in stages] for name, stages in routes.stages.items()}


def test_without_router(tmp_path: Path) -> None:
    stages = read_pipeline(write_checkpoint(tmp_path, [("", OLD + "Transformer", None), ("1_P", OLD + "Pooling", {})]))
    assert expand_routes(stages) == Routes({"": stages}, "", {})


@pytest.mark.parametrize("name", ["router_config.json", "config.json"])
def test_one_straight_pipeline_a_route(tmp_path: Path, name: str) -> None:
    routes = expand(write_router(tmp_path, parameters={"default_route": "document"}, name=name))
    assert names_of(routes) == {
        "query": ["TransformerStage", "PoolingStage", "NormalizeStage"],
        "document": ["StaticEmbeddingStage", "NormalizeStage"],
    }
    assert routes.default == "document"
    assert routes.by_input_type == {"query": "query", "document": "document"}


@pytest.mark.parametrize("class_name", ["Router", "Asym"])
def test_router_after_a_shared_backbone(tmp_path: Path, class_name: str) -> None:
    modules = [("", OLD + "Transformer", None), ("1_P", OLD + "Pooling", {}), ("2_A", OLD + class_name, None)]
    write_checkpoint(tmp_path, modules)
    dense = {"in_features": 8, "out_features": 4}
    types = {"query_0": OLD + "Dense", "doc_0": OLD + "Dense"}
    content = {"types": types, "structure": {"query": ["query_0"], "doc": ["doc_0"]}, "parameters": {}}
    write_json(tmp_path / "2_A" / "config.json", content)
    for module in types:
        write_json(tmp_path / "2_A" / module / "config.json", dense)
    routes = expand(tmp_path)
    assert list(names_of(routes).values()) == [["TransformerStage", "PoolingStage", "DenseStage"]] * 2
    assert routes.default == "query"
    assert routes.stages["query"][0] is routes.stages["doc"][0]


def test_modules_shared_by_routes_are_one_stage(tmp_path: Path) -> None:
    structure = STRUCTURE | {"other": STRUCTURE["query"]}
    routes = expand(write_router(tmp_path, structure=structure))
    assert routes.stages["other"][0] is routes.stages["query"][0]


@pytest.mark.parametrize(
    ("parameters", "default"),
    [
        ({}, "query"),
        ({"allow_empty_key": True}, "query"),
        ({"allow_empty_key": False}, None),
        ({"default_route": None, "allow_empty_key": False}, None),
        ({"default_route": "document", "allow_empty_key": False}, "document"),
    ],
)
def test_default_route(tmp_path: Path, parameters: dict[str, Any], default: str | None) -> None:
    assert expand(write_router(tmp_path, parameters=parameters)).default == default


MAPPINGS = [
    {},
    {"('query', None)": "document"},
    {"('search', None)": "query", "('passage', 'text')": "document", "('image', 'image')": "document"},
    {"('query', 'text')": "query", "('query', None)": "document"},
    {"(None, 'text')": "document"},
    {"(None, None)": "document", "('query', 'image')": "query"},
    {"('document', ('text', 'image'))": "document", "(None, 'image')": "query"},
]


@pytest.mark.parametrize("mappings", MAPPINGS)
@pytest.mark.parametrize("default", [None, "document"])
def test_routes_are_those_of_sentence_transformers(
    tmp_path: Path, mappings: dict[str, str], default: str | None
) -> None:
    from sentence_transformers.base.modules.router import Router
    from torch.nn import Identity

    write_router(tmp_path, parameters={"default_route": default, "route_mappings": mappings})
    (router, _), routes = read_pipeline(tmp_path), expand(tmp_path)
    assert isinstance(router, RouterStage)
    reference = Router({"query": [Identity()], "document": [Identity()]}, default, route_mappings=dict(router.mappings))
    assert routes.default == reference._resolve_route(None, "text")
    for task, route in routes.by_input_type.items():
        assert route == reference._resolve_route(task, "text"), task
    assert {"query", "document"} <= set(routes.by_input_type)
    assert ("search" in routes.by_input_type) == ("('search', None)" in mappings)
    assert "image" not in routes.by_input_type


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"structure": {}}, "'structure' has no routes"),
        ({"structure": {"query": []}}, "'query' names no module"),
        ({"structure": {"query": ["lost"]}}, "'query' names 'lost'"),
        ({"structure": {"query": [["lost"]]}}, "'query' names a list"),
        ({"structure": {"query": "query_0_Transformer"}}, "'query' is 'query_0_Transformer', expected a list"),
        ({"types": {"../x": OLD + "Pooling"}}, "is '../x', expected a folder inside"),
        ({"types": {"x": OLD + "CNN"}}, f"'x': the class '{OLD}CNN' is not supported"),
        ({"types": {"x": "custom.Pooling"}}, "the class 'custom.Pooling' is not part of sentence-transformers"),
        ({"types": []}, "'types' is a list, expected an object"),
        ({"parameters": {"default_route": "lost"}}, "leads to 'lost'; routes are query, document"),
        ({"parameters": {"route_mappings": {"('a', None)": "lost"}}}, "leads to 'lost'"),
        ({"parameters": {"route_mappings": {"__import__('os')": "query"}}}, "is not a pair"),
        ({"parameters": {"route_mappings": {"('a', 'b', 'c')": "query"}}}, "is not a pair"),
        ({"parameters": {"route_mappings": {"(1, None)": "query"}}}, "is not a pair"),
        ({"parameters": {"route_mappings": {"('a', (None, 3))": "query"}}}, "is not a pair"),
    ],
)
def test_not_understood(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    write_router(tmp_path, **fields)
    with pytest.raises(UnsupportedCheckpoint) as caught:
        read_pipeline(tmp_path)
    assert words in str(caught.value)
    assert str(caught.value).startswith("router_config.json")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["Pooling"], "module 0 is a Pooling; expected a Transformer, StaticEmbedding or SparseStaticEmbedding first"),
        (["Transformer", "Transformer"], "module 1 is a Transformer"),
        (
            ["Transformer", "Normalize"],
            "module 1 (Normalize) reads 'sentence_embedding', which no earlier module writes",
        ),
        (["Transformer", "LayerNorm", "Pooling"], "module 1 (LayerNorm) reads 'sentence_embedding'"),
        (["Router"], "more than one Router"),
    ],
)
def test_pipelines_that_cannot_run(tmp_path: Path, names: list[str], words: str) -> None:
    configs = {"Pooling": {}, "LayerNorm": {"dimension": 8}, "Transformer": TRANSFORMER}
    modules = [(f"{i}_{name}", OLD + name, configs.get(name)) for i, name in enumerate(names)]
    if names == ["Router"]:
        inner = {"types": {"x": OLD + "Dropout"}, "structure": {"a": ["x"]}, "parameters": {}}
        outer = {"types": {"inner": OLD + "Router"}, "structure": {"a": ["inner"]}, "parameters": {}}
        write_json(tmp_path / "0_Router" / "router_config.json", outer)
        write_json(tmp_path / "0_Router" / "inner" / "router_config.json", inner)
    write_checkpoint(tmp_path, modules)
    with pytest.raises(UnsupportedCheckpoint) as caught:
        expand(tmp_path)
    assert words in str(caught.value)


def test_empty_route(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [("", OLD + "Dropout", None)])
    with pytest.raises(UnsupportedCheckpoint, match="has no modules that compute"):
        expand(tmp_path)
