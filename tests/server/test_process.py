"""The server process: it drains on a signal, and ends by itself when its model can't be loaded."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.server.test_app import wait_until
from tests.support.live_server import free_port, wait_until_ready

PROGRAM = """
import sys, time
from forebay.core.config import ServerOptions
from forebay.server.app import create_app
from forebay.server.process import run
from tests.support.fake_engine import FakeEngine

port, drain, delay, load_delay = int(sys.argv[1]), *map(float, sys.argv[2:])

def load(on_stage, observer):
    on_stage("loading weights")
    time.sleep(load_delay)
    return FakeEngine(observer, delay=delay)

options = ServerOptions(port=port, drain_seconds=drain)
app = create_app(options, load)
sys.exit(run(app, app.state.service, options))
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def server(
    *, drain: float = 30, delay: float = 0, load_delay: float = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    with process("-c", PROGRAM, str(port), str(drain), str(delay), str(load_delay)) as started:
        yield started, f"http://127.0.0.1:{port}"


class Held:
    """A request on a thread of its own."""

    def __init__(self, url: str) -> None:
        self.reply: httpx.Response | None = None
        self.error: httpx.TransportError | None = None
        self._url = url
        self._thread = threading.Thread(target=self._post)
        self._thread.start()
        wait_until(lambda: self._counted())

    def _post(self) -> None:
        try:
            self.reply = httpx.post(f"{self._url}/embeddings", json={"input": "x"}, timeout=60)
        except httpx.TransportError as error:
            self.error = error

    def _counted(self) -> bool:
        return "forebay_requests_under_way 2.0" in httpx.get(f"{self._url}/metrics").text

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server(sent):
    with server() as (started, url):
        wait_until_ready(url)
        started.send_signal(sent)
        output, _ = started.communicate(timeout=30)
    assert started.returncode == 0
    assert "ready in" in output
    assert f"listening on {url}" in output
    assert "Traceback" not in output


def test_what_is_under_way_is_answered_and_nothing_new_is_taken():
    with server(delay=2.0) as (started, url):
        wait_until_ready(url)
        held = Held(url)
        started.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
        refused = httpx.post(f"{url}/embeddings", json={"input": "x"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        held.join()
        output, _ = started.communicate(timeout=30)
    assert held.reply is not None
    assert held.reply.status_code == 200
    assert started.returncode == 0
    assert "every request under way was answered" in output


def test_the_drain_has_an_end():
    with server(delay=60, drain=0.3) as (started, url):
        wait_until_ready(url)
        held = Held(url)
        started.send_signal(signal.SIGTERM)
        output, _ = started.communicate(timeout=30)
        held.join()
    assert held.reply is not None
    assert (held.reply.status_code, held.reply.json()["error"]["code"]) == (503, "not_ready")
    assert started.returncode == 0
    assert "not answered within the drain time: 1" in output


def test_a_second_signal_ends_everything_at_once():
    with server(delay=60, drain=60) as (started, url):
        wait_until_ready(url)
        held = Held(url)
        started.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=30)
        held.join()
    assert started.returncode == 128 + signal.SIGTERM


def is_alive(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez").status_code == 200
    except httpx.TransportError:
        return False


def test_a_signal_while_loading():
    with server(load_delay=600) as (started, url):
        wait_until(lambda: is_alive(url))
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=30)
    assert started.returncode == 0


def test_a_port_in_use():
    with server() as (first, url):
        wait_until_ready(url)
        with process("-c", PROGRAM, url.rpartition(":")[2], "1", "0", "0") as second:
            output, _ = second.communicate(timeout=30)
        assert second.returncode == 1
        assert "address already in use" in output
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=30)


def test_a_model_that_can_not_be_loaded_ends_the_process():
    program = (
        "import sys; from forebay.server.app import serve;"
        "from forebay.core.config import ModelOptions, EngineLimits, ServerOptions;"
        f"sys.exit(serve(ModelOptions(model='./no/such/model'), EngineLimits(), ServerOptions(port={free_port()})))"
    )
    with process("-c", program) as started:
        output, _ = started.communicate(timeout=120)
    assert started.returncode == 1
    assert "the model can't be loaded (checkpoint_not_found)" in output
    assert "Traceback" not in output
