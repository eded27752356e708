"""IO processors: a package's own requests and answers around the engine (the task ``plugin``).

A processor turns foreign data into a Request and the Reply into an answer. It is found by its name among the
entry points of the group ``forebay.io_processors``, or given as an object.
"""

from abc import ABC, abstractmethod
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from forebay.core.errors import InvalidRequest, LoadError
from forebay.core.info import ModelInfo
from forebay.core.request import Reply, Request

GROUP = "forebay.io_processors"


class Parsed(NamedTuple):
    """What ``parse`` made of the data: the work to do, and whatever ``render`` needs to know of it."""

    request: Request
    context: Any = None


class IOProcessor(ABC):
    """parse → the engine → render. One object serves all requests, from several threads at once.

    ``info`` is the model's. Errors of the data should be InvalidRequest; anything else counts as the processor's.
    """

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    @abstractmethod
    def parse(self, data: Any) -> Parsed:
        """Turn the caller's data (from JSON, say) into a request."""

    @abstractmethod
    def render(self, reply: Reply, context: Any) -> Any:
        """Turn the reply into the answer; over HTTP it must be JSON: numbers, texts, lists, dicts, NumPy arrays."""


def find_processor(name: str) -> type[IOProcessor]:
    """Return the installed processor called ``name``; a missing or broken one is a LoadError that says so."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise LoadError(f"no IO processor '{name}' among the entry points '{GROUP}'; installed: {known}")
    try:
        kind: object = found[name].load()
    except Exception as error:
        raise LoadError(f"the IO processor '{name}' can't be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, IOProcessor)):
        raise LoadError(f"the entry point '{name}' of '{GROUP}' is no subclass of forebay.IOProcessor")
    return kind


def parse_checked(processor: IOProcessor, data: Any) -> Parsed:
    """Parse, and refuse what does not come out as it should."""
    parsed = processor.parse(data)
    if not isinstance(parsed, Parsed):
        raise InvalidRequest(
            f"{type(processor).__name__}.parse returned {type(parsed).__name__}, expected Parsed", field="data"
        )
    return parsed
