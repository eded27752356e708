"""MaxSim: how well the token vectors of documents match a query's (Khattab & Zaharia 2020, arXiv:2004.12832).

For each vector of the query the best product with any of the document's, summed; in float32. Documents lie end to end:
none is padded, and no more than a block of products stands in memory at a time. It knows no texts.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The most products that stand in memory at once: 4 MiB of float32, which stays in a processor's cache.
MAX_PRODUCTS = 1 << 20


def max_sim(
    query: Tensor, documents: Tensor, lens: NDArray[np.int64], *, is_mean: bool = False, block: int = MAX_PRODUCTS
) -> Tensor:
    """Scores float32 [n] of a query [q, d] for n documents [sum(lens), d]; one without vectors has -inf, as no match.

    ``is_mean`` divides by q. ``block`` bounds the products at a time.
    """
    num_query = len(query)
    query = query.float()
    scores = torch.zeros(len(lens), dtype=torch.float32, device=documents.device)
    if not num_query:
        return scores
    best = torch.full((num_query, len(lens)), -torch.inf, dtype=torch.float32, device=documents.device)
    for rows, owners in _blocks(lens, max(1, block // num_query)):
        products = query @ documents[rows].float().T  # [q, rows]
        if len(owners) == 1:
            first = owners[0]
            best[:, first] = torch.maximum(best[:, first], products.amax(1))
        else:
            index = torch.from_numpy(np.repeat(owners, _counts(owners, lens, rows))).to(documents.device)
            best.scatter_reduce_(1, index.expand(num_query, -1), products, "amax")
    scores = best.sum(0)
    return scores / num_query if is_mean else scores


def _blocks(lens: NDArray[np.int64], num_rows: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Cut the rows of all documents into blocks of at most ``num_rows``, each with the documents it has rows of."""
    ends = np.cumsum(lens)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, num_rows):
        stop = min(start + num_rows, total)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        owners = np.arange(first, last + 1)
        yield slice(start, stop), owners[lens[owners] > 0]


def _counts(owners: NDArray[np.int64], lens: NDArray[np.int64], rows: slice) -> NDArray[np.int64]:
    """How many of a block's rows each document has."""
    ends = np.cumsum(lens)[owners]
    starts = ends - lens[owners]
    counts: NDArray[np.int64] = np.minimum(ends, rows.stop) - np.maximum(starts, rows.start)
    return counts
