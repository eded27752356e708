"""Forebay against sentence-transformers on one machine in one run: both in float32 on the CPU, on the same texts.

``python -m benchmarks.compare --write docs/benchmarks.md``. What is measured in one process is measured in rounds in
which the libraries take turns, so that a change of the machine's load meets both; a ratio is the median of the rounds'
ratios. Results must agree before anything is timed.
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.peers import FOREBAY, LENGTH, PEERS, REFERENCE, Forebay, Peer
from benchmarks.probe import probe
from benchmarks.texts import make_texts, make_texts_of
from forebay.checkpoint.locate import locate

BATCH_SIZES = (8, 16, 32, 64)
SAMPLES = {"short": 256, "mixed": 256, "long": 64}
"""So many texts of each kind are compared and tried in batches."""

SHARES = {"short": 1, "mixed": 1, "long": 8}
"""So many times fewer texts than asked for: long ones have as many times more tokens."""

CALLS = 50
LATENCY_TOKENS = (12, 128)

MAX_DIFFERENCE = 1e-4

Seconds = Mapping[str, Sequence[float]]
"""By library: one number a round."""


class Row(NamedTuple):
    """One line of the table. Ratios above 1 favour Forebay."""

    what: str
    ratio: float
    spread: str
    forebay: str
    reference: str


class Agreement(NamedTuple):
    """How far the libraries' vectors lie apart."""

    max_difference: float
    min_cosine: float


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def compare(peers: Mapping[str, Peer], texts: Sequence[str]) -> Agreement:
    ours, theirs = (peers[name].embed(texts) for name in (FOREBAY, REFERENCE))
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours.astype(np.float64) * theirs).sum(axis=1) / lengths
    return Agreement(float(np.abs(ours - theirs).max()), float(cosines.min()))


