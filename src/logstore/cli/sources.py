"""From a path to records: the partitions of a store, one partition, or single files."""

from __future__ import annotations

import contextlib
import datetime
import difflib
import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import logstore
from logstore.cli.damage import DamageLog
from logstore.cli.log_file import FileSource
from logstore.cli.lookup import beginning
from logstore.cli.params import Bound, FromEnd
from logstore.cli.paths import FILE, PARTITION, kind_of
from logstore.cli.selection import EVERY_RECORD, Selection, offset_from_end
from logstore.cli.text import counted

# A partition: its topic, and its number.
DIRECTORY: Final = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_LOG: Final = re.compile(r"[0-9]{20}\.log")
# Also a file that waits for its removal, 000.log.deleted, but not .logstore-state.
_LOG_FILE: Final = re.compile(r"\.log(\.|$)")

Position = int | datetime.datetime | None


class Sources:
    """The partitions or files of a path. A context manager: it may hold an open store.

    Attributes:
        partitions: open partitions; empty for files.
        files: `.log` files; empty if there are partitions.

    Args:
        path: a store, a partition directory, or a `.log` file.
        damage: receives the partitions that cannot be opened.
        topics: patterns of topic names; empty: all.
        numbers: partition numbers; empty: all.
        raw: all `.log` files, unprocessed, in place of partitions.
        selection: the requested records.
        config: settings of the store.
    """

    def __init__(
        self,
        path: str,
        damage: DamageLog,
        *,
        topics: Sequence[str] = (),
        numbers: Sequence[int] = (),
        raw: bool = False,
        selection: Selection = EVERY_RECORD,
        config: logstore.StoreConfig | None = None,
    ) -> None:
        self.path = path
        self.selection = selection
        self.damage = damage
        self.config = config or logstore.StoreConfig()
        self.partitions: list[logstore.Partition] = []
        self.files: list[FileSource] = []
        self._topics, self._numbers = tuple(topics), frozenset(numbers)
        self._stack = contextlib.ExitStack()
        try:
            self._find(os.path.abspath(path), raw)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _find(self, full: str, raw: bool) -> None:
        kind = kind_of(full, self.path)
        if kind == FILE:
            if not _LOG_FILE.search(os.path.basename(full)):
                raise logstore.StoreNotFoundError(
                    f"{self.path} is not a .log file; `logstore-dump index` shows "
                    f"other files",
                    path=full,
                )
            self.files = [self._file(self.path)]
            return
        parsed = DIRECTORY.fullmatch(os.path.basename(full))
        if raw or (kind == PARTITION and parsed is None):
            self._find_files(kind == PARTITION)
            return
        root = os.path.dirname(full) if kind == PARTITION else full
        store = self._stack.enter_context(
            logstore.open(root, read_only=True, config=self.config)
        )
        if kind == PARTITION and parsed is not None:
            topic, number = store.topic(parsed[1]), int(parsed[2])
            is_wanted = number in self.selection.numbers(topic)
            if is_wanted or number not in topic.numbers:
                self.partitions = [topic[number]]
        else:
            self._find_partitions(store)

    def _find_partitions(self, store: logstore.Store) -> None:
        has_any = not self._numbers
        for name in chosen_topics(self.path, self._topics, store.topics()):
            topic = store.topic(name)
            numbers = self._numbers.intersection(topic.numbers)
            has_any = has_any or bool(numbers)
            for number in self.selection.numbers(topic):
                if self._numbers and number not in numbers:
                    continue
                try:
                    self.partitions.append(topic[number])
                except logstore.LogStoreError as error:
                    self.damage.broken(name, number, error)
        if not has_any:
            raise no_partition(self.path, self._topics, self._numbers)

    def _file(self, path: str) -> FileSource:
        return FileSource(path, self.config, self.damage)

    def _find_files(self, is_partition: bool) -> None:
        directories = [self.path]
        if not is_partition:
            inside = sorted(os.listdir(self.path))
            topics = {m[1] for name in inside if (m := DIRECTORY.fullmatch(name))}
            chosen = chosen_topics(self.path, self._topics, sorted(topics))
            directories = [
                os.path.join(self.path, name)
                for name in inside
                if (m := DIRECTORY.fullmatch(name))
                and m[1] in chosen
                and (not self._numbers or int(m[2]) in self._numbers)
                and os.path.isdir(os.path.join(self.path, name))
            ]
        for directory in directories:
            for name in sorted(os.listdir(directory)):
                if _LOG.fullmatch(name):
                    self.files.append(self._file(os.path.join(directory, name)))

    # -------------------------------------------------------------- bounds

    def position(
        self, partition: logstore.Partition, bound: Bound, isolation: str
    ) -> Position:
        """A bound for one partition: ``-N`` becomes an offset, and if there are several
        partitions each limits an offset to its own log."""
        if isinstance(bound, FromEnd):
            return offset_from_end(partition, bound, isolation)
        if (
            isinstance(bound, int)
            and not isinstance(bound, bool)
            and len(self.partitions) > 1
        ):
            return min(max(bound, partition.start_offset), partition.end_offset)
        return bound

    def read(
        self,
        partition: logstore.Partition,
        start: Bound,
        stop: Bound,
        isolation: str,
        reading: Callable[..., Iterator[Any]],
    ) -> Iterator[Any]:
        """The values that `reading` (a method of the partition) yields between two
        bounds, over damage as `DamageLog` defines it. They begin at the first record
        that the selection can show, if it has a number of last ones."""

        def bounds() -> tuple[Position, Position]:
            first = self.position(partition, start, isolation)
            end = self.position(partition, stop, isolation)
            return self._last_from(partition, first, end, isolation), end

        return self.damage.over(partition, bounds, reading, isolation)

    def _last_from(
        self, partition: logstore.Partition, first: Position, end: Position, kind: str
    ) -> Position:
        """Where the last records begin that the selection shows between two bounds; the
        first bound itself if there are no more records than `selection.last`."""
        if self.selection.last is None:
            return first
        start = _offset_of(partition, first, partition.start_offset)
        offset = offset_from_end(
            partition,
            self.selection.last,
            kind,
            start=start,
            stop=_offset_of(partition, end, partition.end_offset),
            matches=self.selection.matches,
        )
        return offset if offset > start else first


