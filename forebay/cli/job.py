"""One call of ``forebay embed`` from start to end: check, load, continue or begin, embed, report.

It joins inputs, outputs, journal and model; what happens to a chunk is in bulk.py.
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.cli.bulk import Intake, Recorder, embed_all
from forebay.cli.formats import OUTPUT_EXTENSIONS, InputFormat, OutputFormat, find_format
from forebay.cli.inputs import Fields, count_records, find_sources, read_records
from forebay.cli.journal import Journal, Paths, find_journal
from forebay.cli.outputs import JsonlWriter, Layout, NpyWriter, ParquetWriter, Writer, open_at
from forebay.cli.progress import Meter
from forebay.core.config import ModelOptions
from forebay.core.errors import InvalidRequest
from forebay.core.params import PoolingParams, TextParams
from forebay.version import __version__

if TYPE_CHECKING:
    from forebay.api.model import PoolingModel


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files to read, as the command line names them."""

    files: tuple[str, ...]
    format: InputFormat | None
    field: str
    id_field: str | None


@dataclass(frozen=True, slots=True)
class Output:
    """The file to write ("-": standard output), and what may happen to one that is there."""

    name: str
    format: OutputFormat | None
    resume: bool
    overwrite: bool


@dataclass(frozen=True, slots=True)
class Work:
    """Which model, and what is asked of it."""

    options: ModelOptions
    pooling: PoolingParams
    text: TextParams

    def find_dimension(self, model: "PoolingModel") -> int:
        """Check the parameters against the model; return how long the vectors will be."""
        self.pooling.check(model.info.abilities)
        self.text.check(model.info.abilities)
        return self.pooling.dimensions or model.info.abilities.default_dimension

    def describe(self, model: "PoolingModel") -> dict[str, Any]:
        """Return what shapes the vectors, as plain values; a prompt by its hash."""
        prompt = self.text.prompt
        return {
            "forebay": __version__,
            "model": model.info.name,
            "checkpoint": model.info.path,
            "dtype": model.info.dtype,
            "device": model.info.device.partition(":")[0],
            "prompt": None if prompt is None else hashlib.blake2b(repr(prompt).encode(), digest_size=8).hexdigest(),
            "prompt-name": self.text.prompt_name,
            "input-type": self.text.input_type,
            "dimensions": self.pooling.dimensions,
            "raw": self.pooling.use_activation is False,
            "truncate": self.text.truncate,
            "max-tokens": self.text.max_tokens,
        }


def run(inputs: Inputs, output: Output, work: Work, *, is_quiet: bool) -> int:
    """Do the job; return the exit code: 1 if a text failed."""
    from forebay.api.model import PoolingModel

    fields = Fields(inputs.field, inputs.id_field)
    sources = find_sources(inputs.files, inputs.format, fields)
    paths, output_format = find_output(output, fields)
    stopped = find_journal(paths, resume=output.resume, overwrite=output.overwrite) if paths is not None else None
    options = work.options
    meter = Meter(shown=sys.stderr.isatty() and not is_quiet)
    try:
        with (
            meter,
            PoolingModel(options.model, revision=options.revision, dtype=options.dtype, device=options.device) as model,
        ):
            parameters = work.describe(model) | {
                "field": fields.text,
                "id-field": fields.id,
                "output-format": output_format,
                "input": [[source.name, source.format, source.size] for source in sources],
            }
            journal = stopped or Journal(parameters)
            journal.check_parameters(parameters)
            intake = Intake(read_records(sources, fields))
            intake.skip(journal)
            meter.begin(count_records(sources) if meter.is_shown else None, done=journal.rows)
            recorder = open_recorder(
                paths, output_format, Layout(work.find_dimension(model), fields.id is not None), journal
            )
            embed_all(model, (work.pooling, work.text), intake, recorder, meter)
    except KeyboardInterrupt:
        if paths is not None and paths.journal.exists():
            meter.tell("stopped; --resume goes on where this run left off")
        raise
    if not is_quiet:
        meter.tell(meter.summarize())
    return report(recorder, meter)


def report(recorder: Recorder, meter: Meter) -> int:
    """Tell of texts without a vector; return the exit code."""
    if not recorder.failed:
        return 0
    first = f"; the first of this run is {recorder.first_failure}" if recorder.first_failure else ""
    meter.tell(f"error: {recorder.failed:,} of {recorder.rows:,} texts failed{first}", style="red")
    return 1


def open_recorder(paths: Paths | None, output_format: OutputFormat, layout: Layout, journal: Journal) -> Recorder:
    """Open the output where the journal says."""
    if paths is None:
        return Recorder(JsonlWriter(sys.stdout.buffer, layout, is_file=False), journal, None)
    # Before the output is touched: the journal of a run that is now replaced must not outlive that run's rows.
    journal.save(paths.journal)
    offset = journal.offset if journal.rows else None
    writer: Writer
    if output_format == "npy":
        writer = NpyWriter(paths.partial, layout, offset=offset)
    elif output_format == "jsonl":
        writer = JsonlWriter(open_at(paths.partial, offset), layout, is_file=True)
    else:
        writer = ParquetWriter(paths.partial, paths.parts, layout, offset=offset)
    return Recorder(writer, journal, paths)


def find_output(output: Output, fields: Fields) -> tuple[Paths | None, OutputFormat]:
    """Resolve where to write, and in which format; no paths: standard output."""
    if output.name == "-":
        if output.format not in (None, "jsonl"):
            raise InvalidRequest(f"{output.format} can't be written to standard output; name a file by -o")
        if output.resume or output.overwrite:
            raise InvalidRequest("--resume and --overwrite need an output file; name it by -o")
        return None, "jsonl"
    paths = Paths(Path(output.name))
    paths.check()
    output_format = output.format or find_format(paths.out, OUTPUT_EXTENSIONS, "--output-format")
    if output_format == "npy" and fields.id is not None:
        raise InvalidRequest("npy has no room for --id-field; choose jsonl or parquet")
    return paths, output_format
