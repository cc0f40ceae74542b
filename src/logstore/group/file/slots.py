"""The lock file of a consumer group: its members, and the partitions that each holds.

Each member has one open file of its own, and on it locks of single bytes that belong to
the open file (OFD locks): they exclude two members of one process, too, and end with
the process, whatever ends it. The layout is in docs/format.md, "`.logstore-group-*`":

    byte 0          the mutex: held for as long as the group's file is changed
    byte 1          written to, so that the others look at once
    bytes 2 ...     one for each member
    then            one for each partition, by its row in the group's table
    then            the turn to sync, the turn to publish

An open file is shared with the child of a fork, which would hold the locks on after the
end of its parent: so the child closes it at once (`os.register_at_fork`).
"""

from __future__ import annotations

import os
import struct
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeVar

from logstore import _native as native
from logstore.errors import storage_error, storage_errors
from logstore.group.errors import FencedError
from logstore.io import layout
from logstore.io.checkpoint.place import is_left_over
from logstore.io.directory import Directory, held_open
from logstore.io.files import Files, ProcessId
from logstore.io.stamps import FileInfo

__all__ = [
    "MEMBERS_MAX",
    "ROWS_MAX",
    "BusyError",
    "DurablePoint",
    "FileId",
    "LockFile",
    "SlotInfo",
    "Slots",
    "clock_ms",
]

MEMBERS_MAX: Final = 1024
ROWS_MAX: Final = 2048

_MUTEX: Final = 0
_WAKE: Final = 1
_MEMBERS_AT: Final = 2
_ROWS_AT: Final = _MEMBERS_AT + MEMBERS_MAX
_SYNC: Final = _ROWS_AT + ROWS_MAX
_PUBLISH: Final = _SYNC + 1

