"""MaxSim, natively and by PyTorch in blocks, against the plain form; and the bound on the blocks' memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.layers.native import SWITCH, extension
from forebay.pooling import maxsim
from forebay.pooling.maxsim import max_sim, max_sim_of_matrices, max_sim_reference


def plain(query: Tensor, documents: Tensor, lens: list[int]) -> list[float]:
    """One document at a time, in double precision."""
    parts = torch.split(documents.double(), lens)
    return [float((query.double() @ part.T).amax(1).sum()) for part in parts]


def random(rows: int, seed: int) -> Tensor:
    vectors = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=1)


@pytest.fixture(params=["torch", *([] if extension is None else extension.kernels())])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to compute, chosen as a user chooses it."""
    monkeypatch.setenv(SWITCH, "0" if request.param == "torch" else request.param)
    return str(request.param)


@given(st.integers(1, 40), st.lists(st.integers(1, 30), max_size=20), st.integers(1, 4000), st.booleans())
@settings(max_examples=150, deadline=None)
def test_it_is_the_plain_form(num_query: int, lens: list[int], block: int, is_mean: bool) -> None:
    query, documents = random(num_query, 1), random(sum(lens), 2)
    expected = np.array(plain(query, documents, lens)) / (num_query if is_mean else 1)
    found = max_sim_reference(query, documents, np.array(lens, np.int64), is_mean=is_mean, block=block)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_what_points_away_stays_negative(path: str) -> None:
    """Nothing that is no token, neither padding nor the next document's, may win with 0."""
    query = torch.eye(2)
    documents = -torch.eye(2).repeat(3, 1)
    documents[:, :] -= 0.5
    scores = max_sim(query, documents, np.array([1, 2, 3], np.int64))
    assert (scores < -0.9).all()


def test_a_document_without_vectors_matches_nothing(path: str) -> None:
    scores = max_sim(torch.eye(2), torch.eye(2), np.array([0, 2, 0], np.int64))
    assert scores.tolist() == [-np.inf, 2.0, -np.inf]
    empty = np.zeros((0, 2), np.float32)
    one = np.eye(2, dtype=np.float32)
    assert max_sim_of_matrices(one, [empty, one, empty], is_mean=True).tolist() == [-np.inf, 1.0, -np.inf]


def test_a_query_without_vectors_has_nothing_to_match(path: str) -> None:
    assert max_sim(torch.zeros(0, 2), torch.eye(2), np.array([2, 0], np.int64), is_mean=True).tolist() == [0, 0]


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
    max_sim_reference(random(32, 1), random(5000, 2), np.array(lens, np.int64), block=32 * 1000)
    assert max(sizes) == 1000
    assert sum(sizes) == 5000


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf, 1e38])
def test_a_fault_is_seen_and_stays_in_its_document(path: str, fault: float) -> None:
    query, documents = random(5, 1), random(30, 2)
    lens = np.array([13, 8, 9], np.int64)
    clean = max_sim(query, documents, lens)
    documents[15, 3] = fault
    expected = plain(query, documents, lens.tolist())
    dirty = max_sim(query, documents, lens)
    np.testing.assert_allclose(dirty.numpy(), np.array(expected, np.float32), rtol=1e-5)
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])


class TestNative:
    """What only the kernels promise: any strides, and not a bit that depends on others or on the threads."""

    pytestmark = pytest.mark.skipif(extension is None, reason="the native kernels are not built")

    @pytest.mark.parametrize("kernels", [] if extension is None else extension.kernels())
    @given(
        num_query=st.integers(1, 140),
        width=st.integers(1, 70),
        lens=st.lists(st.integers(0, 20), min_size=1, max_size=12),
        gap=st.integers(0, 5),
        threads=st.integers(1, 4),
    )
    @settings(max_examples=60, deadline=None)
    def test_documents(self, kernels: str, num_query: int, width: int, lens: list[int], gap: int, threads: int) -> None:
        rng = np.random.default_rng(num_query)
        query = rng.standard_normal((num_query, width), np.float32)
        wide = rng.standard_normal((sum(lens), width + gap), np.float32)
        rows = wide[:, :width]
        scores = np.empty(len(lens), np.float32)
        extension.max_sim(kernels, query, [rows], np.array(lens), scores, threads)
        parts = np.split(rows, np.cumsum(lens)[:-1])
        for part, score in zip(parts, scores, strict=True):
            alone = np.empty(1, np.float32)
            extension.max_sim(kernels, query, [part], np.array([len(part)]), alone, 1)
            assert alone[0] == score
            expected = (query.astype(np.float64) @ part.T).max(1, initial=-np.inf).sum()
            assert score == expected or abs(score - expected) <= 1e-5 * num_query * width
        apart = np.empty(len(lens), np.float32)
        extension.max_sim(kernels, query, parts, np.array(lens), apart, threads)
        assert np.array_equal(apart, scores)

    def test_threads_share_what_is_much(self) -> None:
        rng = np.random.default_rng(1)
        query, rows = rng.standard_normal((33, 96), np.float32), rng.standard_normal((4000, 96), np.float32)
        lens = rng.multinomial(4000, np.ones(50) / 50)
        found = np.empty((4, 50), np.float32)
        for threads in range(1, 5):
            extension.max_sim(extension.kernels()[0], query, [rows], lens, found[threads - 1], threads)
        assert (found == found[0]).all()

    @pytest.mark.parametrize(
        ("lens", "said"), [([3], "more rows"), ([5], "goes past"), ([4, 1], "fewer rows"), ([-1], "past")]
    )
    def test_documents_that_do_not_fit_their_rows_are_refused(self, lens: list[int], said: str) -> None:
        query, rows = np.ones((1, 2), np.float32), np.ones((4, 2), np.float32)
        with pytest.raises(ValueError, match=said):
            extension.max_sim("plain", query, [rows], np.array(lens), np.empty(len(lens), np.float32), 1)
        with pytest.raises(ValueError, match="other widths"):
            extension.max_sim("plain", rows[:, :1].copy(), [rows], np.array([4]), np.empty(1, np.float32), 1)
