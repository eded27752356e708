"""Fixtures that tests of several folders share. Everything heavy is imported at its first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.store import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Tiny checkpoints, references and engines, made once."""
    from tests.support.store import Store

    made = Store(tmp_path_factory.mktemp("store"))
    yield made
    made.close()
