"""Clients that leave in the middle, send bodies too slowly or too large: one line in the log, and the door is shut."""

import json
import logging
import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from forebay.core.config import ServerOptions
from forebay.server.body import FREE_BYTES
from forebay.server.connection import MAX_HEAD
from tests.support.fake_engine import FakeEngine
from tests.support.live_server import running, serving


def connect(url: str) -> socket.socket:
    where = urlsplit(url)
    return socket.create_connection((where.hostname, where.port), timeout=30)


def read_all(client: socket.socket) -> bytes:
    """Everything until the server closes; a timeout here means that it does not."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_client_that_pipelines_and_leaves_makes_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({"input": ["x"] * 50}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with caplog.at_level(logging.WARNING), serving(FakeEngine()) as url:
        for _ in range(5):
            client = connect(url)
            client.sendall((head + body) * 20)
            client.recv(1)
            client.close()
        for _ in range(50):
            if httpx.get(f"{url}/livez").status_code == 200:
                time.sleep(0.02)
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "x"}).status_code == 200
    assert [record.message for record in caplog.records if record.exc_info] == []


def test_a_body_that_does_not_come_is_the_clients_fault() -> None:
    with serving(FakeEngine(), ServerOptions(request_timeout=1.0)) as url, connect(url) as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"request_timeout" in answer


def test_after_a_413_the_connection_is_closed() -> None:
    with serving(FakeEngine(), ServerOptions(max_body_bytes=1000)) as url, connect(url) as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 2000)
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"


def whole(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.connection.HEAD_SECONDS", 0.3)
    with serving(FakeEngine()) as url, ExitStack() as stack:
        silent, half, second = (stack.enter_context(connect(url)) for _ in range(3))
        half.sendall(POST + b"X-A: b")
        second.sendall(whole(b'{"input":"x"}'))
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        second.sendall(b"POST /v1/emb")
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "x"}).status_code == 200
        for client in (half, second):
            answer = read_all(client)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"did not come within 0.3 seconds" in answer
        assert read_all(silent) == b""


def test_an_idle_connection_is_kept_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.connection.HEAD_SECONDS", 0.2)
    with serving(FakeEngine()) as url, connect(url) as client:
        for _ in range(2):
            client.sendall(whole(b'{"input":"x"}'))
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(0.4)


@pytest.mark.parametrize("size", [MAX_HEAD, 50 * MAX_HEAD])
def test_a_head_without_an_end_is_refused(size: int) -> None:
    with serving(FakeEngine()) as url:
        for head in (POST + b"X-A: " + b"b" * size, POST + b"X-A: b\r\n" * (size // 4) + b"\r\n"):
            with connect(url) as client:
                try:
                    client.sendall(head)
                except OSError:
                    assert size > MAX_HEAD
                answer = client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 431")
            assert f"more than {MAX_HEAD} bytes".encode() in answer


def test_a_head_of_almost_that_size_is_read_however_it_comes() -> None:
    head = POST + b"X-A: " + b"b" * 100 + b"\r\n" + b"X-B: cccccccccc\r\n" * (MAX_HEAD // 20)
    with serving(FakeEngine()) as url, connect(url) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = head + b'Content-Length: 13\r\n\r\n{"input":"x"}'
        for pieces in (1, 3, 10):
            size = len(message) // pieces + 1
            for start in range(0, len(message), size):
                client.sendall(message[start : start + size])
                time.sleep(0.02)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_told_so_behind_the_answers_to_what_was() -> None:
    engine = FakeEngine(delay=0.2)
    with serving(engine) as url, connect(url) as client:
        client.sendall(whole(b'{"input":"x"}') + b"\x16\x03 rubbish\r\n\r\n")
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 200")
    with serving(FakeEngine()) as url, connect(url) as client:
        client.sendall(b"\x16\x03 rubbish\r\n\r\n")
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_slow_bodies_do_not_fill_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.body.STALL_SECONDS", 1.0)
    options = ServerOptions(max_body_bytes=1 << 20, max_bodies_bytes=1 << 20)
    large = json.dumps({"input": "x" * 600_000}).encode()
    with serving(FakeEngine(), options) as url, httpx.Client(base_url=url) as client, connect(url) as slow:
        slow.sendall(whole(large)[:-10])
        wait_for_busy(client, large)
        assert client.post("/v1/embeddings", json={"input": "x" * (FREE_BYTES - 100)}).status_code == 200
        assert read_all(slow).startswith(b"HTTP/1.1 408")
        assert client.post("/v1/embeddings", content=large).status_code == 200


def wait_for_busy(client: httpx.Client, large: bytes) -> None:
    """Send a second large body until the first one's bytes have come."""
    while True:
        reply = client.post("/v1/embeddings", content=large)
        if reply.status_code == 503:
            assert (reply.json()["error"]["code"], reply.headers["retry-after"]) == ("server_busy", "2")
            return
        assert reply.status_code == 200


def test_a_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.connection.STALL_SECONDS", 0.3)
    routes = [Route("/readyz", lambda request: Response()), Route("/", lambda request: Response(b"x" * (64 << 20)))]
    with running(Starlette(routes=routes)) as url, connect(url) as lazy, connect(url) as slow:
        lazy.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = 0
        while part := slow.recv(1 << 20):
            received += len(part)
            time.sleep(0.02)
        assert received > 64 << 20
        assert len(read_all(lazy)) < 64 << 20
