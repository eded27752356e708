"""What the two sides of a comparison are called: inside of the engine, and by each caller in its errors."""

from typing import NamedTuple

from forebay.core.errors import ForebayError, InvalidRequest

QUERIES, DOCUMENTS = "queries", "documents"
"""What errors of a ScoreRequest call its two sides."""


class SideName(NamedTuple):
    """What a caller calls one side of a comparison, and whether it sent a list there or one value."""

    field: str
    is_list: bool = True

    def place(self, index: int) -> str:
        """What it calls one item of the side."""
        return f"{self.field}[{index}]" if self.is_list else self.field


def check_one_query(num_queries: int) -> None:
    """Refuse a ranking for no query or several: paired with as many documents, they would give scores all the same."""
    if num_queries != 1:
        raise InvalidRequest(
            f"'query' holds {num_queries} texts, but documents are ranked for one query; send requests of their own, "
            "or compare pairs by score (POST /score)",
            field="query",
        )


def call_sides(error: ForebayError, queries: SideName, documents: SideName) -> ForebayError:
    """Say an error of a ScoreRequest in its caller's own names; return the error itself."""
    names = {QUERIES: queries, DOCUMENTS: documents}
    if error.index is not None and error.name in names:
        name = names[error.name]
        return error.call(name.field, error.index if name.is_list else None)
    if error.index is None and error.field in names:
        error.field = names[error.field].field
    return error
