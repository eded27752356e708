"""Every library that runs embedders on a CPU, at equal precision, in turns: ``python -m benchmarks.cpu``.

Each library has an environment of its own (made below ``--envs`` at the first run) and a process that stays loaded, so
that rounds alternate between all of them and a change of the machine's load meets all. Vectors are compared with
float32 torch before anything is timed. Each round has texts of its own; ratios are medians of the rounds' ratios.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from benchmarks.compare import write_between_markers
from benchmarks.cpu_libraries import LIBRARIES, OWN_BATCHES, PACKAGES, ROOT, ST, Library, make_environment, say
from benchmarks.cpu_models import Prepared, count_operations, measure_machine, prepare_model
from benchmarks.cpu_report import Measured, to_markdown
from benchmarks.texts import make_texts, make_texts_of

WORKER = Path(__file__).parent / "cpu_worker.py"

COUNTS = {
    "default": {"mixed": 2000, "short": 2000, "long": 96},
    "bert-base": {"mixed": 240, "short": 300, "long": 18},
}
"""Texts of all rounds together: a model of BERT's size takes some eight times as long."""

CALLS, TURNS = 30, 5
"""Single texts a round, and in how many turns: a machine that is busy for a second meets all libraries."""

BATCHES = {"mixed": (8, 16, 32), "short": (16, 32, 64)}
"""Sizes that are tried; long texts get the mixed ones'."""

TRIED = {"default": {"mixed": 128, "short": 128}, "bert-base": {"mixed": 24, "short": 48}}
CHECKED = {"default": 64, "bert-base": 16}
LEAST_COSINE = {"float32": 0.9999, "bfloat16": 0.99, "int8": 0.9}
PATIENCE = 300.0
"""Seconds after which a process that does not answer is ended and left out."""


class Gone(Exception):
    """A library's process ended or did not answer."""


class Process:
    """A library in its own process."""

    def __init__(self, library: Library, python: Path, folder: str, logs: Path) -> None:
        self.library = library
        self.peak = 0
        self.log = logs / f"{library.name.replace(' ', '-')}.log"
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        environment.pop("PYTHONPATH", None)
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(WORKER), library.loader, library.precision, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        self.versions: str = self._read("ready")

    def embed(self, texts: Sequence[str], batch: int, save: Path | None = None) -> float:
        """Embed and return the seconds."""
        assert self._process.stdin is not None
        order = {"texts": list(texts), "batch": batch, "save": str(save) if save else None}
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Gone(self._explain()) from None
        seconds: float = self._read("seconds")
        return seconds

    def close(self) -> None:
        self._end()
        self._process.wait()

    def _end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self, key: str) -> Any:
        assert self._process.stdout is not None
        timer = Timer(PATIENCE, self._end)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(f'{{"{key}"'):
                    answer = json.loads(line)
                    self.peak = answer.get("peak", 0)
                    return answer[key]
        finally:
            timer.cancel()
        raise Gone(self._explain())

    def _explain(self) -> str:
        lines = self.log.read_text().strip().splitlines() or ["without a word"]
        return f"{self.library.name} ended: {lines[-1][:200]}"


class Field:
    """The libraries that are still in the run, and what is known of each."""

    def __init__(self, processes: list[Process], batches: Mapping[str, Mapping[str, int]]) -> None:
        self.processes = processes
        self.batches = batches

    def batch(self, process: Process, kind: str) -> int:
        return self.batches.get(process.library.name, {}).get(kind, 32)

    def drop(self, process: Process, why: object) -> None:
        say(f"left out: {why}")
        process.close()
        self.processes.remove(process)

    def drop_once(self) -> None:
        """End those that take part in one round only."""
        for process in [one for one in self.processes if one.library.once]:
            process.close()
            self.processes.remove(process)


def choose_batches(names: Sequence[Library], model: str, pythons: Mapping[str, Path], prepared: Prepared) -> Any:
    """Give each library the batch size with which it is fastest, the better of two tries; kept beside the model."""
    path = prepared.folder.parent / f"{model}-batches.json"
    chosen: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.exists() else {}
    for library in names:
        if library.loader in OWN_BATCHES or library.name in chosen or library.environment not in pythons:
            continue
        try:
            process = Process(library, pythons[library.environment], str(prepared.folder), prepared.folder.parent)
            sizes = {kind: try_sizes(process, kind, TRIED[model][kind]) for kind in BATCHES}
        except Gone as error:
            say(f"no batch size: {error}")
            continue
        process.close()
        chosen[library.name] = sizes | {"long": sizes["mixed"]}
        say(f"{library.name}: batches {chosen[library.name]}")
        path.write_text(json.dumps(chosen, indent=1))
    return chosen


def try_sizes(process: Process, kind: str, count: int) -> int:
    texts = make_texts(kind, count)
    seconds: dict[int, float] = {}
    for size in BATCHES[kind] * 2:
        seconds[size] = min(seconds.get(size, float("inf")), process.embed(texts, size))
    return min(seconds, key=lambda size: seconds[size])


