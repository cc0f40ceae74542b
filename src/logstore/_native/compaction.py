"""Compaction of batches: the last offset of each key, and the records that stay."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore._native._ls import ffi, lib
from logstore._native.batches import Scan, headers_of
from logstore._native.core import (
    BatchHeader,
    Buffer,
    NativeError,
    allocate,
    native_error,
    pointer,
    raw_header,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAP_SLOT_BYTES: Final[int] = lib.LS_MAP_SLOT_BYTES
# A map knows no more offsets than this; a slot has 32 bits for one.
MAP_OFFSETS_MAX: Final = (1 << 32) - 1
VERDICT_KEEP: Final[int] = lib.LS_VERDICT_KEEP
VERDICT_REMOVE: Final[int] = lib.LS_VERDICT_REMOVE
VERDICT_REWRITE: Final[int] = lib.LS_VERDICT_REWRITE
VERDICT_EMPTY: Final[int] = lib.LS_VERDICT_EMPTY
SECRET_BYTES: Final = 16

# A fuller map takes longer: Kafka's factor, too.
_LOAD_MAX: Final = 0.9
_SLOTS_MIN: Final = 64
_SLOTS_MAX: Final = (1 << 32) - 1
_RECORDS: Final = 4096
_PRODUCERS: Final = 512


def hash_key(secret: bytes, key: ReadableBuffer) -> bytes:
    """The 16 bytes by which a map knows a key."""
    words, out = _words(secret), ffi.new("uint64_t[2]")
    lib.ls_hash_key(words, pointer(key), memoryview(key).nbytes, out)
    return b"".join(int(word).to_bytes(8, "little") for word in out)


def _words(secret: bytes) -> Any:
    halves = secret[:8], secret[8:SECRET_BYTES]
    return ffi.new("uint64_t[2]", [int.from_bytes(half, "little") for half in halves])


def _memory(size: int) -> mmap.mmap:
    """Memory of this size, or what the system grants: a half, a quarter, and so on.

    Raises:
        MemoryError: the system does not grant even the smallest map.
    """
    # Private: most systems give larger pages only to such.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    while True:
        try:
            return mmap.mmap(-1, size, flags)
        except OSError as error:
            if size <= _SLOTS_MIN * MAP_SLOT_BYTES:
                raise MemoryError("no memory for a map of keys") from error
            size = max(size // 2, _SLOTS_MIN * MAP_SLOT_BYTES)
            size -= size % MAP_SLOT_BYTES


class OffsetMap:
    """The last offset of each key of a part of a log (``ls_offset_map``).

    Its memory is that of the system: nothing is taken before it is used, and all is
    given back with the last reference.
    """

    __slots__ = ("_memory", "bytes", "raw")

    def __init__(
        self,
        first_offset: int,
        keys: int,
        bytes_max: int,
        secret: bytes,
        *,
        classes: int = 1,
        class_number: int = 0,
    ) -> None:
        """Args:
        first_offset: the map is about the records from here on.
        keys: the most that there can be.
        bytes_max: of memory; there is always room for some keys.
        secret: `SECRET_BYTES` random bytes.
        classes, class_number: only the keys of one class, of this number of classes.
        """
        wanted = min(int(keys / _LOAD_MAX) + 2, bytes_max // MAP_SLOT_BYTES, _SLOTS_MAX)
        slots = max(wanted, _SLOTS_MIN)
        self._memory = _memory(slots * MAP_SLOT_BYTES)
        self.bytes = len(self._memory)
        slots = self.bytes // MAP_SLOT_BYTES
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Every key is in another place: larger pages, fewer misses.
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.raw = ffi.new("ls_offset_map *")
        self.raw.slots = ffi.from_buffer("uint8_t[]", self._memory)
        self.raw.capacity = slots
        self.raw.count_max = int(slots * _LOAD_MAX)
        self.raw.first_offset = self.raw.end_offset = first_offset
        self.raw.classes, self.raw.class_number = classes, class_number
        self.raw.secret = _words(secret)

    @property
    def count(self) -> int:
        """The keys in it."""
        return int(self.raw.count)

    @property
    def end_offset(self) -> int:
        """End of the offsets, from `first_offset` on, whose keys it all knows."""
        return int(self.raw.end_offset)

    def reached(self, offset: int) -> None:
        """Note that it knows all records before an offset."""
        self.raw.end_offset = max(self.raw.end_offset, offset)


class Outcomes:
    """Decisions of other parts of a log about its batches (``ls_outcomes``)."""

    __slots__ = ("_keep", "raw")

    def __init__(
        self,
        aborted: Sequence[tuple[int, int, int]] = (),
        spent: Sequence[int] = (),
        needed: Sequence[int] = (),
    ) -> None:
        """Args:
        aborted: (producer, first offset, last offset) of aborted batches.
        spent: last offsets of control batches whose transactions have no other
            batches in the log.
        needed: last offsets of batches whose headers stay.
        """
        numbers = [number for row in sorted(aborted) for number in row]
        ranges = ffi.new("int64_t[]", numbers)
        arrays = [ffi.new("int64_t[]", sorted(set(part))) for part in (spent, needed)]
        self._keep = ranges, arrays
        self.raw = ffi.new("ls_outcomes *")
        self.raw.aborted, self.raw.aborted_count = ranges, len(ranges) // 3
        self.raw.spent, self.raw.spent_count = arrays[0], len(arrays[0])
        self.raw.needed, self.raw.needed_count = arrays[1], len(arrays[1])


class CompactedCounts(NamedTuple):
    """The work done so far (``ls_compacted``)."""

    records: int
    removed: int
    tombstones: int
    batches_removed: int
    batches_changed: int


class CompactionStep(NamedTuple):
    """Where a call ended.

    Attributes:
        pos, last_offset: of the walk.
        stop: why, if there is no error.
        error: the damage at `pos`.
        bytes: put out.
        needed: bytes that the next batch may need, if it did not fit.
    """

    pos: int
    last_offset: int
    stop: int
    error: NativeError | None
    bytes: int = 0
    needed: int = 0


class Compaction:
    """Maps keys, and decides what stays of batches; with the memory for both.

    Attributes:
        map: of the last offsets.
        outcomes: what is known of transactions and producers.
    """

    __slots__ = (
        "_bytes",
        "_capacity",
        "_columns",
        "_counts",
        "_error",
        "_keep",
        "_made",
        "_raw",
        "_states",
        "_walk",
        "map",
        "outcomes",
    )

    def __init__(
        self,
        map: OffsetMap,
        outcomes: Outcomes,
        *,
        now_ms: int,
        horizon_ms: int,
        keeps_tombstones: bool = True,
    ) -> None:
        self.map = map
        self.outcomes = outcomes
        self._raw = ffi.new("ls_compaction *")
        self._raw.map, self._raw.outcomes = map.raw, outcomes.raw
        self._raw.now_ms, self._raw.horizon_ms = now_ms, horizon_ms
        self._raw.keeps_tombstones = int(keeps_tombstones)
        self._counts = ffi.new("ls_compacted *")
        self._walk = ffi.new("ls_walk *")
        self._error = ffi.new("ls_error *")
        self._made = ffi.new("ls_batch *")
        self._bytes = ffi.new("int64_t *")
        self._columns = ffi.new("ls_columns *")
        self._resize(_RECORDS)

    def _resize(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns.capacity = capacity
        keep: list[Any] = []
        for name, kind in (
            ("offset", "int64_t[]"),
            ("timestamp", "int64_t[]"),
            ("key_pos", "int32_t[]"),
            ("key_len", "int32_t[]"),
            ("value_pos", "int32_t[]"),
            ("value_len", "int32_t[]"),
        ):
            array = allocate(kind, capacity)
            setattr(self._columns, name, array)
            keep.append(array)
        self._states = allocate("uint8_t[]", capacity)
        self._keep = keep

    def _may_retry(self, status: int, error: Any) -> bool:
        """Make the columns large enough, if that was all that was missing."""
        if status != lib.LS_E_NO_SPACE or error.expected <= self._capacity:
            return False
        self._resize(int(error.expected))
        return True

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory: the map, and the columns."""
        return self.map.bytes + self._capacity * 33

    @property
    def counts(self) -> CompactedCounts:
        raw = self._counts
        return CompactedCounts(
            raw.records,
            raw.removed,
            raw.tombstones,
            raw.batches_removed,
            raw.batches_changed,
        )

    def keep_tombstones(self, keeps: bool) -> None:
        """Whether the tombstones of magic 0 and 1 stay, from now on."""
        self._raw.keeps_tombstones = int(keeps)

    def map_batches(
        self, data: Any, size: int, *, pos: int, last_offset: int, checks: int
    ) -> CompactionStep:
        """Put the keys of batches into the map, up to a compressed one, or as many as
        fit."""
        walk = self._walk
        while True:
            walk.pos, walk.last_offset = pos, last_offset
            status = lib.ls_map_batches(
                self.map.raw,
                self.outcomes.raw,
                data,
                size,
                checks,
                self._columns,
                walk,
            )
            if not self._may_retry(status, walk.error):
                return self._walked(status)
            pos, last_offset = walk.pos, walk.last_offset

    def map_payload(
        self, header: BatchHeader, payload: ReadableBuffer, checks: int
    ) -> bool:
        """Put the keys of a decompressed batch into the map. False: it is full.

        Raises:
            NativeError: the batch is damaged.
        """
        batch, error = raw_header(header), self._error
        while True:
            status = lib.ls_map_payload(
                self.map.raw,
                batch,
                pointer(payload),
                memoryview(payload).nbytes,
                checks,
                self._columns,
                error,
            )
            if not self._may_retry(status, error):
                break
        if status < 0:
            raise native_error(status, error)
        return bool(status == lib.LS_OK)

    def filter_batches(
        self,
        data: Any,
        size: int,
        out: Buffer,
        *,
        pos: int,
        last_offset: int,
        checks: int,
    ) -> CompactionStep:
        """Write the records of batches that stay to `out`, up to a compressed batch, or
        as many as fit."""
        walk = self._walk
        walk.pos, walk.last_offset = pos, last_offset
        status = lib.ls_compact_batches(
            self._raw,
            data,
            size,
            checks,
            self._columns,
            self._states,
            out.c,
            out.capacity,
            self._bytes,
            walk,
            self._counts,
        )
        if self._may_retry(status, walk.error):
            # The output before that batch is complete.
            status, walk.stop = lib.LS_OK, lib.LS_STOP_FULL
        return self._walked(status, int(self._bytes[0]))

    def filter_payload(
        self, header: BatchHeader, payload: ReadableBuffer, checks: int
    ) -> tuple[int, memoryview, BatchHeader]:
        """The verdict on a compressed batch (VERDICT_*), and for VERDICT_REWRITE and
        VERDICT_EMPTY what the new one has inside, and its header.

        Raises:
            NativeError: the batch is damaged.
        """
        batch, error = raw_header(header), self._error
        size = memoryview(payload).nbytes
        while True:
            out = Buffer(size + 11 * self._capacity)
            status = lib.ls_compact_payload(
                self._raw,
                batch,
                pointer(payload),
                size,
                checks,
                self._columns,
                self._states,
                out.c,
                out.capacity,
                self._bytes,
                self._made,
                self._counts,
                error,
            )
            if not self._may_retry(status, error):
                break
        if status < 0:
            raise native_error(status, error)
        return status, out.view[: int(self._bytes[0])], headers_of(self._made)[0]

    def _walked(self, status: int, size: int = 0) -> CompactionStep:
        walk = self._walk
        error = native_error(status, walk.error) if status < 0 else None
        needed = int(walk.error.expected) if status >= 0 else 0
        return CompactionStep(
            int(walk.pos), int(walk.last_offset), int(walk.stop), error, size, needed
        )


def scan_producers(
    data: Any, size: int, *, pos: int, last_offset: int, checks: int
) -> Scan:
    """Headers of batches of producers; all batches are checked. If batches of one
    producer follow one another, without a transaction, and without offsets of
    others between them, only the last one is returned.

    Args:
        pos, last_offset: the end of a batch, and its last offset.
    """
    out = allocate("ls_batch[]", _PRODUCERS)
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    status = lib.ls_scan_producers(data, size, checks, out, _PRODUCERS, walk)
    error = native_error(status, walk.error) if status < 0 else None
    headers = headers_of(out, walk.count)
    return Scan(headers, walk.pos, walk.last_offset, walk.stop, error)


def seal_header(header: BatchHeader, payload: ReadableBuffer) -> bytes:
    """A batch of magic 2 with this header around a payload."""
    size = memoryview(payload).nbytes
    out = Buffer(61 + size)
    out.view[61:] = memoryview(payload)
    batch = raw_header(header)
    batch.payload_size = size
    status = lib.ls_seal_batch(out.c, out.capacity, batch)
    if status < 0:
        raise NativeError(status, 0, header.base_offset)
    return bytes(out.view)