def chosen_topics(path: str, patterns: Sequence[str], names: list[str]) -> list[str]:
    """The topics of a path that the patterns choose; all, if there is no pattern.

    Raises:
        TopicNotFoundError: a pattern chooses none; it names a similar one.
    """
    if not patterns:
        return names
    chosen: set[str] = set()
    for pattern in patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise logstore.TopicNotFoundError(
                _no_topic(path, pattern, names), topic=pattern
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]


def no_partition(
    path: str, topics: Iterable[str], numbers: Iterable[int]
) -> logstore.errors.PartitionNotFoundError:
    """The error for partitions that none of the chosen topics has."""
    lowest = min(numbers)
    return logstore.errors.PartitionNotFoundError(
        f"the selected topics of {path} have no partition {lowest}",
        topic=", ".join(topics),
        partition=lowest,
    )


def _offset_of(partition: logstore.Partition, position: Position, default: int) -> int:
    if isinstance(position, datetime.datetime):
        return beginning(partition, position).offset
    return default if position is None else position


def _no_topic(path: str, pattern: str, names: list[str]) -> str:
    close = difflib.get_close_matches(pattern, names, 1)
    hint = f"; did you mean {close[0]}?" if close else f"; it has {_listed(names)}"
    return f"{path} has no topic {pattern}{hint}"


def _listed(names: list[str]) -> str:
    if len(names) <= 8:
        return ", ".join(names) or "none"
    return ", ".join(names[:8]) + f" and {counted(len(names) - 8, 'more topic')}"