@contextmanager
def start(
    names: Sequence[Library], pythons: Mapping[str, Path], folder: Path, batches: Mapping[str, Mapping[str, int]]
) -> Iterator[Field]:
    """Start every library that can be; the others are named on standard error."""
    field = Field([], batches)
    try:
        for library in names:
            if library.environment in pythons:
                try:
                    field.processes.append(Process(library, pythons[library.environment], str(folder), folder.parent))
                except Gone as error:
                    say(f"left out: {error}")
        yield field
    finally:
        for process in field.processes:
            process.close()


def check(field: Field, texts: Sequence[str]) -> dict[str, float]:
    """Return the smallest cosine of each library's vectors to those of float32 torch; who is too far off must go."""
    vectors = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "vectors.npy")
        for process in list(field.processes):
            try:
                process.embed(texts, field.batch(process, "mixed"), path)
            except Gone as error:
                field.drop(process, error)
                continue
            found = np.load(path).astype(np.float64)
            vectors[process] = found / np.linalg.norm(found, axis=1, keepdims=True)
    truth = next(own for process, own in vectors.items() if process.library.name == f"{ST}, torch float32")
    cosines = {process: float((own * truth).sum(axis=1).min()) for process, own in vectors.items()}
    for process, cosine in cosines.items():
        if not cosine >= LEAST_COSINE[process.library.precision]:
            field.drop(process, f"{process.library.name}, whose least cosine to the reference is {cosine:.5f}")
    return {process.library.name: cosine for process, cosine in cosines.items() if process in field.processes}


def run_round(field: Field, number: int, texts: Mapping[str, Sequence[str]], singles: Sequence[str]) -> Iterator[Any]:
    """Yield name, what, and seconds for each library in turn; who begins alternates."""
    for kind, some in texts.items():
        say(f"round {number + 1}: {kind}, {len(some)} texts")
        for process in list(field.processes)[:: 1 if number % 2 else -1]:
            try:
                yield process, kind, process.embed(some, field.batch(process, kind))
            except Gone as error:
                field.drop(process, error)
    say(f"round {number + 1}: {len(singles)} single texts")
    for turn in range(TURNS):
        for process in list(field.processes)[:: 1 if turn % 2 else -1]:
            try:
                process.embed(singles[:1], 1)
                yield process, "single", statistics.median(process.embed([text], 1) for text in singles[turn::TURNS])
            except Gone as error:
                field.drop(process, error)


def measure(model: str, options: argparse.Namespace, pythons: Mapping[str, Path]) -> Measured:
    """All rounds of one model."""
    prepared, rounds = prepare_model(model, pythons, options.envs), options.rounds
    names = [library for library in LIBRARIES if library.name in options.libraries]
    batches = choose_batches(names, model, pythons, prepared)
    texts = {
        kind: make_texts(kind, max(4 * rounds, int(count * options.scale))) for kind, count in COUNTS[model].items()
    }
    singles = make_texts_of(12, CALLS * rounds)
    before = measure_machine(pythons["forebay"])
    say(f"{model}: starting the libraries")
    with start(names, pythons, prepared.folder, batches) as field:
        cosines = check(field, texts["mixed"][: CHECKED[model]])
        measured = Measured(model, [process.library for process in field.processes], cosines, batches)
        measured.versions = {process.library.environment: process.versions for process in field.processes}
        for number in range(rounds):
            own = {kind: some[number::rounds] for kind, some in texts.items()}
            for kind, some in own.items():
                lengths = prepared.count_tokens(some)
                measured.lengths.setdefault(kind, []).append(lengths)
                measured.operations.setdefault(kind, []).append(count_operations(prepared.config, lengths))
            for process, kind, seconds in run_round(field, number, own, singles[number::rounds]):
                measured.seconds[process.library.name][kind].append(seconds)
                if kind == "mixed" and number == 0:
                    measured.memory[process.library.name] = process.peak
            field.drop_once()
    measured.machine = before.or_better(measure_machine(pythons["forebay"]))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=list(COUNTS), choices=COUNTS, help="bert-base has random weights"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of texts, for a trial")
    parser.add_argument("--envs", type=Path, default=ROOT / "build" / "benchmark-envs")
    names = [library.name for library in LIBRARIES]
    parser.add_argument("--libraries", nargs="+", default=names, choices=names)
    parser.add_argument("--without", nargs="+", default=[], choices=list(PACKAGES), help="environments to leave out")
    parser.add_argument("--write", type=Path, help="a Markdown page to put the tables into, between their markers")
    options = parser.parse_args()
    wanted = {library.environment for library in LIBRARIES if library.name in options.libraries}
    wanted = wanted - set(options.without) | {"forebay"}
    made = {name: make_environment(name, options.envs) for name in sorted(wanted)}
    pythons = {name: python for name, python in made.items() if python is not None}
    for model in options.models:
        started = time.perf_counter()
        table = to_markdown(measure(model, options, pythons))
        say(f"{model} took {time.perf_counter() - started:.0f} s")
        print(table, flush=True)
        if options.write is not None:
            write_between_markers(options.write, table, f"cpu-{model}")


if __name__ == "__main__":
    main()
