"""Late interaction through each engine, for ``benchmarks.late``: loaders of a worker.

``rank`` reads a query and its documents; ``rank_all`` encodes every text once and then scores all pairs; ``score``
takes token vectors that ``load`` has read. All return scores in the documents' order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Operations = Mapping[str, Callable[..., Any]]
Floats = NDArray[np.float32]


def read_stored(path: str) -> tuple[list[Floats], list[Floats]]:
    """The matrices of queries and of documents."""
    with np.load(path) as arrays:
        sides = [np.split(arrays[name], np.cumsum(arrays[f"{name}_lens"])[:-1]) for name in ("queries", "documents")]
    queries, documents = ([np.ascontiguousarray(rows) for rows in side] for side in sides)
    return queries, documents


def forebay(folder: str) -> Operations:
    from forebay import PoolingModel

    model = PoolingModel(folder, dtype="float32", device="cpu")
    stored: list[list[Floats]] = []

    def rank(query: str, documents: Sequence[str], **_: int) -> Floats:
        return model.score(query, documents, show_progress=False).scores

    def score_all(queries: Sequence[Floats], documents: Sequence[Floats]) -> Floats:
        return np.stack([model.score(query, documents, show_progress=False).scores for query in queries])

    def rank_all(queries: Sequence[str], documents: Sequence[str]) -> Floats:
        sides = {"query": queries, "document": documents}
        encoded = [
            list(model.token_embed(texts, input_type=side, show_progress=False).matrices)
            for side, texts in sides.items()
        ]
        return score_all(*encoded)

    def load(path: str) -> None:
        stored[:] = read_stored(path)

    return {"rank": rank, "rank_all": rank_all, "load": load, "score": lambda: score_all(*stored)}


def forebay_flat() -> Operations:
    """The engine's own function on documents that lie end to end, as they come from a model."""
    import torch

    from forebay.pooling.maxsim import max_sim

    stored: list[Any] = []

    def load(path: str) -> None:
        queries, documents = read_stored(path)
        lens = np.array([len(rows) for rows in documents], np.int64)
        stored[:] = [[torch.from_numpy(query) for query in queries], torch.from_numpy(np.concatenate(documents)), lens]

    def score() -> Floats:
        queries, flat, lens = stored
        return np.stack([max_sim(query, flat, lens).numpy() for query in queries])

    return {"load": load, "score": score}


def pylate(folder: str, batch_size: int) -> Operations:
    """PyLate in its own environment: its encoder, and rank.rerank of what that returns."""
    from pylate import models, rank

    model = models.ColBERT(folder, device="cpu", skiplist_words=[])
    stored: list[list[Any]] = []

    def rerank(queries: Sequence[Any], documents: Sequence[Any]) -> Floats:
        ids = [list(range(len(documents)))] * len(queries)
        found = np.empty((len(queries), len(documents)), np.float32)
        for row, results in enumerate(rank.rerank(ids, list(queries), [list(documents)] * len(queries))):
            for result in results:
                found[row, int(result["id"])] = result["score"]
        return found

    def encode(texts: Sequence[str], *, is_query: bool) -> list[Any]:
        return list(model.encode(list(texts), is_query=is_query, batch_size=batch_size, show_progress_bar=False))

    def rank_all(queries: Sequence[str], documents: Sequence[str]) -> Floats:
        return rerank(encode(queries, is_query=True), encode(documents, is_query=False))

    def load(path: str) -> None:
        stored[:] = read_stored(path)

    return {
        "rank": lambda query, documents: rank_all([query], documents)[0],
        "rank_all": rank_all,
        "load": load,
        "score": lambda: rerank(*stored),
    }


def pylate_padded() -> Operations:
    """PyLate's function alone, a query at a time, on documents that one tensor holds."""
    import torch
    from pylate import scores

    stored: list[torch.Tensor] = []

    def load(path: str) -> None:
        queries, documents = read_stored(path)
        padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(rows) for rows in documents], batch_first=True)
        stored[:] = [torch.from_numpy(np.stack(queries)), padded]

    def score() -> Floats:
        queries, documents = stored
        rows: Floats = torch.cat([scores.colbert_scores(query[None], documents) for query in queries]).numpy()
        return rows

    return {"load": load, "score": score}


def multi_vector_encoder(folder: str, batch_size: int) -> Operations:
    """sentence-transformers' own encoder and similarity."""
    import torch
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(folder, device="cpu")
    stored: list[list[Any]] = []

    def similarity(queries: Any, documents: Any) -> Floats:
        return np.asarray(model.similarity(queries, documents), np.float32)

    def rank_all(queries: Sequence[str], documents: Sequence[str]) -> Floats:
        options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": False}
        return similarity(
            model.encode_query(list(queries), **options), model.encode_document(list(documents), **options)
        )

    def load(path: str) -> None:
        stored[:] = [[torch.from_numpy(rows) for rows in side] for side in read_stored(path)]

    return {
        "rank": lambda query, documents: rank_all([query], documents)[0],
        "rank_all": rank_all,
        "load": load,
        "score": lambda: similarity(*stored),
    }


def numpy_loop() -> Operations:
    """A loop over documents, one product each."""
    stored: list[list[Floats]] = []

    def load(path: str) -> None:
        stored[:] = read_stored(path)

    def score() -> Floats:
        queries, documents = stored
        rows = [[(query @ one.T).max(1).sum() for one in documents] for query in queries]
        return np.array(rows, np.float32)

    return {"load": load, "score": score}
