import threading
import time
from collections.abc import Callable

import pytest

from forebay.core.config import ServerOptions
from forebay.core.errors import CheckpointNotFound, InvalidRequest, NotReady, UnknownModel
from forebay.core.events import ignore
from forebay.server.service import Service
from tests.support.fake_engine import FakeEngine


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def started(load: Callable[..., object], *names: str) -> Service:
    service = Service(ServerOptions(served_names=names), load, ignore)  # type: ignore[arg-type]
    service.start()
    return service


def test_from_loading_to_ready_to_draining():
    go, entered = threading.Event(), threading.Event()
    engine = FakeEngine()

    def load(on_stage, observer):
        on_stage("reading weights")
        entered.set()
        go.wait(30)
        return engine

    service = started(load)
    entered.wait(30)
    assert (service.status, service.stage, service.names) == ("loading", "reading weights", ())
    with pytest.raises(NotReady, match="reading weights"):
        service.check_ready()
    go.set()
    wait_until(lambda: service.status == "ready")
    service.check_ready()
    assert service.names == ("fake/model",)
    service.drain()
    assert service.status == "draining"
    with pytest.raises(NotReady, match="stopping"):
        service.check_ready()
    assert service.find() == ("fake/model", engine)
    service.close()
    assert engine.closed


def test_names():
    engine = FakeEngine()
    service = started(lambda on_stage, observer: engine, "one", "two/b")
    wait_until(lambda: service.status == "ready")
    for name in (None, "", "default", "one"):
        assert service.find(name) == ("one", engine)
    assert service.find("two/b") == ("two/b", engine)
    with pytest.raises(UnknownModel, match="it serves 'one', 'two/b'"):
        service.find("fake/model")
    with pytest.raises(InvalidRequest, match="must be a string"):
        service.find(["one"])


@pytest.mark.parametrize("error", [CheckpointNotFound("no such folder"), ZeroDivisionError(), SystemExit(3)])
def test_a_failed_load_is_told_and_logged(error, caplog):
    def load(on_stage, observer):
        raise error

    service = started(load)
    wait_until(lambda: service.status == "failed")
    with pytest.raises(NotReady):
        service.check_ready()
    assert "can't be loaded" in caplog.text
    if isinstance(error, CheckpointNotFound):
        assert "no such folder" in caplog.text
        assert "Traceback" not in caplog.text
    service.close()


def test_an_engine_that_is_loaded_after_the_end_is_closed():
    go = threading.Event()
    engine = FakeEngine()

    def load(on_stage, observer):
        go.wait(30)
        return engine

    service = started(load)
    service.close()
    go.set()
    wait_until(lambda: engine.closed)
