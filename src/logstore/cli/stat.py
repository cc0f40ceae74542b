"""`stat`: counts over the batches of each partition."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import LOGS, command
from logstore.cli.damage import DamageLog
from logstore.cli.group_list import chosen, groups_in, print_list, warn_about
from logstore.cli.log_file import FileSource
from logstore.cli.output import Printer, Progress
from logstore.cli.paths import STORE, kind_of
from logstore.cli.records import opened_sources
from logstore.cli.schema import line, timestamp_value
from logstore.cli.sources import Sources
from logstore.cli.tables import Column, names_of, print_table, sorted_by
from logstore.cli.text import (
    counted,
    escape,
    grouped,
    offsets_text,
    relative,
    size_text,
    time_text,
)

EXAMPLES: Final = [
    "stat data",
    "stat data --topic 'orders*' --sort -records",
    "stat data/orders-0 --format jsonl",
]


@dataclasses.dataclass(slots=True)
class Tally:
    """Counts over the batches of one partition or file."""

    name: str
    topic: str | None
    partition: int | None
    start: int = -1
    end: int = -1
    durable: int = -1
    segments: int = 0
    size: int = 0
    batches: int = 0
    control: int = 0
    records: int = 0
    batch_bytes: int = 0
    magics: Counter[int] = dataclasses.field(default_factory=Counter)
    codecs: Counter[str] = dataclasses.field(default_factory=Counter)
    producers: set[int] = dataclasses.field(default_factory=set)
    smallest_batch_time: int = -1
    first_time: int = -1
    last_time: int = -1

    @classmethod
    def of(cls, partition: logstore.Partition) -> Tally:
        """The counts of a partition before its batches are read."""
        segments = partition.segments
        return cls(
            partition.name,
            partition.topic,
            partition.number,
            partition.start_offset,
            partition.end_offset,
            partition.durable_offset,
            len(segments),
            sum(segment.size_bytes for segment in segments),
        )

    def add(self, batch: logstore.RecordBatch) -> None:
        self.batches += 1
        self.batch_bytes += batch.size_bytes
        if self.start < 0:
            self.start = batch.base_offset
        if batch.is_control:
            self.control += 1
            return
        self.records += batch.record_count
        self.magics[batch.magic] += batch.record_count
        self.codecs[batch.compression] += batch.record_count
        if batch.producer_id >= 0:
            self.producers.add(batch.producer_id)
        time_ms = batch.max_timestamp_ms
        if time_ms >= 0:
            self.last_time = max(self.last_time, time_ms)
        self.smallest_batch_time = _earliest((self.smallest_batch_time, time_ms))
        self.first_time = _earliest((self.first_time, first_time(batch)))

    def to_json(self, times: str) -> dict[str, Any]:
        return line(
            "statistics",
            topic=self.topic,
            partition=self.partition,
            startOffset=self.start,
            endOffset=self.end,
            durableOffset=self.durable,
            segments=self.segments,
            size=self.size,
            batches=self.batches,
            controlBatches=self.control,
            records=self.records,
            recordsByMagic={str(k): n for k, n in sorted(self.magics.items())},
            recordsByCodec=dict(sorted(self.codecs.items())),
            producers=len(self.producers),
            smallestFirstTimestamp=timestamp_value(self.first_time, times),
            smallestBatchTimestamp=timestamp_value(self.smallest_batch_time, times),
            largestTimestamp=timestamp_value(self.last_time, times),
        )

    def to_text(self) -> list[str]:
        per_record = self.batch_bytes / self.records if self.records else 0.0
        per_batch = self.records / self.batches if self.batches else 0.0
        magics = ", ".join(
            f"{grouped(n)} of magic {k}" for k, n in sorted(self.magics.items())
        )
        codecs = ", ".join(f"{grouped(n)} {k}" for k, n in sorted(self.codecs.items()))
        durable = f", durable below {grouped(self.durable)}" * (self.durable >= 0)
        is_empty = self.end <= self.start
        last = (
            "none" if is_empty else offsets_text(self.start, self.end, number=grouped)
        )
        control = counted(self.control, "control batch")
        return [
            self.name,
            f"  offsets    {last}{durable}",
            f"  size       {size_text(self.size)} in "
            f"{counted(self.segments, 'segment')}",
            f"  records    {grouped(self.records)}, "
            f"{size_text(per_record)} each on disk",
            f"  batches    {grouped(self.batches)}, "
            f"{per_batch:,.1f} records each, {control}",
            f"  magic      {magics or '-'}",
            f"  codec      {codecs or '-'}",
            f"  producers  {grouped(len(self.producers))} with an id",
            f"  time       {time_text(self.first_time)} to {time_text(self.last_time)}",
        ]


def first_time(batch: logstore.RecordBatch) -> int:
    """The time of the first record of a batch; the largest time if the first is unknown
    without decompression; -1 for none."""
    largest = batch.max_timestamp_ms
    if batch.timestamp_type is not logstore.TimestampType.CREATE_TIME:
        return largest
    if batch.magic == 2:
        # Compaction puts the time to drop markers there.
        is_known = batch.delete_horizon_ms is None
        return batch.base_timestamp_ms if is_known else largest
    if batch.compression == "none":
        return largest  # of the only record
    with contextlib.suppress(logstore.LogStoreError):
        # Its payload was opened to count it.
        return _earliest(record.timestamp_ms for record in batch)
    return largest


def _counts(rows: Iterable[Counter[Any]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for row in rows:
        total.update(row)
    return total


def _codecs(counts: Counter[str]) -> str:
    return ", ".join(f"{grouped(n)} {name}" for name, n in counts.most_common()) or "-"


def _earliest(times: Iterable[int]) -> int:
    return min((t for t in times if t >= 0), default=-1)


COLUMNS: Final = (
    Column(
        "partition",
        lambda t: (t.topic or t.name, t.partition or 0, t.name),
        lambda v: v[2],
    ),
    Column("records", lambda t: t.records, grouped, True, sum),
    Column("batches", lambda t: t.batches, grouped, True, sum, 4),
    Column("segments", lambda t: t.segments, grouped, True, sum, 5),
    Column("size", lambda t: t.size, size_text, True, sum),
    Column("codec", lambda t: t.codecs, _codecs, False, _counts, 2),
    Column("first time", lambda t: t.first_time, time_text, False, _earliest, 3),
    Column("last time", lambda t: t.last_time, time_text, False, max, 1),
)
SORTABLE: Final = tuple(n for n in names_of(COLUMNS) if n != "codec")


@command(
    "stat",
    "Count sizes, offsets, records by magic and codec, and times.",
    EXAMPLES,
    path=LOGS,
)
@options.path()
@options.choice
@options.sort(SORTABLE)
@options.output_format()
@options.times
@options.on_corruption
@options.decompressed
def stat(path: str, **arguments: Any) -> int:
    """`logstore-dump stat`."""
    printer = Printer()
    damage = DamageLog(printer, arguments["on_corruption"])
    with opened_sources(path, damage, arguments) as sources:
        tallies = [*_partitions(sources, damage)]
        tallies += [_file_tally(source) for source in sources.files]
        tallies = sorted_by(tallies, COLUMNS, arguments["sort"])
        if arguments["form"] == "jsonl":
            for tally in tallies:
                printer.json(tally.to_json(arguments["times"]))
        else:
            _print(printer, tallies, arguments["sort"])
    status = damage.finish()
    if arguments["form"] == "text" and kind_of(os.path.abspath(path), path) == STORE:
        status = max(status, _print_groups(printer, path, arguments["topics"]))
    printer.flush()
    return status


def _print_groups(printer: Printer, path: str, topics: Sequence[str]) -> int:
    """The groups of consumers of a store, if it has some; returns the exit status."""
    groups = groups_in([path])
    listed = chosen(groups, topics=topics)
    if listed:
        printer.line("")
        print_list(printer, listed, None)
    return 1 if warn_about(printer, groups) else 0


def _print(printer: Printer, tallies: list[Tally], sort: str | None) -> None:
    for tally in tallies:
        for text in tally.to_text():
            printer.line(escape(text))
    if len(tallies) > 1:
        printer.line("")
        total = counted(len(tallies), "partition")
        print_table(printer, COLUMNS, tallies, total=total, sort=sort)


def _partitions(sources: Sources, damage: DamageLog) -> Iterable[Tally]:
    tallies = []
    for partition in sources.partitions:
        try:
            tallies.append((partition, Tally.of(partition)))
        except logstore.LogStoreError as error:
            damage.broken(partition.topic, partition.number, error)
    total = sum(tally.size for _, tally in tallies)
    done = 0
    with Progress("reading") as progress:
        for partition, tally in tallies:
            _read(sources, partition, tally, lambda n: progress(done + n, total))  # noqa: B023
            done += tally.size
            yield tally


def _read(
    sources: Sources,
    partition: logstore.Partition,
    tally: Tally,
    on_progress: Callable[[int], None],
) -> None:
    batches = sources.read(
        partition, None, None, "read_uncommitted", partition.read_batches
    )
    for batch in batches:
        tally.add(batch)
        on_progress(tally.batch_bytes)


def _file_tally(source: FileSource) -> Tally:
    name = relative(source.path)
    tally = Tally(name, source.topic, source.partition, segments=1, end=0)
    for batch in source.batches():
        tally.add(batch)
        tally.end = batch.next_offset
    tally.size = tally.batch_bytes
    return tally
