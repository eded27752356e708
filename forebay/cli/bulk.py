"""A bulk run: records → PoolingModel.stream → an encoder → a writer, in constant memory.

It is resumable where it has a journal. It strings the parts together and knows neither file formats nor options.
"""

import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay.cli.inputs import InputError, Record
from forebay.cli.journal import Journal, Paths, publish
from forebay.cli.outputs import Chunk, Writer
from forebay.cli.progress import Meter
from forebay.cli.rows import Encoder
from forebay.core.errors import ForebayError, InputTooLong, InvalidRequest
from forebay.core.params import TextParams

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel
    from forebay.core.request import Reply

MAX_PENDING_BYTES = 32 << 20


class Intake:
    """Hands texts to the engine, which reads ahead, and keeps the records of those that are not answered yet.

    ``refuses_long``: a text that was cut is a bad row.
    """

    def __init__(self, records: Iterator[Record], *, refuses_long: bool = False) -> None:
        self._records = records
        self.refuses_long = refuses_long
        self._waiting: deque[Record] = deque()
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """A hash over all records that were taken or skipped."""
        return self._digest.hexdigest()

    def texts(self) -> Iterator[str]:
        """Yield the texts that are still to be computed."""
        for record in self._records:
            self._waiting.append(record)
            yield record.text

    def take(self, count: int) -> list[Record]:
        """Return the records of the next ``count`` answered texts."""
        records = [self._waiting.popleft() for _ in range(count)]
        for record in records:
            self._digest.update(hash_record(record))
        return records

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
    said = record[:2] if record.error is None else (*record[:2], record.error.message)
    return hashlib.blake2b(repr(said).encode(), digest_size=16).digest()


class Recorder:
    """Writes chunks and notes in the journal what is on disk. Without ``paths`` (standard output) there is none."""

    def __init__(self, writer: Writer, journal: Journal, paths: Paths | None) -> None:
        self._writer, self._journal, self._paths = writer, journal, paths
        self.rows, self.failed, self._digest = journal.rows, journal.failed, journal.digest
        self.first_failure: str | None = None
        self._saved_at = time.monotonic()
        self._is_whole = True

    def add(self, chunk: Chunk, digest: str) -> None:
        """Write a chunk; sync when one is due."""
        self._is_whole = False
        self._writer.write(chunk)
        if chunk.failed and self.first_failure is None:
            self.first_failure = chunk.failed[min(chunk.failed)].message
        self.rows += len(chunk.rows)
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


def answer_all(
    model: "PoolingModel", encoder: Encoder, text: TextParams, intake: Intake, recorder: Recorder, meter: Meter
) -> None:
    """Answer what the intake yields and write it; what is on disk stays good whatever happens."""
    num_before = recorder.rows
    replies = model.stream(intake.texts(), pooling=encoder.pooling, text=text, chunk_items=encoder.chunk_items)
    try:
        for reply in replies:
            records = intake.take(len(reply.rows))
            refused = find_refused(reply, records, refuses_long=intake.refuses_long)
            recorder.add(to_chunk(reply, encoder, records, refused, recorder.rows), intake.digest)
            num_truncated = 0 if intake.refuses_long else int(reply.truncated.sum())
            meter.advance(len(records), int(reply.num_tokens.sum()), num_truncated)
        recorder.complete()
    except InputTooLong as error:
        recorder.stop()
        remedy = "(--no-truncate; --on-error skip leaves out such rows)"
        raise InputError(f"{error.move(num_before).message} {remedy}") from None
    except BaseException:
        recorder.stop()
        raise


def find_refused(reply: "Reply", records: list[Record], *, refuses_long: bool) -> dict[int, ForebayError]:
    """Return the errors of rows that are left empty, by their places in the chunk: bad ones, too long or failed."""
    errors: dict[int, ForebayError] = dict(reply.errors)
    if refuses_long:
        for index in reply.truncated.nonzero()[0].tolist():
            errors[index] = InputTooLong(f"input[{index}] has more tokens than are read (--no-truncate)", index=index)
    return errors | {index: record.error for index, record in enumerate(records) if record.error is not None}


def to_chunk(
    reply: "Reply", encoder: Encoder, records: list[Record], refused: dict[int, ForebayError], num_before: int
) -> Chunk:
    """Name the values of a reply's rows; errors tell the row of the output that they leave empty."""
    rows = [
        None if index in refused else encoder.encode(row, record.text)
        for index, (row, record) in enumerate(zip(reply.rows, records, strict=True))
    ]
    failed = {index: error.move(num_before) for index, error in refused.items()}
    return Chunk(rows, failed, [record.id for record in records])
