"""``forebay embed``: its own options, and the rows that they ask for. The work is in job.py and bulk.py."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forebay.cli.options import BulkOptions, Files, takes_options
from forebay.core.errors import InvalidRequest
from forebay.core.params import PoolingParams
from forebay.core.tasks import Task

if TYPE_CHECKING:
    from forebay.cli.rows import Kind

EmbedOutput = Literal["dense", "sparse", "tokens"]
TASK_OF_OUTPUT: dict[EmbedOutput, Task] = {
    "dense": Task.EMBED,
    "sparse": Task.SPARSE,
    "tokens": Task.TOKEN_EMBED,
}


@takes_options
def embed(
    files: Files = None,
    *,
    output: Annotated[
        EmbedOutput,
        typer.Option(
            help="A vector a text (npy, jsonl, parquet), a sparse one (npz, jsonl, parquet), or a vector a token "
            "(jsonl, parquet)."
        ),
    ] = "dense",
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Shorten the vectors to so many dimensions, and normalise them again.")
    ] = None,
    truncate_dim: Annotated[
        int | None, typer.Option(min=1, help="Shorten the vectors to so many dimensions, and leave them so.")
    ] = None,
    chunk_size: Annotated[
        int | None, typer.Option(min=1, help="With tokens: one vector a window of so many tokens, and its characters.")
    ] = None,
    pool_factor: Annotated[
        int | None, typer.Option(min=1, help="With tokens: join a document's vectors, by likeness, to one for so many.")
    ] = None,
    max_active_dims: Annotated[
        int | None, typer.Option(min=1, help="With sparse: keep so many entries, the heaviest.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="With sparse: write the token of each entry too.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Leave out the final normalisation.")] = False,
    bulk: BulkOptions,
) -> int:
    """Embed the texts of files, in constant memory."""
    from forebay.cli import job

    pooling = PoolingParams(
        outputs=(TASK_OF_OUTPUT[output],),
        dimensions=dimensions,
        truncate_dim=truncate_dim,
        use_activation=False if raw else None,
        chunk_size=chunk_size,
        max_active_dims=max_active_dims,
        pool_factor=pool_factor,
    )
    return job.run(tuple(files or ()), bulk, make_kind(output, pooling, has_tokens=tokens))


def make_kind(output: EmbedOutput, pooling: PoolingParams, *, has_tokens: bool) -> "Kind":
    """Return the rows that ``--output`` asks for."""
    from forebay.cli.rows import DenseRows, Kind, SparseRows, TokenRows

    if has_tokens and output != "sparse":
        raise InvalidRequest("--tokens names the entries of sparse vectors; pass --output sparse, or leave it out")
    options = {
        "output": output,
        "dimensions": pooling.dimensions,
        "truncate-dim": pooling.truncate_dim,
        "chunk-size": pooling.chunk_size,
        "pool-factor": pooling.pool_factor,
        "max-active-dims": pooling.max_active_dims,
        "tokens": has_tokens,
        "raw": pooling.use_activation is False,
    }
    match output:
        case "dense":
            bind = partial(DenseRows, pooling=pooling)
            return Kind("embedding", "vectors", ("npy", "jsonl", "parquet"), options, bind)
        case "sparse":
            sparse = partial(SparseRows, pooling=pooling, has_tokens=has_tokens)
            if has_tokens:
                return Kind("embedding", "tokens beside sparse vectors", ("jsonl", "parquet"), options, sparse)
            return Kind("embedding", "sparse vectors", ("npz", "jsonl", "parquet"), options, sparse)
        case "tokens":
            contents = "a matrix a text, each of its own length"
            return Kind("embedding", contents, ("jsonl", "parquet"), options, partial(TokenRows, pooling=pooling))
