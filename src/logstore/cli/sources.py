"""From a path to records: the partitions of a store, one partition, or single files."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import logstore
from logstore.cli.output import Printer, config_of, sayable

_PARTITION: Final = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_LOG: Final = re.compile(r"[0-9]{20}\.log")
_MILLISECONDS: Final = re.compile(r"(-?[0-9]+)ms")
_STORE_FILES: Final = frozenset(
    {
        ".lock",
        ".kafka_cleanshutdown",
        "meta.properties",
        ".logstore-owner",
        ".logstore-topics",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    }
)
_OFFSET_MAX: Final = (1 << 63) - 1
_PARTITION_MAX: Final = (1 << 31) - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)

Bound = int | datetime.datetime | None


def parse_bound(text: str) -> int | datetime.datetime:
    """An offset, or a time: ISO 8601, or Unix milliseconds followed by ``ms``.

    Raises:
        ValueError, OverflowError: neither.
    """
    milliseconds = _MILLISECONDS.fullmatch(text)
    if milliseconds is not None:
        return _EPOCH + datetime.timedelta(milliseconds=int(milliseconds[1]))
    if text.isascii() and text.isdigit():
        return min(int(text), _OFFSET_MAX)
    iso = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
    when = datetime.datetime.fromisoformat(iso)
    milliseconds_of(when)  # no calendar has the ends of the first and last year in UTC
    return when


def milliseconds_of(when: datetime.datetime) -> int:
    """Unix milliseconds, rounded up; without a zone it is local time."""
    delta = when.astimezone(datetime.timezone.utc) - _EPOCH
    return -(-(delta // datetime.timedelta(microseconds=1)) // 1000)


class Found(NamedTuple):
    """A record and where it is: topic None where no name tells."""

    topic: str | None
    partition: int | None
    record: logstore.Record


class FileSource:
    """One `.log` file as it is."""

    def __init__(self, path: str, config: logstore.StoreConfig) -> None:
        self.path = path
        self.config = config
        parsed = _PARTITION.fullmatch(
            os.path.basename(os.path.dirname(os.path.abspath(path)))
        )
        # Anything may be the name of a directory.
        self.topic: str | None = sayable(parsed[1]) if parsed else None
        number = int(parsed[2]) if parsed else -1
        self.partition = number if 0 <= number <= _PARTITION_MAX else None
        self.is_damaged = False

    def entries(self) -> Iterator[Any]:
        """All of its `LogEntry` values."""
        contents = logstore.inspect_file(self.path, store_config=self.config)
        return iter(contents.entries)

    def batches(self, printer: Printer) -> Iterator[logstore.RecordBatch]:
        """The sound batches; damage is told on standard error and remembered."""
        for entry in self.entries():
            if entry.damage is None:
                yield entry.batch
                continue
            self.is_damaged = self.is_damaged or not entry.is_torn
            what = "the end is no whole batch" if entry.is_torn else "damaged"
            printer.warn(
                f"{self.path} at byte {entry.position}: {what} ({entry.damage}); "
                f"{entry.size_bytes} bytes are left out"
            )

    def _records_of(
        self, batch: logstore.RecordBatch, printer: Printer
    ) -> list[logstore.Record]:
        """The records of a sound batch; none where what is inside cannot be read."""
        try:
            return list(batch)
        except (
            logstore.CorruptionError,
            logstore.RecordTooLargeError,
            logstore.UnsupportedError,
        ) as error:
            self.is_damaged = True
            printer.warn(f"{error}; {batch.size_bytes} bytes are left out")
            return []

    def records(
        self, start: Bound, stop: Bound, printer: Printer
    ) -> Iterator[logstore.Record]:
        begun = not isinstance(start, datetime.datetime)
        first = start if isinstance(start, int) else 0
        since = milliseconds_of(start) if isinstance(start, datetime.datetime) else 0
        until = milliseconds_of(stop) if isinstance(stop, datetime.datetime) else None
        for batch in self.batches(printer):
            if batch.last_offset < first:
                continue
            if isinstance(stop, int) and batch.base_offset >= stop:
                return
            for record in self._records_of(batch, printer):
                begun = begun or record.timestamp_ms >= since
                if not begun or record.offset < first:
                    continue
                if isinstance(stop, int) and record.offset >= stop:
                    return
                if until is not None and record.timestamp_ms >= until:
                    return
                yield record


class Sources:
    """What a path stands for. A context manager: it may hold an open store.

    Attributes:
        partitions: open partitions; empty for files.
        files: paths of `.log` files; empty where there are partitions.
        broken: partitions that cannot be opened, with the reason.
    """

    def __init__(
        self,
        path: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        raw: bool = False,
        config: logstore.StoreConfig | None = None,
    ) -> None:
        self.path = path
        self.config = config or logstore.StoreConfig()
        self.partitions: list[logstore.Partition] = []
        self.files: list[FileSource] = []
        self.broken: list[tuple[str, logstore.LogStoreError]] = []
        self._stack = contextlib.ExitStack()
        try:
            self._find(os.path.abspath(path), topic, partition, raw)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _find(
        self, full: str, topic: str | None, partition: int | None, raw: bool
    ) -> None:
        if not os.path.isdir(full):
            self.files = [_file(self.path, full, self.config)]
            return
        names = sorted(os.listdir(full))
        parsed = _PARTITION.fullmatch(os.path.basename(full))
        has_logs = any(_LOG.fullmatch(name) for name in names)
        inside = [name for name in names if _PARTITION.fullmatch(name)]
        is_partition = has_logs or (parsed is not None and not _is_store(names, inside))
        if raw or (is_partition and parsed is None):
            self._find_files(names if is_partition else None, inside, topic, partition)
            return
        if not is_partition and not _is_store(names, inside):
            raise logstore.StoreNotFoundError(
                f"{self.path} is neither a store nor a partition directory nor a file "
                f"of one",
                path=self.path,
            )
        root = os.path.dirname(full) if is_partition else full
        store = self._stack.enter_context(
            logstore.open(root, read_only=True, config=self.config)
        )
        if is_partition and parsed is not None:
            self.partitions = [store.topic(parsed[1])[int(parsed[2])]]
            return
        self._find_partitions(store, inside, topic, partition)

    def _find_partitions(
        self,
        store: logstore.Store,
        inside: list[str],
        topic: str | None,
        partition: int | None,
    ) -> None:
        names = store.topics() if topic is None else [store.topic(topic).name]
        for name in names:
            found = store.topic(name)
            numbers = _numbers(inside, name) if partition is None else [partition]
            for number in numbers:
                try:
                    self.partitions.append(found[number])
                except logstore.PartitionNotFoundError:
                    if topic is not None:
                        raise
                except logstore.LogStoreError as error:
                    self.broken.append((f"{name}-{number}", error))

    def _find_files(
        self,
        names: list[str] | None,
        inside: list[str],
        topic: str | None,
        partition: int | None,
    ) -> None:
        if names is not None:
            logs = [name for name in names if _LOG.fullmatch(name)]
            self.files = [
                FileSource(os.path.join(self.path, name), self.config) for name in logs
            ]
            return
        for directory in inside:
            parsed = _PARTITION.fullmatch(directory)
            if parsed is None or topic not in (None, parsed[1]):
                continue
            if partition not in (None, int(parsed[2])):
                continue
            path = os.path.join(self.path, directory)
            if os.path.isdir(path):
                self.files += [
                    FileSource(os.path.join(path, name), self.config)
                    for name in sorted(os.listdir(path))
                    if _LOG.fullmatch(name)
                ]

    def clamped(
        self, partition: logstore.Partition, bound: Bound
    ) -> int | datetime.datetime | None:
        """A bound for one of several partitions: offsets are held within its log."""
        if isinstance(bound, int) and len(self.partitions) > 1:
            return min(max(bound, partition.start_offset), partition.end_offset)
        return bound

    def records(
        self,
        printer: Printer,
        start: Bound = None,
        stop: Bound = None,
        isolation: str = "read_uncommitted",
    ) -> Iterator[Found]:
        """All records, partition after partition."""
        for partition in self.partitions:
            first = self.clamped(partition, start)
            for record in partition.read(first, stop, isolation=isolation):
                yield Found(partition.topic, partition.number, record)
        for source in self.files:
            for record in source.records(start, stop, printer):
                yield Found(source.topic, source.partition, record)

    @property
    def is_damaged(self) -> bool:
        """Whether damage was met in a file, or a partition cannot be opened."""
        return bool(self.broken) or any(source.is_damaged for source in self.files)


def sources_of(args: argparse.Namespace) -> Sources:
    """What a subcommand that reads records was given."""
    return Sources(
        args.path,
        topic=args.topic,
        partition=args.partition,
        raw=getattr(args, "kafka", False),
        config=config_of(args),
    )


def _is_store(names: list[str], inside: list[str]) -> bool:
    return bool(inside) or not _STORE_FILES.isdisjoint(names)


def _numbers(directories: list[str], topic: str) -> list[int]:
    parsed = (_PARTITION.fullmatch(name) for name in directories)
    return sorted(int(found[2]) for found in parsed if found and found[1] == topic)


def _file(path: str, full: str, config: logstore.StoreConfig) -> FileSource:
    if not os.path.lexists(full):
        raise logstore.StoreNotFoundError(f"there is nothing at {path}", path=path)
    # Also one that waits for its removal, 000.log.deleted, but not .logstore-state.
    if not re.search(r"\.log(\.|$)", os.path.basename(full)):
        raise logstore.StoreNotFoundError(
            f"{path} is no .log file; `logstore-dump index` shows other files",
            path=path,
        )
    return FileSource(path, config)
