"""An open file of a group, and what is known to be durable of it."""

from __future__ import annotations

import contextlib
from typing import Final

from logstore.errors import StorageError
from logstore.group.file.durable_point import DurablePoint, FileId, SharedPoint
from logstore.io.directory import Directory
from logstore.io.files import Files, held_open

__all__ = ["SyncedFile"]

_CRC_POS: Final = 17


class SyncedFile:
    """An open file of a group; another file that gets its name is another object.

    Invariant: it is confirmed as soon as the shared durable point is of this file, and
    so is its name durable. Once it is in doubt, no sync of it says anything.

    Attributes:
        size: its size when it was opened.
        identity: its device and inode.
        id: names it in the durable point; with its first batch, once that is known.
        is_confirmed: whether the durable point was seen to be of this file.
        is_doubtful: a sync of it has failed, of this member or another: the system may
            have dropped what it did not write. It has to be replaced.

    Args:
        fd: the descriptor; it is closed with the last reference to this object.
    """

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._file = held_open(files, fd)
        info = files.stat(fd)
        self.size = info.size
        self.identity = info.device, info.inode
        self.id = FileId(info.inode)
        self.is_confirmed = False
        self.is_doubtful = False

    @property
    def fd(self) -> int:
        """The descriptor."""
        return self._file.fd

    def begins_with(self, data: bytes) -> None:
        """Complete the id by the first batch of `data`: its base offset and CRC."""
        self.id = FileId(self.id.inode, data[:8] + data[_CRC_POS : _CRC_POS + 4])

    def is_of(self, point: DurablePoint) -> bool:
        """Whether a durable point is of this file, since the start of the machine."""
        return point.is_of_this_boot and point.file == self.id

    def doubts(self, point: DurablePoint) -> bool:
        """Whether a sync of the file has failed, and it was not replaced since."""
        # Of no file: an earlier version was replacing it.
        is_mine = point.file in (self.id, FileId())
        self.is_doubtful |= point.is_doubtful and is_mine
        return self.is_doubtful

    def begin(self, shared: SharedPoint, root: Directory, data: bytes) -> None:
        """Let the durable point be of this file, before its first batch is written."""
        # The name must survive a power failure, as what is synced later: also if
        # another member made the file, and was killed before it synced that.
        root.sync()
        self.begins_with(data)
        shared.set(self.id, 0, is_new=True)
        self.is_confirmed = True

    def confirm(self, shared: SharedPoint, root: Directory, end: int) -> None:
        """Find out whether the file is in doubt. Let the durable point be of this file,
        with the `end` bytes that it has, and be durable itself.

        The latter once for each file and start of the machine: later damage is not
        taken for what a power failure has left. A file that is shorter than was durable
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
            self.sync(shared)
            root.sync()
            shared.set(self.id, end, is_new=True)
        self.is_confirmed = True

    def sync(self, shared: SharedPoint) -> None:
        """Sync what was written. If that fails, all members know it: to none of them
        another sync says anything of what this one was to write."""
        try:
            self._files.sync(self.fd)
        except BaseException:
            self.is_doubtful = True
            with contextlib.suppress(StorageError):
                shared.doubt(self.id)
            raise
