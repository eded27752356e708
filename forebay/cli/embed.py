"""``forebay embed``: its options, and the job they describe. The work is in job.py and bulk.py."""

from typing import Annotated

import typer

from forebay.cli.formats import InputFormat, OutputFormat
from forebay.cli.options import MODEL_HELP, Device, DTypeOption, Revision
from forebay.core.config import ModelOptions
from forebay.core.params import PoolingParams, TextParams


def embed(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILES", help="txt, jsonl, csv or parquet; none or '-': stdin.")
    ] = None,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", help="npy, jsonl or parquet file; '-': JSON lines on stdout.")
    ] = "-",
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "default",
    dtype: DTypeOption = "auto",
    device: Device = "auto",
    revision: Revision = None,
    input_format: Annotated[InputFormat | None, typer.Option(help="Instead of what the extension tells.")] = None,
    output_format: Annotated[OutputFormat | None, typer.Option(help="Instead of what the extension tells.")] = None,
    field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    id_field: Annotated[
        str | None, typer.Option(help="Field or column to copy to the output as 'id' (jsonl, parquet).")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to put before each text.")] = None,
    prompt_name: Annotated[str | None, typer.Option(help="One of the model's own prompts.")] = None,
    input_type: Annotated[str | None, typer.Option(help="The side of an asymmetric model: query or document.")] = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="Shorten the vectors to so many dimensions.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave out the final normalisation.")] = False,
    no_truncate: Annotated[bool, typer.Option("--no-truncate", help="Refuse texts that are too long.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Lower the model's limit of tokens a text.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a stopped run left off.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output or a stopped run.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show neither bar nor summary.")] = False,
) -> int:
    """Embed the texts of files, in constant memory."""
    from forebay.cli import job

    options = ModelOptions(model=model, revision=revision, dtype=dtype, device=device)
    pooling = PoolingParams(dimensions=dimensions, use_activation=False if raw else None)
    text = TextParams(prompt, prompt_name, input_type, truncate=not no_truncate, max_tokens=max_tokens)
    return job.run(
        job.Inputs(tuple(files or ()), input_format, field, id_field),
        job.Output(output, output_format, resume, overwrite),
        job.Work(options, pooling, text),
        is_quiet=no_progress,
    )
