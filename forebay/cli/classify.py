"""``forebay classify``: its own options, and the rows that they ask for. The work is in job.py and bulk.py."""

from functools import partial
from typing import Annotated

import typer

from forebay.cli.options import BulkOptions, Files, takes_options


@takes_options
def classify(
    files: Files = None,
    *,
    all_scores: Annotated[
        bool, typer.Option("--all-scores", help="Write the scores of all labels, not the best one's alone.")
    ] = False,
    aggregation: Annotated[
        str | None,
        typer.Option(
            help="How the labels of tokens become entities: none, simple, first, average or max; simple where the "
            "model labels tokens only."
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write logits instead of probabilities.")] = False,
    bulk: BulkOptions,
) -> int:
    """Label the texts of files, or the entities in them, in constant memory. Writes jsonl or parquet."""
    from forebay.cli import job
    from forebay.cli.rows import Kind, classify_rows
    from forebay.text.entities import check_aggregation

    if aggregation is not None:
        check_aggregation(aggregation)
    bind = partial(classify_rows, use_activation=False if raw else None, has_all=all_scores, aggregation=aggregation)
    options = {"all-scores": all_scores, "aggregation": aggregation, "raw": raw}
    kind = Kind("classifying", "labels", ("jsonl", "parquet"), options, bind)
    return job.run(tuple(files or ()), bulk, kind)
