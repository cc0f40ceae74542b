"""A single `.log` file, read over its damage.

Both bounds are made offsets before the file is read. Damage counts only if it may hold
requested records: an offset is compared with the offsets of the intact batches around
the damage; for a time see `logstore.cli.lookup`.
"""

from __future__ import annotations

import datetime
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import logstore
from logstore.cli.damage import DamageLog
from logstore.cli.params import Bound, FromEnd, milliseconds_of
from logstore.cli.schema import partition_of
from logstore.cli.selection import EVERY_RECORD, Selection

_OFFSET_MAX: Final = (1 << 63) - 1

OnProgress = Callable[[int, int], None]


class Asked(NamedTuple):
    """Range of records requested from a file.

    Attributes:
        first: the first offset.
        stop: one past the last offset; None: to the end.
        is_time: `first` is the first offset that can be read from a time on: damage
            before it may have held requested records.
    """

    first: int = 0
    stop: int | None = None
    is_time: bool = False

    @property
    def is_empty(self) -> bool:
        return self.stop is not None and self.stop <= self.first


EVERYTHING: Final = Asked()


class FileSource:
    """One `.log` file.

    Attributes:
        path: the path given, or below it.
        topic, partition: from the name of its directory; None if it names no partition.
    """

    def __init__(
        self, path: str, config: logstore.StoreConfig, damage: DamageLog
    ) -> None:
        self.path = path
        self.config = config
        self.topic, self.partition = partition_of(path)
        self.size_bytes = os.path.getsize(path)
        self._damage = damage

    @property
    def name(self) -> str | None:
        """``topic-number``; None if it is unknown."""
        return None if self.topic is None else f"{self.topic}-{self.partition}"

    def entries(self) -> Iterator[Any]:
        """All of its `LogEntry` values."""
        contents = logstore.inspect_file(self.path, store_config=self.config)
        return iter(contents.entries)

    # -------------------------------------------------------------- bounds

    def asked(
        self, start: Bound, stop: Bound, selection: Selection = EVERY_RECORD
    ) -> Asked:
        """Two bounds as offsets: ``-N`` and times are looked up over damage, and so is
        the first of the last records that a selection shows."""
        asked = Asked(
            self._offset_of(start) or 0,
            self._offset_of(stop),
            isinstance(start, datetime.datetime),
        )
        if selection.last is None:
            return asked
        first = self._offset_from_end(selection.last, asked, selection)
        return asked if first <= asked.first else Asked(first, asked.stop)

    def _offset_of(self, bound: Bound) -> int | None:
        if isinstance(bound, datetime.datetime):
            return self._offset_at(milliseconds_of(bound))
        if isinstance(bound, FromEnd):
            return self._offset_from_end(bound, EVERYTHING, EVERY_RECORD)
        return bound

    def _quiet(self) -> FileSource:
        return FileSource(self.path, self.config, DamageLog.silent())

    def _offset_from_end(self, count: int, asked: Asked, selection: Selection) -> int:
        """The offset of the `count`-th last record that a selection shows; the first
        offset that is asked for if there are fewer."""
        if not count:
            ends = (b.next_offset for b in self._quiet().batches(asked))
            return max(ends, default=0)
        records = selection.of(self._quiet().records(asked.first, asked.stop))
        offsets = deque((r.offset for r in records), maxlen=min(count, 1 << 31))
        return offsets[0] if len(offsets) == count else asked.first

    def _offset_at(self, since: int) -> int:
        """The offset of the first record at or after a time; larger than any if no
        record is that late."""
        quiet = self._quiet()
        for batch in quiet.batches():
            if batch.max_timestamp_ms < since:
                continue
            records = quiet._records_of(batch, EVERYTHING)
            if records is None:
                # Its header is intact: its largest time shows that it has the record.
                return batch.base_offset
            for record in records:
                if record.timestamp_ms >= since:
                    return record.offset
        return _OFFSET_MAX

    # -------------------------------------------------------------- reading

    def batches(
        self, asked: Asked = EVERYTHING, on_progress: OnProgress | None = None
    ) -> Iterator[logstore.RecordBatch]:
        """The intact batches that have an offset in `asked`. With ``raise`` they end at
        the first damage in it; a torn end is reported and is not damage. `on_progress`
        is called with the bytes done and in all."""
        last = -1
        broken: list[Any] = []
        for entry in self.entries():
            if asked.stop is not None and last + 1 >= asked.stop:
                return
            if on_progress is not None:
                on_progress(entry.position, self.size_bytes)
            if entry.damage is None:
                batch = entry.batch
                if self._ends_at(broken, last + 1, batch.base_offset, asked):
                    return
                broken = []
                if asked.stop is not None and batch.base_offset >= asked.stop:
                    return
                last = batch.last_offset
                if last >= asked.first and not asked.is_empty:
                    yield batch
            elif entry.is_torn:
                self._damage.torn(self, entry)
            else:
                broken.append(entry)
                if self._damage.is_strict_in_files and last + 1 >= asked.first:
                    break
        self._ends_at(broken, last + 1, None, asked)

    def _ends_at(
        self, broken: list[Any], first: int, next_offset: int | None, asked: Asked
    ) -> bool:
        """Report damaged bytes, which lie between two offsets, if they may have been
        asked for. Returns whether reading ends because of them."""
        is_before = first < asked.first and (
            asked.is_time or (next_offset is not None and next_offset <= asked.first)
        )
        if not broken or (is_before and not asked.is_time):
            return False
        is_end = self._damage.is_strict_in_files and not is_before
        if not is_before:
            first = max(first, asked.first)
        if is_end or next_offset is None:
            next_offset = asked.stop
        elif asked.stop is not None:
            next_offset = min(next_offset, asked.stop)
        if next_offset is not None and next_offset <= first:
            return is_end
        for entry in broken:
            self._damage.in_file(self, entry, is_end=is_end)
        self._damage.miss(self, first, next_offset, is_asked=not is_before)
        if is_before and next_offset == asked.first and not asked.is_empty:
            # No older record is between them: the time may begin in the damage.
            is_end = self._damage.is_strict_in_files
            if is_end:
                self._damage.miss(self, asked.first, asked.stop)
        return is_end

    def _records_of(
        self, batch: logstore.RecordBatch, asked: Asked
    ) -> list[logstore.Record] | None:
        """The records of an intact batch; None if its contents cannot be read."""
        try:
            return list(batch)
        except (
            logstore.CorruptionError,
            logstore.errors.RecordTooLargeError,
            logstore.errors.UnsupportedError,
        ) as error:
            self._damage.in_batch(self, batch, error)
            following = asked.stop
            if not self._damage.is_strict_in_files:
                following = min(batch.next_offset, asked.stop or _OFFSET_MAX)
            self._damage.miss(self, max(batch.base_offset, asked.first), following)
            return None

    def records(
        self,
        start: Bound,
        stop: Bound,
        on_progress: OnProgress | None = None,
        selection: Selection = EVERY_RECORD,
    ) -> Iterator[logstore.Record]:
        """The records of the intact batches, between two bounds, from the first one on
        that a selection shows. `on_progress`: as in `batches`."""
        asked = self.asked(start, stop, selection)
        end = _OFFSET_MAX if asked.stop is None else asked.stop
        for batch in self.batches(asked, on_progress):
            records = self._records_of(batch, asked)
            if records is None:
                if self._damage.is_strict_in_files:
                    return
                continue
            for record in records:
                if asked.first <= record.offset < end:
                    yield record
