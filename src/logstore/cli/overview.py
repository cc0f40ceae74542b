"""`ls` and `stat`: what a store has."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import Any, Final

import logstore
from logstore.cli.output import (
    Printer,
    Progress,
    escape,
    size_text,
    table,
    time_text,
)
from logstore.cli.sources import FileSource, sources_of

_HEAD: Final = ("partition", "start", "end", "durable", "segments", "size", "last time")
_SEGMENT_HEAD: Final = ("segment", "offsets", "size", "last time", "modified")


def run_ls(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump ls`."""
    with sources_of(args) as sources:
        broken = list(sources.broken)
        listed = []
        for partition in sources.partitions:
            try:
                listed.append(_partition_json(partition))
            except logstore.LogStoreError as found:
                broken.append((partition.name, found))
        if args.format == "jsonl":
            for value in listed:
                printer.json(value)
        elif sources.files:
            _list_files(sources.files, printer)
        else:
            _list_partitions(listed, args.segments or len(listed) == 1, printer)
        for name, error in broken:
            printer.warn(f"{name}: {error}")
        return 1 if broken else 0


def _partition_json(partition: logstore.Partition) -> dict[str, Any]:
    segments = partition.segments
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "startOffset": partition.start_offset,
        "endOffset": partition.end_offset,
        "durableOffset": partition.durable_offset,
        "size": sum(segment.size_bytes for segment in segments),
        "segments": [
            {
                "baseOffset": segment.base_offset,
                "nextOffset": segment.next_offset,
                "size": segment.size_bytes,
                "maxTimestamp": segment.max_timestamp_ms,
                "modified": segment.modified_ms,
                "isActive": segment.is_active,
                "path": segment.path,
            }
            for segment in segments
        ],
    }


def _list_partitions(
    listed: list[dict[str, Any]], with_segments: bool, printer: Printer
) -> None:
    if not listed:
        printer.line("no partitions")
        return
    rows = [
        (
            f"{value['topic']}-{value['partition']}",
            value["startOffset"],
            value["endOffset"],
            value["durableOffset"],
            len(value["segments"]),
            size_text(value["size"]),
            time_text(max((s["maxTimestamp"] for s in value["segments"]), default=-1)),
        )
        for value in listed
    ]
    for line in table(_HEAD, rows):
        printer.line(line)
    if not with_segments:
        return
    for value in listed:
        printer.line("")
        printer.line(f"{value['topic']}-{value['partition']}")
        rows_of = [
            (
                f"{segment['baseOffset']:020d}" + (" *" * segment["isActive"]),
                f"{segment['baseOffset']}..{segment['nextOffset'] - 1}"
                if segment["nextOffset"] > segment["baseOffset"]
                else "-",
                size_text(segment["size"]),
                time_text(segment["maxTimestamp"]),
                time_text(segment["modified"]),
            )
            for segment in value["segments"]
        ]
        for line in table(_SEGMENT_HEAD, rows_of):
            printer.line(f"  {line}")


def _list_files(files: list[FileSource], printer: Printer) -> None:
    for source in files:
        printer.line(escape(source.path))


# ------------------------------------------------------------------ stat


@dataclasses.dataclass(slots=True)
class _Tally:
    """Counts over the batches of one partition or file."""

    name: str
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
    first_time: int = -1
    last_time: int = -1

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
            first = self.first_time
            self.first_time = time_ms if first < 0 else min(first, time_ms)

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.name,
            "startOffset": self.start,
            "endOffset": self.end,
            "durableOffset": self.durable,
            "segments": self.segments,
            "size": self.size,
            "batches": self.batches,
            "controlBatches": self.control,
            "records": self.records,
            "recordsByMagic": {str(k): n for k, n in sorted(self.magics.items())},
            "recordsByCodec": dict(sorted(self.codecs.items())),
            "producers": len(self.producers),
            "smallestBatchTimestamp": self.first_time,
            "largestTimestamp": self.last_time,
        }

    def to_text(self) -> list[str]:
        per_record = self.batch_bytes / self.records if self.records else 0.0
        per_batch = self.records / self.batches if self.batches else 0.0
        magics = ", ".join(f"{n} of magic {k}" for k, n in sorted(self.magics.items()))
        codecs = ", ".join(f"{n} {k}" for k, n in sorted(self.codecs.items()))
        return [
            self.name,
            f"  offsets    {self.start}..{self.end - 1}, durable below {self.durable}"
            if self.durable >= 0
            else f"  offsets    {self.start}..{self.end - 1}",
            f"  size       {size_text(self.size)} in {self.segments} segments",
            f"  records    {self.records}, {per_record:.1f} bytes each on disk",
            f"  batches    {self.batches}, {per_batch:.1f} records each, "
            f"{self.control} control",
            f"  magic      {magics or '-'}",
            f"  codec      {codecs or '-'}",
            f"  producers  {len(self.producers)} with an id",
            f"  time       {time_text(self.first_time)} to {time_text(self.last_time)}",
        ]


def run_stat(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump stat`."""
    with sources_of(args) as sources:
        status = 1 if sources.broken else 0
        for name, error in sources.broken:
            printer.warn(f"{name}: {error}")
        tallies = [_prepare(partition) for partition in sources.partitions]
        total = sum(tally.size for tally in tallies)
        done = 0
        for partition, tally in zip(sources.partitions, tallies, strict=True):
            with Progress(f"reading {tally.name}", printer.err) as progress:
                try:
                    for batch in partition.read_batches():
                        tally.add(batch)
                        progress(done + tally.batch_bytes, total)
                except logstore.CorruptionError as error:
                    printer.warn(str(error))
                    status = 1
            done += tally.size
            _print_tally(tally, args, printer)
        for source in sources.files:
            _print_tally(_file_tally(source, printer), args, printer)
        return 1 if sources.is_damaged else status


def _prepare(partition: logstore.Partition) -> _Tally:
    segments = partition.segments
    return _Tally(
        partition.name,
        partition.start_offset,
        partition.end_offset,
        partition.durable_offset,
        len(segments),
        sum(segment.size_bytes for segment in segments),
    )


def _file_tally(source: FileSource, printer: Printer) -> _Tally:
    tally = _Tally(source.path, segments=1, end=0)
    for batch in source.batches(printer):
        tally.add(batch)
        tally.end = batch.next_offset
    tally.size = tally.batch_bytes
    return tally


def _print_tally(tally: _Tally, args: argparse.Namespace, printer: Printer) -> None:
    if args.format == "jsonl":
        printer.json(tally.to_json())
        return
    for line in tally.to_text():
        printer.line(escape(line))
