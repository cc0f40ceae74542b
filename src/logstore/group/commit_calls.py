"""The system calls of a commit that meets nothing unusual, made in one call.

They are those that `Slots.locked`, `GroupFile.append` and `GroupFile.sync` make one by
one, in the same order, and each is made only if the one before has shown what it must:
under each lock the state is read again first. If one shows something else, what was
locked is given back, and the caller goes on step by step.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import StorageError, storage_error
from logstore.group.slots import FileId, Slots
from logstore.io.directory import Directory

__all__ = ["CommitCalls", "Made"]

# The calls by number. Up to _APPENDED: the batch is appended, and the mutex given back.
_FILE: Final = 2
_WRITE: Final = 3
_APPENDED: Final = 5
_POINT: Final = 6
_SYNC: Final = 7
_NEW_POINT: Final = 8
_SYNCED: Final = 10


class Made(NamedTuple):
    """The result of `CommitCalls.make`.

    Attributes:
        is_appended: whether the batch was appended; else nothing has changed.
        is_synced: whether it is durable, and the durable point says so.
        error: what the system has refused, as it is raised; None: nothing.
        has_sync_failed: whether that was the sync itself.
    """

    is_appended: bool
    is_synced: bool
    error: StorageError | None = None
    has_sync_failed: bool = False


class CommitCalls:
    """Those of one open file of a group; for one thread at a time.

    Attributes:
        slots: the member's open lock file.

    Args:
        file: the group's file, open for writing, which has the name `name`; its device
            and inode are `identity`.
        file_id: names it in the durable point.
    """

    def __init__(
        self,
        root: Directory,
        slots: Slots,
        name: str,
        file: native.OpenFile,
        identity: tuple[int, int],
        file_id: FileId,
    ) -> None:
        self.slots = slots
        self._path = root.path_of(name)
        self._files = root.files
        self._file_id = file_id
        # The references keep the descriptors open.
        self._held = root.held(), file
        device, inode = identity
        take, is_lock_file, end = slots.mutex_steps()
        take_turn, is_point, new_point, end_turn = slots.sync_steps()
        self._steps = native.Steps(
            [
                take,
                is_lock_file,
                native.Step(
                    native.STEP_FILE,
                    self._held[0].fd,
                    data=os.fsencode(name),
                    device=device,
                    inode=inode,
                ),
                native.Step(native.STEP_WRITE, file.fd),
                end,
                take_turn,
                is_point,
                native.Step(native.STEP_SYNC, file.fd),
                new_point,
                end_turn,
            ]
        )
        # The durable point in the lock file, as bytes, if it is of this file.
        self._point: bytes | None = None

    def make(self, end: int, data: bytes, *, durable: bool) -> Made:
        """Append bytes to the file, if it ends at `end`, and sync it if `durable`.

        Raises:
            StorageError: the system refuses to read the lock file, or to unlock it.
        """
        steps, count, point = self._steps, _APPENDED, None
        steps.set_size(_FILE, end)
        steps.set_bytes(_WRITE, data, end)
        if durable and self._knows_point():
            assert self._point is not None
            count, size = _SYNCED, end + len(data)
            steps.set_bytes(_POINT, self._point)
            new, point = self.slots.next_point(self._point, self._file_id, size)
            steps.set_bytes(_NEW_POINT, new)
        done = -1
        try:
            done, error = self._files.make_steps(steps, count)
        finally:
            # In this order an interrupt leaves no lock.
            if done != count:
                if done == _WRITE:
                    # Cut off what was written; else the next member that appends does.
                    with contextlib.suppress(OSError):
                        self._files.truncate(self._held[1].fd, end)
                self._point = None
                try:
                    # Before another member gets the turn. After an interrupt nobody
                    # knows whether the sync has failed.
                    if count == _SYNCED and done in (_SYNC, -1):
                        with contextlib.suppress(StorageError):
                            self.slots.doubt(self._file_id)
                finally:
                    if done:
                        self.slots.give_back()
        if done == _SYNCED:
            self._point = point
        return Made(
            done >= _APPENDED - 1,
            done > _NEW_POINT,
            None if error is None else self._refused(done, error),
            done == _SYNC and error is not None,
        )

    def _knows_point(self) -> bool:
        """Whether the durable point was of this file when it was read last."""
        if self._point is None:
            data = self.slots.durable_bytes()
            point = self.slots.durable_point_of(data)
            if point.is_of_this_boot and point.file == self._file_id:
                self._point = data
        return self._point is not None

    def _refused(self, number: int, error: OSError) -> StorageError:
        action = {
            native.STEP_LOCK: "lock",
            native.STEP_UNLOCK: "unlock",
            native.STEP_FILE: "look at",
            native.STEP_BYTES: "read",
            native.STEP_WRITE: "write",
            native.STEP_SYNC: "sync",
        }[self._steps[number].kind]
        is_of_file = number in (_FILE, _WRITE, _SYNC)
        path = self._path if is_of_file else self.slots.path
        return storage_error(error, action, path)
