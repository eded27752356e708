"""Late interaction against MultiVectorEncoder, and MaxSim of stored vectors against a NumPy loop, as ratios.

``python -m benchmarks.late MODEL`` times 1 query × 100 documents and 32 queries × 1,000 documents, each engine in a
process of its own, best of several rounds, with the processes' peak memory. Both must give the same order.
"""

import numpy as np

from benchmarks.rerank import Measured, best_of, make_texts, print_table, run_forebay

DIMENSION, QUERY_LENGTH = 128, 32

Shape = tuple[int, int, int]


def run_reference(model_name: str, shape: Shape) -> Measured:
    from sentence_transformers import MultiVectorEncoder

    queries, documents = make_texts(*shape[:2])
    model = MultiVectorEncoder(model_name, device="cpu")

    def rank(some: list[str]) -> list[int]:
        best = []
        for query in some:
            scores = model.similarity(model.encode_query([query]), model.encode_document(documents))
            best.append(int(scores[0].argmax()))
        return best

    return best_of(shape[2], lambda: rank(queries), lambda: rank(queries[:1]))


def _make_vectors(shape: Shape) -> tuple[list[np.ndarray], list[np.ndarray]]:
    random = np.random.default_rng(3)
    lens = [QUERY_LENGTH] * shape[0] + random.integers(16, 180, shape[1]).tolist()
    matrices = [random.standard_normal((length, DIMENSION), np.float32) for length in lens]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in matrices]
    return unit[: shape[0]], unit[shape[0] :]


def run_maxsim(model_name: str, shape: Shape) -> Measured:
    """The engine's own function; the documents lie end to end, as they come from a model."""
    import torch

    from forebay.pooling.maxsim import max_sim

    queries, documents = _make_vectors(shape)
    flat = torch.from_numpy(np.concatenate(documents))
    lens = np.array([len(rows) for rows in documents], np.int64)

    def rank() -> list[int]:
        return [int(max_sim(torch.from_numpy(query), flat, lens).argmax()) for query in queries]

    return best_of(shape[2], rank, rank)


def run_loop(model_name: str, shape: Shape) -> Measured:
    queries, documents = _make_vectors(shape)

    def rank() -> list[int]:
        return [int(np.argmax([(query @ rows.T).max(1).sum() for rows in documents])) for query in queries]

    return best_of(shape[2], rank, rank)


def main() -> None:
    rivals = [("rerank texts", run_forebay, run_reference), ("MaxSim of stored vectors", run_maxsim, run_loop)]
    print_table(__doc__.splitlines()[0], "a model for late interaction", rivals)


if __name__ == "__main__":
    main()
