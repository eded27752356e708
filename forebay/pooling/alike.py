"""Token pooling: a document's vectors that are alike become their mean, so that an index keeps fewer of them.

Ward's clustering of cosine distances (Clavié et al. 2024, arXiv:2409.14683), as PyLate does it: the first vector stays
as it is, and means are not normalised again. It runs on the host and takes the square of a document's length.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.core.errors import InvalidRequest
from forebay.pooling.results import Matrices

_NUM_PROTECTED = 1


def join_alike(vectors: Matrices, factor: int) -> Matrices:
    """Leave about one of ``factor`` vectors of each document."""
    hierarchy = _find_hierarchy()
    host = vectors.values.cpu().numpy()
    parts = np.split(host, np.cumsum(vectors.lens)[:-1])
    joined = [_join(part, factor, hierarchy) for part in parts]
    values = torch.from_numpy(np.concatenate(joined)).to(vectors.values.device)
    return Matrices(values, np.array([len(part) for part in joined], np.int64))


def _join(rows: NDArray[np.float32], factor: int, hierarchy: Any) -> NDArray[np.float32]:
    """One document [L, d]."""
    rest = rows[_NUM_PROTECTED:]
    num_clusters = max(len(rest) // factor, 1)
    if num_clusters >= len(rest):
        return rows
    distances = np.clip(1 - rest @ rest.T, 0, 2)
    tree = hierarchy.linkage(distances[np.triu_indices(len(rest), k=1)], method="ward")
    _, cluster_of = np.unique(hierarchy.fcluster(tree, num_clusters, criterion="maxclust"), return_inverse=True)
    counts = np.bincount(cluster_of)
    sums = np.zeros((len(counts), rows.shape[1]), np.float32)
    np.add.at(sums, cluster_of, rest)
    return np.concatenate([rows[:_NUM_PROTECTED], sums / counts[:, None].astype(np.float32)])


def _find_hierarchy() -> Any:
    try:
        from scipy.cluster import hierarchy
    except ImportError:
        raise InvalidRequest(
            "'pool_factor' needs scipy: pip install 'forebay[token-pooling]'", field="pool_factor"
        ) from None
    return hierarchy
