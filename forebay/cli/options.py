"""Options that several commands share, each declared once. Knows no command."""

from typing import Annotated

import typer

from forebay.core.config import DType

MODEL_HELP = "A local folder, a model id of the hub, or 'default' for the built-in model."

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")]
DTypeOption = Annotated[
    DType, typer.Option("--dtype", help="Compute type; auto: float32 on CPU, the checkpoint's on an accelerator.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
