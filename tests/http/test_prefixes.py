"""The prefix cache of a causal model over HTTP: who shares what, told by the metrics."""

import re
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from forebay.api.async_engine import AsyncEngine
from forebay.core.config import EngineLimits, ModelOptions, ServerOptions
from forebay.core.events import Event
from forebay.server.app import create_app
from tests.support.language_models import save
from tests.support.live_server import running
from tests.support.texts import sentence

BLOCK = 4
TEXT = sentence(40, 1)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = save(tmp_path_factory.mktemp("causal") / "model", "qwen3", "CausalLM", ends="$A </s>")

    def load(on_stage: Callable[[str], None], observer: Callable[[Event], None]) -> AsyncEngine:
        limits = EngineLimits(block_size=BLOCK)
        return AsyncEngine.load(ModelOptions(str(folder), convert="embed"), limits, observer=observer)

    with running(create_app(ServerOptions(), load)) as url, httpx.Client(base_url=url) as client:
        yield client


def read(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^forebay_{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def ask(client: httpx.Client, **more: str) -> tuple[list[float], int, float]:
    """The text's vector and number of tokens, and how many of them were found computed."""
    steps, known = read(client, "forward_seconds_count"), read(client, "prefix_tokens_total")
    reply = client.post("/embeddings", json={"input": TEXT, **more})
    assert reply.status_code == 200, reply.text
    until = time.monotonic() + 10
    while read(client, "forward_seconds_count") == steps and time.monotonic() < until:
        time.sleep(0.01)  # a step is told of after its replies
    said = reply.json()
    num_tokens = said["usage"]["prompt_tokens"]
    return said["data"][0]["embedding"], num_tokens, read(client, "prefix_tokens_total") - known


def test_only_equal_salts_share_what_was_computed(client: httpx.Client) -> None:
    first, num_tokens, found = ask(client)
    assert found == 0
    known = (num_tokens - 1) // BLOCK * BLOCK  # the last token is computed again: its state is the vector
    assert known >= 30
    for more, is_known in (
        ({}, True),
        ({"cache_salt": "one"}, False),
        ({"cache_salt": "one"}, True),
        ({"cache_salt": "two"}, False),
        ({}, True),
    ):
        vector, _, found = ask(client, **more)
        assert found == (known if is_known else 0), more
        assert vector == pytest.approx(first, abs=1e-6)
