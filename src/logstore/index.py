"""Sparse indexes of a segment: lookups in `.index` and `.timeindex`, and their making.

An index is disposable: its entries are hints, and every user checks them against the
log (`logstore.segment`). Entries after the first one that breaks the order, such as the
zero tail that a killed broker leaves, are ignored.

Byte layout: docs/format.md, "Offset index", "Time index", "Transaction index".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from logstore import _native as native
from logstore._native import Record
from logstore.errors import CorruptIndexError

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

__all__ = [
    "INDEX_ENTRY_BYTES",
    "STALE_DIGEST",
    "TIME_ENTRY_BYTES",
    "TXN_ENTRY_BYTES",
    "UNKNOWN_DIGEST",
    "Entries",
    "OffsetEntries",
    "TimeEntries",
    "TxnEntry",
    "add_closing_entry",
    "before_offset",
    "digest_of",
    "format_txn_index",
    "parse_txn_index",
    "valid_txn_entries",
]

INDEX_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
TXN_ENTRY_BYTES: Final = 34

# How many entries of an index a reader tries.
_TRIED_MAX: Final = 4
_INT32_MAX: Final = (1 << 31) - 1
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")


# The digest of an index is unknown; or the index could not be finished when its segment
# was sealed: then it does not count, and opening rebuilds it.
UNKNOWN_DIGEST: Final = -1
STALE_DIGEST: Final = -2


def digest_of(data: bytes) -> int:
    """The digest of an index file's bytes, in the form of `.logstore-state`."""
    return xxhash.xxh32_intdigest(data)


class Entries(native.EntriesFields):
    """Index entries in memory, in the form of the file; one writer may add entries
    while other threads look up.

    The buffer has room after the entries. Growing replaces the buffer, and `count`
    changes last, so that a lookup never sees half an entry.

    Attributes:
        count: number of entries.
        written: entries that the file has; -1: the file may differ.
        synced: the first entries of the file that are on stable storage. Later ones are
            written again before a sync counts: a sync that failed, in this process or
            in one before it, leaves pages that count as clean.
    """

    _form: struct.Struct
    entry_bytes: int = 0
    __slots__ = ("synced",)

    def __init__(self, data: bytes = b"", count: int | None = None) -> None:
        self._data = data
        self.count = len(data) // self.entry_bytes if count is None else count
        self.written = -1
        self.synced = 0

    @property
    def memory_bytes(self) -> int:
        """About how much memory they take."""
        return self.count * self.entry_bytes + 256

    def copy(self) -> Self:
        """The same entries, for a file that may differ."""
        copy = type(self)(self.data())
        copy.synced = self.synced
        return copy

    def append(self, entries: bytes) -> None:
        begin = self.count * self.entry_bytes
        end = begin + len(entries)
        if end > len(self._data) or not isinstance(self._data, bytearray):
            grown = bytearray(max(2 * end, 1024))
            grown[:begin] = self._data[:begin]
            self._data = grown
        self._data[begin:end] = entries
        self.count = end // self.entry_bytes

    def cut(self, count: int) -> None:
        """Keep the first `count` entries."""
        self.count = min(self.count, count)
        self.written = min(self.written, count)
        self.synced = min(self.synced, count)

    def digest(self, end: int | None = None) -> int:
        """XXH32 of the bytes before slot `end`."""
        return digest_of(self.data(0, end))

    def upto(self, target: int) -> Iterator[tuple[int, int]]:
        """The greatest entry <= a target, and the ones before it, nearest first; a few:
        a reader for which none of them is right begins at the start."""
        end = self.slot_of(target) + 1
        data = self.data(max(end - _TRIED_MAX, 0), end)
        entries: list[tuple[int, int]] = [*self._form.iter_unpack(data)]
        return reversed(entries)

    def slot_of(self, target: int) -> int:
        """Slot of the greatest entry <= a target; -1 if all entries are greater."""
        raise NotImplementedError

    def entry(self, slot: int) -> tuple[int, int]:
        """The two numbers in a slot."""
        first, second = self._form.unpack_from(self._data, slot * self.entry_bytes)
        return first, second

    def __iter__(self) -> Iterator[tuple[int, int]]:
        entries: Iterator[tuple[int, int]] = self._form.iter_unpack(self.data())
        return entries

    def data(self, first: int = 0, end: int | None = None) -> bytes:
        """The bytes of the entries from slot `first` to slot `end` (exclusive)."""
        size = self.entry_bytes
        end = self.count if end is None else end
        return bytes(self._data[first * size : end * size])


class OffsetEntries(Entries):
    """Entries of an offset index: (relative offset, position), 4 bytes each."""

    _form = _INDEX_ENTRY
    entry_bytes = INDEX_ENTRY_BYTES
    __slots__ = ()

    @classmethod
    def load(cls, data: bytes, file_size: int) -> OffsetEntries:
        """The usable entries of an index file whose log has `file_size` bytes."""
        count = len(data) // INDEX_ENTRY_BYTES
        return cls(data, native.offset_index_check(data, count, file_size))

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """(slot, position) of the greatest entry <= the offset; slot -1 if none."""
        count, data = self.count, self._data
        target = min(relative_offset, _INT32_MAX)
        slot, _, pos = native.index_floor(data, count, target, False)
        return slot, pos

    def slot_of(self, target: int) -> int:
        return self.floor(target)[0]

    def find(
        self, fd: int, segment: tuple[int, int, int, int], offset: int
    ) -> Record | None:
        """The record at an offset; None if it takes more than the index and a walk over
        intact, uncompressed batches.

        Args:
            fd: of the log.
            segment: its base offset, next offset, size in bytes, and checks.
        """
        return native.find_record(fd, self, *segment, offset)


