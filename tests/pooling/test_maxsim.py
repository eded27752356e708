"""MaxSim in blocks against the plain form, over any lengths and bounds; and its bound on memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.pooling import maxsim
from forebay.pooling.maxsim import max_sim


def plain(query: Tensor, documents: Tensor, lens: list[int]) -> list[float]:
    """One document at a time, in double precision."""
    parts = torch.split(documents.double(), lens)
    return [float((query.double() @ part.T).amax(1).sum()) for part in parts]


def random(rows: int, seed: int) -> Tensor:
    vectors = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=1)


@given(st.integers(1, 40), st.lists(st.integers(1, 30), max_size=20), st.integers(1, 4000), st.booleans())
@settings(max_examples=150, deadline=None)
def test_it_is_the_plain_form(num_query: int, lens: list[int], block: int, is_mean: bool) -> None:
    query, documents = random(num_query, 1), random(sum(lens), 2)
    expected = np.array(plain(query, documents, lens)) / (num_query if is_mean else 1)
    found = max_sim(query, documents, np.array(lens, np.int64), is_mean=is_mean, block=block)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_what_points_away_stays_negative() -> None:
    """Nothing that is no token, neither padding nor the next document's, may win with 0."""
    query = torch.eye(2)
    documents = -torch.eye(2).repeat(3, 1)
    documents[:, :] -= 0.5
    scores = max_sim(query, documents, np.array([1, 2, 3], np.int64), block=3)
    assert (scores < -0.9).all()


def test_a_document_without_vectors_matches_nothing() -> None:
    scores = max_sim(torch.eye(2), torch.eye(2), np.array([0, 2, 0], np.int64))
    assert scores.tolist() == [-np.inf, 2.0, -np.inf]


def test_half_precision_is_compared_in_float32() -> None:
    query, documents = random(4, 1).bfloat16(), random(9, 2).bfloat16()
    found = max_sim(query, documents, np.array([4, 5], np.int64))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), plain(query, documents, [4, 5]), atol=1e-5)


@pytest.mark.parametrize("lens", [[5000], [1] * 5000, [4000, 1, 999]], ids=["one", "many", "uneven"])
def test_no_more_than_a_block_stands_in_memory(lens: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product that is made is counted where its rows are cut."""
    sizes: list[int] = []
    blocks = maxsim._blocks

    def watch(lens: np.ndarray, num_rows: int) -> object:
        for block in blocks(lens, num_rows):
            sizes.append(block.rows.stop - block.rows.start)
            yield block

    monkeypatch.setattr(maxsim, "_blocks", watch)
    max_sim(random(32, 1), random(5000, 2), np.array(lens, np.int64), block=32 * 1000)
    assert max(sizes) == 1000
    assert sum(sizes) == 5000
