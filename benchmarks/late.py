"""Late interaction against PyLate and sentence-transformers, and MaxSim of stored vectors also against a NumPy loop.

``python -m benchmarks.late --write docs/benchmarks.md``. PyLate 1.6 wants an older sentence-transformers, so it has an
environment of its own below ``--envs`` (made at the first run, with this interpreter's PyTorch). Each engine has a
process of its own, and they take turns; scores are compared before anything is timed. 1 × 100: a query and its
documents are read as texts. 32 × 1,000: every engine encodes each text once, and scores all pairs of what it encoded.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.compare import say
from benchmarks.rerank import make_texts
from benchmarks.shapes import DIMENSION, make_colbert
from benchmarks.texts import SEED
from benchmarks.turns import (
    FOREBAY,
    ROOT,
    Difference,
    Engine,
    Line,
    add_write_option,
    milliseconds,
    publish,
    take_turns,
    to_line,
    to_markdown,
)

TRAINED = Path("~/.cache/forebay-models/wn-colbert-tiny").expanduser()
RANDOM = "MiniLM-L6's shape, 128 numbers a token"
PYLATE, ENCODER, LOOP = "PyLate", "MultiVectorEncoder", "NumPy, a loop"
PADDED = "PyLate's colbert_scores, documents padded before"
PACKAGES = ("sentence-transformers==5.3.0", "transformers==5.3.0", "datasets", "ujson==5.12.0", "accelerate", "pandas")
"""What of PyLate's requirements reranking needs; the rest is its indexes', which want a PyTorch of their own."""

BATCH_SIZE = 32
QUERY_LENGTH = 32
CALLS = 5
"""A round of what is short."""

MAX_DIFFERENCE = 1e-3
"""Of sums of 32 products each."""


def make_environment(envs: Path) -> Path:
    """Return the Python of PyLate's environment, made where it is missing."""
    folder = envs / "pylate"
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists():
        say("making an environment for PyLate")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "borrowed.pth").write_text(str(Path(torch.__file__).parents[1]))  # what it lacks it takes from here
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        version = torch.__version__.partition("+")[0]
        for packages in (["--no-deps", "pylate==1.6.0"], [f"torch=={version}", *PACKAGES]):
            subprocess.run([*pip, *packages], check=True)
        stamp.touch()
    return python


def start_readers(stack: ExitStack, folder: str, python: Path) -> list[Engine]:
    """The engines that read texts, Forebay first."""
    engines = [
        Engine(FOREBAY, "late_peers", "forebay", folder=folder),
        Engine(PYLATE, "late_peers", "pylate", python=python, folder=folder, batch_size=BATCH_SIZE),
        Engine(ENCODER, "late_peers", "multi_vector_encoder", folder=folder, batch_size=BATCH_SIZE),
    ]
    return [stack.enter_context(engine) for engine in engines]


def check(engines: Sequence[Engine], op: str, **args: Any) -> Difference:
    """Compare all engines' scores with the first's."""
    ours, *others = (engine.run(op, **args) for engine in engines)
    found = [Difference.of(ours, theirs) for theirs in others]
    for engine, one in zip(engines[1:], found, strict=True):
        one.check(MAX_DIFFERENCE, f"the scores of Forebay and {engine.name}")
    return max(found)


def measure_texts(what: str, folder: Path, python: Path, options: argparse.Namespace) -> tuple[list[Line], str]:
    queries, documents = make_texts(options.queries, options.documents)
    few: dict[str, Any] = {"query": queries[0], "documents": documents[:100]}
    many = {"queries": queries, "documents": documents}
    with ExitStack() as stack:
        engines = start_readers(stack, str(folder), python)
        found = check(engines, "rank", **few)
        say(f"{what}: max |Δ| {found.largest:.1e}, deviation {found.deviation:.1e}")
        lines = _lines(f"{what}, texts, 1 × {len(few['documents'])}", engines, "rank", [few] * options.rounds)
        name = f"{what}, each text encoded once, {len(queries)} × {len(documents):,}"
        lines += _lines(name, engines, "rank_all", [many] * options.long_rounds)
    return lines, f"{what}: scores differ by {found.largest:.1e} (their standard deviation is {found.deviation:.1e})."


def _lines(
    what: str, engines: Sequence[Engine], op: str, rounds: Sequence[Mapping[str, Any]], calls: int = 1
) -> list[Line]:
    say(f"{what}: {len(rounds)} rounds")
    seconds = take_turns(engines, op, rounds, calls)
    return [to_line(what, seconds, (engines[0], other), milliseconds) for other in engines[1:]]


def save_vectors(path: Path, num_queries: int, num_documents: int) -> None:
    """Token vectors of length 1: queries of 32, documents of 32 to 180.

    In shorter ones a best product may be negative, for which PyLate's padding gives 0.
    """
    random = np.random.default_rng(SEED)
    arrays = {}
    lens_of = {"queries": np.full(num_queries, QUERY_LENGTH), "documents": random.integers(32, 181, num_documents)}
    for name, lens in lens_of.items():
        rows = random.standard_normal((lens.sum(), DIMENSION), np.float32)
        arrays |= {name: rows / np.linalg.norm(rows, axis=1, keepdims=True), f"{name}_lens": lens}
    np.savez(path, **arrays)


def measure_stored(folder: Path, python: Path, scratch: Path, options: argparse.Namespace) -> list[Line]:
    """MaxSim of vectors that are there: by the API of each engine, and by each engine's own function."""
    lines = []
    with ExitStack() as stack:
        engines = start_readers(stack, str(folder), python)
        engines.append(stack.enter_context(Engine(LOOP, "late_peers", "numpy_loop")))
        functions = [
            stack.enter_context(Engine(FOREBAY, "late_peers", "forebay_flat")),
            engines[-1],
            stack.enter_context(Engine(PADDED, "late_peers", "pylate_padded", python=python)),
        ]
        for shape, rounds in (((1, 100), options.rounds), ((options.queries, options.documents), options.long_rounds)):
            save_vectors(scratch / "vectors.npz", *shape)
            for engine in (*engines, *functions):
                engine.ask("load", path=str(scratch / "vectors.npz"))
            check([*engines, functions[0], functions[2]], "score")
            what, calls = f"{shape[0]} × {shape[1]:,}", CALLS if shape[0] == 1 else 1
            for name, own in (("model.score", engines), ("the function alone", functions)):
                lines += _lines(f"stored vectors, {what}, {name}", own, "score", [{}] * rounds, calls)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.late", description=__doc__)
    parser.add_argument("--model", type=Path, default=TRAINED, help="a model for late interaction")
    parser.add_argument("--rounds", type=int, default=7, help="of what is short")
    parser.add_argument("--long-rounds", type=int, default=3, help="of 32 × 1,000")
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--envs", type=Path, default=ROOT / "build" / "benchmark-envs")
    add_write_option(parser)
    options = parser.parse_args()
    python = make_environment(options.envs)
    lines: list[Line] = []
    notes = ["float32 on CPU, batches of 32 in the others. A ratio above 1 favours Forebay."]
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        larger = make_colbert(scratch / "random")
        folders = {options.model.name: options.model} if options.model.exists() else {}
        for what, folder in {**folders, RANDOM: larger}.items():
            own, note = measure_texts(what, folder, python, options)
            lines += own
            notes.append(note)
        lines += measure_stored(larger, python, scratch, options)
    publish("late", to_markdown(notes, lines), options.write)


if __name__ == "__main__":
    main()