# The contents of the file: the durable point as it was made durable itself, and as it
# is since; 64 bytes for each member; 4 for each row: the slot of its holder, plus 1.
_DURABLE_AT: Final = 64
_DURABLE_NEWER_AT: Final = 128
_DURABLE: Final = struct.Struct("<Qq12s16s")
_DURABLE_CRC: Final = struct.Struct("<I")
_POINT_BYTES: Final = _DURABLE.size + _DURABLE_CRC.size
_DURABLE_BYTES: Final = _DURABLE_NEWER_AT - _DURABLE_AT + _POINT_BYTES
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
    """What a member has written about itself.

    Attributes:
        slot: its number.
        process: which process it is.
        since_ms: when it joined, Unix milliseconds.
        polled_ms: when it polled last, as far as it has written it down: at least once
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
        """For how many milliseconds it has been stuck; None if it is not.

        Args:
            at_ms: now, by `clock_ms`.
        """
        if self.polled_at_ms is None:
            return None
        late = at_ms - self.polled_at_ms - self.interval_ms
        return late if late > self.interval_ms // 10 else None


class FileId(NamedTuple):
    """Which file a durable point is of. A number comes again after its file is gone.

    Attributes:
        inode: its number; 0: none.
        first: base offset and CRC of its first batch, 12 bytes; zeros: it has none.
    """

    inode: int = 0
    first: bytes = bytes(12)


class DurablePoint(NamedTuple):
    """What is known to be durable of a group's file, by its name, too.

    Attributes:
        file: which one, beside the lock file.
        size: so many bytes at its beginning are durable.
        is_of_this_boot: the machine has not been started since: what was appended then
            is still there as it was.
        is_doubtful: a sync has failed since: the system may have dropped what follows
            those bytes, though it is read, and though a later sync succeeds.
    """

    file: FileId
    size: int
    is_of_this_boot: bool
    is_doubtful: bool = False


class LockFile:
    """The lock file as anyone may look at it; takes no lock.

    Args:
        name: of the group's file (`layout.group_file`).

    Raises:
        FileNotFoundError: the group has none: it has no member.
        StorageError: the system refuses.
    """

    def __init__(self, root: Directory, name: str) -> None:
        self.name = layout.group_lock_file(name)
        self.path = root.path_of(self.name)
        self.files = root.files
        self._root = root
        self._process = root.files.process_id()
        try:
            self._file = held_open(self.files, self._open())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error, "open", self.path) from error

    def _open(self) -> int:
        return self._root.open(self.name)

    def close(self) -> None:
        """Close it; its locks, if it has any, end with it."""
        self._file.close()

    def members(self) -> list[int]:
        """The slots of the members that live, in order, except the own one."""
        found = self._locked(_MEMBERS_AT, _ROWS_AT)
        return [byte - _MEMBERS_AT for byte in found]

    def is_alive(self, slot: int) -> bool:
        """Whether another member has a slot."""
        at = _MEMBERS_AT + slot
        return bool(self._locked(at, at + 1))

    def is_held(self, row: int) -> bool:
        """Whether another member has the partition of a row."""
        at = _ROWS_AT + row
        return bool(self._locked(at, at + 1))

    def held_rows(self) -> list[int]:
        """The rows whose partitions other members have."""
        found = self._locked(_ROWS_AT, _SYNC)
        return [byte - _ROWS_AT for byte in found]

    def holder(self, row: int) -> int | None:
        """The slot of the member that took a row last; None if no one has yet."""
        data = self._read(_HOLDERS_AT + _HOLDER.size * row, _HOLDER.size)
        slot: int = _HOLDER.unpack(data)[0]
        return slot - 1 if 1 <= slot <= MEMBERS_MAX else None

    def info(self, slot: int) -> SlotInfo:
        """What the member of a slot, or the last one that had it, wrote into it."""
        data = self._read(_INFOS_AT + _INFO_BYTES * slot, _INFO.size)
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

    def durable_point(self) -> DurablePoint:
        """What is known to be durable of the group's file."""
        return self.durable_point_of(self.durable_bytes())

    def durable_bytes(self) -> bytes:
        """What the file has about that."""
        return self._read(_DURABLE_AT, _DURABLE_BYTES)

    def durable_point_of(self, data: bytes) -> DurablePoint:
        """What `durable_bytes` say."""
        first, newer = _point(data[:_POINT_BYTES]), _point(data[-_POINT_BYTES:])
        if first is None:
            return DurablePoint(FileId(), 0, is_of_this_boot=False)
        file, size, boot = first
        is_doubtful, is_now = False, boot == self._process.boot
        if newer is not None and (newer[0], newer[2]) == (file, boot):
            is_doubtful = newer[1] < 0
            size = max(size, ~newer[1] if is_doubtful else newer[1])
        return DurablePoint(file, size, is_now and any(boot), is_doubtful and is_now)

    def _locked(self, begin: int, end: int) -> Sequence[int]:
        """The bytes that others have locked."""
        with storage_errors("look at the locks of", self.path):
            return self.files.locked_bytes(self._file.fd, begin, end)

    def _read(self, pos: int, size: int) -> bytes:
        data = bytearray(size)
        with storage_errors("read", self.path):
            self.files.read(self._file.fd, data, pos)
        return bytes(data)


