"""What a request may ask, checked against what a model can do."""

from typing import Any

import pytest

from forebay.core.errors import InvalidRequest
from forebay.core.params import Abilities, PoolingParams, TextParams
from forebay.core.tasks import Task

EMBEDDER = Abilities(
    tasks=(Task.EMBED, Task.TOKEN_EMBED),
    default_task=Task.EMBED,
    dimension=8,
    default_dimension=8,
    max_len=16,
    vocab_size=100,
    prompts={"query": "query: "},
)
NESTED = Abilities((Task.EMBED,), Task.EMBED, 8, 8, 16, 100, matryoshka=(2, 4))
CLASSIFIER = Abilities((Task.CLASSIFY,), Task.CLASSIFY, 0, 0, 16, 100)


@pytest.mark.parametrize(
    ("params", "abilities"),
    [
        (PoolingParams(), EMBEDDER),
        (PoolingParams(dimensions=1), EMBEDDER),
        (PoolingParams(dimensions=8), EMBEDDER),
        (PoolingParams(truncate_dim=8), EMBEDDER),
        (PoolingParams(outputs=(Task.TOKEN_EMBED, Task.EMBED), chunk_size=1, truncate_dim=3), EMBEDDER),
        (PoolingParams(dimensions=4), NESTED),
        (PoolingParams(dimensions=8), NESTED),
        (PoolingParams(outputs=(Task.CLASSIFY,), use_activation=False), CLASSIFIER),
        (TextParams(), EMBEDDER),
        (TextParams(max_tokens=16, prompt_name="query"), EMBEDDER),
        (TextParams(max_tokens=1, prompt=""), EMBEDDER),
    ],
    ids=str,
)
def test_what_fits_passes(params: PoolingParams | TextParams, abilities: Abilities) -> None:
    params.check(abilities)


@pytest.mark.parametrize(
    ("params", "abilities", "field"),
    [
        (PoolingParams(outputs=()), EMBEDDER, "outputs"),
        (PoolingParams(outputs=(Task.CLASSIFY,)), EMBEDDER, "task"),
        (PoolingParams(outputs=(Task.EMBED, Task.SPARSE)), EMBEDDER, "task"),
        (PoolingParams(), CLASSIFIER, "task"),
        (PoolingParams(dimensions=0), EMBEDDER, "dimensions"),
        (PoolingParams(dimensions=-1), EMBEDDER, "dimensions"),
        (PoolingParams(dimensions=9), EMBEDDER, "dimensions"),
        (PoolingParams(dimensions=3), NESTED, "dimensions"),
        (PoolingParams(truncate_dim=9), EMBEDDER, "truncate_dim"),
        (PoolingParams(truncate_dim=3), NESTED, "truncate_dim"),
        (PoolingParams(dimensions=2, truncate_dim=2), EMBEDDER, "truncate_dim"),
        (PoolingParams(chunk_size=2), EMBEDDER, "chunk_size"),
        (PoolingParams(outputs=(Task.TOKEN_EMBED,), chunk_size=0), EMBEDDER, "chunk_size"),
        (PoolingParams(max_active_dims=2), EMBEDDER, "max_active_dims"),
        (PoolingParams(outputs=(Task.CLASSIFY,), dimensions=2), CLASSIFIER, "dimensions"),
        (TextParams(prompt="a", prompt_name="query"), EMBEDDER, "prompt_name"),
        (TextParams(prompt_name="passage"), EMBEDDER, "prompt_name"),
        (TextParams(max_tokens=0), EMBEDDER, "max_tokens"),
        (TextParams(max_tokens=17), EMBEDDER, "max_tokens"),
    ],
    ids=str,
)
def test_what_does_not_fit_names_its_field(
    params: PoolingParams | TextParams, abilities: Abilities, field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        params.check(abilities)
    assert caught.value.field == field


@pytest.mark.parametrize(("wishes", "shown"), [({"dimensions": 9}, ("9", "8")), ({"dimensions": 0}, ("0", "8"))])
def test_messages_show_both_numbers(wishes: dict[str, Any], shown: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PoolingParams(**wishes).check(EMBEDDER)
    assert all(number in caught.value.message for number in shown)


def test_params_are_values() -> None:
    """Sequences that ask for the same are grouped by them."""
    assert hash(PoolingParams(dimensions=2)) == hash(PoolingParams(dimensions=2))
    assert PoolingParams() != PoolingParams(use_activation=False)
