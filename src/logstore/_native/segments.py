"""Planning appends to a segment, when to roll it, and lookups in indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore._native._ls import ffi, lib
from logstore._native.core import OFFSET_MAX, allocate, native_error, pointer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class DurablePageState:
    """The durable offset, as C shows it to other processes (``ls_durable_page``)."""

    __slots__ = ("raw",)

    def __init__(self) -> None:
        self.raw = ffi.new("ls_durable_page *")
        self.raw.fd = lib.LS_PAGE_TO_OPEN

    def head(self) -> bytes:
        """The bytes before the durable offset."""
        return bytes(ffi.buffer(self.raw.bytes)[: lib.LS_PAGE_DURABLE_POS])

    def fill(self, data: bytes, key: int) -> None:
        """Set the content of the file, and the key of the check of a durable offset."""
        ffi.memmove(self.raw.bytes, data, lib.LS_PAGE_BYTES)
        self.raw.key = key

    @property
    def address(self) -> int:
        """Address of the struct, which lives as long as this."""
        return int(ffi.cast("uintptr_t", self.raw))


class SegmentState:
    """The facts about a segment that an append needs (``ls_segment_state``)."""

    __slots__ = ("raw",)

    def __init__(self, base_offset: int, created_ms: int = 0) -> None:
        self.raw = ffi.new("ls_segment_state *")
        raw = self.raw
        raw.base_offset = base_offset
        raw.last_offset = base_offset - 1
        raw.max_timestamp = -1
        raw.max_timestamp_offset = -1
        raw.first_timestamp = -1
        raw.time_last = -1
        raw.created_ms = created_ms

    def copy(self) -> SegmentState:
        other = SegmentState.__new__(SegmentState)
        other.raw = ffi.new("ls_segment_state *")
        other.raw[0] = self.raw[0]
        return other

    def assign(self, other: SegmentState) -> None:
        """Copy the values of another one."""
        self.raw[0] = other.raw[0]

    @property
    def address(self) -> int:
        """Address of the struct, which lives as long as this."""
        return int(ffi.cast("uintptr_t", self.raw))

    @property
    def size(self) -> int:
        return int(self.raw.size)

    @property
    def last_offset(self) -> int:
        return int(self.raw.last_offset)

    @property
    def max_timestamp(self) -> int:
        return int(self.raw.max_timestamp)

    @property
    def max_timestamp_offset(self) -> int:
        return int(self.raw.max_timestamp_offset)


class StepFacts:
    """The facts that appends and syncs in one step of C rely on (``ls_step_facts``).
    The lock of the log guards it; `PreparedAppend.prepare` says that it holds."""

    __slots__ = ("_state", "raw")

    def __init__(self) -> None:
        self.raw = ffi.new("ls_step_facts *")
        self._state: SegmentState | None = None

    @property
    def address(self) -> int:
        """Address of the struct, which lives as long as this."""
        return int(ffi.cast("uintptr_t", self.raw))

    def set_topic(
        self,
        *,
        magic: int,
        attributes: int,
        max_bytes: int,
        batch_target: int,
        flush_messages: int,
        is_append_time: bool,
        is_plain: bool,
        needs_keys: bool,
    ) -> None:
        """Set what the settings of the topic say; bytes, and a number of records."""
        raw = self.raw
        raw.magic, raw.attributes = magic, attributes
        raw.max_bytes, raw.batch_target = max_bytes, batch_target
        raw.flush_messages = flush_messages
        raw.is_append_time, raw.is_plain = is_append_time, is_plain
        raw.needs_keys = needs_keys

    def set_segment(self, fd: int, planner: Planner) -> None:
        """Set the file of the active segment, and when it is full."""
        self.raw.fd, self.raw.limits = fd, planner.limits[0]

    def set_end(
        self,
        state: SegmentState,
        leader_epoch: int,
        durable: int,
        steps_end: int,
        quiet_size: int,
    ) -> None:
        """Set where the log ends, and up to where steps may go; `state` is in use until
        the next one is set. Offsets, and sizes in bytes."""
        raw = self.raw
        raw.state, self._state = state.raw, state
        raw.leader_epoch = leader_epoch
        raw.end = min(durable + raw.flush_messages, OFFSET_MAX)
        raw.steps_end, raw.quiet_size = steps_end, quiet_size


class Planner:
    """Decides how much of a run of batches belongs into a segment, with index entries.

    Holds the roll limits and the scratch memory of one writer.
    """

    __slots__ = (
        "_error",
        "_index",
        "_index_capacity",
        "_limits",
        "_plan",
        "_time",
        "_trial",
        "interval",
    )

    def __init__(self, index_interval_bytes: int, limits: RollLimits | None) -> None:
        self.interval = index_interval_bytes
        self._limits: Any = ffi.NULL
        if limits is not None:
            self._limits = ffi.new("ls_roll_limits *")
            for name, value in zip(limits._fields, limits, strict=True):
                setattr(self._limits, name, value)
        self._index_capacity = _SCAN_ENTRIES if limits is None else _WRITER_ENTRIES
        self._index = allocate("uint8_t[]", self._index_capacity * 8)
        self._time = allocate("uint8_t[]", self._index_capacity * 12)
        self._plan = ffi.new("ls_plan *")
        self._error = ffi.new("ls_error *")
        self._trial = ffi.new("ls_segment_state *")

    @property
    def limits(self) -> Any:
        """The roll limits (``ls_roll_limits``)."""
        return self._limits

    def plan(
        self,
        state: SegmentState,
        data: Any,
        size: int,
        now_ms: int = 0,
        *,
        is_in_parts: bool = False,
    ) -> tuple[int, int]:
        """Walk over data[0, size) as if appended to the segment.

        `state` does not change until `commit`. Returns (bytes that belong to the
        segment, stop).

        Args:
            is_in_parts: not appended at once: each batch rolls by its own time.
        """
        trial = self._trial
        trial[0] = state.raw[0]
        limits = self._limits
        if limits:
            limits.now_ms = now_ms
            limits.is_in_parts = is_in_parts
        plan = self._plan
        status = lib.ls_plan_append(
            data,
            size,
            limits,
            self.interval,
            trial,
            self._index,
            self._index_capacity,
            self._time,
            self._index_capacity,
            plan,
            self._error,
        )
        if status < 0:
            raise native_error(status, self._error)
        return plan.bytes, plan.stop

    @property
    def next_offset(self) -> int:
        """One past the last offset of the plan."""
        return int(self._trial.last_offset) + 1

    def commit(self, state: SegmentState) -> None:
        """Apply the last plan to `state`."""
        state.raw[0] = self._trial[0]

    def entries(self) -> tuple[bytes, bytes]:
        """The entries that the last plan adds to both indexes."""
        plan = self._plan
        if not plan.index_count:
            return b"", b""
        index = ffi.buffer(self._index, plan.index_count * 8)[:]
        times = ffi.buffer(self._time, plan.time_count * 12)[:]
        return index, times


# Index entries of one call into C, 20 bytes each; more entries take several calls. A
# writer keeps this memory all its life, and a store may have very many writers; 256
# entries cover a MiB of a log.
_WRITER_ENTRIES: Final = 256
_SCAN_ENTRIES: Final = 4096


class RollLimits(NamedTuple):
    """When a segment is full (``ls_roll_limits``)."""

    segment_bytes: int
    segment_ms: int
    now_ms: int
    index_interval_bytes: int
    index_entries_max: int
    time_entries_max: int


def offset_index_check(entries: ReadableBuffer, count: int, file_size: int) -> int:
    """The first slot that breaks the order or points outside the file, else `count`."""
    return int(lib.ls_offset_index_check(pointer(entries), count, file_size))


def time_index_check(entries: ReadableBuffer, count: int) -> int:
    """The first slot that breaks the order, else `count`."""
    return int(lib.ls_time_index_check(pointer(entries), count))


class IndexCursor:
    """The entries of an index that is compared with its log (``ls_index_cursor``)."""

    __slots__ = ("_entries", "raw")

    def __init__(self, entries: bytes = b"", count: int = 0) -> None:
        self._entries = entries  # the struct points into them
        self.raw = ffi.new(
            "ls_index_cursor *", {"entries": pointer(entries), "count": count}
        )

    @property
    def slot(self) -> int:
        """The first entry that has not been compared."""
        return int(self.raw.slot)

    @slot.setter
    def slot(self, slot: int) -> None:
        self.raw.slot = slot


class IndexCheck:
    """The indexes of a segment, compared with its log (``ls_index_check``).

    `begin`, then `Decoder.verify` and `walk_over` for all bytes of a buffer, one after
    the other, then `commit`.
    """

    __slots__ = ("_offsets", "_state", "_times", "raw")

    def __init__(
        self, state: SegmentState, offsets: IndexCursor, times: IndexCursor
    ) -> None:
        self._state = state
        self._offsets = offsets
        self._times = times
        self.raw = ffi.new("ls_index_check *")

    def begin(self) -> None:
        """Begin where the state and the cursors stand."""
        raw = self.raw
        raw.state = self._state.raw[0]
        raw.offsets = self._offsets.raw[0]
        raw.times = self._times.raw[0]
        raw.batches = raw.is_doubtful = 0

    def walk_over(self, data: Any, size: int) -> None:
        """Compare the index entries with the batches of data[0, size), which the caller
        has checked."""
        lib.ls_check_indexes(data, size, self.raw)

    def commit(self, size: int) -> int:
        """Advance the state and the cursors to the file position `size`, and return the
        number of batches; -1, with nothing changed, if an entry is not plainly true."""
        raw = self.raw
        if raw.is_doubtful or raw.state.size != size:
            return -1
        self._state.raw[0] = raw.state
        self._offsets.raw[0] = raw.offsets
        self._times.raw[0] = raw.times
        return int(raw.batches)
