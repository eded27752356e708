"""Clients that leave in the middle, send bodies too slowly or too large: one line in the log, and the door is shut."""

import json
import logging
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from forebay.core.config import ServerOptions
from tests.support.fake_engine import FakeEngine
from tests.support.live_server import serving


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
