"""Reranking by a cross-encoder against CrossEncoder.rank, and similarities of vectors against a NumPy loop.

``python -m benchmarks.rerank --write docs/benchmarks.md``. Each engine has a process of its own, and they take turns
query by query; scores are compared before anything is timed. Two cross-encoders: a small trained one where it is at
hand, and one of MiniLM-L6's shape with random weights. CrossEncoder runs with the fastest of BATCH_SIZES.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.compare import say
from benchmarks.shapes import make_cross_encoder
from benchmarks.texts import SEED, make_text, short
from benchmarks.turns import (
    FOREBAY,
    Difference,
    Engine,
    Line,
    add_write_option,
    choose_batch_size,
    milliseconds,
    publish,
    take_turns,
    to_line,
    to_markdown,
)

TRAINED = Path("~/.cache/forebay-models/wn-reranker-tiny").expanduser()
RANDOM = "MiniLM-L6's shape"
BATCH_SIZES = (16, 32, 64)
SHAPES = {"1 × 100": (1, 100), "32 × 1,000": (32, 1000)}
DIMENSION = 384
MAX_DIFFERENCE = 1e-4
CALLS = 9
"""A round of what is short."""

OTHER = "CrossEncoder.rank"


def make_texts(num_queries: int, num_documents: int) -> tuple[list[str], list[str]]:
    """Queries of about 12 tokens, documents of 16 to 128."""
    chance = Random(SEED)
    queries = [make_text(short(chance), chance) for _ in range(num_queries)]
    return queries, [make_text(chance.randint(16, 128), chance) for _ in range(num_documents)]


def measure_ranking(
    what: str, folder: Path, queries: Sequence[str], documents: Sequence[str], options: argparse.Namespace
) -> tuple[list[Line], str]:
    """1 × 100 a few times over, then as many of the queries × 1,000 as asked for, each a round."""
    with ExitStack() as stack:
        ours = stack.enter_context(Engine(FOREBAY, "pair_peers", "forebay", folder=str(folder)))
        other = stack.enter_context(Engine(OTHER, "pair_peers", "cross_encoder", folder=str(folder)))
        few: dict[str, Any] = {"query": queries[0], "documents": documents[:100]}
        size = choose_batch_size(other, BATCH_SIZES * 2, "rank", **few)
        own, theirs = (engine.run("rank", **few) for engine in (ours, other))
        found = Difference.of(own, theirs)
        found.check(MAX_DIFFERENCE, "the scores")
        say(f"{what}: batches of {size}, max |Δ| {found.largest:.1e}, deviation {found.deviation:.1e}")
        lines = [_line(f"{what}, 1 × {len(few['documents'])}", (ours, other), [few] * options.rounds)]
        wanted = queries[: options.queries_of[what]]
        part = "" if len(wanted) == len(queries) else f" (measured on {len(wanted)} of the queries, time a query)"
        rounds = [{"query": query, "documents": documents} for query in wanted]
        name = f"{what}, {len(queries)} × {len(documents):,}{part or ', time a query'}"
        lines.append(_line(name, (ours, other), rounds))
    return lines, f"{what}: scores differ by {found.largest:.1e} (their standard deviation is {found.deviation:.1e})."


def _line(what: str, engines: tuple[Engine, Engine], rounds: Sequence[Mapping[str, Any]]) -> Line:
    say(f"{what}: {len(rounds)} rounds")
    return to_line(what, take_turns(engines, "rank", rounds), engines, milliseconds)


def measure_vectors(shape: tuple[int, int], scratch: Path, rounds: int) -> Line:
    """Given embeddings of DIMENSION numbers."""
    random = np.random.default_rng(SEED)
    queries, documents = (random.standard_normal((num, DIMENSION), np.float32) for num in shape)
    np.savez(scratch / "vectors.npz", queries=queries, documents=documents)
    with ExitStack() as stack:
        ours = stack.enter_context(Engine(FOREBAY, "pair_peers", "forebay_vectors"))
        other = stack.enter_context(Engine("NumPy, a loop", "pair_peers", "numpy_vectors"))
        for engine in (ours, other):
            engine.ask("load", path=str(scratch / "vectors.npz"))
        Difference.of(*(engine.run("score") for engine in (ours, other))).check(MAX_DIFFERENCE, "the similarities")
        what = f"given embeddings, {shape[0]} × {shape[1]:,}"
        return to_line(what, take_turns((ours, other), "score", [{}] * rounds, CALLS), (ours, other), milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rerank", description=__doc__)
    parser.add_argument("--model", type=Path, default=TRAINED, help="a cross-encoder with one label")
    parser.add_argument("--rounds", type=int, default=9, help="of what is short")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=32, help="of the model's 32 × 1,000")
    parser.add_argument("--queries-random", type=int, default=6, help="of the 32 of the larger one")
    add_write_option(parser)
    options = parser.parse_args()
    options.queries_of = {options.model.name: options.queries, RANDOM: options.queries_random}
    queries, documents = make_texts(32, options.documents)
    lines: list[Line] = []
    notes = ["float32 on CPU. A ratio above 1 favours Forebay; a query is a round."]
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        folders = {options.model.name: options.model} if options.model.exists() else {}
        for what, folder in {**folders, RANDOM: make_cross_encoder(scratch / "random")}.items():
            own, note = measure_ranking(what, folder, queries, documents, options)
            lines += own
            notes.append(note)
        lines += [measure_vectors(shape, scratch, options.rounds) for shape in SHAPES.values()]
    publish("rerank", to_markdown(notes, lines), options.write)


if __name__ == "__main__":
    main()
