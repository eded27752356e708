"""Tokens a second of a decoder embedder: Forebay, transformers and sentence-transformers at equal dtype.

``python -m benchmarks.decoders --write docs/benchmarks.md``. The checkpoint has the shape of Qwen3-Embedding-0.6B and
random weights, and is made by the script. Each engine has a process of its own; vectors are compared before anything
is timed. The others run with the fastest of BATCH_SIZES.
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare import say
from benchmarks.shapes import QWEN3_LAYERS, make_embedder
from benchmarks.turns import (
    FOREBAY,
    Difference,
    Engine,
    Line,
    add_write_option,
    choose_batch_size,
    cosines,
    publish,
    take_turns,
    to_line,
    to_markdown,
)

LENGTHS = (16, 64, 128, 256, 512)
BATCH_SIZES = (1, 4)
SAMPLE = 4
"""So many texts, the shortest, are compared and tried in batches."""

LEAST_COSINE = {"float32": 0.99999, "bfloat16": 0.99}
OTHERS = {"transformers": "transformers", "sentence-transformers": "sentence_transformers"}


def make_texts(count: int, *, seed: int) -> list[str]:
    """Texts of mixed lengths, one token a word and an end token; the same in every run, all different."""
    source = random.Random(seed)
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(count)]
    return [" ".join(f"w{source.randrange(1000)}" for _ in range(length - 1)) for length in lengths]


def count_tokens(texts: Sequence[str]) -> int:
    return sum(text.count(" ") + 2 for text in texts)


def measure(folder: Path, dtype: str, options: argparse.Namespace) -> tuple[list[Line], str]:
    """Lines against each of the others, and a sentence on agreement and memory."""
    sample = make_texts(SAMPLE, seed=0)
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(FOREBAY, "decoder_peers", "forebay", folder=str(folder), dtype=dtype))]
        for name, loader in OTHERS.items():
            own = Engine(name, "decoder_peers", loader, folder=str(folder), dtype=dtype)
            engines.append(stack.enter_context(own))
            say(f"{dtype}: {name}, batches of {choose_batch_size(own, BATCH_SIZES, 'embed', texts=sample)}")
        ours, *theirs = (engine.run("embed", texts=sample) for engine in engines)
        least = min(float(cosines(ours, vectors).min()) for vectors in theirs)
        most = max(Difference.of(ours, vectors).largest for vectors in theirs)
        say(f"{dtype}: min cosine {least:.6f}, max |Δ| {most:.1e}")
        if least < LEAST_COSINE[dtype]:
            raise SystemExit(f"error: the vectors' least cosine is {least:.6f}; there is nothing to compare")
        rounds = [{"texts": make_texts(options.texts, seed=1 + number)} for number in range(options.rounds)]
        seconds = take_turns(engines, "embed", rounds)
        num_tokens = count_tokens(rounds[0]["texts"])
        what = f"{dtype}, {options.texts} texts of {num_tokens / options.texts:.0f} tokens on average"
        lines = [
            to_line(what, seconds, (engines[0], other), lambda value: f"{num_tokens / value:,.0f} tok/s")
            for other in engines[1:]
        ]
        note = f"{dtype}: min cosine {least:.6f}, max |Δ| {most:.1e}, keys and values: {engines[0].ask('reserved')}."
        return lines, note


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoders", description=__doc__)
    parser.add_argument("--layers", type=int, default=QWEN3_LAYERS)
    parser.add_argument("--texts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=list(LEAST_COSINE), choices=list(LEAST_COSINE))
    add_write_option(parser)
    options = parser.parse_args()
    notes = [
        f"Qwen3-Embedding-0.6B's shape ({options.layers} layers), random weights; rounds: {options.rounds}. A ratio "
        "above 1 favours Forebay."
    ]
    lines: list[Line] = []
    for dtype in options.dtypes:
        with tempfile.TemporaryDirectory() as place:
            own, note = measure(make_embedder(Path(place), options.layers, dtype), dtype, options)
        lines += own
        notes.append(note)
    publish("decoders", to_markdown(notes, lines), options.write)


if __name__ == "__main__":
    main()
