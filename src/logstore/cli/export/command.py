"""The subcommand `export`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import click

import logstore
from logstore.cli import options
from logstore.cli.app import LOGS, command
from logstore.cli.damage import DamageLog
from logstore.cli.export.columns import ColumnWriter, partition_batches
from logstore.cli.export.rows import rows_of
from logstore.cli.export.targets import STDOUT, TEXT_KINDS, ExportFile, path_for_topic
from logstore.cli.log_file import FileSource
from logstore.cli.output import Printer, Progress
from logstore.cli.params import Bound
from logstore.cli.records import bounds_of, opened_sources
from logstore.cli.sources import Sources
from logstore.cli.text import counted, relative

EXAMPLES: Final = [
    "export data/orders-0 -o orders.parquet",
    "export data --topic orders -o orders.jsonl.zst",
    "export data -o all.arrow --until 2024-05-01T00:00:00Z",
    "export data --per-topic -o '{topic}.csv.gz' --time iso",
    "export data --topic orders --skip 1000 --limit 100 -o - --format csv",
    "export data -o - | wc -l",
    "export data --on-corruption skip -o saved.jsonl",
]
# Rows are made and written in chunks. Larger chunks cost more: they do not stay in the
# processor's cache, and their memory is newly allocated each time.
_CHUNK_RECORDS: Final = 1024
_CHUNK_BYTES: Final = 128 << 10
_FIRST_CHUNK_RECORDS: Final = 64
_UNKNOWN: Final = "unknown"


_Place = TypeVar("_Place")


class ExportJob(NamedTuple):
    """One file of an export, and the data that it gets."""

    target: ExportFile
    partitions: Sequence[Any]
    files: Sequence[FileSource]


@command(
    "export",
    "Write the records to JSON lines, CSV, parquet or Arrow, compressed by .gz or "
    ".zst at the end of the name.",
    EXAMPLES,
    path=LOGS,
)
@options.path()
@options.output(alias=True)
@options.file_format
@options.per_topic
@options.force
@options.choice
@options.bounds
@options.skip
@options.limit
@options.payload
@options.times
@options.isolation
@options.on_corruption
@options.decompressed
def export(path: str, **arguments: Any) -> int:
    """`logstore-dump export`."""
    output = _output_of(arguments)
    bounds = bounds_of(arguments)  # before anything is opened
    printer = Printer()
    damage = DamageLog(printer, arguments["on_corruption"])
    with opened_sources(path, damage, arguments) as sources:
        total = sum(p.end_offset - p.start_offset for p in sources.partitions)
        with Progress("exporting", printer.err, unit="records") as progress:
            done = 0
            for job in _jobs(sources, output, arguments):
                before = done

                def on_progress(count: int, before: int = before) -> None:
                    progress(before + count, max(total, before + count))

                count = _Export(sources, job, arguments, bounds, printer).run(
                    on_progress
                )
                done += count
                _report_written(printer, job, count)
    printer.flush()
    return damage.finish()


def _output_of(arguments: dict[str, Any]) -> str:
    output, alias = arguments["output"], arguments["output_alias"]
    if output is not None and alias is not None:
        raise click.UsageError("--to is an alias of --output; give only one of them")
    path: str | None = output or alias
    if path is None:
        raise click.UsageError(
            "no output given: use -o FILE, or -o - for standard output"
        )
    return path


def _jobs(
    sources: Sources, output: str, arguments: dict[str, Any]
) -> Iterator[ExportJob]:
    kind, force = arguments["kind"], arguments["force"]
    if not arguments["per_topic"]:
        target = ExportFile(output, kind, force=force)
        yield ExportJob(target, sources.partitions, sources.files)
        return
    if output == STDOUT:
        raise click.UsageError("--per-topic writes files; -o - is standard output")
    topics = dict.fromkeys(
        [p.topic for p in sources.partitions]
        + [f.topic or _UNKNOWN for f in sources.files]
    )
    # All names first: nothing is written if one of them cannot be.
    jobs = [
        ExportJob(
            ExportFile(path_for_topic(output, kind, topic), kind, force=force),
            [p for p in sources.partitions if p.topic == topic],
            [f for f in sources.files if (f.topic or _UNKNOWN) == topic],
        )
        for topic in topics
    ]
    yield from jobs


def _report_written(printer: Printer, job: ExportJob, count: int) -> None:
    target = job.target
    if target.is_stdout:
        return
    if target.keep:
        shown = relative(target.path)
        printer.line(f"wrote {counted(count, 'record')} to {shown}")
    else:
        printer.warn(
            f"{target.path} was not written, because it would have no intact record; "
            "--on-corruption skip writes what can be read"
        )


class _Window:
    """The records of a file that remain after ``--skip`` and ``--limit``."""

    def __init__(self, skip: int, limit: int | None) -> None:
        self._skip = skip
        self._limit = limit

    @property
    def is_over(self) -> bool:
        """Whether no more records belong in the file."""
        return self._limit == 0

    def of(self, records: Iterator[logstore.Record]) -> Iterator[logstore.Record]:
        """Records among the next ones that the limits select."""
        if not self._skip and self._limit is None:
            return records
        return self._counted(records)

    def _counted(self, records: Iterator[logstore.Record]) -> Iterator[logstore.Record]:
        while not self.is_over and (record := next(records, None)) is not None:
            if self.slice(1):
                yield record

    def slice(self, count: int) -> range:
        """Which of the next `count` records are among them."""
        first = min(self._skip, count)
        self._skip -= first
        stop = count if self._limit is None else min(count, first + self._limit)
        if self._limit is not None:
            self._limit -= stop - first
        return range(first, stop)


class _Export:
    """Writes one file."""

    def __init__(
        self,
        sources: Sources,
        job: ExportJob,
        arguments: dict[str, Any],
        bounds: tuple[Bound, Bound],
        printer: Printer,
    ) -> None:
        self._sources, self._job, self._given = sources, job, arguments
        self._printer = printer
        self._start, self._stop = bounds
        self._window = _Window(arguments["skip"], arguments["limit"])
        self._count = 0
        self._is_cut = False

    def run(self, on_progress: Callable[[int], None]) -> int:
        """Write it; returns the number of records."""
        target = self._job.target
        write = self._text if target.kind in TEXT_KINDS else self._columns
        with target.opened(self._printer) as file:
            whole = sum(write(file, on_progress))
            places = len(self._job.partitions) + len(self._job.files)
            # A file without any complete data would look like an export.
            damage = self._sources.damage
            strict = (
                damage.is_strict if self._job.partitions else damage.is_strict_in_files
            )
            is_nothing = places and not whole and not self._is_cut
            target.keep = not (strict and is_nothing)
        return self._count

    def _is_whole(self, name: str) -> bool:
        return name not in self._sources.damage.damaged

    def _text(
        self, file: BinaryIO, on_progress: Callable[[int], None]
    ) -> Iterator[bool]:
        arguments = self._given
        rows = rows_of(self._job.target.kind, arguments["payload"], arguments["times"])
        file.write(rows.head())
        for name, topic, number, records in self._records():
            size = _FIRST_CHUNK_RECORDS
            records = self._window.of(records)
            while chunk := list(itertools.islice(records, size)):
                data = rows.encode(topic, number, chunk)
                file.write(data)
                self._count += len(chunk)
                on_progress(self._count)
                size = min(len(chunk) * _CHUNK_BYTES // len(data), _CHUNK_RECORDS) or 1
            yield self._is_whole(name)

    def _records(self) -> Iterator[tuple[str, Any, Any, Iterator[Any]]]:
        start, stop, isolation = self._start, self._stop, self._isolation
        for p in self._asked(self._job.partitions):
            records = self._sources.read(p, start, stop, isolation, p.read)
            yield p.name, p.topic, p.number, records
        for f in self._asked(self._job.files):
            yield f.name or f.path, f.topic, f.partition, f.records(start, stop)

    def _asked(self, places: Sequence[_Place]) -> Iterator[_Place]:
        """The partitions or files that may have records for the file."""
        for place in places:
            if self._window.is_over:
                self._is_cut = True
                return
            yield place

    @property
    def _isolation(self) -> str:
        return str(self._given["isolation"])

    def _columns(
        self, file: BinaryIO, on_progress: Callable[[int], None]
    ) -> Iterator[bool]:
        start, stop = self._start, self._stop
        with ColumnWriter(self._job.target.kind, file) as writer:
            for p in self._asked(self._job.partitions):
                for batch in partition_batches(
                    self._sources, p, start, stop, self._isolation
                ):
                    rows = self._window.slice(batch.num_rows)
                    part = batch.slice(rows.start, len(rows))
                    self._count += writer.add(p.topic, p.number, part)
                    on_progress(self._count)
                    if self._window.is_over:
                        break
                yield self._is_whole(p.name)
            for f in self._asked(self._job.files):
                records = self._window.of(f.records(start, stop))
                while chunk := list(itertools.islice(records, _CHUNK_RECORDS)):
                    self._count += writer.add_rows(f, chunk)
                    on_progress(self._count)
                yield self._is_whole(f.name or f.path)
