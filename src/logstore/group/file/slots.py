"""The lock file of a consumer group: its members, and the partitions that each holds.

Each member has a separate open file, and on it locks of single bytes
(`logstore.group.file.lock_file`). The layout is in docs/format.md,
"`.logstore-group-*`":

    byte 0          the mutex: held for as long as the group's file is changed
    byte 1          written to, so that the others look at once
    bytes 2 ...     one for each member
    then            one for each partition, by its row in the group's table
    then            the turn to sync, the turn to publish
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, TypeVar

from logstore import _native as native
from logstore.errors import DiskFullError, FencedError
from logstore.group.file.durable_point import SharedPoint
from logstore.group.file.lock_file import OpenLockFile
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files, ProcessId

__all__ = [
    "MEMBERS_MAX",
    "ROWS_MAX",
    "BusyError",
    "LockFile",
    "SlotInfo",
    "Slots",
    "clock_ms",
    "lock_file_of",
]

MEMBERS_MAX: Final = 1024
ROWS_MAX: Final = 2048

_MUTEX: Final = 0
_WAKE: Final = 1
_MEMBERS_AT: Final = 2
_ROWS_AT: Final = _MEMBERS_AT + MEMBERS_MAX
_SYNC: Final = _ROWS_AT + ROWS_MAX
_PUBLISH: Final = _SYNC + 1

# The contents of the file after the durable point: 64 bytes for each member; 4 for each
# row, the slot of its holder, plus 1.
_INFOS_AT: Final = 4096
_INFO_BYTES: Final = 64
_INFO: Final = struct.Struct("<IIQ16sqqqq")
_POLLED: Final = struct.Struct("<qqq")
_POLLED_POS: Final = _INFO.size - _POLLED.size  # the last fields
_HOLDERS_AT: Final = _INFOS_AT + _INFO_BYTES * MEMBERS_MAX
_HOLDER: Final = struct.Struct("<I")

# A taken mutex is tried again after so long, at first and at last.
_PAUSE_S_MIN: Final = 0.00005
_PAUSE_S_MAX: Final = 0.002

_Result = TypeVar("_Result")


def clock_ms(files: Files) -> int:
    """Now, by a clock that is the same for all processes and that cannot be set: it
    stands still while the machine is suspended, as its processes do."""
    return int(files.monotonic() * 1000)


class BusyError(Exception):
    """Another member has held the mutex for all of the time that this one waited."""


class SlotInfo(NamedTuple):
    """A member's description of itself.

    Attributes:
        slot: its number.
        process: which process it is.
        since_ms: when it joined, Unix milliseconds.
        polled_ms: when it polled last, by its own record, written at least once
            in a tenth of `interval_ms`.
        polled_at_ms: the same by `clock_ms`; None: it does not say (an earlier
            version).
        interval_ms: after which time without a poll it counts as stuck.
    """

    slot: int
    process: ProcessId
    since_ms: int
    polled_ms: int
    polled_at_ms: int | None
    interval_ms: int

    def stuck_ms(self, at_ms: int) -> int | None:
        """Time in ms for which it has been stuck; None if it is not.

        Args:
            at_ms: now, by `clock_ms`.
        """
        if self.polled_at_ms is None:
            return None
        late = at_ms - self.polled_at_ms - self.interval_ms
        return late if late > self.interval_ms // 10 else None


class LockFile:
    """The lock file as anyone may look at it; takes no lock.

    Attributes:
        name, path: of the lock file.
        files: makes the system calls.
        point: the durable point of the group's file.

    Args:
        name: of the group's file (`layout.group_file`).
        write: for a member: it is created if it does not exist.

    Raises:
        FileNotFoundError: the group has no lock file, and so no member.
        StorageError: the system refuses.
    """

    def __init__(self, root: Directory, name: str, *, write: bool = False) -> None:
        self.name = layout.group_lock_file(name)
        self.files = root.files
        self._process = root.files.process_id()
        self._file = OpenLockFile(root, self.name, write=write)
        self.path = self._file.path
        self.point = SharedPoint(self._file, self._process.boot, _SYNC)

    def close(self) -> None:
        """Close it; its locks, if it has any, end with it."""
        self._file.close()

    def members(self) -> list[int]:
        """The slots of the members that live, in order, except the own one."""
        locked_bytes = self._file.locked(_MEMBERS_AT, _ROWS_AT)
        return [byte - _MEMBERS_AT for byte in locked_bytes]

    def is_alive(self, slot: int) -> bool:
        """Whether another member has a slot."""
        position = _MEMBERS_AT + slot
        return bool(self._file.locked(position, position + 1))

    def is_held(self, row: int) -> bool:
        """Whether another member has the partition of a row."""
        position = _ROWS_AT + row
        return bool(self._file.locked(position, position + 1))

    def held_rows(self) -> list[int]:
        """The rows whose partitions other members have."""
        locked_bytes = self._file.locked(_ROWS_AT, _SYNC)
        return [byte - _ROWS_AT for byte in locked_bytes]

    def holder(self, row: int) -> int | None:
        """The slot of the member that took a row last; None if no one has yet."""
        data = self._file.read(_HOLDERS_AT + _HOLDER.size * row, _HOLDER.size)
        slot: int = _HOLDER.unpack(data)[0]
        return slot - 1 if 1 <= slot <= MEMBERS_MAX else None

    def info(self, slot: int) -> SlotInfo:
        """Information that the member of a slot, or the last one that had it, wrote."""
        data = self._file.read(_INFOS_AT + _INFO_BYTES * slot, _INFO.size)
        pid, interval_ms, start, boot, since_ms, *polled = _INFO.unpack(data)
        polled_ms, polled_at_ms, again_ms = polled
        # An earlier version writes the first time alone, over one of another member.
        is_whole = polled_ms == again_ms and pid != 0
        return SlotInfo(
            slot,
            ProcessId(pid, start, boot),
            since_ms,
            polled_ms,
            polled_at_ms if is_whole else None,
            interval_ms,
        )


@contextlib.contextmanager
def lock_file_of(root: Directory, name: str) -> Iterator[LockFile | None]:
    """The lock file of a group, to look at; None: it does not exist, so no member does.

    Args:
        name: of the group's file (`layout.group_file`).

    Raises:
        StorageError: the system refuses.
    """
    try:
        lock = LockFile(root, name)
    except FileNotFoundError:
        yield None
        return
    try:
        yield lock
    finally:
        lock.close()


class Slots(LockFile):
    """The lock file of one member, which is for one thread at a time.

    Invariant: the member has the lock of its slot, and no lock of a row that is not in
    `rows`; the mutex is held only while `locked` calls its work.

    Attributes:
        group: the id of the group.
        slot: that of the member; None before `join`.
        rows: those whose partitions it has, or may have after an interrupt.

    Raises:
        StorageError: the system refuses; the file system may be read-only.
    """

    def __init__(self, root: Directory, name: str, group: str) -> None:
        self.group = group
        self.slot: int | None = None
        self.rows: set[int] = set()
        self._written_at_ms = 0
        self._interval_ms = 0
        super().__init__(root, name, write=True)

    @property
    def fd(self) -> int:
        """The descriptor, for a watch; -1 once it is closed."""
        return self._file.fd

    # ------------------------------------------------------------ the mutex

    def locked(self, work: Callable[[], _Result], wait_s: float) -> _Result:
        """The result of `work`, called with the group's mutex held.

        Raises:
            BusyError: another member had it for `wait_s`; `work` was not called.
            FencedError: another file has the name of this one.
            StorageError: the system refuses.
        """
        # In this order an interrupt leaves no lock: to give back what was not taken
        # does nothing.
        try:
            self._take_mutex(wait_s)
            self._check_name()
            return work()
        finally:
            try:
                self._file.unlock(_MUTEX)
            except BaseException:
                # An interrupt at its first instruction must not leave the mutex: this
                # member may do nothing more for a long time.
                self._file.unlock(_MUTEX)
                raise

    def _take_mutex(self, wait_s: float) -> None:
        deadline, pause = None, _PAUSE_S_MIN
        while not self._file.lock(_MUTEX):
            now = self.files.monotonic()
            deadline = now + wait_s if deadline is None else deadline
            if now >= deadline:
                raise BusyError
            time.sleep(min(pause, max(deadline - now, 0)))
            pause = min(pause * 2, _PAUSE_S_MAX)

    def _check_name(self) -> None:
        """Raise if the lock file was replaced: two files of one name would be two
        groups."""
        if not self._file.has_its_name():
            raise FencedError(
                f"the lock file {self.path} was removed or replaced while it was "
                "in use: its locks no longer protect anything. Nothing was "
                "changed; close this consumer and open a new one",
                group=self.group,
            )

    def mutex_steps(self) -> tuple[native.Step, native.Step, native.Step]:
        """The calls that take the mutex and give it back: see `locked`."""
        return (
            native.Step(native.STEP_LOCK, self.fd, _MUTEX),
            self._file.name_step(),
            native.Step(native.STEP_UNLOCK, self.fd, _MUTEX),
        )

    def give_back(self) -> None:
        """Give back the mutex and the turn to sync, if they were taken."""
        try:
            self.point.end_turn()
        finally:
            self._file.unlock(_MUTEX)

    # ------------------------------------------------------------ members

    def join(self, interval_ms: int, avoid: Collection[int] = ()) -> int | None:
        """Take the lowest slot that is free, under the mutex; None if all are taken.

        Args:
            interval_ms: see `SlotInfo`.
            avoid: slots that are not to be taken, free or not.
        """
        taken = {*self.members(), *avoid}
        for slot in range(MEMBERS_MAX):
            if slot in taken or not self._file.lock(_MEMBERS_AT + slot):
                continue
            pid, start, boot = self._process
            now_ms, at_ms = self.files.now_ms(), clock_ms(self.files)
            data = _INFO.pack(
                pid, interval_ms, start, boot, now_ms, now_ms, at_ms, now_ms
            )
            self._file.write(data, _INFOS_AT + _INFO_BYTES * slot)
            self._written_at_ms, self._interval_ms = at_ms, interval_ms
            # Last: a call that is interrupted before takes the same slot again.
            self.slot = slot
            return slot
        return None

    def polled(self) -> None:
        """Note the time of a poll, if the last that was noted is old enough."""
        if self.slot is None:
            return
        at_ms = clock_ms(self.files)
        if at_ms - self._written_at_ms < max(self._interval_ms // 10, 1):
            return
        self._written_at_ms = at_ms
        now_ms = self.files.now_ms()
        position = _INFOS_AT + _INFO_BYTES * self.slot + _POLLED_POS
        self._file.write(_POLLED.pack(now_ms, at_ms, now_ms), position)

    def leave(self) -> None:
        """Give back all locks."""
        for row in list(self.rows):
            self.release(row)
        if self.slot is not None:
            self._file.unlock(_MEMBERS_AT + self.slot)
            self.slot = None

    # ------------------------------------------------------------ partitions

    def take(self, row: int) -> bool:
        """Take the partition of a row; False if another member has it."""
        # Before the lock: an interrupted call leaves it to `release`.
        self.rows.add(row)
        if not self._file.lock(_ROWS_AT + row):
            self.rows.discard(row)
            return False
        slot = MEMBERS_MAX if self.slot is None else self.slot
        self._file.write(_HOLDER.pack(slot + 1), _HOLDERS_AT + _HOLDER.size * row)
        return True

    def release(self, row: int) -> None:
        """Give it back."""
        self._file.unlock(_ROWS_AT + row)
        self.rows.discard(row)

    def wake(self) -> None:
        """Let the other members look at the group at once.

        If a full disk has no room for the first byte of the file, no member is woken:
        they look ten times a second in any case.
        """
        with contextlib.suppress(DiskFullError):
            self._file.write(b"\1", _WAKE)

    # ------------------------------------------------------------ publications

    def take_publish_turn(self) -> bool:
        """Take the turn to publish for the group; False if another member has it."""
        return self._file.lock(_PUBLISH)

    def end_publish_turn(self) -> None:
        """Give it back; no error if it was not taken."""
        self._file.unlock(_PUBLISH)
