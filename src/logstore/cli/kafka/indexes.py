"""The text about indexes and producer snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import logstore
from logstore.cli.kafka.complaints import Complaints
from logstore.cli.kafka.heads import Head, head_of
from logstore.cli.kafka.lines import records_of
from logstore.cli.kafka.wanted import REWRITTEN, Wanted

__all__ = ["index_lines", "snapshot_lines", "time_index_lines", "txn_index_lines"]

_INDEX_ENTRY_BYTES: Final = 8
_TIME_ENTRY_BYTES: Final = 12
# A search begins in the last entries, whose pages a broker has in memory.
_WARM_ENTRIES: Final = 8192 // _INDEX_ENTRY_BYTES
_SEQUENCE_MAX: Final = (1 << 31) - 1


def _beside(path: str, suffix: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, name.partition(".")[0] + suffix)


def _frames_of(path: str) -> Any:
    return logstore.inspect_file(_beside(path, ".log"), by_size=True).entries


class _Entries:
    """The entries of an index file; the zeros that a live one ends with count.

    Attributes:
        base: the offset in its file name.
        count: number of entries, including entries of zeros.
        used: the entries before the zeros at the end.
    """

    def __init__(self, path: str, width: int) -> None:
        contents = logstore.inspect_file(path)
        self._path = contents.path
        self._size = contents.size_bytes
        self._width = width
        self.base = contents.base_offset
        self.count = contents.size_bytes // width
        self.used = list(contents.entries)

    def check(self, reason: str) -> None:
        """Raise an error with this reason, or because of the size of the file."""
        if not reason and self._size % self._width:
            reason = f"it has {self._size} bytes, not a multiple of {self._width}"
        if reason:
            raise self.error(f"it fails the check of a broker that starts: {reason}", 0)

    def error(self, reason: str, number: int) -> logstore.errors.CorruptIndexError:
        """The error about an entry."""
        return logstore.errors.CorruptIndexError(
            f"index {self._path}: {reason}",
            path=self._path,
            position=number * self._width,
            reason=reason,
        )


class _Offsets(_Entries):
    """An offset index."""

    def __init__(self, path: str) -> None:
        super().__init__(path, _INDEX_ENTRY_BYTES)

    def __getitem__(self, number: int) -> tuple[int, int]:
        """(offset, position)."""
        if number >= len(self.used):
            return self.base, 0
        entry = self.used[number]
        return entry.offset, entry.position

    def position_before(self, offset: int) -> int:
        """Where a broker begins to look for an offset."""
        if not self.count:
            return 0
        warm = max(0, self.count - 1 - _WARM_ENTRIES)
        if self[warm][0] < offset:
            low, high = warm, self.count - 1
        elif self[0][0] > offset:
            return 0
        else:
            low, high = 0, warm
        while low < high:
            middle = (low + high + 1) // 2
            middle_offset = self[middle][0]
            if middle_offset == offset:
                return self[middle][1]
            if middle_offset > offset:
                high = middle - 1
            else:
                low = middle
        return self[low][1]


class _Times(_Entries):
    """A time index."""

    def __init__(self, path: str) -> None:
        super().__init__(path, _TIME_ENTRY_BYTES)

    def __getitem__(self, number: int) -> tuple[int, int]:
        """(timestamp, offset)."""
        if number >= len(self.used):
            return 0, self.base
        entry = self.used[number]
        return entry.timestamp_ms, entry.offset


def index_lines(
    path: str, shown: str, wanted: Wanted, complaints: Complaints
) -> Iterator[str]:
    """The lines about an `.index` file, each entry of which is looked up in its log.

    Args:
        shown: the path in the text.

    Raises:
        CorruptIndexError: it fails the check of a broker that starts, or an entry does
            not point to a place in the log.
        StoreNotFoundError: it, or its log, is not there.
        CorruptRecordError, StorageError: the log cannot be read there.
    """
    frames, index = _frames_of(path), _Offsets(path)
    full = os.path.abspath(path)
    if not index.count:
        yield f"{shown} is empty."
        return
    if wanted.sanity_only:
        last = index[index.count - 1][0]
        reason = f"its last offset is {last}, before its first, {index.base}"
        index.check(reason if last < index.base else "")
        yield f"{shown} passed sanity check."
        return
    for number in range(index.count):
        offset, position = index[number]
        if offset == index.base and number > 0:
            return
        if not 0 <= position <= frames.size_bytes:
            raise index.error(
                f"entry {number} is offset {offset} at byte {position}; the log has "
                f"{frames.size_bytes} bytes",
                number,
            )
        frames.seek(position, wanted.max_message_size)
        frame = next(frames, None)
        if frame is None:
            raise index.error(
                f"entry {number} is offset {offset} at byte {position}, where the log "
                f"has no complete batch of up to {wanted.max_message_size} bytes",
                number,
            )
        last = head_of(frame).last
        if last != offset:
            complaints.mismatch(full, offset, last)
        if not wanted.verify_only:
            yield f"offset: {offset} position: {position}"


def time_index_lines(
    path: str, shown: str, wanted: Wanted, complaints: Complaints
) -> Iterator[str]:
    """The lines about a `.timeindex` file, each entry of which is looked up in its
    offset index and in its log. Arguments and errors: as `index_lines`; it needs the
    offset index, too."""
    frames, index = _frames_of(path), _Offsets(_beside(path, ".index"))
    times = _Times(path)
    if wanted.sanity_only:
        times.check(_time_fault(times))
        yield f"{shown} passed sanity check."
        return
    full, before = os.path.abspath(path), -1
    for number in range(times.count):
        timestamp, offset = times[number]
        if offset == times.base and number > 0:
            return
        position = index.position_before(offset)
        if not 0 <= position <= frames.size_bytes:
            raise times.error(
                f"the offset index has byte {position} for the offset {offset} of "
                f"entry {number}; the log has {frames.size_bytes} bytes",
                number,
            )
        frames.seek(position)
        frame, head = _first_from(frames, offset)
        if frame is None or head is None:
            complaints.missing(full, offset, -1)
        elif head.last != offset:
            complaints.missing(full, offset, head.last)
        else:
            records, _ = records_of(frame, head)
            latest = max((record.timestamp_ms for record in records), default=-1)
            if latest != timestamp:
                complaints.wrong_time(full, timestamp, latest)
            if before >= timestamp:
                complaints.disorder(full, timestamp, before)
        if not wanted.verify_only:
            yield f"timestamp: {timestamp} offset: {offset}"
        before = timestamp


def _time_fault(times: _Times) -> str:
    if times.count:
        (first, _), (last, offset) = times[0], times[times.count - 1]
        if last < first:
            return f"its last timestamp is {last}, before its first, {first}"
        if offset < times.base:
            return f"its last offset is {offset}, before its first, {times.base}"
    return ""


def _first_from(frames: Any, offset: int) -> tuple[Any, Head | None]:
    """The first batch that ends with an offset or a later one, and its head."""
    for frame in frames:
        head = head_of(frame)
        if head.last >= offset:
            return frame, head
    return None, None


def txn_index_lines(path: str) -> Iterator[str]:
    """The lines about a `.txnindex` file.

    Raises:
        CorruptIndexError: it is damaged.
        StoreNotFoundError, StorageError: it cannot be read.
    """
    for entry in logstore.inspect_file(path).entries:
        yield (
            f"version: {entry.version} producerId: {entry.producer_id} "
            f"firstOffset: {entry.first_offset} lastOffset: {entry.last_offset} "
            f"lastStableOffset: {entry.last_stable_offset}"
        )


def snapshot_lines(path: str, release: str) -> Iterator[str]:
    """The lines about a `.snapshot` file.

    Raises:
        CorruptCheckpointError: it is damaged.
        StoreNotFoundError, StorageError: it cannot be read.
    """
    for entry in logstore.inspect_file(path).entries:
        begin: int = entry.current_txn_first_offset
        text = f"lastTimestamp: {entry.timestamp} "
        if release == "2.8":
            text, shown = "", "None" if begin < 0 else f"Some({begin})"
        else:
            shown = f"OptionalLong{'.empty' if begin < 0 else f'[{begin}]'}"
        text = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {shown} {text}"
        )
        if entry.last_offset >= 0:
            first = entry.last_sequence - entry.offset_delta
            first = first if first >= 0 else first + _SEQUENCE_MAX + 1
            text += (
                f"firstSequence: {first} lastSequence: {entry.last_sequence} "
                f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} "
                f"timestamp: {entry.timestamp}"
            )
        yield text.rstrip() if release >= REWRITTEN else text
