"""How alike two embeddings are, by the four functions that checkpoints name: higher is more alike.

Distances are negative. In float32, whatever made the vectors. It knows no texts.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Similarity(NamedTuple):
    """``matrix``: [Q, d] and [D, d] → [Q, D]. ``pairs``: [n, d] and [n, d] → [n]."""

    matrix: Callable[[Tensor, Tensor], Tensor]
    pairs: Callable[[Tensor, Tensor], Tensor]


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


def _distance(queries: Tensor, documents: Tensor, order: float) -> Tensor:
    exact = "donot_use_mm_for_euclid_dist"  # the other way loses half of the digits of small distances
    return torch.cdist(queries, documents, p=order, compute_mode=exact)


SIMILARITIES: dict[str, Similarity] = {
    "cosine": Similarity(lambda a, b: _unit(a) @ _unit(b).T, lambda a, b: (_unit(a) * _unit(b)).sum(-1)),
    "dot": Similarity(lambda a, b: a @ b.T, lambda a, b: (a * b).sum(-1)),
    "euclidean": Similarity(lambda a, b: -_distance(a, b, 2.0), lambda a, b: -torch.linalg.vector_norm(a - b, dim=-1)),
    "manhattan": Similarity(lambda a, b: -_distance(a, b, 1.0), lambda a, b: -(a - b).abs().sum(-1)),
}

# How many times more numbers the whole matrix may have than are wanted of it; it is that much faster than pairs.
_MOST_UNUSED = 8


def compare(name: str, queries: Tensor, documents: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Compare the wanted pairs of Q queries [Q, d] and D documents [D, d]; ``wanted`` are their places, int64 [n] each.

    By one matrix product where most of it is wanted (one query for all documents), pair by pair else. Returns [n].
    """
    similarity = SIMILARITIES[name]
    queries, documents = queries.float(), documents.float()
    query_of, document_of = wanted
    if len(queries) * len(documents) <= _MOST_UNUSED * len(query_of):
        return similarity.matrix(queries, documents)[query_of, document_of]
    return similarity.pairs(queries[query_of], documents[document_of])
