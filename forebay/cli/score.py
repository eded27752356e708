"""``forebay score``: pairs of texts in, one score a pair out, in constant memory. Knows no model's way of comparing."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from forebay.cli.inputs import Fields, Record, find_sources, read_records
from forebay.cli.lines import open_lines
from forebay.cli.options import Files, PairOptions, takes_options
from forebay.core.errors import ForebayError
from forebay.core.sides import QUERIES, SideName, call_sides

_CHUNK_PAIRS = 1024


@takes_options
def score(
    files: Files = None,
    *,
    query: Annotated[str | None, typer.Option(help="One query for all documents, instead of one a line.")] = None,
    query_field: Annotated[str, typer.Option(help="Field or column that holds the query.")] = "query",
    field: Annotated[str, typer.Option(help="Field or column that holds the document.")] = "document",
    pairs: PairOptions,
) -> int:
    """Tell how well each line's two texts match. Writes a JSON line a pair: index, score, truncated."""
    fields = Fields(field, query_field if query is None else None, "--query-field")
    sources = find_sources(tuple(files or ()), pairs.input_format, fields)
    options = pairs.make_score_options()
    query_name = SideName(query_field) if query is None else SideName("--query", is_list=False)
    with open_lines(pairs.out, overwrite=pairs.overwrite) as write, pairs.load(pairs.model) as model:
        num_done = 0
        for chunk in _chunks(read_records(sources, fields)):
            queries = [str(record.id) for record in chunk] if query is None else [query]
            try:
                output = model.score(queries, [record.text for record in chunk], **options)
            except ForebayError as error:
                if query is None or error.name != QUERIES:
                    error.move(num_done)
                raise call_sides(error, query_name, SideName(field)) from None
            for offset, (value, was_cut) in enumerate(
                zip(output.scores.tolist(), output.truncated.tolist(), strict=True)
            ):
                write({"index": num_done + offset, "score": value, "truncated": was_cut})
            num_done += len(chunk)
    return 0


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    while chunk := list(islice(records, _CHUNK_PAIRS)):
        yield chunk
