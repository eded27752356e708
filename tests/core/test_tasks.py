"""Names of tasks: known, removed with a successor, unknown."""

import pytest

from forebay.core.errors import InvalidRequest
from forebay.core.tasks import ALLOWED_PARAMS, COMPOSED_TASKS, DEFAULT_ORDER, REMOVED_TASKS, Task, parse_task


@pytest.mark.parametrize("task", Task)
def test_every_name_is_read(task: Task) -> None:
    assert parse_task(task.value) is task
    assert f"{task}" == task.value


@pytest.mark.parametrize("name", REMOVED_TASKS)
def test_removed_names_tell_their_successor(name: str) -> None:
    with pytest.raises(InvalidRequest, match="was removed: use") as caught:
        parse_task(name)
    assert caught.value.field == "task"


@pytest.mark.parametrize("name", ["", "EMBED", "embedding", "generate"])
def test_unknown_names_tell_what_is_known(name: str) -> None:
    with pytest.raises(InvalidRequest, match="token_classify") as caught:
        parse_task(name)
    assert caught.value.field == "task"


def test_the_tables_are_whole() -> None:
    assert set(ALLOWED_PARAMS) | set(COMPOSED_TASKS) == set(Task)
    assert set(DEFAULT_ORDER) == set(ALLOWED_PARAMS)
    assert not set(REMOVED_TASKS) & {task.value for task in Task}
    assert all(set(parts) <= set(ALLOWED_PARAMS) for parts in COMPOSED_TASKS.values())
