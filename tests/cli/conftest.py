"""What the command line's tests share: the fake model, and a command line that is run in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from forebay.cli.main import run
from tests.cli import fake_model


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def fake_command() -> list[str]:
    """How to start `forebay` with the fake model as a process of its own."""
    return [sys.executable, str(fake_model.__file__)]


@pytest.fixture
def real_cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """The command line as it is, run in this process."""
    monkeypatch.delenv("FOREBAY_DEBUG", raising=False)
    monkeypatch.delenv("FOREBAY_API_KEY", raising=False)

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return Outcome(code, out.decode(), err.decode())

    return call


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, real_cli: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """The same with the fake model."""
    monkeypatch.setitem(sys.modules, "forebay.api.model", fake_model.as_module())
    return real_cli