class TimeEntries(Entries):
    """Entries of a time index: (timestamp, relative offset), 8 bytes and 4."""

    _form = _TIME_ENTRY
    entry_bytes = TIME_ENTRY_BYTES
    __slots__ = ()

    @classmethod
    def load(cls, data: bytes, digest: int = UNKNOWN_DIGEST) -> TimeEntries:
        """The usable entries of a time index file; none if it has another digest."""
        if digest not in (UNKNOWN_DIGEST, digest_of(data)):
            data = b""
        count = len(data) // TIME_ENTRY_BYTES
        return cls(data, native.time_index_check(data, count))

    def keep_confirmed(
        self, batches: Iterator[native.BatchHeader], base_offset: int
    ) -> None:
        """Drop the entries from the first one on that is not true of the batches: an
        entry says what the largest timestamp is up to its offset.

        Args:
            batches: of the segment, from its start on; no more than needed are taken.
                What they raise is raised, with the entries before it kept.
        """
        slot, largest = 0, -1
        if not self.count:
            return
        try:
            for header in batches:
                largest = max(largest, header.max_timestamp)
                last = header.last_offset - base_offset
                while slot < self.count and self.entry(slot)[1] <= last:
                    if self.entry(slot)[0] != largest:
                        return
                    slot += 1
                if slot == self.count:
                    return
        finally:
            self.cut(slot)

    def find(
        self,
        fd: int,
        offsets: OffsetEntries,
        segment: tuple[int, int, int, int],
        start: int,
        timestamp: int,
    ) -> int | None:
        """The first offset from `start` on whose record has this timestamp or a later
        one; None if it takes more than the indexes and a look at a few intact,
        uncompressed batches.

        Args:
            fd, segment: as in `OffsetEntries.find`.
            offsets: of the same segment.
        """
        return native.find_offset_since(fd, self, offsets, *segment, start, timestamp)

    def slot_of(self, target: int) -> int:
        return native.index_floor(self._data, self.count, target, True)[0]


def add_closing_entry(state: native.SegmentState, times: TimeEntries) -> None:
    """Add the entry that a time index gets when its segment is rolled or closed: the
    segment's largest timestamp, unless the last entry has it already. It may be called
    again if it was interrupted."""
    raw = state.raw
    if raw.max_timestamp <= raw.time_last:
        return
    entry = _TIME_ENTRY.pack(
        raw.max_timestamp, raw.max_timestamp_offset - raw.base_offset
    )
    if times.data(max(times.count - 1, 0)) != entry:
        times.append(entry)
    raw.time_entries = times.count
    # Last: until then the work is repeated.
    raw.time_last = raw.max_timestamp


class TxnEntry(NamedTuple):
    """An aborted transaction, an entry of `.txnindex`."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, path: str) -> list[TxnEntry]:
    """The entries of a transaction index.

    Raises:
        CorruptIndexError: odd size, a version above 0, or last offsets that do not
            increase.
    """
    if len(data) % TXN_ENTRY_BYTES:
        raise CorruptIndexError(
            f"transaction index {path} has {len(data)} bytes, which is not a "
            f"multiple of {TXN_ENTRY_BYTES}",
            path=path,
            position=len(data) - len(data) % TXN_ENTRY_BYTES,
        )
    entries = valid_txn_entries(data)
    valid = len(entries) * TXN_ENTRY_BYTES
    if valid < len(data):
        raise CorruptIndexError(
            f"transaction index {path} is out of order at entry {len(entries)}",
            path=path,
            position=valid,
        )
    return entries


def before_offset(data: bytes, end: int) -> bytes:
    """A transaction index without its last entries, of markers from `end` on. The rest
    does not change, even if it is damaged."""
    size = len(data)
    while size >= TXN_ENTRY_BYTES and size % TXN_ENTRY_BYTES == 0:
        if _TXN_ENTRY.unpack_from(data, size - TXN_ENTRY_BYTES)[3] < end:
            break
        size -= TXN_ENTRY_BYTES
    return data[:size]


def valid_txn_entries(data: bytes) -> list[TxnEntry]:
    """The entries of a transaction index up to the first one that cannot be one."""
    whole = len(data) - len(data) % TXN_ENTRY_BYTES
    entries: list[TxnEntry] = []
    last = -1
    for fields in _TXN_ENTRY.iter_unpack(data[:whole]):
        entry = TxnEntry(*fields)
        if entry.version > 0 or entry.last_offset <= last:
            break
        entries.append(entry)
        last = entry.last_offset
    return entries


def format_txn_index(entries: Iterable[TxnEntry]) -> bytes:
    """The content of a transaction index."""
    return b"".join(_TXN_ENTRY.pack(*entry) for entry in entries)
