"""``forebay score``: pairs of texts in, one score a pair out, in constant memory. Knows no model's way of comparing."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.inputs import Fields, Record, find_sources, read_records
from forebay.cli.lines import open_lines, tell_skipped
from forebay.cli.options import Files, PairOptions, takes_options
from forebay.core.errors import ForebayError, InputTooLong
from forebay.core.sides import QUERIES, SideName, call_sides

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel

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
    """Tell how well each line's two texts match. Writes a JSON line a pair: index, score, truncated; or error."""
    fields = Fields(field, query_field if query is None else None, "--query-field")
    sources = find_sources(tuple(files or ()), pairs.input_format, fields)
    with open_lines(pairs.out, overwrite=pairs.overwrite) as write, pairs.load(pairs.model) as model:
        query_name = SideName(query_field) if query is None else SideName("--query", is_list=False)
        scorer = Scorer(model, query, pairs, (query_name, SideName(field)))
        for chunk in _chunks(read_records(sources, fields, skips=scorer.skips)):
            for line in scorer.score(chunk):
                write(line)
    return tell_skipped(scorer.num_failed, scorer.num_done)


class Scorer:
    """Scores chunk after chunk; with ``--on-error skip`` a row that has no score gets its error."""

    def __init__(
        self, model: "PoolingModel", query: str | None, pairs: PairOptions, names: tuple[SideName, SideName]
    ) -> None:
        self._model, self._query, self._names = model, query, names
        self._options = pairs.make_score_options()
        self._refuses_long = pairs.no_truncate
        self.skips = pairs.on_error == "skip"
        self.num_done = self.num_failed = 0

    def score(self, chunk: Sequence[Record]) -> list[dict[str, Any]]:
        """Return the lines of a chunk."""
        try:
            lines = self._score(chunk)
        except ForebayError as error:
            if not self.skips or error.index is None:
                if self._query is None or error.name != QUERIES:
                    error.move(self.num_done)
                raise call_sides(error, *self._names) from None
            lines = [self._score_alone(record) for record in chunk]
        self.num_failed += sum("error" in line for line in lines)
        self.num_done += len(lines)
        first = self.num_done - len(lines)
        return [{"index": first + offset, **line} for offset, line in enumerate(lines)]

    def _score_alone(self, record: Record) -> dict[str, Any]:
        try:
            return self._score([record])[0]
        except ForebayError as error:
            if error.index is None:
                raise call_sides(error, *self._names) from None
            return _failed(error.code, "this pair could not be computed")

    def _score(self, chunk: Sequence[Record]) -> list[dict[str, Any]]:
        queries = [str(record.id or "") for record in chunk] if self._query is None else [self._query]
        output = self._model.score(queries, [record.text for record in chunk], **self._options)
        values = zip(chunk, output.scores.tolist(), output.truncated.tolist(), strict=True)
        return [self._line(record, value, was_cut=was_cut) for record, value, was_cut in values]

    def _line(self, record: Record, value: float, *, was_cut: bool) -> dict[str, Any]:
        if record.error is not None:
            return _failed(record.error.code, record.error.message)
        if was_cut and self._refuses_long:
            return _failed(InputTooLong.code, "this pair has more tokens than are read (--no-truncate)")
        return {"score": value, "truncated": was_cut}


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    while chunk := list(islice(records, _CHUNK_PAIRS)):
        yield chunk
