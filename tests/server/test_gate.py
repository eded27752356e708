import httpx
import pytest

from forebay.core.config import ServerOptions
from forebay.server.gate import Paths
from tests.support.fake_engine import FakeEngine
from tests.support.live_server import serving

KEY = {"Authorization": "Bearer key"}


@pytest.fixture(scope="module")
def guarded():
    with serving(FakeEngine(), ServerOptions(api_key="key")) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "//health/"])
def test_open_paths(guarded, path):
    assert guarded.get(str(guarded.base_url) + path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/info"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("GET", "/models/fake/model"),
        ("POST", "/embeddings"),
        ("POST", "//v1//embeddings"),
        ("GET", "/nowhere"),
    ],
)
def test_guarded_paths(guarded, method, path):
    url = str(guarded.base_url) + path
    for headers in ({}, {"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        reply = guarded.request(method, url, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert guarded.request(method, url, headers=KEY).status_code != 401
    assert guarded.request(method, url, headers={"X-Api-Key": "key"}).status_code != 401


def test_request_ids(client):
    assert client.get("/livez", headers={"X-Request-Id": "my-id"}).headers["x-request-id"] == "my-id"
    assert client.get("/nowhere", headers={"X-Request-Id": "my-id"}).headers["x-request-id"] == "my-id"
    made = [
        client.get("/livez", headers={"X-Request-Id": bad}).headers["x-request-id"] for bad in ("", "a b", "x" * 201)
    ]
    made.append(client.get("/livez").headers["x-request-id"])
    assert len(set(made)) == 4
    assert all(len(request_id) == 32 for request_id in made)


def test_labels_are_of_a_bounded_set():
    def render(error: object) -> bytes:
        return b""

    paths = Paths({"/v1/models": render, "/v1/models/{id:path}": render, "/": render}, render)
    assert paths.label("/v1/models") == "/v1/models"
    assert paths.label("/v1/models/a/b") == "/v1/models/{id:path}"
    assert paths.label("/") == "/"
    assert paths.label("/v1/model") == "unknown"
