import asyncio
import time

import httpx

from forebay.core.config import EngineLimits, ServerOptions
from forebay.core.errors import ForebayError, NotReady
from forebay.server.app import create_app
from forebay.server.metrics import Metrics
from forebay.server.ops import Pulse
from forebay.server.service import Service
from forebay.version import __version__
from tests.support.fake_engine import FakeEngine
from tests.support.live_server import running


def test_index_lists_the_routes(client):
    body = client.get("/").json()
    assert (body["name"], body["version"], body["status"]) == ("forebay", __version__, "ready")
    assert {"/v1/embeddings", "/embeddings", "/metrics", "/readyz"} <= set(body["routes"])
    assert client.head("/").status_code == 200


def test_states(client):
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.get("/health").json() == {"status": "healthy"}


def test_info_tells_everything():
    engine = FakeEngine()
    limits = EngineLimits(max_step_tokens=512)
    options = ServerOptions(served_names=("one", "two"), max_items=7)
    with running(create_app(options, lambda stage, observer: engine, limits)) as url:  # type: ignore[arg-type, return-value]
        body = httpx.get(f"{url}/info").json()
        models = httpx.get(f"{url}/v1/models").json()["data"]
    assert body["served_names"] == ["one", "two"]
    assert body["decisions"] == [{"name": "pooling", "value": "MEAN", "source": "default"}]
    assert body["abilities"]["dimension"] == 8
    assert body["limits"]["max_items"] == 7
    assert body["limits"]["max_step_tokens"] == 512
    assert "api_key" not in str(body)
    assert [(model["id"], model["root"]) for model in models] == [("one", "fake/model"), ("two", "fake/model")]


def test_metrics_of_a_live_server(client):
    client.post("/v1/embeddings", json={"input": ["a", "b " * 50]})
    client.post("/v1/embeddings", json={"input": None})
    client.get("/nowhere/at/all")
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    for line in (
        'forebay_requests_total{route="/v1/embeddings",status="200"} 1.0',
        'forebay_requests_total{route="/v1/embeddings",status="400"} 1.0',
        'forebay_requests_total{route="unknown",status="404"} 1.0',
        'forebay_errors_total{code="route_not_found"} 1.0',
        "forebay_truncated_items_total 1.0",
        "forebay_queued_tokens 42.0",
        "forebay_reply_seconds_count 1.0",
        "forebay_requests_under_way 1.0",
    ):
        assert line in reply.text.splitlines()


def pulse_of(engine: object) -> Pulse:
    metrics = Metrics()
    service = Service(ServerOptions(), lambda stage, observer: engine, metrics.observe)  # type: ignore[arg-type, return-value]
    service.start()
    while service.status == "loading":
        time.sleep(0.001)
    return Pulse(service, metrics)


def test_health_is_one_forward_pass_for_all_who_ask():
    engine = FakeEngine(delay=0.01)
    pulse = pulse_of(engine)

    async def ask() -> list[ForebayError | None]:
        answers = await asyncio.gather(*[pulse.feel() for _ in range(20)])
        return [*answers, await pulse.feel()]

    assert asyncio.run(ask()) == [None] * 21
    assert len(engine.requests) == 1


def test_health_asks_again_when_the_proof_is_old(monkeypatch):
    monkeypatch.setattr("forebay.server.ops.HEALTH_FRESH", -1.0)
    engine = FakeEngine()
    pulse = pulse_of(engine)

    async def ask() -> None:
        assert await pulse.feel() is None
        engine.closed = True
        assert isinstance(await pulse.feel(), NotReady)

    asyncio.run(ask())
    assert len(engine.requests) == 2


def test_a_forward_pass_that_does_not_end_is_an_illness(monkeypatch):
    monkeypatch.setattr("forebay.server.ops.HEALTH_TIMEOUT", 0.01)
    error = asyncio.run(pulse_of(FakeEngine(delay=60)).feel())
    assert error is not None
    assert error.code == "deadline_exceeded"


def test_a_long_queue_is_none(monkeypatch):
    monkeypatch.setattr("forebay.server.ops.HEALTH_TIMEOUT", 0.01)
    pulse = pulse_of(FakeEngine(delay=60))
    pulse._metrics.last_step = time.monotonic()
    assert asyncio.run(pulse.feel()) is None


def test_an_unforeseen_failure_is_an_illness():
    engine = FakeEngine()
    engine._check = lambda request: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    error = asyncio.run(pulse_of(engine).feel())
    assert error is not None
    assert "ZeroDivisionError" in error.message
