"""The tables of ``benchmarks.cpu``: what was measured of a model, as Markdown. It measures nothing itself."""

import datetime
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.cpu_libraries import ST, Library
from benchmarks.cpu_models import LENGTH, Machine, Operations
from benchmarks.machine import processor

TITLES = {"default": "all-MiniLM-L6-v2", "bert-base": "BERT-base with random weights"}
KINDS = ("short", "mixed", "long")
PRECISIONS = ("float32", "bfloat16", "int8")
Seconds = Mapping[str, Sequence[float]]


@dataclass
class Measured:
    """All numbers of one model. By kind of text or by library, a number a round."""

    model: str
    libraries: list[Library]
    cosines: Mapping[str, float]
    batches: Mapping[str, Mapping[str, int]]
    versions: Mapping[str, str] = field(default_factory=dict)
    lengths: dict[str, list[list[int]]] = field(default_factory=dict)
    operations: dict[str, list[Operations]] = field(default_factory=dict)
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    memory: dict[str, int] = field(default_factory=dict)
    machine: Machine = field(default_factory=lambda: Machine({}, 0.0))

    def speed(self, library: Library, kind: str) -> float:
        """Tokens a second, the median of the rounds."""
        made = self.seconds[library.name][kind]
        rates = [sum(some) / one for some, one in zip(self.lengths[kind], made, strict=False)]
        return statistics.median(rates) if rates else 0.0

    def single(self, library: Library) -> float:
        made = self.seconds[library.name]["single"]
        return statistics.median(made) if made else float("inf")

    def share(self, library: Library, kind: str, linear_only: bool) -> float:
        """Of the peak's time, the median of the rounds."""
        rates = {precision: rate for precision, (rate, _) in self.machine.peak.items()}
        shares = []
        for operations, one in zip(self.operations[kind], self.seconds[library.name][kind], strict=False):
            counted = Operations(operations.linear, 0) if linear_only else operations
            shares.append(counted.least_seconds(rates, library.precision) / one)
        return statistics.median(shares) if shares else 0.0

    def ratios(self, own: Library, other: Library, kind: str) -> list[float]:
        """How many times as long the other took, in each round that both were in."""
        pairs = zip(self.seconds[own.name][kind], self.seconds[other.name][kind], strict=False)
        return [theirs / ours for ours, theirs in pairs]


def to_markdown(measured: Measured) -> str:
    return "\n\n".join((heading(measured), comparison(measured), everything(measured), footer(measured))) + "\n"


def heading(measured: Measured) -> str:
    counts = ", ".join(
        f"{sum(map(len, rounds)):,} {kind} ({sum(map(sum, rounds)) / sum(map(len, rounds)):.0f} tokens on average)"
        for kind, rounds in measured.lengths.items()
    )
    first = sorted(measured.lengths["mixed"][0])
    blocks = [first[start : start + 8] for start in range(0, len(first), 8)]
    padding = sum(len(block) * block[-1] for block in blocks) / sum(first) - 1
    rates = ", ".join(
        f"{precision} {rate / 1e9:,.0f} Gop/s ({by}'s)" for precision, (rate, by) in measured.machine.peak.items()
    )
    return (
        f"**{TITLES[measured.model]}**, at most {LENGTH} tokens a text; texts: {counts}, in "
        f"{len(measured.lengths['mixed'])} rounds (sorted and in batches of 8, {padding:.0%} of the mixed ones' tokens "
        f"would be padding). Peak of matrix products: {rates}; of reading memory: "
        f"{measured.machine.memory / 1e9:.1f} GB/s."
    )


def comparison(measured: Measured) -> str:
    """Forebay beside sentence-transformers and the fastest raw runtime of the same precision."""
    lines = ["| precision | texts | Forebay | against sentence-transformers | against the fastest raw runtime |"]
    lines.append("|---|---|---:|---:|---:|")
    for own in measured.libraries:
        if own.kind == "forebay":
            for kind in KINDS:
                rivals = same_precision(measured, own, kind)
                cells = [against(measured, own, rivals, what, kind) for what in (ST, "raw")]
                lines.append(
                    f"| {own.precision} | {kind} | {measured.speed(own, kind):,.0f} tok/s | {' | '.join(cells)} |"
                )
            rivals = same_precision(measured, own, "single")
            cells = [against(measured, own, rivals, what, "single") for what in (ST, "raw")]
            lines.append(
                f"| {own.precision} | one of 12 tokens | {measured.single(own) * 1e3:.2f} ms | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def same_precision(measured: Measured, own: Library, kind: str) -> list[Library]:
    """The other libraries that were measured, the fastest first."""
    others = [
        other
        for other in measured.libraries
        if other.kind != "forebay" and other.precision == own.precision and measured.seconds[other.name][kind]
    ]
    if kind == "single":
        return sorted(others, key=measured.single)
    return sorted(others, key=lambda other: -measured.speed(other, kind))


def against(measured: Measured, own: Library, rivals: Sequence[Library], what: str, kind: str) -> str:
    rival = next((other for other in rivals if other.kind == what), None)
    if rival is None or not (ratios := measured.ratios(own, rival, kind)):
        return "–"
    middle = statistics.median(ratios)
    spread = f", {min(ratios):.2f}-{max(ratios):.2f}" if len(ratios) > 1 else ""
    share = f", {1 / middle:.0%} of its time" if kind == "single" else ""
    label = rival.label.removeprefix(f"{ST}, ")
    return f"**{middle:.2f}x** ({label}{spread}{share})"


def everything(measured: Measured) -> str:
    columns = (
        "library",
        *(f"{kind}, tok/s" for kind in KINDS),
        "12 tokens",
        "of GEMM peak",
        "of roofline",
        "peak memory",
    )
    lines = [f"| {' | '.join((*columns, 'min cosine', 'batches'))} |", f"|---|{'---:|' * (len(columns) + 1)}"]
    for library in sorted(measured.libraries, key=lambda one: PRECISIONS.index(one.precision)):
        speeds = [f"{measured.speed(library, kind):,.0f}" for kind in KINDS]
        sizes = measured.batches.get(library.name, {})
        cells = [
            library.name,
            *speeds,
            f"{measured.single(library) * 1e3:.2f} ms",
            f"{measured.share(library, 'mixed', linear_only=True):.0%}",
            f"{measured.share(library, 'mixed', linear_only=False):.0%}",
            f"{measured.memory.get(library.name, 0) / 2**20:,.0f} MiB",
            f"{measured.cosines[library.name]:.5f}",
            "/".join(str(sizes[kind]) for kind in KINDS) if sizes else "its own",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def footer(measured: Measured) -> str:
    cores = len(os.sched_getaffinity(0))
    packages = "; ".join(f"{name}: {found}" for name, found in sorted(measured.versions.items()))
    return f"{processor()}, {cores} cores; {datetime.date.today().isoformat()}. Environments: {packages}."
