"""The walk of a request through a live server: limits, time, clients that leave, states of the service."""

import gzip
import logging
import threading
import time

import httpx
import pytest

from forebay.core.config import ServerOptions
from forebay.server import app as app_module
from forebay.server.app import create_app
from forebay.server.dialects import DIALECTS
from tests.support.fake_engine import FakeEngine
from tests.support.live_server import exchange, serving


def wait_until(condition) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_every_operation_is_served_with_and_without_v1(client):
    for dialect in DIALECTS:
        for path in dialect.routes():
            assert client.post(path, json={}).status_code == 400
            assert path.startswith("/v1") or f"/v1{path}" in dialect.routes()


def test_timing_headers(client):
    reply = client.post("/embeddings", json={"input": "x"})
    names = ("x-tokenization-time", "x-queue-time", "x-inference-time")
    assert [reply.headers[name] for name in names] == ["1.0", "2.0", "3.0"]


def test_large_bodies_and_replies_are_worked_at_on_threads(client, monkeypatch):
    def post(items: list[str]) -> list[bool]:
        seen: list[bool] = []
        original = app_module.asyncio.to_thread

        async def to_thread(work):
            seen.append(True)
            return await original(work)

        with monkeypatch.context() as patch:
            patch.setattr(app_module.asyncio, "to_thread", to_thread)
            assert len(client.post("/embeddings", json={"input": items}).json()["data"]) == len(items)
        return seen

    assert len(post(["x"])) == 0
    assert len(post(["x"] * (app_module.LARGE_REPLY // 8))) == 1
    assert len(post(["x" * app_module.LARGE_BODY])) == 1


def test_the_body_limit_holds_for_announced_chunked_and_packed_bodies():
    with serving(FakeEngine(), ServerOptions(max_body_bytes=1000)) as url, httpx.Client(base_url=url) as client:
        body = b'{"input":"' + b"x" * 1000 + b'"}'
        for content, headers in (
            (body, {}),
            (iter([body[:500], body[500:]]), {}),
            (gzip.compress(body), {"content-encoding": "gzip"}),
        ):
            reply = client.post("/v1/embeddings", content=content, headers=headers)
            assert reply.status_code == 413
            assert reply.json()["error"]["code"] == "payload_too_large"
            assert client.post("/v1/embeddings", json={"input": "x"}).status_code == 200


def test_a_request_that_takes_too_long():
    engine = FakeEngine(delay=60)
    with serving(engine, ServerOptions(request_timeout=0.05)) as url:
        reply = httpx.post(f"{url}/embeddings", json={"input": "x"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert engine.requests[0].deadline is not None
        wait_until(lambda: engine.num_cancelled == 1)


def test_a_body_that_does_not_come():
    with serving(FakeEngine(), ServerOptions(request_timeout=0.05)) as url:
        head = b"POST /embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        with httpx.Client(base_url=url) as client:
            assert b" 408 " in exchange(client, head + b'{"input":')


def test_a_client_that_leaves_takes_its_work_along():
    engine = FakeEngine(delay=60)
    with serving(engine) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/embeddings", json={"input": ["x", "y"]}, timeout=0.2)
        wait_until(lambda: engine.num_cancelled == 1)
        wait_until(lambda: "forebay_cancelled_items_total 2.0" in httpx.get(f"{url}/metrics").text)
        assert 'status="499"} 1.0' in httpx.get(f"{url}/metrics").text


def test_overload():
    engine = FakeEngine(overloaded=True)
    with serving(engine) as url:
        reply = httpx.post(f"{url}/embeddings", json={"input": "x"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert reply.json()["error"]["type"] == "rate_limit_error"


def loading_app(go: threading.Event, engine: FakeEngine):
    def load(on_stage, observer):
        on_stage("loading weights")
        go.wait(30)
        return engine

    return create_app(ServerOptions(), load)  # type: ignore[arg-type]


def test_while_loading_and_while_draining(monkeypatch):
    from tests.support import live_server

    monkeypatch.setattr(live_server, "wait_until_ready", lambda url: None)
    go, engine = threading.Event(), FakeEngine()
    app = loading_app(go, engine)
    with live_server.running(app) as url, httpx.Client(base_url=url) as client:
        wait_until(lambda: client.get("/readyz").json().get("stage") == "loading weights")
        assert client.get("/readyz").status_code == client.get("/health").status_code == 503
        assert client.get("/livez").status_code == client.get("/metrics").status_code == 200
        for reply in (
            client.post("/embeddings", json={"input": "x"}),
            client.get("/v1/models"),
            client.get("/v1/models/any"),
            client.get("/info"),
        ):
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
            assert reply.headers["retry-after"] == "2"
        assert client.post("/nowhere", json={}).status_code == 404
        go.set()
        wait_until(lambda: client.get("/readyz").status_code == 200)

        engine.release = threading.Event()
        held: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: held.append(httpx.post(f"{url}/embeddings", json={"input": "x"})))
        thread.start()
        wait_until(lambda: len(engine.requests) == 1)
        app.state.service.drain()
        assert client.get("/readyz").json() == {"status": "draining"}
        assert client.get("/readyz").status_code == 503
        assert client.post("/embeddings", json={"input": "x"}).status_code == 503
        assert client.get("/v1/models").status_code == 200
        engine.release.set()
        thread.join(30)
        assert held[0].status_code == 200


def test_failed_requests_are_logged_once_without_their_input(client, caplog):
    with caplog.at_level(logging.INFO, "forebay.server"):
        client.post("/embeddings", json={"input": "fine"})
        assert not caplog.records
        client.post("/embeddings", json={"input": ["BOOM secret"]}, headers={"x-request-id": "abc"})
        client.post("/embeddings", json={"input": "secret", "dimensions": 99})
        wait_until(lambda: len(caplog.records) == 2)  # written once the answer is out
    lines = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert lines[0].startswith("request_id=abc route=/embeddings status=500 code=item_failed seconds=")
    assert "secret" not in caplog.text


def test_a_bug_is_a_500_with_its_trace_in_the_log(client, caplog):
    reply = client.post("/embeddings", json={"input": "CRASH"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.headers["x-request-id"] in caplog.text
    assert "RuntimeError: a bug" in caplog.text
    assert client.post("/embeddings", json={"input": "fine"}).status_code == 200
