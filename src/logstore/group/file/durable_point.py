"""The durable point of a group's file: how much of which file is durable.

It is in the lock file, for all members: once in the form that was made durable, and
once in its later form (docs/format.md, "`.logstore-group-*`").
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.group.file.lock_file import OpenLockFile

__all__ = ["NO_POINT", "GroupDurablePoint", "FileId", "SharedPoint"]

_DURABLE_AT: Final = 64
_NEWER_AT: Final = 128
_POINT: Final = struct.Struct("<Qq12s16s")
_CRC: Final = struct.Struct("<I")
_POINT_BYTES: Final = _POINT.size + _CRC.size
_BYTES: Final = _NEWER_AT - _DURABLE_AT + _POINT_BYTES


class FileId(NamedTuple):
    """Identity of a durable point's file. An inode is reused after its file is gone.

    Attributes:
        inode: its number; 0: none.
        first: base offset and CRC of its first batch, 12 bytes; zeros: no batch.
    """

    inode: int = 0
    first: bytes = bytes(12)


class GroupDurablePoint(NamedTuple):
    """The durable part of a group's file, and of its name.

    Attributes:
        file: which one, next to the lock file.
        size: the number of bytes at its beginning that are durable.
        is_of_this_boot: the machine has not been started since: what was appended then
            has not changed.
        is_doubtful: a sync has failed since: the system may have dropped what follows
            those bytes, though it is read, and though a later sync succeeds.
        is_synced: the point itself is durable, as far as it says which file it is of.
    """

    file: FileId
    size: int
    is_of_this_boot: bool
    is_doubtful: bool = False
    is_synced: bool = False


# Nothing is known.
NO_POINT: Final = GroupDurablePoint(FileId(), 0, is_of_this_boot=False)


class SharedPoint:
    """The durable point that the members of a group share, and the turn to sync.

    Invariant: the first place says what is durable of one file since one start of the
    machine; the newer one counts if it is of the same file and start, and is written
    after the first one was synced. A partly written point does not count.

    Args:
        file: the open lock file.
        boot: identifies this start of the machine; zeros: unknown.
        turn: the byte whose lock is the turn to sync.

    Raises:
        StorageError: the system refuses, in each call.
    """

    def __init__(self, file: OpenLockFile, boot: bytes, turn: int) -> None:
        self._file = file
        self._boot = boot
        self._turn = turn
        # Members read it several times for each time that it changes.
        self._last = b"", NO_POINT

    def now(self) -> GroupDurablePoint:
        """The point, read from the lock file."""
        return self.of(self.data())

    def data(self) -> bytes:
        """The bytes of both places."""
        return self._file.read(_DURABLE_AT, _BYTES)

    def of(self, data: bytes) -> GroupDurablePoint:
        """The point in the bytes of both places."""
        if data != self._last[0]:
            self._last = data, self._point_in(data)
        return self._last[1]

    def _point_in(self, data: bytes) -> GroupDurablePoint:
        first, newer = _parsed(data[:_POINT_BYTES]), _parsed(data[-_POINT_BYTES:])
        if first is None:
            return NO_POINT
        file, size, boot = first
        is_doubtful, is_now, is_synced = False, boot == self._boot, False
        if newer is not None and (newer[0], newer[2]) == (file, boot):
            is_doubtful, is_synced = newer[1] < 0, newer[1] >= 0
            size = max(size, ~newer[1] if is_doubtful else newer[1])
        return GroupDurablePoint(
            file, size, is_now and any(boot), is_doubtful and is_now, is_synced
        )

    def set(self, file: FileId, size: int, *, is_new: bool = False) -> None:
        """Write it, with the turn to sync or the mutex.

        Args:
            is_new: it is of another file than before, or the machine was started since:
                then it is made durable, too, and replaces all earlier ones. A power
                failure that takes a later one leaves this one.
        """
        data = self._formatted(file, size)
        if is_new:
            self._replace(data, bytes(len(data)))
        self._file.write(data, _NEWER_AT)

    def doubt(self, file: FileId) -> None:
        """Let all members know that a sync of the file has failed; with the turn to
        sync or the mutex. The next point that is set ends it."""
        point = self.now()
        size = point.size if point.file == file else 0
        newer = self._formatted(file, ~size)
        if point.file == file and point.is_of_this_boot:
            self._file.write(newer, _NEWER_AT)
        else:
            self._replace(self._formatted(file, size), newer)

    def sync(self) -> None:
        """Make durable which file the point is of: the member that set it may have
        failed to. Its bytes are written again, because a failed sync drops them."""
        self._file.write(self.data(), _DURABLE_AT)
        self._file.sync()

    def _replace(self, first: bytes, newer: bytes) -> None:
        skip = _NEWER_AT - _DURABLE_AT
        self._file.write(first.ljust(skip, b"\0") + newer, _DURABLE_AT)
        self._file.sync()

    @staticmethod
    def empty() -> bytes:
        """Zeros, as many as `data` has bytes."""
        return bytes(_BYTES)

    def newer(self, file: FileId, size: int) -> bytes:
        """The bytes of the next point of the same file."""
        return self._formatted(file, size)

    def _formatted(self, file: FileId, size: int) -> bytes:
        fields = _POINT.pack(file.inode, size, file.first, self._boot)
        return fields + _CRC.pack(native.crc32c(fields))

    # ------------------------------------------------------------ the turn to sync

    def take_turn(self) -> bool:
        """Take the turn to sync the group's file; False if another member has it."""
        return self._file.lock(self._turn)

    def end_turn(self) -> None:
        """Give it back; no error if it was not taken."""
        self._file.unlock(self._turn)

    def steps(self) -> tuple[native.Step, native.Step, native.Step, native.Step]:
        """The calls that take the turn to sync, check that the point is unchanged,
        write a `newer` one, and give the turn back."""
        fd = self._file.fd
        return (
            native.Step(native.STEP_LOCK, fd, self._turn),
            native.Step(native.STEP_BYTES, fd, _DURABLE_AT),
            native.Step(native.STEP_WRITE, fd, _NEWER_AT),
            native.Step(native.STEP_UNLOCK, fd, self._turn),
        )


def _parsed(data: bytes) -> tuple[FileId, int, bytes] | None:
    """File, size and boot of one place; None if it was not written as a whole."""
    fields, crc = data[: _POINT.size], data[_POINT.size :]
    if not any(data) or crc != _CRC.pack(native.crc32c(fields)):
        return None
    inode, size, first, boot = _POINT.unpack(fields)
    return FileId(inode, first), size, boot
