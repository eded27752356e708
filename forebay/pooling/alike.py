"""Token pooling: a document's vectors that are alike become their mean, so that an index keeps fewer of them.

Ward's clustering of cosine distances (Clavié et al. 2024, arXiv:2409.14683). By default as PyLate does it: the first
vector stays as it is, and means are not normalised again. It runs on the host and takes the square of a document's
length.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.pooling.results import Matrices


class Joining(NamedTuple):
    """Leave about one of ``factor`` vectors; the first ``num_protected`` stay single, and ``is_normalized`` tells that
    what is left is scaled to unit length.
    """

    factor: float
    num_protected: int = 1
    is_normalized: bool = False


def join_alike(vectors: Matrices, rule: Joining) -> Matrices:
    """Join the vectors of each document."""
    host = vectors.values.float().cpu().numpy()
    parts = np.split(host, np.cumsum(vectors.lens)[:-1])
    hierarchy = find_hierarchy() if rule.factor > 1 else None
    joined = [_scale(_join(part, rule, hierarchy), rule) for part in parts]
    values = torch.from_numpy(np.concatenate(joined)).to(vectors.values.device)
    return Matrices(values, np.array([len(part) for part in joined], np.int64))


def _join(rows: NDArray[np.float32], rule: Joining, hierarchy: Any) -> NDArray[np.float32]:
    """One document [L, d]."""
    rest = rows[rule.num_protected :]
    num_clusters = max(int(len(rest) // rule.factor), 1)
    if hierarchy is None or num_clusters >= len(rest):
        return rows
    distances = np.clip(1 - rest @ rest.T, 0, 2)
    tree = hierarchy.linkage(distances[np.triu_indices(len(rest), k=1)], method="ward")
    _, cluster_of = np.unique(hierarchy.fcluster(tree, num_clusters, criterion="maxclust"), return_inverse=True)
    counts = np.bincount(cluster_of)
    sums = np.zeros((len(counts), rows.shape[1]), np.float32)
    np.add.at(sums, cluster_of, rest)
    return np.concatenate([rows[: rule.num_protected], sums / counts[:, None].astype(np.float32)])


def _scale(rows: NDArray[np.float32], rule: Joining) -> NDArray[np.float32]:
    if not rule.is_normalized:
        return rows
    scaled: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return scaled


def find_hierarchy() -> Any:
    """SciPy's clustering, which comes with an extra of the package."""
    try:
        from scipy.cluster import hierarchy
    except ImportError:
        raise InvalidRequest(
            "'pool_factor' needs scipy: pip install 'forebay[token-pooling]'", field="pool_factor"
        ) from None
    return hierarchy
