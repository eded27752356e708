"""``forebay rerank``: the documents of files, ordered by one query. They are all kept: the best may come last."""

from typing import Annotated, Any

import typer

from forebay.cli.inputs import Fields, find_sources, read_records
from forebay.cli.lines import open_lines
from forebay.cli.options import Files, PairOptions, takes_options
from forebay.core.errors import ForebayError
from forebay.core.sides import SideName, call_sides


@takes_options
def rerank(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the documents are compared with.")],
    files: Files = None,
    *,
    top_n: Annotated[int | None, typer.Option(min=0, help="Write so many, the best ones; 0: all.")] = None,
    return_documents: Annotated[
        bool, typer.Option("--return-documents", help="Write each document beside its score.")
    ] = False,
    field: Annotated[str, typer.Option(help="Field or column that holds the document.")] = "text",
    id_field: Annotated[str | None, typer.Option(help="Field or column to copy to the output as 'id'.")] = None,
    pairs: PairOptions,
) -> int:
    """Order documents by how well they match a query. Writes a JSON line a document, best first: index,
    score, truncated."""
    fields = Fields(field, id_field)
    records = list(read_records(find_sources(tuple(files or ()), pairs.input_format, fields), fields))
    documents = [record.text for record in records]
    with open_lines(pairs.out, overwrite=pairs.overwrite) as write, pairs.load(pairs.model) as model:
        try:
            ranking = model.rerank(query, documents, top_n=top_n, **pairs.make_score_options())
        except ForebayError as error:
            raise call_sides(error, SideName("QUERY", is_list=False), SideName(field)) from None
        for one in ranking:
            record = records[one.index]
            line: dict[str, Any] = {
                "index": one.index,
                "score": one.score,
                "truncated": bool(ranking.truncated[one.index]),
            }
            if id_field is not None:
                line["id"] = record.id
            write(line | ({"document": record.text} if return_documents else {}))
    return 0
