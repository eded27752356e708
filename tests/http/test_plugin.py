"""The plugin task over HTTP: data in, the IO processor's answer out, on the route that vLLM has for it."""

from collections.abc import Iterator

import httpx
import pytest

from forebay.api.async_engine import AsyncEngine
from forebay.core.config import ModelOptions
from tests.support.live_server import serving
from tests.support.plugin import install_plugin


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(install_plugin(tmp_path_factory.mktemp("plugin")))
        engine = AsyncEngine.load(ModelOptions("default", io_processor="similar"))
        with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client


@pytest.mark.parametrize("path", ["/pooling", "/v1/pooling"])
def test_the_processors_answer_comes_back(client, path):
    reply = client.post(path, json={"task": "plugin", "data": {"a": "x y", "b": "x y", "note": "n"}})
    body = reply.json()
    assert reply.status_code == 200
    assert body["data"]["similarity"] == pytest.approx(1, abs=1e-6)
    assert body["data"]["note"] == "n"
    assert {"request_id", "created_at"} <= body.keys()


def test_data_alone_means_the_plugin(client):
    assert client.post("/pooling", json={"data": {"a": "x", "b": "y"}}).status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": [1]}, "data"),
        ({"task": "plugin"}, "data"),
        ({"task": "embed", "data": {"a": "x", "b": "y"}}, "task"),
        ({"data": {"a": {"b": 1}, "b": None}}, "input[0]"),
    ],
)
def test_bad_data_is_a_400_that_names_the_field(client, body, field):
    reply = client.post("/pooling", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert client.post("/pooling", json={"data": {"a": "x", "b": "y"}}).status_code == 200


def test_texts_are_served_as_ever(client):
    assert len(client.post("/v1/embeddings", json={"input": "x"}).json()["data"][0]["embedding"]) == 384
    assert "plugin" in client.get("/v1/models").json()["data"][0]["tasks"]
