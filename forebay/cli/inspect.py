"""``forebay info``: load a model and show what was resolved and who decided it. Knows no checkpoint format."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from forebay.cli.options import IOProcessorName, LoadOptions, ModelArgument, takes_options
from forebay.core.params import Abilities
from forebay.core.tasks import Task

if TYPE_CHECKING:
    from forebay.core.info import ModelInfo

NUM_LABELS = 10
"""How many labels the tables show; --json has them all."""


@takes_options
def info(
    model: ModelArgument = "default",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    io_processor: IOProcessorName = None,
    loading: LoadOptions,
) -> int:
    """Show what was resolved for a model, and from where."""
    with loading.load(model, io_processor=io_processor) as loaded:
        facts = loaded.info
    if as_json:
        typer.echo(orjson.dumps(facts, default=to_plain, option=orjson.OPT_INDENT_2))
    else:
        show(facts, Console())
    return 0


def to_plain(value: Any) -> Any:
    """Turn what JSON has no word for (read-only mappings, paths) into what it has."""
    return dict(value) if hasattr(value, "items") else str(value)


def show(facts: "ModelInfo", console: Console) -> None:
    """Print the model's facts and the table of decisions."""
    abilities = facts.abilities
    rows = {
        "model": facts.name,
        "path": facts.path,
        "architecture": facts.architecture,
        "parameters": f"{facts.num_parameters:,}",
        "runs in": f"{facts.dtype} on {facts.device}",
        "tasks": ", ".join(abilities.tasks),
        "default task": abilities.default_task,
        "vector": show_vector(abilities),
        "sparse vector": f"over {abilities.vocab_size:,} tokens" if Task.SPARSE in abilities.tasks else "none",
        "labels": show_labels(abilities.labels),
        "reads": f"{abilities.max_len} tokens",
        "similarity": facts.similarity,
        "prompts": ", ".join(facts.prompts) or "none",
        "default prompt": facts.default_prompt_name or "none",
        "input types": ", ".join(abilities.routes) or "none",
    }
    table = Table("", Column(overflow="fold"), box=None, show_header=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)
    columns = ("decision", Column("value", overflow="fold"), Column("decided by", overflow="fold"))
    decisions = Table(*columns, title="What was decided, and by whom", title_justify="left")
    for decision in facts.decisions:
        decisions.add_row(escape(decision.name), escape(decision.value), escape(decision.source))
    console.print(decisions)


def show_vector(abilities: Abilities) -> str:
    """Tell the vectors' size, and which others may be asked for."""
    if not abilities.dimension:
        return "none"
    sizes = ", ".join(str(size) for size in abilities.matryoshka or ())
    return f"{abilities.default_dimension} dimensions" + (f" (sizes: {sizes})" if sizes else "")


def show_labels(labels: Sequence[str]) -> str:
    """Tell the first labels, and how many there are besides."""
    shown = ", ".join(labels[:NUM_LABELS]) or "none"
    return f"{shown} and {len(labels) - NUM_LABELS:,} more" if len(labels) > NUM_LABELS else shown
