"""Late interaction against MultiVectorEncoder, and MaxSim of stored vectors against a NumPy loop, as ratios.

``python -m benchmarks.late MODEL`` times 1 query × 100 documents and 32 queries × 1,000 documents, each engine in a
process of its own, best of several rounds, with the processes' peak memory. Both must give the same order.
"""

import argparse

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.rerank import SHAPES, Measured, best_of, make_texts, measure, run_forebay

DIMENSION, QUERY_LENGTH = 128, 32

Shape = tuple[int, int, int]


def run_reference(model_name: str, shape: Shape) -> Measured:
    from sentence_transformers import MultiVectorEncoder

    queries, documents = make_texts(*shape[:2])
    model = MultiVectorEncoder(model_name, device="cpu")

    def rank() -> list[int]:
        best = []
        for query in queries:
            scores = model.similarity(model.encode_query([query]), model.encode_document(documents))
            best.append(int(scores[0].argmax()))
        return best

    return best_of(shape[2], rank)


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
    return best_of(shape[2], lambda: [int(max_sim(torch.from_numpy(query), flat, lens).argmax()) for query in queries])


def run_loop(model_name: str, shape: Shape) -> Measured:
    queries, documents = _make_vectors(shape)

    def rank() -> list[int]:
        return [int(np.argmax([(query @ rows.T).max(1).sum() for rows in documents])) for query in queries]

    return best_of(shape[2], rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model for late interaction")
    parser.add_argument("--shape", choices=[*SHAPES], help="one of the two; both where left out")
    arguments = parser.parse_args()
    print(describe_machine())
    print("| | queries × documents | Forebay | other | times faster | peak MiB |\n|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        if arguments.shape not in (None, name):
            continue
        for what, ours, theirs in (
            ("rerank texts", run_forebay, run_reference),
            ("MaxSim of stored vectors", run_maxsim, run_loop),
        ):
            one, other = measure(ours, arguments.model, shape), measure(theirs, arguments.model, shape)
            if one.best != other.best:
                print(f"the best documents differ for {sum(map(int.__ne__, one.best, other.best))} queries")
            print(
                f"| {what} | {name} | {one.seconds * 1e3:,.1f} ms | {other.seconds * 1e3:,.1f} ms "
                f"| {other.seconds / one.seconds:.1f} | {one.peak_mib:,.0f} / {other.peak_mib:,.0f} |"
            )


if __name__ == "__main__":
    main()
