"""A live server around a fake engine, for the tests that need no special options."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.live_server import serving


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[httpx.Client]:
    with serving(engine) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client
