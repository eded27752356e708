"""One bulk run from start to end: check, load, continue or begin, answer, report.

It joins inputs, outputs, journal and model; what happens to a chunk is in bulk.py, what a row holds in rows.py.
"""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.cli.arrays import NpyWriter, NpzWriter
from forebay.cli.bulk import Intake, Recorder, answer_all
from forebay.cli.formats import OUTPUT_EXTENSIONS, OutputFormat, find_format
from forebay.cli.inputs import Fields, Source, count_records, find_sources, read_records
from forebay.cli.journal import Journal, Paths, find_journal, locked
from forebay.cli.options import BulkOptions
from forebay.cli.outputs import JsonlWriter, ParquetWriter, Writer, open_at
from forebay.cli.progress import Meter
from forebay.cli.rows import Encoder, Kind
from forebay.core.errors import InvalidRequest
from forebay.version import __version__

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel

MATRIX_FORMATS: tuple[OutputFormat, ...] = ("npy", "npz")


def run(files: tuple[str, ...], bulk: BulkOptions, kind: Kind) -> int:
    """Do the job; return the exit code: 1 if a text failed."""
    fields = Fields(bulk.field, bulk.id_field)
    sources = find_sources(files, bulk.input_format, fields)
    paths, output_format = find_output(bulk, kind)
    with locked(paths):
        return _run_locked(sources, fields, (paths, output_format), bulk, kind)


def _run_locked(
    sources: tuple[Source, ...],
    fields: Fields,
    output: tuple[Paths | None, OutputFormat],
    bulk: BulkOptions,
    kind: Kind,
) -> int:
    paths, output_format = output
    stopped = find_journal(paths, resume=bulk.resume, overwrite=bulk.overwrite) if paths is not None else None
    text = bulk.make_text_params()
    meter = Meter(shown=sys.stderr.isatty() and not bulk.no_progress)
    try:
        with meter, bulk.load(bulk.model) as model:
            encoder = kind.bind(model, text)
            encoder.pooling.check(model.info.abilities)
            text.check(model.info.abilities)
            parameters = describe(model, bulk, kind) | {
                "output-format": output_format,
                "input": [[source.name, source.format, source.size] for source in sources],
            }
            journal = stopped or Journal(parameters)
            journal.check_parameters(parameters)
            records = read_records(sources, fields, skips=bulk.on_error == "skip")
            intake = Intake(records, refuses_long=bulk.no_truncate and text.truncate)
            intake.skip(journal)
            meter.begin(kind.action, count_records(sources) if meter.is_shown else None, done=journal.rows)
            recorder = open_recorder(paths, output_format, encoder, journal, has_ids=fields.id is not None)
            answer_all(model, encoder, text, intake, recorder, meter)
    except KeyboardInterrupt:
        if paths is not None and paths.journal.exists():
            meter.tell("stopped; --resume goes on where this run left off")
        raise
    if not bulk.no_progress:
        meter.tell(meter.summarize())
    return report(recorder, meter)


def describe(model: "PoolingModel", bulk: BulkOptions, kind: Kind) -> dict[str, Any]:
    """Return what shapes the rows, as plain values; a prompt by its hash."""
    return {
        "forebay": __version__,
        "model": model.info.name,
        "checkpoint": model.info.path,
        "dtype": model.info.dtype,
        "device": model.info.device.partition(":")[0],
        "convert": bulk.convert,
        "prompt": None if bulk.prompt is None else hashlib.blake2b(bulk.prompt.encode(), digest_size=8).hexdigest(),
        "prompt-name": bulk.prompt_name,
        "input-type": bulk.input_type,
        "truncate": not bulk.no_truncate,
        "truncation-side": bulk.truncation_side,
        "split": bulk.split,
        "pooler-config": bulk.pooler_config,
        "max-tokens": bulk.max_tokens,
        "field": bulk.field,
        "id-field": bulk.id_field,
        **kind.options,
    }


def report(recorder: Recorder, meter: Meter) -> int:
    """Tell of texts that failed; return the exit code."""
    if not recorder.failed:
        return 0
    first = f"; the first of this run is {recorder.first_failure}" if recorder.first_failure else ""
    meter.tell(f"error: {recorder.failed:,} of {recorder.rows:,} texts failed{first}", style="red")
    return 1


def open_recorder(
    paths: Paths | None, output_format: OutputFormat, encoder: Encoder, journal: Journal, *, has_ids: bool
) -> Recorder:
    """Open the output where the journal says."""
    if paths is None:
        return Recorder(JsonlWriter(sys.stdout.buffer, has_ids=has_ids, is_file=False), journal, None)
    # Before the output is touched: the journal of a run that is now replaced must not outlive that run's rows.
    journal.save(paths.journal)
    offset = journal.offset if journal.rows else None
    writer: Writer
    match output_format:
        case "npy":
            writer = NpyWriter(paths.partial, encoder.width, offset=offset)
        case "npz":
            writer = NpzWriter(paths.partial, paths.parts, encoder.width, offset=offset)
        case "jsonl":
            writer = JsonlWriter(open_at(paths.partial, offset), has_ids=has_ids, is_file=True)
        case "parquet":
            writer = ParquetWriter(paths.partial, paths.parts, encoder.types(), has_ids=has_ids, offset=offset)
    return Recorder(writer, journal, paths)


def find_output(bulk: BulkOptions, kind: Kind) -> tuple[Paths | None, OutputFormat]:
    """Resolve where to write, and in which format; no paths: standard output."""
    if bulk.out == "-":
        if bulk.output_format not in (None, "jsonl"):
            raise InvalidRequest(f"{bulk.output_format} can't be written to standard output; name a file by -o")
        if bulk.resume or bulk.overwrite:
            raise InvalidRequest("--resume and --overwrite need an output file; name it by -o")
        return None, "jsonl"
    paths = Paths(Path(bulk.out))
    paths.check()
    output_format = bulk.output_format or find_format(paths.out, OUTPUT_EXTENSIONS, "--output-format")
    if output_format not in kind.formats:
        raise InvalidRequest(f"{output_format} has no room for {kind.contents}; choose {' or '.join(kind.formats)}")
    if output_format in MATRIX_FORMATS and bulk.id_field is not None:
        raise InvalidRequest(f"{output_format} has no room for --id-field; choose jsonl or parquet")
    return paths, output_format
