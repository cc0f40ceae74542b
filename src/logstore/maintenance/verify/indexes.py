"""Index files, compared with the log during the walk over it."""

from __future__ import annotations

import bisect
import contextlib
import struct
import sys
from array import array
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.index import INDEX_ENTRY_BYTES, TIME_ENTRY_BYTES
from logstore.io.directory import Directory
from logstore.maintenance.finding import (
    MISSING_INDEX,
    OFFSET_INDEX,
    TIME_INDEX_FAULT,
    ZERO_TAIL,
)
from logstore.maintenance.verify.log_facts import LogFacts
from logstore.maintenance.verify.report import Run


class Table(NamedTuple):
    """The batches of a run of log: last offsets (relative to the base) and positions,
    and the running maximum of timestamps as time index entries."""

    offsets: array[int]
    positions: array[int]
    times: bytes
    before: int  # last relative offset before the run


class _Faults:
    """Faults of an index file, reported in one finding: the first of each bad entry."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}

    def add(self, slot: int, reason: str) -> None:
        self._reasons.setdefault(slot, reason)

    @property
    def count(self) -> int:
        return len(self._reasons)

    @property
    def first(self) -> tuple[int, str] | None:
        """The lowest slot, and its fault."""
        return min(self._reasons.items(), default=None)


class IndexFile:
    """An index file of a segment, compared with the log during the walk over it.

    Attributes:
        cursor: the entries, and how far they have been compared.
    """

    entry_bytes = 0
    kind = ""
    what = ""

    def __init__(
        self, run: Run, directory: Directory, log: LogFacts, name: str
    ) -> None:
        self.run_of = run
        self.directory = directory
        self.log = log
        self.name = name
        self.path = directory.path_of(name)
        self.faults = _Faults()
        self.data = b""
        self.count = 0
        self.missing = False
        self._read()
        self.cursor = native.IndexCursor(self.data, self.count)
        self._prepare()

    def _prepare(self) -> None:
        """Check the order of the entries that were read."""
        raise NotImplementedError

    def _read(self) -> None:
        run, log = self.run_of, self.log
        try:
            self.data = self.directory.read_file(self.name)
        except FileNotFoundError:
            self.missing = True
            return
        except OSError as error:
            self.missing = True
            run.unreadable(self.path, error)
            return
        size = self.entry_bytes
        whole = len(self.data) // size * size
        used = used_bytes(self.data, size)
        # The first entry may be all zeros; further ones are unused space.
        if used == 0 and whole:
            used = size if whole == size and not self._is_empty_log() else 0
        self.count = used // size
        if len(self.data) != whole:
            self.report(whole, f"has {len(self.data)} bytes, not a multiple of {size}")
        elif used != whole:
            message = f"{self.what} {self.path} ends with {whole - used} bytes of zeros"
            if log.is_index_rebuilt:
                run.note(ZERO_TAIL, self.path, message, used)
            else:
                self.report(used, f"ends with {whole - used} bytes of zeros")

    def _is_empty_log(self) -> bool:
        with contextlib.suppress(OSError):
            return self.directory.stat(self.log.name).size == 0
        return True

    def report(self, position: int, reason: str) -> None:
        """Report a problem; a note if the next opening rebuilds the index anyway."""
        log = self.log
        (self.run_of.note if log.is_index_rebuilt else self.run_of.problem)(
            self.kind, self.path, f"{self.what} {self.path} {reason}", position
        )

    def hold(self, table: Table) -> None:
        """Check the entries that belong to a run of the log."""
        raise NotImplementedError

    def follow(self) -> None:
        """Take note of a run of the log that has confirmed all its entries."""

    def finish(self) -> None:
        """Check the remaining entries when the log has ended."""
        raise NotImplementedError

    def conclude(self) -> None:
        """Report the faults."""
        faults = self.faults
        if faults.first is not None:
            slot, reason = faults.first
            more = f" ({faults.count} of {self.count} entries are bad)"
            self.report(
                slot * self.entry_bytes,
                f"contradicts the log: entry {slot} {reason}"
                + (more if faults.count > 1 else ""),
            )


class OffsetIndexCheck(IndexFile):
    entry_bytes = INDEX_ENTRY_BYTES
    kind = OFFSET_INDEX
    what = "offset index"

    def _prepare(self) -> None:
        table = numbers(self.data[: self.count * self.entry_bytes])
        self.offsets, self.positions = table[0::2], table[1::2]
        in_order = native.offset_index_check(self.data, self.count, native.OFFSET_MAX)
        for slot in range(max(in_order, 1), self.count):
            if (
                self.offsets[slot] <= self.offsets[slot - 1]
                or self.positions[slot] < self.positions[slot - 1]
            ):
                self.faults.add(slot, "is out of order")

    def hold(self, table: Table) -> None:
        positions = table.positions
        end = positions[-1]
        offsets = self.offsets
        slot = self.cursor.slot
        while slot < self.count and self.positions[slot] <= end:
            pos = self.positions[slot]
            index = bisect.bisect_left(positions, pos)
            if index == len(positions) or positions[index] != pos:
                # Before the run: in a damaged part, or a part that cannot be checked.
                if pos < 0 or not self.log.is_damaged_at(pos):
                    self.faults.add(slot, f"has position {pos}, where no batch begins")
            else:
                before = table.offsets[index - 1] if index else table.before
                if offsets[slot] <= before:
                    self.faults.add(
                        slot, f"has offset {self.log.base + offsets[slot]}, which is "
                        f"before position {pos}",
                    )  # fmt: skip
                if self._is_beyond(slot - 1, before, pos):
                    self.faults.add(
                        slot - 1,
                        f"has offset {self.log.base + offsets[slot - 1]}, which "
                        "is after the position of the next entry",
                    )
            slot += 1
        self.cursor.slot = slot

    def _is_beyond(self, slot: int, before: int, pos: int) -> bool:
        """Whether an entry has an offset that only comes at or after a position (of the
        entry after it), and no damage in between can explain it."""
        return (
            slot >= 0
            and self.offsets[slot] > before
            and not self.log.is_damaged_between(self.positions[slot], pos)
        )

    def finish(self) -> None:
        log = self.log
        if self.missing:
            if log.end > 0 and not log.is_index_rebuilt:
                self.run_of.note(
                    MISSING_INDEX,
                    self.path,
                    f"offset index {self.path} is missing; readers scan the log until "
                    f"it is built",
                )
            return
        for slot in range(self.cursor.slot, self.count):
            pos = self.positions[slot]
            if not log.is_damaged_at(pos):
                self.faults.add(
                    slot, f"has position {pos}, past the end of the log at {log.end}"
                )
        if self.cursor.slot == self.count and self.count and log.is_intact:
            last = log.base + self.offsets[self.count - 1]
            if last > log.last_offset:
                self.faults.add(
                    self.count - 1, f"has offset {last}, past the last of the log"
                )
        self.conclude()


class TimeIndexCheck(IndexFile):
    entry_bytes = TIME_ENTRY_BYTES
    kind = TIME_INDEX_FAULT
    what = "time index"

    def _prepare(self) -> None:
        self.largest = (-1, -1)  # running maximum before the next run, and its offset
        in_order = native.time_index_check(self.data, self.count)
        for slot in range(max(in_order, 1), self.count):
            (t, o), (t_before, o_before) = self._entry(slot), self._entry(slot - 1)
            if t <= t_before or o < o_before:
                self.faults.add(slot, "is out of order")
        self.is_in_order = not self.faults.count

    def _entry(self, slot: int) -> tuple[int, int]:
        """Timestamp and relative offset of an entry."""
        return _time_entry(self.data, slot)

    def follow(self) -> None:
        state = self.log.state
        if state.max_timestamp >= 0:
            offset = state.max_timestamp_offset - self.log.base
            self.largest = (state.max_timestamp, offset)

    def hold(self, table: Table) -> None:
        times = table.times
        count = len(times) // TIME_ENTRY_BYTES
        end = table.offsets[-1]
        slot = self.cursor.slot
        while slot < self.count and self._entry(slot)[1] <= end:
            t, o = self._entry(slot)
            if not self._is_true((t, o), table, count) and not self.log.is_skipped:
                self.faults.add(
                    slot,
                    f"says that {t} is the largest timestamp up to offset "
                    f"{self.log.base + o}, which it is not",
                )
            slot += 1
        self.cursor.slot = slot
        if count:
            self.largest = _time_entry(times, count - 1)

    def _is_true(self, entry: tuple[int, int], table: Table, count: int) -> bool:
        """Whether the largest timestamp at or before an offset is as an entry says.

        Inside a batch, any timestamp from the largest before it to its own is right.
        """
        timestamp, offset = entry
        slot, largest, largest_offset = -1, *self.largest
        if count:
            slot, t, o = native.index_floor(table.times, count, timestamp, True)
            if slot >= 0:
                largest, largest_offset = t, o
        after = self._entry_of(table, slot + 1, count)
        if largest == timestamp:
            if largest_offset > offset:
                return self._is_inside(table, offset, largest_offset)
            return after is None or after[1] > offset
        if largest > timestamp or after is None:
            return False
        return largest_offset <= offset and self._is_inside(table, offset, after[1])

    def _is_inside(self, table: Table, offset: int, last: int) -> bool:
        """Whether an offset lies in the batch that ends with `last`, before its end."""
        batch = bisect.bisect_left(table.offsets, last)
        before = table.offsets[batch - 1] if batch else table.before
        return before < offset < last

    def _entry_of(self, table: Table, slot: int, count: int) -> tuple[int, int] | None:
        return _time_entry(table.times, slot) if slot < count else None

    def finish(self) -> None:
        log = self.log
        if self.missing:
            return
        for slot in range(self.cursor.slot, self.count):
            if log.is_intact:
                self.faults.add(
                    slot,
                    f"has offset {log.base + self._entry(slot)[1]}, past the last of "
                    f"the log",
                )
        largest = log.state.max_timestamp
        if self.cursor.slot == self.count and self._is_of_other_times():
            self.run_of.note(
                self.kind,
                self.path,
                f"{self.what} {self.path} has timestamps, the records of the segment "
                f"have none: a broker converted them to magic 0",
            )
            return
        last = self._entry(self.count - 1)[0] if self.count else largest
        if (
            last != largest
            and not self.faults.count
            and not log.is_last
            and log.is_intact
        ):
            self.faults.add(
                self.count - 1,
                f"is the last and has timestamp {last}; the largest of the segment is "
                f"{largest}",
            )
        self.conclude()

    def _is_of_other_times(self) -> bool:
        """Whether the entries have the times that producers gave to records of magic 0,
        as Kafka 0.10 writes them: searches pass over records without a time."""
        log = self.log
        has_none = log.is_intact and log.state.max_timestamp < 0
        return self.count > 0 and has_none and self.is_in_order


_TIME_ENTRY: Final = struct.Struct(">qi")


def _time_entry(entries: bytes, slot: int) -> tuple[int, int]:
    """Timestamp and relative offset of an entry of a time index."""
    timestamp, offset = _TIME_ENTRY.unpack_from(entries, slot * TIME_ENTRY_BYTES)
    return timestamp, offset


def numbers(data: bytes) -> array[int]:
    """Big-endian int32 numbers as an array."""
    numbers = array("i")
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def used_bytes(data: bytes, width: int) -> int:
    """Bytes of an index file up to its last entry that is not all zeros."""
    whole = len(data) // width * width
    return -(-len(data[:whole].rstrip(b"\0")) // width) * width
