"""The native path against the PyTorch path on one machine in one run: the same model, texts and engine, float32.

``python -m benchmarks.paths``. The two take turns, and a ratio is the median of the rounds' ratios. Time is measured
twice: by the clock, and as the processor's time of this process, which a busy machine disturbs less.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.peers import LENGTH
from benchmarks.texts import make_texts, make_texts_of
from forebay import PoolingModel

PATHS = {"torch": "0", "native": "1"}
COUNTS = {"short": 4, "mixed": 1, "long": 0.12}
MAX_DIFFERENCE = 1e-5


class Spent(NamedTuple):
    """Seconds of the clock and of the processor."""

    wall: float
    cpu: float


def load(model: str, switch: str) -> PoolingModel:
    os.environ["FOREBAY_NATIVE"] = switch
    loaded = PoolingModel(model, dtype="float32", device="cpu", max_model_len=LENGTH)
    print(next(made for made in loaded.info.decisions if made.name == "compute path"))
    return loaded


def spend(work: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def take_turns(models: dict[str, PoolingModel], texts: Sequence[str], rounds: int) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {name: [] for name in models}
    for number in range(rounds):
        for name in list(models)[:: 1 if number % 2 else -1]:
            model = models[name]
            spent[name].append(spend(lambda model=model: model.embed(list(texts), show_progress=False)))
    return spent


def report(what: str, spent: dict[str, list[Spent]], unit: Callable[[float], str]) -> None:
    ratios = [
        statistics.median(slow[part] / fast[part] for slow, fast in zip(spent["torch"], spent["native"], strict=True))
        for part in (0, 1)
    ]
    medians = [unit(statistics.median(one.wall for one in spent[name])) for name in PATHS]
    print(f"{what}: {ratios[0]:.2f}x by the clock, {ratios[1]:.2f}x of the processor; {', '.join(medians)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paths", description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--texts", type=int, default=200, help="mixed texts; short and long ones in proportion")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    models = {name: load(options.model, switch) for name, switch in PATHS.items()}
    for kind, share in COUNTS.items():
        texts = make_texts(kind, max(1, round(options.texts * share)))
        slow, fast = (model.embed(texts, show_progress=False) for model in models.values())
        difference = float(np.abs(slow.embeddings - fast.embeddings).max())
        if difference > MAX_DIFFERENCE:
            raise SystemExit(f"error: the vectors differ by {difference:.1e}; there is nothing to compare")
        num_tokens = int(slow.num_tokens.sum())
        spent = take_turns(models, texts, options.rounds)
        report(f"{kind}, {num_tokens} tokens", spent, lambda seconds, n=num_tokens: f"{n / seconds:,.0f} tok/s")  # type: ignore[misc]
    for length in (12, 128):
        texts = make_texts_of(length, 50)
        spent = {name: [] for name in models}
        for text in texts:
            for name, one in take_turns(models, [text], 1).items():
                spent[name] += one
        report(f"one text of {length} tokens", spent, lambda seconds: f"{seconds * 1000:.2f} ms")


if __name__ == "__main__":
    main()
