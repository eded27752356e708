"""BGE-M3's three similarities and their mean, against the formulas written out plainly."""

import numpy as np
import pytest

from forebay import Task, hybrid_scores
from forebay.core.errors import InvalidRequest
from forebay.core.outputs import EmbeddingOutput, EncodeOutput, SparseOutput, TokenEmbeddingOutput
from forebay.core.request import SparseVector

VOCAB = 30


def make_side(rng: np.random.Generator, count: int) -> EncodeOutput:
    ones, flags = np.ones(count, np.int32), np.zeros(count, bool)
    dense = rng.standard_normal((count, 8)).astype(np.float32)
    vectors = []
    for _ in range(count):
        ids = np.sort(rng.choice(VOCAB, rng.integers(0, 12), replace=False)).astype(np.int32)
        vectors.append(SparseVector(ids, rng.random(len(ids)).astype(np.float32)))
    matrices = [rng.standard_normal((rng.integers(1, 6), 4)).astype(np.float32) for _ in range(count)]
    outputs = {
        Task.EMBED: EmbeddingOutput(ones, flags, dense),
        Task.SPARSE: SparseOutput(ones, flags, vectors, VOCAB, str),
        Task.TOKEN_EMBED: TokenEmbeddingOutput(ones, flags, matrices),
    }
    return EncodeOutput(ones, flags, outputs)


def plain_scores(a: EncodeOutput, b: EncodeOutput, i: int, j: int) -> tuple[float, float, float]:
    dense = float(np.dot(a["embed"][i], b["embed"][j]))
    left = dict(zip(a["sparse"][i].ids.tolist(), a["sparse"][i].weights.tolist(), strict=True))
    right = dict(zip(b["sparse"][j].ids.tolist(), b["sparse"][j].weights.tolist(), strict=True))
    sparse = sum(left[key] * right[key] for key in left.keys() & right.keys())
    best = [max(float(np.dot(q, d)) for d in b["token_embed"][j]) for q in a["token_embed"][i]]
    return dense, sparse, sum(best) / len(best)


def test_scores_are_the_formulas():
    rng = np.random.default_rng(5)
    queries, documents = make_side(rng, 3), make_side(rng, 5)
    scores = hybrid_scores(queries, documents, weights=(0.4, 0.2, 0.4))
    for i in range(3):
        for j in range(5):
            expected = plain_scores(queries, documents, i, j)
            found = (scores.dense[i, j], scores.sparse[i, j], scores.multi_vector[i, j])
            assert found == pytest.approx(expected, abs=1e-5)
            assert scores.combined[i, j] == pytest.approx(np.dot([0.4, 0.2, 0.4], expected), abs=1e-5)


def test_weights_are_a_mean():
    rng = np.random.default_rng(6)
    queries, documents = make_side(rng, 2), make_side(rng, 2)
    only_dense = hybrid_scores(queries, documents, weights=(7, 0, 0))
    np.testing.assert_allclose(only_dense.combined, only_dense.dense, rtol=1e-6)


@pytest.mark.parametrize("weights", [(0, 0, 0), (1, 2), (1, -1, 3)])
def test_bad_weights_are_refused(weights):
    side = make_side(np.random.default_rng(7), 1)
    with pytest.raises(InvalidRequest, match="weights"):
        hybrid_scores(side, side, weights=weights)


def test_a_missing_output_is_named_with_the_remedy():
    side = make_side(np.random.default_rng(8), 1)
    poor = EncodeOutput(side.num_tokens, side.truncated, {Task.EMBED: side[Task.EMBED]})
    with pytest.raises(InvalidRequest, match="queries lack an output; encode both sides"):
        hybrid_scores(poor, side)
