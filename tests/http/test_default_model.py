"""The whole walk over HTTP with the embedded model: the engine's own numbers, whatever comes, until the last signal."""

import base64
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest

from forebay.core.config import EngineLimits, ModelOptions, ServerOptions
from forebay.core.request import Request
from forebay.server.app import create_app
from tests.server.test_app import wait_until
from tests.server.test_robustness import BODIES, check_error, check_next
from tests.support.live_server import free_port, running

TEXTS = ["A dam holds water back.", "", "水", "😀 emoji", "long " * 400, "a\0b", "  spaces  "]


@pytest.fixture(scope="module")
def engine():
    from forebay.api.async_engine import AsyncEngine

    return AsyncEngine.load(ModelOptions(), EngineLimits())


@pytest.fixture(scope="module")
def client(engine) -> Iterator[httpx.Client]:
    app = create_app(ServerOptions(), lambda on_stage, observer: engine)
    with running(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def test_http_gives_the_engines_own_numbers(client, engine):
    expected = engine.submit(Request(items=TEXTS)).result()
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        reply = api.embeddings.create(model="default", input=TEXTS)
        floats = api.embeddings.create(model="default", input=TEXTS, encoding_format="float")
    np.testing.assert_array_equal(np.array([e.embedding for e in reply.data], dtype=np.float32), expected.rows)
    np.testing.assert_array_equal(np.array([e.embedding for e in floats.data], dtype=np.float32), expected.rows)
    assert reply.model == "all-MiniLM-L6-v2"
    assert reply.usage.prompt_tokens == expected.num_tokens.sum()
    assert reply.model_dump()["truncated"] == [4]


def test_a_long_text_with_truncation_forbidden(client):
    reply = client.post("/v1/embeddings", json={"input": ["short", "long " * 400], "truncate": False})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input[1]")
    assert "256" in error["message"]


def test_dimensions_are_of_unit_length(client):
    reply = client.post("/embeddings", json={"input": "x", "dimensions": 64, "encoding_format": "base64"})
    row = np.frombuffer(base64.b64decode(reply.json()["data"][0]["embedding"]), "<f4")
    assert row.shape == (64,)
    assert np.linalg.norm(row) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", BODIES)
def test_bodies(client, name):
    reply = client.post("/v1/embeddings", content=BODIES[name][0])
    if reply.status_code == 200:
        assert b"null" not in reply.content
    else:
        assert reply.status_code in (400, 404)
        check_error(reply)
    check_next(client)


def test_health_and_info(client):
    assert client.get("/health").json() == {"status": "healthy"}
    info = client.get("/info").json()
    assert (info["architecture"], info["abilities"]["max_len"]) == ("BertModel", 256)
    assert {"pooling", "dtype", "max_model_len"} <= {decision["name"] for decision in info["decisions"]}
    assert all(decision["source"] for decision in info["decisions"])


def test_a_client_that_leaves_frees_the_queue(client, engine):
    body = {"input": [f"{number} {'word ' * 200}" for number in range(1000)]}
    with pytest.raises(httpx.ReadTimeout):
        client.post("/embeddings", json=body, timeout=0.5)
    wait_until(lambda: engine.count_queued() == (0, 0))
    check_next(client)


def test_the_command_drains_and_ends():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "forebay", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            wait_until(lambda: '"ready"' in state(url))
            replies: list[httpx.Response] = []
            texts = [f"{number} {'word ' * 200}" for number in range(30)]
            thread = threading.Thread(
                target=lambda: replies.append(httpx.post(f"{url}/embeddings", json={"input": texts}, timeout=60))
            )
            thread.start()
            wait_until(lambda: "forebay_requests_under_way 2.0" in httpx.get(f"{url}/metrics").text)
            started.send_signal(signal.SIGTERM)
            thread.join(60)
            output, _ = started.communicate(timeout=60)
        finally:
            started.kill()
    assert replies[0].status_code == 200
    assert len(replies[0].json()["data"]) == 30
    assert started.returncode == 0
    assert "Traceback" not in output


def test_a_signal_while_the_weights_are_read_ends_it_cleanly():
    port = free_port()
    command = [sys.executable, "-m", "forebay", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            wait_until(lambda: "starting" not in state(f"http://127.0.0.1:{port}"))
            started.send_signal(signal.SIGTERM)
            output, _ = started.communicate(timeout=60)
        finally:
            started.kill()
    assert started.returncode == 0, output


def state(url: str) -> str:
    try:
        return httpx.get(f"{url}/readyz").text
    except httpx.TransportError:
        time.sleep(0.05)
        return "starting"
