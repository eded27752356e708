"""A bulk run: records → PoolingModel.stream → a writer, in constant memory, and resumable where it has a journal.

It strings the parts together and knows neither file formats nor options.
"""

import contextlib
import hashlib
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from forebay.cli.inputs import Id, InputError, Record
from forebay.cli.journal import Journal, Paths, publish
from forebay.cli.outputs import Chunk, Writer, without_place
from forebay.cli.progress import Meter
from forebay.core.errors import InputTooLong, InvalidRequest
from forebay.core.params import PoolingParams, TextParams

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel
    from forebay.core.request import Reply

CHUNK_ITEMS = 1024
MAX_PENDING_BYTES = 32 << 20


class Intake:
    """Hands texts to the engine, which reads ahead, and keeps of each only its id and hash until it is answered."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._waiting: deque[tuple[Id, bytes]] = deque()
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """A hash over all records that were taken or skipped."""
        return self._digest.hexdigest()

    def texts(self) -> Iterator[str]:
        """Yield the texts that are still to be computed."""
        for record in self._records:
            self._waiting.append((record.id, hash_record(record)))
            yield record.text

    def take(self, count: int) -> list[Id]:
        """Return the ids of the next ``count`` answered texts."""
        ids = []
        for _ in range(count):
            key, digest = self._waiting.popleft()
            self._digest.update(digest)
            ids.append(key)
        return ids

    def skip(self, journal: Journal) -> None:
        """Pass the records of an earlier run; refuse if they are not the same."""
        for _ in range(journal.rows):
            record = next(self._records, None)
            if record is None:
                break
            self._digest.update(hash_record(record))
        if journal.rows and self.digest != journal.digest:
            raise InvalidRequest(
                f"can't resume: the first {journal.rows} texts of the input changed; "
                "restore the first run's input, or start anew by --overwrite"
            )


def hash_record(record: Record) -> bytes:
    """Hash one record, so that no two different ones look alike."""
    return hashlib.blake2b(repr(tuple(record)).encode(), digest_size=16).digest()


class Recorder:
    """Writes chunks and notes in the journal what is on disk. Without ``paths`` (standard output) there is none."""

    def __init__(self, writer: Writer, journal: Journal, paths: Paths | None) -> None:
        self._writer, self._journal, self._paths = writer, journal, paths
        self.rows, self.failed, self._digest = journal.rows, journal.failed, journal.digest
        self.first_failure: str | None = None
        self._saved_at = time.monotonic()
        self._is_whole = True

    @property
    def dimension(self) -> int:
        """How long a row's vector is."""
        return self._writer.layout.dimension

    def add(self, chunk: Chunk, digest: str) -> None:
        """Write a chunk; sync when one is due."""
        self._is_whole = False
        self._writer.write(chunk)
        if chunk.failed and self.first_failure is None:
            index = min(chunk.failed)
            self.first_failure = f"row {self.rows + index}: {without_place(chunk.failed[index].message)}"
        self.rows += len(chunk.vectors)
        self.failed += len(chunk.failed)
        self._digest = digest
        self._is_whole = True
        is_late = time.monotonic() - self._saved_at >= self._writer.sync_seconds
        if is_late or self._writer.pending >= MAX_PENDING_BYTES:
            self.save()

    def save(self) -> None:
        """Make all rows durable and note it, unless a chunk was cut short."""
        if not self._is_whole or self._paths is None:
            return
        self._journal = Journal(self._journal.parameters, self.rows, self.failed, self._writer.sync(), self._digest)
        self._journal.save(self._paths.journal)
        self._saved_at = time.monotonic()

    def stop(self) -> None:
        """Save what can be saved of a run that was interrupted or failed."""
        with contextlib.suppress(Exception):
            self.save()
        self._writer.close()

    def complete(self) -> None:
        """Finish the output and give it its name."""
        self.save()
        self._writer.finish()
        if self._paths is not None:
            publish(self._paths, self._journal)


def embed_all(
    model: "PoolingModel", params: tuple[PoolingParams, TextParams], intake: Intake, recorder: Recorder, meter: Meter
) -> None:
    """Embed what the intake yields and write it; what is on disk stays good whatever happens."""
    pooling, text = params
    try:
        for reply in model.stream(intake.texts(), pooling=pooling, text=text, chunk_items=CHUNK_ITEMS):
            ids = intake.take(len(reply.rows))
            recorder.add(to_chunk(reply, recorder.dimension, ids), intake.digest)
            meter.advance(len(reply.rows), int(reply.num_tokens.sum()), int(reply.truncated.sum()))
        recorder.complete()
    except InputTooLong as error:
        recorder.stop()
        place = re.search(r"\d+", error.field or "")  # within the chunk that was to come next
        row = recorder.rows + int(place.group()) if place else recorder.rows
        raise InputError(f"row {row} {without_place(error.message)} (--no-truncate)") from None
    except BaseException:
        recorder.stop()
        raise


def to_chunk(reply: "Reply", dimension: int, ids: list[Id]) -> Chunk:
    """Lay a reply's rows into one matrix."""
    vectors = np.full((len(reply.rows), dimension), np.nan, dtype=np.float32)
    for index, row in enumerate(reply.rows):
        if row is not None:
            vectors[index] = row
    return Chunk(vectors, reply.errors, ids)
