"""``forebay bench``: what a model does on this machine, measured in a minute on built-in texts. Knows no engine."""

import random
import resource
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.options import LoadOptions, ModelArgument, takes_options
from forebay.core.config import EngineLimits
from forebay.core.params import PoolingParams

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel

LENGTHS: dict[str, tuple[int, int]] = {"short": (4, 12), "mixed": (4, 240), "long": (180, 240)}
"""Words a text: the least and the most. Mixed lengths are spread evenly by magnitude, as real ones nearly are."""

WORDS = (
    "the river of a town in summer when water was low and people walked to see old stones that lay under it for "
    "many years before anyone had thought about how they came there or who could have built such a thing by hand"
)
SEED = 20
NUM_SINGLE = 100
MAX_STEP_TOKENS = EngineLimits().max_step_tokens


@takes_options
def bench(
    model: ModelArgument = "default",
    *,
    texts: Annotated[int, typer.Option(min=1, help="Texts of each kind.")] = 256,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")] = MAX_STEP_TOKENS,
    loading: LoadOptions,
) -> int:
    """Measure throughput, latency, load time and memory on this machine."""
    started = time.perf_counter()
    with loading.load(model, limits=loading.limits(max_step_tokens=max_step_tokens)) as loaded:
        load_seconds = time.perf_counter() - started
        speeds = [(kind, *measure_throughput(loaded, make_texts(kind, texts))) for kind in LENGTHS]
        p50, p99 = measure_latency(loaded, make_texts("short", NUM_SINGLE))
        info = loaded.info
    facts = [
        ("latency of one short text, p50", f"{p50 * 1000:.2f} ms"),
        ("latency of one short text, p99", f"{p99 * 1000:.2f} ms"),
        ("load time", f"{load_seconds:.2f} s"),
        ("peak memory of the process", f"{peak_memory() / 2**20:,.0f} MiB"),
    ]
    if info.device.startswith("cuda"):
        facts.append(("peak memory on the device", f"{peak_device_memory(info.device) / 2**20:,.0f} MiB"))
    print_tables(f"{info.name}, {info.dtype} on {info.device}", texts, speeds, facts)
    return 0


def make_texts(kind: str, count: int) -> list[str]:
    """Make texts of common words, the same at every call."""
    least, most = LENGTHS[kind]
    words, chance = WORDS.split(), random.Random(SEED)
    lengths = [round(least * (most / least) ** chance.random()) for _ in range(count)]
    return [" ".join(chance.choices(words, k=length)) for length in lengths]


def measure_throughput(model: "PoolingModel", texts: Sequence[str]) -> tuple[float, float]:
    """Return texts and tokens a second of one job of the model's default task, after a warm-up."""
    pooling = PoolingParams((model.info.abilities.default_task,))
    list(model.stream(texts[:16], pooling=pooling))
    started = time.perf_counter()
    num_tokens = sum(int(reply.num_tokens.sum()) for reply in model.stream(texts, pooling=pooling))
    seconds = time.perf_counter() - started
    return len(texts) / seconds, num_tokens / seconds


def measure_latency(model: "PoolingModel", texts: Sequence[str]) -> tuple[float, float]:
    """Return the median and the 99th percentile of calls with one text, in seconds."""
    seconds = []
    for text in texts:
        started = time.perf_counter()
        model.encode(text)
        seconds.append(time.perf_counter() - started)
    seconds.sort()
    return seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]


def peak_memory() -> int:
    """Return the largest resident size that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_memory(device: str) -> int:
    """Return the most memory that tensors took on a CUDA device, in bytes."""
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def print_tables(
    title: str, count: int, speeds: Sequence[tuple[str, float, float]], facts: Sequence[tuple[str, str]]
) -> None:
    """Print a Rich table on a terminal, Markdown elsewhere."""
    speed_rows = [
        (f"{count:,} {kind} texts, {LENGTHS[kind][0]}-{LENGTHS[kind][1]} words", f"{texts:,.0f}", f"{tokens:,.0f}")
        for kind, texts, tokens in speeds
    ]
    console = Console()
    for columns, rows in ((("throughput", "texts/s", "tokens/s"), speed_rows), ((title, "value"), list(facts))):
        if console.is_terminal:
            table = Table(columns[0], title=title if rows is speed_rows else None)
            for column in columns[1:]:
                table.add_column(column, justify="right")
            for row in rows:
                table.add_row(*row)
            console.print(table)
        else:
            typer.echo(to_markdown(columns, rows))


def to_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, rule, *rows]) + "\n"
