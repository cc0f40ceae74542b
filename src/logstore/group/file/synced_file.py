"""An open file of a group, and what is known to be durable of it."""

from __future__ import annotations

import contextlib
from typing import Final

from logstore.errors import StorageError
from logstore.group.file.durable_point import FileId, GroupDurablePoint, SharedPoint
from logstore.io.checkpoint.append_file import AppendFile
from logstore.io.directory import Directory

__all__ = ["SyncedFile"]

_CRC_POS: Final = 17


class SyncedFile(AppendFile):
    """An open file of a group; another file that gets its name is another object.

    Invariant: it is confirmed as soon as the shared durable point is of this file, and
    so is its name durable. Once it is in doubt, no sync of it says anything.

    Attributes:
        id: names it in the durable point; with its first batch, once that is known.
        is_confirmed: whether the durable point was seen to be of this file.
        is_doubtful: a sync of it has failed, of this member or another: the system may
            have dropped what it did not write. It has to be replaced.
    """

    def __init__(self, directory: Directory, name: str, fd: int) -> None:
        super().__init__(directory, name, fd)
        self.id = FileId(self.identity[1])
        self.is_confirmed = False
        self.is_doubtful = False

    def begins_with(self, data: bytes) -> None:
        """Complete the id by the first batch of `data`: its base offset and CRC."""
        self.id = FileId(self.id.inode, data[:8] + data[_CRC_POS : _CRC_POS + 4])

    def is_of(self, point: GroupDurablePoint) -> bool:
        """Whether a durable point is of this file, since the start of the machine."""
        return point.is_of_this_boot and point.file == self.id

    def doubts(self, point: GroupDurablePoint) -> bool:
        """Whether a sync of the file has failed, and it was not replaced since."""
        # Of no file: an earlier version was replacing it.
        is_mine = point.file in (self.id, FileId())
        self.is_doubtful |= point.is_doubtful and is_mine
        return self.is_doubtful

    def begin(self, shared: SharedPoint, data: bytes) -> None:
        """Let the durable point be of this file, before its first batch is written."""
        # The name must survive a power failure, as what is synced later: also if
        # another member made the file, and was killed before it synced that.
        self.directory.sync()
        self.begins_with(data)
        shared.set(self.id, 0, is_new=True)
        self.is_confirmed = True

    def confirm(self, shared: SharedPoint, end: int) -> None:
        """Find out whether the file is in doubt. Let the durable point be of this file,
        with the `end` bytes that it has, and be durable itself.

        The latter once for each file and start of the machine: later damage is not
        taken for the remains of a power failure. A file shorter than the durable part
        is another one, such as a backup that was put back.
        """
        point = shared.now()
        is_doubtful = self.doubts(point)
        if self.is_confirmed:
            return
        if is_doubtful:
            shared.doubt(self.id)
            shared.sync()
        elif not (self.is_of(point) and point.is_synced) or point.size > end:
            self.renew(shared, end)
        self.is_confirmed = True

    def renew(self, shared: SharedPoint, end: int) -> None:
        """Sync the file, and its name; then let the durable point be of it."""
        self.sync_for_all(shared)
        self.directory.sync()
        shared.set(self.id, end, is_new=True)

    def sync_for_all(self, shared: SharedPoint) -> None:
        """Sync what was written. If that fails, all members know it."""
        try:
            self.sync()
        except BaseException:
            self.doubt(shared)
            raise

    def doubt(self, shared: SharedPoint) -> None:
        """A sync has failed. All members learn it: another sync that succeeds would
        prove nothing to them about the bytes of this one."""
        self.is_doubtful = True
        with contextlib.suppress(StorageError):
            shared.doubt(self.id)
