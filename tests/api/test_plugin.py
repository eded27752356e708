"""IO processors from an installed package: found by name, run around the engine, refused clearly when broken."""

import asyncio

import pytest

from forebay import AsyncEngine, ModelOptions, PoolingModel, PoolingParams, Task
from forebay.core.errors import InvalidRequest, LoadError
from tests.support.plugin import install_plugin


@pytest.fixture
def plugin_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(install_plugin(tmp_path))


@pytest.fixture
def model(plugin_path):
    with PoolingModel("default", io_processor="similar") as loaded:
        yield loaded


def test_data_goes_through_parse_engine_and_render(model):
    answer = model.plugin({"a": "a cat", "b": "a cat", "note": "same"})
    assert answer["similarity"] == pytest.approx(1, abs=1e-6)
    assert (answer["note"], answer["model"]) == ("same", "all-MiniLM-L6-v2")
    vectors = model.embed(["a cat", "an aeroplane"]).embeddings
    other = model.plugin({"a": "a cat", "b": "an aeroplane"})["similarity"]
    assert other == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)


def test_the_task_is_listed_and_takes_data_only(model):
    assert Task.PLUGIN in model.info.abilities.tasks
    with pytest.raises(InvalidRequest, match="takes 'data'"):
        model.encode("text", task="plugin")
    assert model.embed("text").embeddings.shape == (1, 384)


def test_bad_data_is_the_callers_error(model):
    with pytest.raises(InvalidRequest, match="'a' and 'b'"):
        model.plugin([1, 2])


def test_asyncio(plugin_path):
    engine = AsyncEngine.load(ModelOptions("default", io_processor="similar"))
    try:

        async def ask():
            return await asyncio.gather(*(engine.run_plugin({"a": "x", "b": "x"}) for _ in range(20)))

        assert [answer["similarity"] for answer in asyncio.run(ask())] == pytest.approx([1.0] * 20, abs=1e-6)
    finally:
        engine.close()


def test_a_model_without_a_processor_says_how_to_get_one():
    with PoolingModel("default") as plain, pytest.raises(InvalidRequest, match="--io-processor"):
        plain.plugin({})


def test_a_processor_may_be_given_as_a_class(plugin_path):
    from forebay_similar import Similar

    with PoolingModel("default", io_processor=Similar) as loaded:
        assert loaded.plugin({"a": "b", "b": "b"})["similarity"] == pytest.approx(1, abs=1e-6)


def test_a_processor_that_returns_nonsense_is_told_so(plugin_path):
    with (
        PoolingModel("default", io_processor="broken") as loaded,
        pytest.raises(InvalidRequest, match="expected Parsed"),
    ):
        loaded.plugin({})


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "installed: broken, gone"), ("gone", "can't be imported"), ("no-class", "no subclass")],
)
def test_what_can_not_be_loaded_is_named(plugin_path, name, message):
    with pytest.raises(LoadError, match=message):
        PoolingModel("default", io_processor=name)


def test_parameters_of_its_request_are_checked_as_any_others(model):
    with pytest.raises(InvalidRequest, match="dimensions"):
        model.encode("x", task="embed", pooling=PoolingParams(dimensions=4096))
