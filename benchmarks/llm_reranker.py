"""One query and 100 documents through a language model that answers yes or no, the shared prefix cached and not.

``python -m benchmarks.llm_reranker --write docs/benchmarks.md``. The checkpoint has the shape of Qwen3-Reranker-0.6B
and random weights; system message, instruction and query are the prefix that all pairs of a query share. Every round
has a query of its own, so that no document is found in the cache from the round before. Beside it transformers' plain
loop, in the fastest of BATCH_SIZES. Logits are compared before anything is timed.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from benchmarks.compare import say
from benchmarks.shapes import QWEN3_LAYERS, make_reranker
from benchmarks.texts import SEED, make_text
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

BATCH_SIZES = (2, 8, 32)
MAX_SHARE = {"float32": 1e-3, "bfloat16": 0.2}
"""So large may the largest difference of logits be, as a part of their standard deviation."""

INSTRUCTION = "Given a question about a programming language's standard library, retrieve passages that answer it"
UNCACHED, PLAIN = "Forebay, no prefix cache", "transformers"


def make_round(seed: int, num_documents: int) -> dict[str, object]:
    """A query of about 16 tokens and documents of 16 to 128."""
    chance = Random(SEED + seed)
    query = make_text(16, chance)
    documents = [make_text(chance.randint(16, 128), chance) for _ in range(num_documents)]
    return {"query": query, "documents": documents, "instruction": INSTRUCTION}


def start(stack: ExitStack, folder: Path, dtype: str) -> list[Engine]:
    """Forebay with and without the prefix cache, and transformers."""
    where = {"folder": str(folder), "dtype": dtype}
    engines = [
        Engine(FOREBAY, "decoder_peers", "forebay_reranker", caches_prefix=True, **where),
        Engine(UNCACHED, "decoder_peers", "forebay_reranker", caches_prefix=False, **where),
        Engine(PLAIN, "decoder_peers", "transformers_reranker", **where),
    ]
    return [stack.enter_context(engine) for engine in engines]


def check(engines: Sequence[Engine], dtype: str, num_documents: int) -> str:
    """Compare the logits of all engines with those of the plain loop; returns what was found."""
    sample = make_round(1000, num_documents)
    size = choose_batch_size(engines[-1], BATCH_SIZES, "score", **sample)
    *ours, theirs = (engine.run("score", **sample) for engine in engines)
    found = [Difference.of(scores, theirs) for scores in ours]
    most = max(one.largest for one in found)
    say(f"{dtype}: batches of {size}; max |Δ| of logits {most:.1e}, their deviation {found[0].deviation:.1e}")
    Difference(most, 0.0).check(MAX_SHARE[dtype] * found[0].deviation, "the logits")
    return f"{dtype}: max |Δ| of the logits {most:.1e} (their standard deviation is {found[0].deviation:.2f})"


def measure(folder: Path, dtype: str, layers: int, options: argparse.Namespace) -> tuple[list[Line], str]:
    with ExitStack() as stack:
        engines = start(stack, folder, dtype)
        note = check(engines, dtype, min(options.documents, 20))
        rounds = [make_round(number, options.documents) for number in range(options.rounds)]
        seconds = take_turns(engines, "score", rounds)
        what = f"1 × {options.documents}, {dtype}, {layers} layers"
        lines = [to_line(what, seconds, (engines[0], other), milliseconds) for other in engines[1:]]
        reserved = " and ".join(f"{engine.ask('reserved')} ({engine.name})" for engine in engines[:2])
        return lines, f"{note}; keys and values: {reserved}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_reranker", description=__doc__)
    parser.add_argument("--layers", type=int, default=QWEN3_LAYERS // 4, help="of 28; the fewer, the faster")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], choices=list(MAX_SHARE))
    add_write_option(parser)
    options = parser.parse_args()
    notes = [
        f"Qwen3-Reranker-0.6B's shape with {options.layers} of its 28 layers, random weights; rounds: {options.rounds} "
        "(each with texts of its own). A ratio above 1 favours Forebay with its prefix cache."
    ]
    lines: list[Line] = []
    for dtype in options.dtypes:
        with tempfile.TemporaryDirectory() as place:
            folder = make_reranker(Path(place), options.layers, dtype)
            own, note = measure(folder, dtype, options.layers, options)
        lines += own
        notes.append(note)
    publish("llm-reranker", to_markdown(notes, lines), options.write)


if __name__ == "__main__":
    main()