class Slots(LockFile):
    """The lock file of one member, which is for one thread at a time.

    Attributes:
        group: the id of the group.
        slot: that of the member; None if it has none.
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
        super().__init__(root, name)
        with storage_errors("look at", self.path):
            self._id = self._identity(self.files.stat(self._file.fd))
        _open_files.add(self)

    def _open(self) -> int:
        while True:
            try:
                # Members of this store may use it under all of its names.
                keep_links = not is_left_over(self._root, self.name)
                return self._root.open(self.name, write=True, keep_links=keep_links)
            except FileNotFoundError:
                pass
            try:
                return self._root.create(self.name)
            except FileExistsError:
                continue

    @property
    def fd(self) -> int:
        """The descriptor, for a watch; -1 once it is closed."""
        return self._file.fd

    def _identity(self, info: FileInfo) -> tuple[int, int]:
        return info.device, info.inode

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
                self._unlock(_MUTEX)
            except BaseException:
                # An interrupt at its first instruction must not leave the mutex: this
                # member may do nothing more for a long time.
                self._unlock(_MUTEX)
                raise

    def _take_mutex(self, wait_s: float) -> None:
        deadline, pause = None, _PAUSE_S_MIN
        while not self._lock(_MUTEX):
            now = self.files.monotonic()
            deadline = now + wait_s if deadline is None else deadline
            if now >= deadline:
                raise BusyError
            time.sleep(min(pause, max(deadline - now, 0)))
            pause = min(pause * 2, _PAUSE_S_MAX)

    def _check_name(self) -> None:
        """Two files of one name would be two groups."""
        try:
            is_same = self._identity(self._root.stat(self.name)) == self._id
        except FileNotFoundError:
            is_same = False
        except OSError as error:
            raise storage_error(error, "look at", self.path) from error
        if not is_same:
            raise FencedError(
                f"the lock file {self.path} was removed or replaced while it was in "
                f"use: its locks guard nothing any more. Nothing was changed; close "
                f"this consumer and open a new one",
                group=self.group,
            )

    def _lock(self, byte: int) -> bool:
        try:
            return self.files.lock_byte(self._file.fd, byte)
        except OSError as error:
            raise storage_error(error, "lock", self.path) from error

    def _unlock(self, byte: int) -> None:
        if self._file.fd < 0:
            return
        try:
            self.files.unlock_byte(self._file.fd, byte)
        except OSError as error:
            raise storage_error(error, "unlock", self.path) from error

    # ------------------------------------------------------------ members

    def join(self, interval_ms: int, avoid: Collection[int] = ()) -> int | None:
        """Take the lowest slot that is free, under the mutex; None if there is none.

        Args:
            interval_ms: see `SlotInfo`.
            avoid: slots that are not to be taken, free or not.
        """
        taken = {*self.members(), *avoid}
        for slot in range(MEMBERS_MAX):
            if slot in taken or not self._lock(_MEMBERS_AT + slot):
                continue
            pid, start, boot = self._process
            now_ms, at_ms = self.files.now_ms(), clock_ms(self.files)
            data = _INFO.pack(
                pid, interval_ms, start, boot, now_ms, now_ms, at_ms, now_ms
            )
            self._write(data, _INFOS_AT + _INFO_BYTES * slot)
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
        at = _INFOS_AT + _INFO_BYTES * self.slot + _POLLED_POS
        self._write(_POLLED.pack(now_ms, at_ms, now_ms), at)

    def leave(self) -> None:
        """Give back all locks."""
        for row in list(self.rows):
            self.release(row)
        if self.slot is not None:
            self._unlock(_MEMBERS_AT + self.slot)
            self.slot = None

    # ------------------------------------------------------------ partitions

    def take(self, row: int) -> bool:
        """Take the partition of a row; False if another member has it."""
        # Before the lock: an interrupted call leaves it to `release`.
        self.rows.add(row)
        if not self._lock(_ROWS_AT + row):
            self.rows.discard(row)
            return False
        slot = MEMBERS_MAX if self.slot is None else self.slot
        self._write(_HOLDER.pack(slot + 1), _HOLDERS_AT + _HOLDER.size * row)
        return True

    def release(self, row: int) -> None:
        """Give it back."""
        self._unlock(_ROWS_AT + row)
        self.rows.discard(row)

    def wake(self) -> None:
        """Let the other members look at the group at once."""
        self._write(b"\1", _WAKE)

    # ------------------------------------------------------------ turns

    def take_sync_turn(self) -> bool:
        """Take the turn to sync the group's file; False if another member has it."""
        return self._lock(_SYNC)

    def end_sync_turn(self) -> None:
        self._unlock(_SYNC)

    def take_publish_turn(self) -> bool:
        """Take the turn to publish for the group; False if another member has it."""
        return self._lock(_PUBLISH)

    def end_publish_turn(self) -> None:
        self._unlock(_PUBLISH)

    def doubt(self, file: FileId) -> None:
        """Let all members know that a sync of the file has failed; with the turn to
        sync or the mutex. The next durable point that is set ends it."""
        point = self.durable_point()
        size = point.size if point.file == file else 0
        is_new = point.file != file or not point.is_of_this_boot
        self.set_durable_point(file, size, is_new=is_new, is_doubtful=True)

    def set_durable_point(
        self,
        file: FileId,
        size: int,
        *,
        is_new: bool = False,
        is_doubtful: bool = False,
    ) -> None:
        """Write it, with the turn to sync or the mutex.

        Args:
            is_new: it is of another file than before, or the machine was started since:
                then it is made durable, too, in the place of all before. A power
                failure that takes a later one leaves this one.
            is_doubtful: as in `DurablePoint`; until the next one is set.
        """
        data = self._point_bytes(file, size)
        newer = self._point_bytes(file, ~size) if is_doubtful else bytes(len(data))
        if not is_new:
            self._write(newer if is_doubtful else data, _DURABLE_NEWER_AT)
            return
        skip = _DURABLE_NEWER_AT - _DURABLE_AT
        self._write(data.ljust(skip, b"\0") + newer, _DURABLE_AT)
        try:
            self.files.sync(self._file.fd)
        except OSError as error:
            raise storage_error(error, "sync", self.path) from error

    def give_back(self) -> None:
        """Give back the mutex and the turn to sync; what was not taken is no error."""
        try:
            self._unlock(_SYNC)
        finally:
            self._unlock(_MUTEX)

    def next_point(self, before: bytes, file: FileId, size: int) -> tuple[bytes, bytes]:
        """(what is to be written for the durable point of the same file, what are the
        `durable_bytes` then), after some that were `before`."""
        data = self._point_bytes(file, size)
        return data, before[:-_POINT_BYTES] + data

    def _point_bytes(self, file: FileId, size: int) -> bytes:
        fields = _DURABLE.pack(file.inode, size, file.first, self._process.boot)
        return fields + _DURABLE_CRC.pack(native.crc32c(fields))

    # ------------------------------------------------------------ many calls at once

    def mutex_steps(self) -> tuple[native.Step, native.Step, native.Step]:
        """The calls that take the mutex and give it back: see `locked`."""
        device, inode = self._id
        name = os.fsencode(self.name)
        root_fd = self._root.held().fd
        return (
            native.Step(native.STEP_LOCK, self.fd, _MUTEX),
            native.Step(
                native.STEP_FILE, root_fd, data=name, device=device, inode=inode
            ),
            native.Step(native.STEP_UNLOCK, self.fd, _MUTEX),
        )

    def sync_steps(self) -> tuple[native.Step, native.Step, native.Step, native.Step]:
        """The calls that take the turn to sync, look whether the durable point is as it
        was, write the next one (`next_point`), and give the turn back."""
        return (
            native.Step(native.STEP_LOCK, self.fd, _SYNC),
            native.Step(native.STEP_BYTES, self.fd, _DURABLE_AT),
            native.Step(native.STEP_WRITE, self.fd, _DURABLE_NEWER_AT),
            native.Step(native.STEP_UNLOCK, self.fd, _SYNC),
        )

    def _write(self, data: bytes, pos: int) -> None:
        try:
            self.files.write(self._file.fd, data, pos)
        except OSError as error:
            raise storage_error(error, "write", self.path) from error

    def after_fork(self) -> None:
        """In the child of a fork: leave the locks to the parent."""
        self._file.close()


def _point(data: bytes) -> tuple[FileId, int, bytes] | None:
    """A durable point as it is in the file; None if it was not written as a whole."""
    fields, crc = data[: _DURABLE.size], data[_DURABLE.size :]
    if not any(data) or crc != _DURABLE_CRC.pack(native.crc32c(fields)):
        return None
    inode, size, first, boot = _DURABLE.unpack(fields)
    return FileId(inode, first), size, boot


_open_files: weakref.WeakSet[Slots] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child that kept the open file would hold its parent's locks on."""
    for slots in list(_open_files):
        slots.after_fork()
    _open_files.clear()


os.register_at_fork(after_in_child=lambda: _close_in_child())
