"""The sidecar of a bulk run: what is safely on disk, and of which run, so that a killed run can go on.

``OUT.progress`` holds one JSON object and is replaced as a whole, always after the rows that it counts are on disk.
Until a run is complete its rows lie in ``OUT.partial`` (for Parquet in ``OUT.parts/``); OUT appears at the end.
``OUT.lock`` keeps two runs from writing one output.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from forebay.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Paths:
    """Where an output and its companions lie."""

    out: Path

    @property
    def partial(self) -> Path:
        """The output while it grows."""
        return self.out.with_name(self.out.name + ".partial")

    @property
    def parts(self) -> Path:
        """The folder of Parquet part files."""
        return self.out.with_name(self.out.name + ".parts")

    @property
    def journal(self) -> Path:
        """The sidecar."""
        return self.out.with_name(self.out.name + ".progress")

    @property
    def lock(self) -> Path:
        """What a run holds locked while it writes."""
        return self.out.with_name(self.out.name + ".lock")

    def check(self) -> None:
        """Refuse an output that can't be written."""
        if not self.out.parent.is_dir():
            raise InvalidRequest(f"the folder '{self.out.parent}' of the output is not there; make it first")
        if self.out.exists() and not self.out.is_file():
            raise InvalidRequest(f"'{self.out}' is not a regular file; choose another name for -o")


@dataclass(frozen=True, slots=True)
class Journal:
    """What of a run is on disk: ``rows`` of them up to ``offset``, ``failed`` of them without a vector.

    ``digest`` is a hash over the input of those rows; ``parameters`` are everything that shapes the output.
    """

    parameters: Mapping[str, Any]
    rows: int = 0
    failed: int = 0
    offset: int = 0
    digest: str = ""
    is_complete: bool = False

    def save(self, path: Path) -> None:
        """Replace the sidecar, all or nothing."""
        fresh = path.with_name(path.name + ".new")
        with fresh.open("wb") as stream:
            stream.write(orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE))
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Journal":
        """Read a sidecar."""
        try:
            return cls(**orjson.loads(path.read_bytes()))
        except (orjson.JSONDecodeError, TypeError):
            raise InvalidRequest(f"'{path}' is not a journal of this version; start anew by --overwrite") from None

    def check_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Refuse to continue a run that was another one."""
        names = self.parameters.keys() | parameters.keys()
        changed = sorted(name for name in names if self.parameters.get(name) != parameters.get(name))
        if changed:
            name = changed[0]
            raise InvalidRequest(
                f"can't resume: {', '.join(changed)} changed ({name} was {self.parameters.get(name)}, "
                f"is {parameters.get(name)}); repeat the first run's options and input, or start anew by --overwrite"
            )


@contextmanager
def locked(paths: Paths | None) -> Iterator[None]:
    """Keep other runs off this output; the lock goes with the process, however that ends."""
    if paths is None:
        yield
        return
    with _open_lock(paths):
        try:
            yield
        finally:
            paths.lock.unlink(missing_ok=True)


def _open_lock(paths: Paths) -> BinaryIO:
    while True:
        stream = paths.lock.open("ab")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            raise InvalidRequest(
                f"another run is writing '{paths.out}' just now; wait for it, or choose another name for -o"
            ) from None
        if paths.lock.exists() and os.path.samestat(os.fstat(stream.fileno()), paths.lock.stat()):
            return stream
        stream.close()  # the run that held it ended in between, and took the file away


def find_journal(paths: Paths, *, resume: bool, overwrite: bool) -> Journal | None:
    """Return the stopped run to continue, or None to start anew; refuse to lose what is there."""
    journal = Journal.load(paths.journal) if paths.journal.exists() and (resume or not overwrite) else None
    if journal is not None and journal.is_complete:  # killed between its last two steps
        publish(paths, journal)
        journal = None
    if resume and journal is not None:
        return journal
    if overwrite:
        return None
    if journal is not None:
        raise InvalidRequest(
            f"'{paths.journal}' tells of a stopped run; continue it by --resume, or start anew by --overwrite"
        )
    if paths.out.exists():
        state = "is complete, nothing to resume" if resume else "exists"
        raise InvalidRequest(f"'{paths.out}' {state}; pass --overwrite to make it anew")
    return None


def publish(paths: Paths, journal: Journal) -> None:
    """Give a finished output its name and remove its companions; may be repeated after a kill."""
    replace(journal, is_complete=True).save(paths.journal)
    if paths.partial.exists():
        paths.partial.replace(paths.out)
    if paths.parts.exists():
        shutil.rmtree(paths.parts)
    paths.journal.unlink()
