"""These tests need the extension; without it each says so. FOREBAY_NATIVE must not decide for them."""

import pytest


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_NATIVE", raising=False)
