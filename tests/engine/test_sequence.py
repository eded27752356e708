"""A job: rows and errors find their places, and the last one is noticed."""

import numpy as np
import pytest

from forebay.core.errors import DeadlineExceeded, ItemFailed
from forebay.core.params import PoolingParams
from forebay.core.tasks import Task
from tests.support.engine import make_job

ROW = np.ones(2, np.float32)


def test_the_last_item_is_noticed_whatever_it_is() -> None:
    job = make_job([[1], [2], [3]])
    assert not job.deliver(job.sequences[2], (ROW,))
    assert not job.fail(0, ItemFailed("failed", index=0))
    assert job.deliver(job.sequences[1], (ROW * 2,))
    reply = job.reply()
    assert [None if row is None else row.tolist() for row in reply.rows] == [None, [2.0, 2.0], [1.0, 1.0]]
    assert list(reply.errors) == [0]
    assert reply.num_tokens.tolist() == [1, 1, 1]


def test_several_outputs_keep_apart() -> None:
    job = make_job([[1], [2]], params=PoolingParams(outputs=(Task.TOKEN_EMBED, Task.EMBED)))
    first, second = job.sequences
    job.deliver(first, (ROW[None], ROW))
    job.deliver(second, (ROW[None] * 2, ROW * 2))
    outputs = job.reply().outputs
    assert list(outputs) == [Task.TOKEN_EMBED, Task.EMBED]
    assert [row.shape for row in outputs[Task.TOKEN_EMBED]] == [(1, 2), (1, 2)]  # type: ignore[union-attr]
    assert [row.tolist() for row in outputs[Task.EMBED]] == [[1, 1], [2, 2]]  # type: ignore[union-attr]


def test_an_aborted_job_is_over_and_stays_so() -> None:
    job = make_job([[1]])
    assert not job.is_over
    assert job.abort(DeadlineExceeded("late"))
    assert job.is_over
    assert not job.abort(DeadlineExceeded("later"))
    with pytest.raises(DeadlineExceeded, match=r"^late$"):
        job.future.result(0)


def test_a_cancelled_job_is_not_aborted() -> None:
    job = make_job([[1]])
    assert job.future.cancel()
    assert job.is_over
    assert not job.abort(DeadlineExceeded("late"))


def test_the_seconds_of_the_stations() -> None:
    job = make_job([[1]])
    job.started_at = job.submitted_at + 2.0
    timings = job.reply().timings
    assert (timings.tokenize, timings.queue) == (0.25, 2.0)


def test_equal_ids_are_equal_work_only_with_the_same_prompt() -> None:
    one, other, third, fourth = make_job([[1, 2], [1, 2], [1, 2], [1]], prompt_lens=[0, 0, 1, 0]).sequences
    assert one.key == other.key
    assert len({one.key, third.key, fourth.key}) == 3


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_windows_of_a_text_are_joined_when_all_are_there(order: tuple[int, ...]) -> None:
    """Their mean, weighted by their tokens; the neighbour is not touched."""
    job = make_job([[1] * 6, [2] * 5, [3] * 1, [4] * 3], owners=[0, 1, 1, 2])
    for place in order:
        assert job.deliver(job.sequences[place], (ROW * place,)) == (place == order[-1])
    reply = job.reply()
    rows = [row.tolist() for row in reply.rows]
    assert rows[0] == [0.0, 0.0]
    assert rows[2] == [3.0, 3.0]
    assert rows[1] == pytest.approx([(5 * 1 + 1 * 2) / 6] * 2)
    assert reply.num_tokens.tolist() == [6, 6, 3]


def test_a_window_that_fails_fails_its_text() -> None:
    job = make_job([[1], [2], [3]], owners=[0, 0, 1])
    assert not job.deliver(job.sequences[0], (ROW,))
    assert not job.fail(0, ItemFailed("failed", index=0))
    assert job.deliver(job.sequences[2], (ROW,))
    reply = job.reply()
    assert reply.rows[0] is None
    assert list(reply.errors) == [0]
    assert reply.rows[1] is not None
