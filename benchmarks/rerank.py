"""Reranking by a cross-encoder against CrossEncoder.rank, and similarities against a NumPy loop, as ratios.

``python -m benchmarks.rerank MODEL`` times 1 query × 100 documents and 32 queries × 1,000 documents, each engine in a
process of its own, best of several rounds, with the processes' peak memory. Both must give the same order.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import NamedTuple

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.texts import SEED, make_text, short

SHAPES = {"1 × 100": (1, 100, 5), "32 × 1,000": (32, 1000, 1)}
"""Queries, documents of each, rounds."""

DIMENSION = 384


class Measured(NamedTuple):
    seconds: float
    peak_mib: float
    best: list[int]
    """The best document of each query."""


def make_texts(num_queries: int, num_documents: int) -> tuple[list[str], list[str]]:
    chance = Random(SEED)
    queries = [make_text(short(chance), chance) for _ in range(num_queries)]
    return queries, [make_text(chance.randint(16, 128), chance) for _ in range(num_documents)]


def best_of(rounds: int, work: Callable[[], list[int]], warm_up: Callable[[], object]) -> Measured:
    """Time the work after a warm-up of a part of it."""
    warm_up()
    seconds, best = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        best = work()
        seconds.append(time.perf_counter() - start)
    return Measured(min(seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, best)


def run_forebay(model_name: str, shape: tuple[int, int, int]) -> Measured:
    from forebay import PoolingModel

    queries, documents = make_texts(*shape[:2])
    with PoolingModel(model_name) as model:

        def rank(some: list[str]) -> list[int]:
            return [model.rerank(query, documents).results[0].index for query in some]

        return best_of(shape[2], lambda: rank(queries), lambda: rank(queries[:1]))


def run_reference(model_name: str, shape: tuple[int, int, int]) -> Measured:
    from sentence_transformers import CrossEncoder

    queries, documents = make_texts(*shape[:2])
    model = CrossEncoder(model_name, device="cpu")

    def rank(some: list[str]) -> list[int]:
        return [int(model.rank(query, documents, show_progress_bar=False)[0]["corpus_id"]) for query in some]

    return best_of(shape[2], lambda: rank(queries), lambda: rank(queries[:1]))


def make_vectors(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(SEED)
    return tuple(random.standard_normal((num, DIMENSION), np.float32) for num in shape[:2])  # type: ignore[return-value]


def run_compare(_: str, shape: tuple[int, int, int]) -> Measured:
    import torch

    from forebay.pooling.similarity import compare

    one, other = (torch.from_numpy(vectors) for vectors in make_vectors(shape))
    places = torch.cartesian_prod(torch.arange(len(one)), torch.arange(len(other)))
    wanted = (places[:, 0], places[:, 1])

    def best() -> list[int]:
        return compare("cosine", one, other, wanted).view(len(one), -1).argmax(1).tolist()  # type: ignore[no-any-return]

    return best_of(20, best, best)


def run_loop(_: str, shape: tuple[int, int, int]) -> Measured:
    queries, documents = make_vectors(shape)

    def loop() -> list[int]:
        best = []
        for query in queries:
            scores = [float(query @ one / np.linalg.norm(query) / np.linalg.norm(one)) for one in documents]
            best.append(int(np.argmax(scores)))
        return best

    return best_of(3, loop, loop)


def measure(run: "Run", model: str, shape: tuple[int, int, int]) -> Measured:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        return alone.submit(run, model, shape).result()


Run = Callable[[str, tuple[int, int, int]], Measured]


def print_table(about: str, model_help: str, rivals: Sequence[tuple[str, Run, Run]]) -> None:
    """The command line of a comparison: each rival's name, Forebay's way, the other's."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("model", help=model_help)
    parser.add_argument("--shape", choices=[*SHAPES], help="one of the two; both where left out")
    arguments = parser.parse_args()
    print(describe_machine())
    print("| | queries × documents | Forebay | other | times faster | peak MiB |\n|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        if arguments.shape not in (None, name):
            continue
        for what, ours, theirs in rivals:
            one, other = measure(ours, arguments.model, shape), measure(theirs, arguments.model, shape)
            if one.best != other.best:
                print(f"the best documents differ for {sum(map(int.__ne__, one.best, other.best))} queries")
            print(
                f"| {what} | {name} | {one.seconds * 1e3:,.1f} ms | {other.seconds * 1e3:,.1f} ms "
                f"| {other.seconds / one.seconds:.1f} | {one.peak_mib:,.0f} / {other.peak_mib:,.0f} |"
            )


def main() -> None:
    rivals = [
        ("rank by a cross-encoder", run_forebay, run_reference),
        ("compare given embeddings", run_compare, run_loop),
    ]
    print_table(__doc__.splitlines()[0], "a cross-encoder with one label", rivals)


if __name__ == "__main__":
    main()
