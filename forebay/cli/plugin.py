"""``forebay plugin``: one JSON value through a model's IO processor. Knows nothing of what the processor does."""

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from forebay.cli.options import LoadOptions, ModelArgument, takes_options
from forebay.core.errors import ForebayError, InvalidRequest


@takes_options
def plugin(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON file; none or '-': stdin.")] = "-",
    *,
    io_processor: Annotated[str, typer.Option(help="Name of the installed IO processor.")],
    loading: LoadOptions,
) -> int:
    """Hand JSON to an IO processor, and print its answer as JSON."""
    data = read_json(file)
    with loading.load(model, io_processor=io_processor) as loaded:
        answer = loaded.plugin(data)
    try:
        line = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        raise ForebayError(f"the answer of the IO processor '{io_processor}' is no JSON: {error}") from None
    sys.stdout.buffer.write(line)
    return 0


def read_json(file: str) -> Any:
    """Read one JSON value from a file or from standard input."""
    text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = "standard input" if file == "-" else file
        raise InvalidRequest(f"{where}: not JSON ({error.msg}); expected one JSON value") from None
