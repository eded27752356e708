"""What stands around the arithmetic: of one short text's time, and of the engine's in a bulk run, by precision.

``python -m benchmarks.latency``. One text goes through ``PoolingModel.embed`` several hundred times; the time within
the native program is taken from within the same calls, so that a busy machine meets both. In the bulk run the engine's
thread is watched: what it does between steps and in them, but for the forward, is its own cost.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.machine import describe_machine
from benchmarks.texts import make_texts, make_texts_of
from forebay import PoolingModel
from forebay.engine.loop import Engine
from forebay.layers.native import extension

DTYPES = ("float32", "bfloat16", "int8")
TOKENS = 12
MOST_REST = 0.35
"""Of the arithmetic's time in float32, what all the rest of a short text's may take."""
MOST_ENGINE = 0.03


class Row(NamedTuple):
    """Milliseconds of one text (medians), and seconds of a bulk run."""

    dtype: str
    native: float
    whole: float
    rest: float
    forward: float
    engine: float

    def __str__(self) -> str:
        share = self.engine / self.forward
        return (
            f"{self.dtype:>9} | {self.native:7.3f} | {self.whole:7.3f} | {self.rest:7.3f} | "
            f"{self.rest / self.native:5.0%} | {self.forward:7.2f} | {self.engine:7.3f} | {share:6.2%}"
        )


@contextmanager
def watch(owner: type, name: str) -> Iterator[list[float]]:
    """Collect how long each call of a method takes."""
    seconds: list[float] = []
    method = getattr(owner, name)

    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*args, **options)
        finally:
            seconds.append(time.perf_counter() - started)

    with mock.patch.object(owner, name, timed):
        yield seconds


def time_one(model: PoolingModel, text: str, calls: int) -> tuple[float, float, float]:
    """Medians of a text's milliseconds: in the native program, in all, and their difference."""
    for _ in range(calls // 10):
        model.embed(text)
    whole: list[float] = []
    with watch(extension.Program, "run") as native:
        for _ in range(calls):
            started = time.perf_counter()
            model.embed(text)
            whole.append(time.perf_counter() - started)
    rest = [one - other for one, other in zip(whole, native, strict=True)]
    return 1e3 * median(native), 1e3 * median(whole), 1e3 * median(rest)


def time_bulk(model: PoolingModel, texts: list[str]) -> tuple[float, float]:
    """Seconds of a bulk run in the native program, and those of the engine's thread beside it."""
    with (
        watch(extension.Program, "run") as native,
        watch(Engine, "_take_step") as choosing,
        watch(Engine, "_run_guarded") as steps,
    ):
        model.embed(texts, show_progress=False)
    return sum(native), sum(choosing) + sum(steps) - sum(native)


def measure(dtype: str, calls: int, num_texts: int) -> Row:
    with PoolingModel("default", dtype=dtype) as model:  # type: ignore[arg-type]
        (text,) = make_texts_of(TOKENS, 1)
        return Row(dtype, *time_one(model, text, calls), *time_bulk(model, make_texts("mixed", num_texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="only these precisions")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--texts", type=int, default=2000, help="of the bulk run")
    wish = parser.parse_args()
    print(describe_machine())
    print(f"one text of {TOKENS} tokens in ms, {wish.texts} mixed texts in s")
    print("    dtype |  native |   whole |    rest | share | forward |  engine |  share")
    rows = [measure(dtype, wish.calls, wish.texts) for dtype in wish.dtype or DTYPES]
    for row in rows:
        print(row)
    for row in rows:
        if row.dtype == "float32" and row.rest > MOST_REST * row.native:
            print(f"the rest of a short text takes {row.rest / row.native:.0%} of its arithmetic; aim {MOST_REST:.0%}")
        if row.engine > MOST_ENGINE * row.forward:
            print(f"{row.dtype}: the engine takes {row.engine / row.forward:.1%} of the forward; aim {MOST_ENGINE:.0%}")


if __name__ == "__main__":
    main()