def time_call(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def choose_batch_size(peer: Peer, texts: Sequence[str]) -> int:
    """Find the size with which the library is fastest, the better of two tries each."""
    seconds: dict[int, float] = {}
    for size in BATCH_SIZES * 2:
        peer.batch_size = size
        seconds[size] = min(seconds.get(size, float("inf")), time_call(lambda: peer.embed(texts)))
    return min(seconds, key=lambda size: seconds[size])


def take_turns(rounds: int, measure: Callable[[str], float]) -> Seconds:
    """Measure each library once a round; who begins alternates."""
    seconds: dict[str, list[float]] = {name: [] for name in PEERS}
    for number in range(rounds):
        for name in list(PEERS)[:: 1 if number % 2 else -1]:
            seconds[name].append(measure(name))
    return seconds


def to_row(what: str, seconds: Seconds, show: Callable[[float], str], note: str = "") -> Row:
    ratios = [theirs / ours for ours, theirs in zip(seconds[FOREBAY], seconds[REFERENCE], strict=True)]
    ours, theirs = (show(statistics.median(seconds[name])) for name in (FOREBAY, REFERENCE))
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if len(ratios) > 1 else "–"
    return Row(what, statistics.median(ratios), spread, ours, theirs + note)


def measure_throughput(peers: Mapping[str, Peer], kind: str, texts: Sequence[str], size: int, rounds: int) -> Row:
    say(f"{kind}: {len(texts):,} texts")
    ours, reference = peers[FOREBAY], peers[REFERENCE]
    assert isinstance(ours, Forebay)
    reference.batch_size = size
    seconds = take_turns(rounds, lambda name: time_call(lambda: peers[name].embed(texts)))
    num_tokens = ours.num_tokens
    what = f"throughput, {len(texts):,} {kind} texts ({num_tokens / len(texts):.0f} tokens on average)"
    return to_row(what, seconds, lambda value: f"{num_tokens / value:,.0f} tok/s", f" (batches of {size})")


def measure_latency(peers: Mapping[str, Peer], num_tokens: int, rounds: int) -> Row:
    texts = make_texts_of(num_tokens, CALLS)

    def measure(name: str) -> float:
        return statistics.median(time_call(lambda text=text: peers[name].embed([text])) for text in texts)

    say(f"latency of {num_tokens} tokens: {CALLS} calls a round")
    return to_row(
        f"latency of one text of {num_tokens} tokens, p50", take_turns(rounds, measure), lambda s: f"{s * 1000:.2f} ms"
    )


def measure_processes(folder: str, texts: Sequence[str], size: int, rounds: int) -> Iterator[Row]:
    say("memory and start, each in its own process")
    peaks = {name: [float(probe(name, folder, size, texts).peak_bytes)] for name in PEERS}
    yield to_row(f"peak memory, {len(texts):,} mixed texts", peaks, lambda value: f"{value / 2**20:,.0f} MiB")
    seconds = take_turns(rounds, lambda name: probe(name, folder, size, []).start_seconds)
    yield to_row("from import to first vector", seconds, lambda value: f"{value:.2f} s")


def measure_all(folder: str, count: int, rounds: int) -> tuple[Agreement, list[Row]]:
    peers = {name: load(folder) for name, load in PEERS.items()}
    texts = {kind: make_texts(kind, max(1, count // share)) for kind, share in SHARES.items()}
    samples = {kind: some[: SAMPLES[kind]] for kind, some in texts.items()}
    agreement = compare(peers, [text for sample in samples.values() for text in sample])
    say(f"max |Δ| {agreement.max_difference:.1e}, min cosine {agreement.min_cosine:.7f}")
    if agreement.max_difference > MAX_DIFFERENCE:
        raise SystemExit(f"error: the vectors differ by more than {MAX_DIFFERENCE}; there is nothing to compare")
    sizes = {kind: choose_batch_size(peers[REFERENCE], sample) for kind, sample in samples.items()}
    say(f"best batch sizes of {REFERENCE}: {sizes}")
    rows = [measure_throughput(peers, kind, some, sizes[kind], rounds) for kind, some in texts.items()]
    rows += [measure_latency(peers, num_tokens, rounds) for num_tokens in LATENCY_TOKENS]
    for peer in peers.values():
        peer.close()
    rows += measure_processes(folder, texts["mixed"], sizes["mixed"], rounds)
    return agreement, rows


def to_markdown(model: str, rounds: int, agreement: Agreement, rows: Sequence[Row]) -> str:
    header = ("", "ratio", "its range", FOREBAY, REFERENCE)
    lines = [
        f"{model}, float32 on CPU, at most {LENGTH} tokens a text; rounds: {rounds}. A ratio above 1 favours Forebay. "
        f"The vectors: max |Δ| {agreement.max_difference:.1e}, min cosine {agreement.min_cosine:.7f}.",
        "",
        f"| {' | '.join(header)} |",
        "|---|---:|---:|---:|---:|",
        *(f"| {row.what} | **{row.ratio:.2f}x** | {row.spread} | {row.forebay} | {row.reference} |" for row in rows),
        "",
        describe_machine(),
    ]
    return "\n".join(lines) + "\n"


def write_between_markers(path: Path, table: str, mark: str = "compare") -> None:
    """Put the table between the page's comments MARK:begin and MARK:end."""
    marked = re.compile(rf"(<!-- {mark}:begin -->\n).*?(<!-- {mark}:end -->)", re.DOTALL)
    page = path.read_text()
    fresh, found = marked.subn(lambda match: match[1] + table + match[2], page)
    if found != 1:
        raise SystemExit(f"error: {path} has {found} pairs of the markers {mark}:begin and {mark}:end; expected one")
    path.write_text(fresh)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--model", default="default", help="a folder or hub id that both libraries can load")
    parser.add_argument("--texts", type=int, default=2000, help="short and mixed texts; an eighth of it are long ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a Markdown page to put the table into, between its markers")
    options = parser.parse_args()
    location = locate(options.model)
    agreement, rows = measure_all(str(location.path), options.texts, options.rounds)
    table = to_markdown(location.name, options.rounds, agreement, rows)
    print(table)
    if options.write is not None:
        write_between_markers(options.write, table)


if __name__ == "__main__":
    main()
