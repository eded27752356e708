"""MaxSim: how well the token vectors of documents match a query's (Khattab & Zaharia 2020, arXiv:2004.12832).

For each vector of the query the best product with any of the document's, summed; in float32. No document is padded,
and no more than a block of products stands in memory at a time; natively not even that. It knows no texts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.layers.best_products import sums_of_best_products

Floats = NDArray[np.float32]

NO_MATCH = -1e9
"""The score of a document without token vectors, as sentence-transformers has it, before a mean is taken."""

# The most products that stand in memory at once: 4 MiB of float32, which stays in a processor's cache.
MAX_PRODUCTS = 1 << 20


def max_sim(query: Tensor, documents: Tensor, lens: NDArray[np.int64], *, is_mean: bool = False) -> Tensor:
    """Scores float32 [n] of a query [q, d] for n documents, end to end [sum(lens), d]; one without vectors has -inf,
    as no match. ``is_mean`` divides by q.
    """
    if documents.device.type == "cpu" and documents.dtype == torch.float32 and documents.stride(1) == 1:
        scores = _native(query.float().numpy(), [documents.numpy()], lens, is_mean=is_mean)
        if scores is not None:
            return torch.from_numpy(scores)
    return max_sim_reference(query, documents, lens, is_mean=is_mean)


def max_sim_of_matrices(query: Floats, documents: Sequence[Floats], *, is_mean: bool = False) -> Floats:
    """The same for documents that are arrays of their own on the host."""
    lens = np.fromiter(map(len, documents), np.int64, len(documents))
    scores = _native(query, documents, lens, is_mean=is_mean)
    if scores is not None:
        return scores
    rows = torch.from_numpy(np.concatenate(documents))
    made: Floats = max_sim_reference(torch.from_numpy(query), rows, lens, is_mean=is_mean).numpy()
    return made


def _native(query: Floats, arrays: Sequence[Floats], lens: NDArray[np.int64], *, is_mean: bool) -> Floats | None:
    scores = sums_of_best_products(query, arrays, lens) if len(query) else np.zeros(len(lens), np.float32)
    return scores / np.float32(len(query)) if is_mean and scores is not None and len(query) else scores


def max_sim_reference(
    query: Tensor, documents: Tensor, lens: NDArray[np.int64], *, is_mean: bool = False, block: int = MAX_PRODUCTS
) -> Tensor:
    """The same by PyTorch, for every device and dtype; ``block`` bounds the products at a time."""
    num_query = len(query)
    query = query.float()
    scores = torch.zeros(len(lens), dtype=torch.float32, device=documents.device)
    if not num_query:
        return scores
    best = torch.full((len(lens), num_query), -torch.inf, dtype=torch.float32, device=documents.device)
    for rows, owners, counts in _blocks(lens, max(1, block // num_query)):
        products = documents[rows].float() @ query.T  # [rows, q]
        own = torch.from_numpy(owners).to(documents.device)
        best[own] = torch.maximum(best[own], _best_of_each(products, counts))
    scores = best.sum(1)
    return scores / num_query if is_mean else scores


def _best_of_each(products: Tensor, counts: NDArray[np.int64]) -> Tensor:
    """The maximum of so many neighbouring rows each, [len(counts), q]; NumPy's is by far the fastest on the CPU."""
    if products.device.type == "cpu":
        return torch.from_numpy(np.maximum.reduceat(products.numpy(), np.cumsum(counts) - counts, axis=0))
    lengths = torch.from_numpy(counts).to(products.device)
    return torch.segment_reduce(products, "max", lengths=lengths, axis=0)


class _Block(NamedTuple):
    """Rows of the flat documents, the documents that they belong to, and how many of them each has (none has 0)."""

    rows: slice
    owners: NDArray[np.int64]
    counts: NDArray[np.int64]


def _blocks(lens: NDArray[np.int64], num_rows: int) -> Iterator[_Block]:
    """Cut the rows of all documents into blocks of at most ``num_rows``."""
    ends = np.cumsum(lens)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, num_rows):
        stop = min(start + num_rows, total)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        owners = np.arange(first, last + 1)
        owners = owners[lens[owners] > 0]
        counts = np.minimum(ends[owners], stop) - np.maximum(ends[owners] - lens[owners], start)
        yield _Block(slice(start, stop), owners, counts)
