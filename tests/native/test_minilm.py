"""The real all-MiniLM-L6-v2 in lower precision, by every form that this processor has: near float32, and each other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forebay import PoolingModel
from tests.native.kinds import LOW_KINDS
from tests.native.models import switched
from tests.parity.test_minilm import TEXTS

pytestmark = pytest.mark.parity

Vectors = NDArray[np.float32]
Embed = Callable[[str, str], Vectors]

# Cosines. Attention is computed in bfloat16 or in float32, and what is quantized behind it may fall to either side.
LEAST_TO_FLOAT32 = {"bfloat16": 0.9999, "int8": 0.997}
LEAST_TO_EACH_OTHER = {"bfloat16": 0.9999, "int8": 0.998}
MORE_ERROR = 1.1


def embed_with(kernels: str, precision: str, texts: tuple[str, ...] = TEXTS, batched: bool = True) -> Vectors:
    with switched(kernels), PoolingModel("default", dtype=precision, device="cpu") as model:  # type: ignore[arg-type]
        if batched:
            return model.embed(texts, show_progress=False).embeddings
        return np.concatenate([model.embed([text], show_progress=False).embeddings for text in texts])


@pytest.fixture(scope="module")
def embed() -> Embed:
    made: dict[tuple[str, str], Vectors] = {}

    def find(kernels: str, precision: str) -> Vectors:
        if (kernels, precision) not in made:
            made[kernels, precision] = embed_with(kernels, precision)
        return made[kernels, precision]

    return find


def cosines(one: Vectors, other: Vectors) -> Vectors:
    return (one.astype(np.float64) * other).sum(1)


@pytest.mark.parametrize(("kernels", "precision"), LOW_KINDS)
def test_a_form_is_as_near_to_float32_as_the_best(embed: Embed, kernels: str, precision: str) -> None:
    exact = embed("1", "float32")
    found, best = cosines(embed(kernels, precision), exact), cosines(embed("1", precision), exact)
    assert LEAST_TO_FLOAT32[precision] <= found.min() < 1 - 1e-6
    assert 1 - found.mean() <= (1 - best.mean()) * MORE_ERROR


@pytest.mark.parametrize(("kernels", "precision"), LOW_KINDS)
def test_forms_give_nearly_the_same_vectors(embed: Embed, kernels: str, precision: str) -> None:
    assert cosines(embed(kernels, precision), embed("1", precision)).min() >= LEAST_TO_EACH_OTHER[precision]


@pytest.mark.parametrize(("kernels", "precision"), LOW_KINDS)
def test_neither_neighbours_nor_threads_change_a_bit(embed: Embed, kernels: str, precision: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = embed_with(kernels, precision, TEXTS[::3], batched=False)
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(alone, embed(kernels, precision)[::3])
