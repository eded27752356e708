"""One output belongs to one run at a time."""

import pytest

from forebay.cli.journal import Paths, locked
from forebay.core.errors import InvalidRequest


def test_one_output_is_written_by_one_run_at_a_time(tmp_path):
    paths = Paths(tmp_path / "out.npy")
    with locked(paths):
        with pytest.raises(InvalidRequest, match="another run is writing"), locked(paths):
            raise AssertionError("two runs at once")
        assert paths.lock.exists()
    assert not paths.lock.exists()
    with locked(paths):
        pass


def test_a_lock_that_a_killed_run_left_does_not_stop_the_next(tmp_path):
    paths = Paths(tmp_path / "out.npy")
    paths.lock.touch()
    with locked(paths):
        assert paths.lock.exists()
