"""The ``forebay`` command: the table of commands, and how errors become one line and an exit code.

It imports nothing heavy: a command's module declares its options and imports its work when it runs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from forebay.cli import bench, classify, embed, inspect, plugin, rerank, score, serve
from forebay.core.errors import ForebayError, RequestError
from forebay.version import __version__

COMMANDS: dict[str, Callable[..., int]] = {
    "serve": serve.serve,
    "embed": embed.embed,
    "classify": classify.classify,
    "score": score.score,
    "rerank": rerank.rerank,
    "plugin": plugin.plugin,
    "info": inspect.info,
    "bench": bench.bench,
}

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes; the last one is what a shell reports for SIGINT. A closed pipe is FAILED, without a word (Typer's)."""

app = typer.Typer(
    name="forebay",
    help="Inference for models that never generate a token: text in, vectors and labels out.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks would show local variables, and with them the input
)
for command_name, command in COMMANDS.items():
    app.command(command_name)(command)


@app.callback()
def show_help_or_version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Answer ``--version``, and a call without a command by the help."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(MISUSED)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are told on stderr in one line."""
    try:
        result = app(list(arguments), prog_name="forebay", standalone_mode=False)
    except typer.TyperException as error:
        return fail(f"{error.format_message()} (see '{command_path(error)} --help')", MISUSED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (ForebayError, OSError) as error:
        if os.environ.get("FOREBAY_DEBUG") == "1":
            raise
        return fail(str(error), MISUSED if isinstance(error, RequestError) else FAILED)
    return result if isinstance(result, int) else 0


def fail(message: str, code: int) -> int:
    """Tell what went wrong on stderr, in red where that is a terminal, and return ``code``."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"error: {' '.join(message.split())}", style="red", markup=False)
    return code


def command_path(error: typer.TyperException) -> str:
    """Return the command that a usage error belongs to, as it was typed."""
    context: typer.Context | None = getattr(error, "ctx", None)
    return context.command_path if context is not None else "forebay"


def main() -> None:
    """Run the command line of this process; the entry point of the ``forebay`` script."""
    sys.exit(run(sys.argv[1:]))
