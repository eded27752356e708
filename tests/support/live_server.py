"""A real uvicorn on a free port, on a thread, around any app."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import uvicorn
from starlette.applications import Starlette

from forebay.core.config import ServerOptions
from forebay.server.app import create_app
from forebay.server.connection import GuardedProtocol


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Serve ``app`` and yield its base URL once it is ready."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        log_config=None,
        log_level="warning",
        lifespan="on",
        access_log=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    wait_until_ready(url)
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def serving(engine: object, options: ServerOptions | None = None) -> Iterator[str]:
    """Serve an engine that is already there."""

    def load(on_stage: object, observer: object) -> object:
        if hasattr(engine, "observer"):
            engine.observer = observer
        return engine

    with running(create_app(options or ServerOptions(), load)) as url:  # type: ignore[arg-type]
        yield url


def wait_until_ready(url: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > until:
            raise TimeoutError(f"{url} was not ready within {seconds} s")
        time.sleep(0.02)


def exchange(client: httpx.Client, sent: bytes, *, read: bool = True) -> bytes:
    """Send bytes on a connection of their own and read until the server closes or has answered."""
    where = urlsplit(str(client.base_url))
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(sent)
        return connection.recv(65536) if read else b""
