"""A user's words on pooling: what is understood, what was removed, what contradicts itself."""

from typing import Any

import pytest

from forebay.core.config import REMOVED_POOLER_FIELDS, PoolerConfig
from forebay.core.errors import InvalidRequest


@pytest.mark.parametrize(
    ("values", "sequence_methods", "token_method"),
    [
        ({}, None, None),
        ({"pooling_type": "MEAN"}, ("MEAN",), None),
        ({"pooling_type": "cls + max"}, ("CLS", "MAX"), None),
        ({"pooling_type": "all"}, None, "ALL"),
        ({"pooling_type": "STEP", "step_tag_id": 5}, None, "STEP"),
        ({"seq_pooling_type": "last", "tok_pooling_type": "all"}, ("LAST",), "ALL"),
    ],
    ids=str,
)
def test_methods(values: dict[str, Any], sequence_methods: tuple[str, ...] | None, token_method: str | None) -> None:
    config = PoolerConfig.parse(values)
    assert (config.sequence_methods, config.token_method) == (sequence_methods, token_method)


def test_lists_become_tuples() -> None:
    assert PoolerConfig.parse({"returned_token_ids": [3, 1]}).returned_token_ids == (3, 1)


@pytest.mark.parametrize("name", REMOVED_POOLER_FIELDS)
def test_removed_fields_tell_their_successor(name: str) -> None:
    with pytest.raises(InvalidRequest, match="use_activation"):
        PoolerConfig.parse({name: True})


@pytest.mark.parametrize(
    "values",
    [
        {"pooling": "MEAN"},
        {"pooling_type": "AVERAGE"},
        {"pooling_type": "MEAN+"},
        {"pooling_type": ""},
        {"pooling_type": "MEAN", "seq_pooling_type": "CLS"},
        {"tok_pooling_type": "CLS"},
        {"pooling_type": "STEP"},
        {"step_tag_id": 5},
        {"task": "score"},
        {"task": "embedding"},
        {"logit_sigma": 0},
        {"returned_token_ids": 5},
    ],
    ids=str,
)
def test_what_is_wrong_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PoolerConfig.parse(values)
    assert caught.value.field in ("pooler_config", "task")
