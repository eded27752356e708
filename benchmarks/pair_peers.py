"""Cross-encoders, and vectors that are compared, through each engine, for ``benchmarks.rerank``: loaders of a worker.

Each returns scores in the documents' order, after making the sorted list that its own API returns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Operations = Mapping[str, Callable[..., Any]]
Floats = NDArray[np.float32]


def forebay(folder: str) -> Operations:
    from forebay import PoolingModel

    model = PoolingModel(folder, dtype="float32", device="cpu")

    def rank(query: str, documents: Sequence[str]) -> Floats:
        scores = np.empty(len(documents), np.float32)
        for one in model.rerank(query, documents, show_progress=False).results:
            scores[one.index] = one.score
        return scores

    return {"rank": rank}


def cross_encoder(folder: str) -> Operations:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(folder, device="cpu")

    def rank(query: str, documents: Sequence[str], batch_size: int) -> Floats:
        scores = np.empty(len(documents), np.float32)
        for one in model.rank(query, documents, batch_size=batch_size, show_progress_bar=False):
            scores[int(one["corpus_id"])] = one["score"]
        return scores

    return {"rank": rank}


def forebay_vectors() -> Operations:
    """The engine's own function, by one matrix product for all pairs."""
    import torch

    from forebay.pooling.similarity import compare

    stored: list[torch.Tensor] = []

    def load(path: str) -> None:
        with np.load(path) as arrays:
            stored[:] = [torch.from_numpy(arrays[name]) for name in ("queries", "documents")]

    def score() -> Floats:
        one, other = stored
        places = torch.cartesian_prod(torch.arange(len(one)), torch.arange(len(other)))
        scores: Floats = compare("cosine", one, other, (places[:, 0], places[:, 1])).view(len(one), -1).numpy()
        return scores

    return {"load": load, "score": score}


def numpy_vectors() -> Operations:
    """A loop over documents, each compared with one query at a time."""
    stored: list[Floats] = []

    def load(path: str) -> None:
        with np.load(path) as arrays:
            stored[:] = [arrays[name] for name in ("queries", "documents")]

    def score() -> Floats:
        queries, documents = stored
        rows = [[query @ one / np.linalg.norm(query) / np.linalg.norm(one) for one in documents] for query in queries]
        return np.array(rows, np.float32)

    return {"load": load, "score": score}
