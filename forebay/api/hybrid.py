"""How well texts match, from outputs that are there already: BGE-M3's three similarities and their weighted sum.

Pure functions of typed outputs; NumPy alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.core.outputs import EmbeddingOutput, EncodeOutput, SparseOutput, TokenEmbeddingOutput
from forebay.core.request import SparseVector
from forebay.core.tasks import Task

Floats = NDArray[np.float32]

# The weights of the model's authors for dense, sparse and multi-vector similarity (arXiv:2402.03216).
M3_WEIGHTS = (1.0, 0.3, 1.0)


class HybridScores(NamedTuple):
    """Similarities of q queries and d documents, each float32 [q, d]; ``combined`` is their weighted mean."""

    dense: Floats
    sparse: Floats
    multi_vector: Floats
    combined: Floats


def hybrid_scores(
    queries: EncodeOutput, documents: EncodeOutput, weights: tuple[float, float, float] = M3_WEIGHTS
) -> HybridScores:
    """Score every query with every document by all three outputs of one forward.

    Both sides need the outputs embed, sparse and token_embed. dense: dot product; sparse: sum over shared token ids
    of the product of weights; multi-vector: mean over the query's tokens of the largest dot product. The weighted
    sum is divided by the sum of ``weights``. Raises InvalidRequest where an output is missing or the weights are
    not three numbers with a sum above 0.
    """
    if len(weights) != 3 or min(weights) < 0 or sum(weights) <= 0:
        raise InvalidRequest("weights must be three numbers of at least 0, not all 0", field="weights")
    dense_q, sparse_q, tokens_q = _outputs(queries, "queries")
    dense_d, sparse_d, tokens_d = _outputs(documents, "documents")
    dense = dense_q.embeddings @ dense_d.embeddings.T
    sparse = np.array([[lexical_score(a, b) for b in sparse_d] for a in sparse_q], np.float32)
    multi_vector = np.array([[mean_max_sim(a, b) for b in tokens_d] for a in tokens_q], np.float32)
    sparse, multi_vector = sparse.reshape(dense.shape), multi_vector.reshape(dense.shape)
    combined = (weights[0] * dense + weights[1] * sparse + weights[2] * multi_vector) / sum(weights)
    return HybridScores(dense, sparse, multi_vector, combined.astype(np.float32))


def lexical_score(a: SparseVector, b: SparseVector) -> float:
    """Dot product of two sparse vectors."""
    _, in_a, in_b = np.intersect1d(a.ids, b.ids, assume_unique=True, return_indices=True)
    return float(a.weights[in_a] @ b.weights[in_b])


def mean_max_sim(query: Floats, document: Floats) -> float:
    """Mean over the query's vectors [m, d] of their largest dot product with one of the document's [k, d]."""
    if not len(query) or not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).mean())


def _outputs(output: EncodeOutput, side: str) -> tuple[EmbeddingOutput, SparseOutput, TokenEmbeddingOutput]:
    try:
        dense, sparse, tokens = (output[task] for task in (Task.EMBED, Task.SPARSE, Task.TOKEN_EMBED))
    except KeyError:
        raise InvalidRequest(
            f"the {side} lack an output; encode both sides with outputs=['embed', 'sparse', 'token_embed']", field=side
        ) from None
    assert isinstance(dense, EmbeddingOutput), "outputs are made by their task"
    assert isinstance(sparse, SparseOutput), "outputs are made by their task"
    assert isinstance(tokens, TokenEmbeddingOutput), "outputs are made by their task"
    return dense, sparse, tokens
