"""Engines in processes of their own that stay loaded and take turns, and the lines of a table that come of it.

A change of the machine's load meets all engines, since the rounds alternate between them. It knows no engine: what one
can do is told by its loader (``benchmarks.peer_worker``).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import write_between_markers
from benchmarks.machine import describe_machine

ROOT = Path(__file__).parents[1]
FOREBAY = "Forebay"


class Engine:
    """A loader's operations in its own process. ``peak`` is the largest resident size that it has had, in bytes."""

    def __init__(self, name: str, module: str, loader: str, *, python: Path | None = None, **settings: Any) -> None:
        self.name = name
        self.peak = 0
        self.settings: dict[str, Any] = {}
        """Arguments of this engine's own in every order, such as its best batch size."""
        command = [str(python or sys.executable), "-m", "benchmarks.peer_worker", module, loader, json.dumps(settings)]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        self._read()

    def time(self, op: str, calls: int = 1, **args: Any) -> float:
        """Run an operation so many times and return the median of the seconds."""
        return float(self._order(op, args, calls=calls)["seconds"])

    def run(self, op: str, **args: Any) -> NDArray[Any]:
        """Run an operation and return its array."""
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "value.npy"
            self._order(op, args, save=str(path))
            array: NDArray[Any] = np.load(path)
            return array

    def ask(self, op: str, **args: Any) -> Any:
        """Run an operation and return what is no array."""
        return self._order(op, args)["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _order(self, op: str, args: Mapping[str, Any], *, save: str | None = None, calls: int = 1) -> dict[str, Any]:
        assert self._process.stdin is not None
        order = {"op": op, "args": {**args, **self.settings}, "save": save, "calls": calls}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"seconds"'):
                answer: dict[str, Any] = json.loads(line)
                self.peak = answer["peak"]
                return answer
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}")


Seconds = dict[str, list[float]]
"""By engine: one number a round."""


def take_turns(engines: Sequence[Engine], op: str, rounds: Iterable[Mapping[str, Any]], calls: int = 1) -> Seconds:
    """Time an operation in each engine once a round, with the round's arguments; who begins alternates.

    What is so short that waking up counts is called several times a round, of which the median is the round's time.
    """
    seconds: Seconds = {engine.name: [] for engine in engines}
    for number, args in enumerate(rounds):
        for engine in list(engines)[:: 1 if number % 2 else -1]:
            seconds[engine.name].append(engine.time(op, calls, **args))
    return seconds


def choose_batch_size(engine: Engine, sizes: Sequence[int], op: str, **args: Any) -> int:
    """Leave an engine with the batch size with which an operation is fastest."""
    seconds: dict[int, float] = {}
    for size in sizes:
        engine.settings["batch_size"] = size
        seconds[size] = min(engine.time(op, **args), seconds.get(size, float("inf")))
    engine.settings["batch_size"] = min(seconds, key=lambda size: seconds[size])
    return int(engine.settings["batch_size"])


class Line(NamedTuple):
    """One line of a table. A ratio above 1 favours Forebay."""

    what: str
    against: str
    ratio: float
    spread: str
    ours: str
    theirs: str
    peaks: str


def mebibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f}"


def to_line(
    what: str, seconds: Seconds, engines: tuple[Engine, Engine], show: Callable[[float], str], note: str = ""
) -> Line:
    """Compare two engines: the median of the rounds' ratios, the least and greatest of them, the median seconds."""
    ours, theirs = (seconds[engine.name] for engine in engines)
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if len(ratios) > 1 else "–"
    peaks = " / ".join(mebibytes(engine.peak) for engine in engines)
    shown = [show(statistics.median(each)) for each in (ours, theirs)]
    batch = engines[1].settings.get("batch_size")
    against = engines[1].name + (f" (batches of {batch})" if batch else "") + note
    return Line(what, against, statistics.median(ratios), spread, shown[0], shown[1], peaks)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def to_markdown(notes: Sequence[str], lines: Sequence[Line]) -> str:
    header = ("", "against", "ratio", "its range", "Forebay", "other", "peak MiB")
    rows = [
        f"| {line.what} | {line.against} | **{line.ratio:.2f}x** | {line.spread} | {line.ours} | {line.theirs} "
        f"| {line.peaks} |"
        for line in lines
    ]
    table = [f"| {' | '.join(header)} |", "|---|---|---:|---:|---:|---:|---:|", *rows]
    return "\n".join([*[line for note in notes for line in (note, "")], *table, "", describe_machine()]) + "\n"


class Difference(NamedTuple):
    """How far two engines' numbers lie apart, and how far the numbers themselves spread."""

    largest: float
    deviation: float

    @classmethod
    def of(cls, ours: NDArray[Any], theirs: NDArray[Any]) -> Self:
        wanted = theirs.astype(np.float64)
        return cls(float(np.abs(ours - wanted).max()), float(wanted.std()))

    def check(self, most: float, what: str) -> None:
        """End the program where there is nothing to compare."""
        if not self.largest <= most:
            raise SystemExit(f"error: {what} differ by {self.largest:.1e}, more than {most:.0e}; nothing to compare")


def cosines(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """Of each row of one to the same row of the other."""
    one, other = (array.astype(np.float64) for array in (ours, theirs))
    products: NDArray[np.float64] = (one * other).sum(-1)
    return products / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)


def add_write_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, help="a Markdown page to put the table into, between its markers")


def publish(name: str, table: str, page: Path | None) -> None:
    """Print a table, and put it into a page where one is given."""
    print(table)
    if page is not None:
        write_between_markers(page, table, name)
