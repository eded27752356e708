"""``forebay rerank``: the documents of files, ordered by one query. They are all kept: the best may come last."""

from typing import Annotated, Any

import typer

from forebay.cli.inputs import Fields, find_sources, read_records
from forebay.cli.lines import open_lines, tell_skipped
from forebay.cli.options import Files, PairOptions, takes_options
from forebay.core.errors import ForebayError, InputTooLong
from forebay.core.sides import DOCUMENTS, SideName, call_sides


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
    """Order documents by how well they match a query. Writes a JSON line a document, best first (index, score,
    truncated), then the skipped rows."""
    fields = Fields(field, id_field)
    skips = pairs.on_error == "skip"
    records = list(read_records(find_sources(tuple(files or ()), pairs.input_format, fields), fields, skips=skips))
    places = [index for index, record in enumerate(records) if record.error is None]
    errors: dict[int, ForebayError] = {index: one.error for index, one in enumerate(records) if one.error is not None}
    with open_lines(pairs.out, overwrite=pairs.overwrite) as write, pairs.load(pairs.model) as model:
        try:
            ranking = model.rerank(query, [records[index].text for index in places], **pairs.make_score_options())
        except ForebayError as error:
            if error.name == DOCUMENTS and error.index is not None:
                error.call(DOCUMENTS, places[error.index])
            raise call_sides(error, SideName("QUERY", is_list=False), SideName(field)) from None
        if skips and pairs.no_truncate:
            message = "this document has more tokens than are read (--no-truncate)"
            errors |= {places[index]: InputTooLong(message) for index in ranking.truncated.nonzero()[0].tolist()}
        ranked = [one for one in ranking if places[one.index] not in errors]
        for one in ranked[: top_n or None]:
            record = records[places[one.index]]
            line: dict[str, Any] = {
                "index": places[one.index],
                "score": one.score,
                "truncated": bool(ranking.truncated[one.index]),
            }
            if id_field is not None:
                line["id"] = record.id
            write(line | ({"document": record.text} if return_documents else {}))
        for index in sorted(errors):
            write({"index": index, "error": {"code": errors[index].code, "message": errors[index].message}})
    return tell_skipped(len(errors), len(records))
