"""Every library that runs embedders on a CPU, at equal precision, in turns: ``python -m benchmarks.cpu``.

Each library has an environment of its own (made below ``--envs`` at the first run) and a process that stays loaded, so
that rounds alternate between all of them and a change of the machine's load meets all. Vectors are compared with
float32 torch before anything is timed. Ratios are medians of the rounds' ratios to sentence-transformers on torch of
the same precision; the share is that of the matrix-product peak that the same run measures.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import say
from benchmarks.cpu_models import gemm_flops, matmul_flops_a_token, prepare_model
from benchmarks.machine import describe_machine
from benchmarks.texts import make_texts, make_texts_of

WORKER = Path(__file__).parent / "cpu_worker.py"
ROOT = Path(__file__).parents[1]

PACKAGES: dict[str, tuple[str, ...]] = {
    "forebay": (str(ROOT),),
    "torch": ("sentence-transformers==6.2.0",),
    "onnx": ("sentence-transformers[onnx]",),
    "openvino": ("sentence-transformers[openvino]",),
    "fastembed": ("fastembed",),
}
"""What each environment holds; all but the last with torch 2.13.0."""

FIRST_BATCHES = (8, 16, 32, 64)
KINDS = {"short": 1, "mixed": 1, "long": 8}
COLUMNS = ("library", *(f"{kind} tok/s" for kind in KINDS), "12 tokens, ms", "of GEMM peak", "peak MiB", "min cos")
CALLS = 40
BASE = "torch"


class Library:
    """A loader of cpu_worker.py in its own process."""

    def __init__(self, name: str, python: Path, folder: str) -> None:
        self.name = name
        self.batch = 32
        self.peak = 0
        command = [str(python), str(WORKER), name, folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        self._read("ready")

    def embed(self, texts: Sequence[str], save: Path | None = None, batch: int | None = None) -> float:
        """Embed and return the seconds."""
        order = {"texts": list(texts), "batch": batch or self.batch, "save": str(save) if save else None}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        seconds: float = self._read("seconds")
        return seconds

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self, key: str) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and key in (answer := json.loads(line)):
                self.peak = answer.get("peak", 0)
                return answer[key]
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}")


def make_environment(name: str, envs: Path) -> Path:
    """Return the environment's Python, installing what is missing."""
    python = envs / name / "bin" / "python"
    stamp = envs / name / "installed"
    wanted = json.dumps(PACKAGES[name])
    if not stamp.exists() or stamp.read_text() != wanted or name == "forebay":
        say(f"installing {name}")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(envs / name)], check=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        torch = () if name == "fastembed" else ("torch==2.13.0",)
        for packages in (torch, (*PACKAGES[name], *torch)):  # torch alone first: it decides what the others may bring
            if packages:
                subprocess.run([*pip, *packages], check=True)
        if name == "openvino":  # its torchvision is built for another torch and breaks the import of transformers
            subprocess.run([str(python), "-m", "pip", "-q", "uninstall", "-y", "torchvision"], check=True)
        stamp.write_text(wanted)
    return python


def start(names: Sequence[str], pythons: Mapping[str, Path], folder: str) -> list[Library]:
    """Start every library that can be; the others are named on standard error."""
    libraries = []
    for name in names:
        try:
            libraries.append(Library(name, pythons[name.split()[0]], folder))
        except RuntimeError as error:
            say(f"left out: {error}")
    return libraries


def check(libraries: Sequence[Library], texts: Sequence[str], scratch: Path) -> dict[str, float]:
    """Return the smallest cosine of each library's vectors to those of float32 torch."""
    vectors = {}
    for library in libraries:
        library.embed(texts, scratch / "vectors.npy")
        vectors[library.name] = np.load(scratch / "vectors.npy").astype(np.float64)
    truth = vectors[f"{BASE} float32"]
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    return {
        name: float(((own / np.linalg.norm(own, axis=1, keepdims=True)) * truth).sum(axis=1).min())
        for name, own in vectors.items()
    }


def choose_batches(libraries: Sequence[Library], texts: Sequence[str]) -> None:
    """Give each library the batch size with which it is fastest."""
    for library in libraries:
        if library.name.startswith("forebay"):
            continue
        seconds = {size: library.embed(texts, batch=size) for size in FIRST_BATCHES}
        library.batch = min(seconds, key=lambda size: seconds[size])


def take_turns(libraries: Sequence[Library], texts: Sequence[str], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {library.name: [] for library in libraries}
    for number in range(rounds):
        for library in list(libraries)[:: 1 if number % 2 else -1]:
            seconds[library.name].append(library.embed(texts))
    return seconds


def latencies(libraries: Sequence[Library], rounds: int) -> dict[str, list[float]]:
    """The median of single calls of 12 tokens, a number a round."""
    texts = make_texts_of(12, CALLS)
    seconds: dict[str, list[float]] = {library.name: [] for library in libraries}
    for _ in range(rounds):
        for library in libraries:
            seconds[library.name].append(statistics.median(library.embed([text]) for text in texts))
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """How many times faster than sentence-transformers' torch of the same precision (int8: of bfloat16)."""
    precision = name.split()[1]
    base = seconds[f"{BASE} {'bfloat16' if precision == 'int8' else precision}"]
    return statistics.median(theirs / own for own, theirs in zip(seconds[name], base, strict=True))


def measure(model: str, options: argparse.Namespace, pythons: Mapping[str, Path], scratch: Path) -> list[str]:
    """The lines of one model's table."""
    prepared = prepare_model(model, pythons, options.envs)
    libraries = start(options.libraries, pythons, str(prepared.folder))
    texts = {kind: make_texts(kind, max(8, options.texts // share)) for kind, share in KINDS.items()}
    cosines = check(libraries, texts["mixed"][:200], scratch)
    timed, rates = {}, {}
    for kind, some in texts.items():
        say(f"{model}: {kind}, {len(some)} texts")
        choose_batches(libraries, some[:128])
        timed[kind] = take_turns(libraries, some, options.rounds)
        rates[kind] = prepared.count_tokens(some)
    single = latencies(libraries, options.rounds)
    peak = gemm_flops()
    lines = []
    for library in libraries:
        name, precision = library.name, library.name.split()[1]
        cells = []
        for kind in KINDS:
            speed = rates[kind] / statistics.median(timed[kind][name])
            cells.append(f"{speed:,.0f} ({ratio(timed[kind], name):.2f}x)")
        flops = rates["mixed"] / statistics.median(timed["mixed"][name]) * matmul_flops_a_token(prepared.config)
        share = f"{flops / peak[precision]:.0%}" if precision in peak else "–"
        p50 = f"{statistics.median(single[name]) * 1e3:.2f}"
        cells += [p50, share, f"{library.peak >> 20:,}", f"{cosines[name]:.5f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for library in libraries:
        library.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["default", "bert-base"], help="default, bert-base (random)")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envs", type=Path, default=ROOT / "build" / "benchmark-envs")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    options = parser.parse_args()
    pythons = {name: make_environment(name, options.envs) for name in {lib.split()[0] for lib in options.libraries}}
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models:
            lines = measure(model, options, pythons, Path(scratch))
            print(f"**{model}**\n\n| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
            print("\n".join(lines) + "\n", flush=True)
    print(describe_machine(), time.strftime("%H:%M"))


LIBRARIES = (
    "forebay float32",
    "forebay bfloat16",
    "forebay int8",
    "torch float32",
    "torch bfloat16",
    "onnx float32",
    "onnx int8",
    "openvino float32",
    "openvino bfloat16",
    "fastembed float32",
)


if __name__ == "__main__":
    main()
