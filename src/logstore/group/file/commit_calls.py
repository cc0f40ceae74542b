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
from logstore.group.file.slots import Slots
from logstore.group.file.synced_file import SyncedFile
from logstore.io.directory import Directory

__all__ = ["CommitCalls", "Made"]

# The calls by number. The first one is for a commit that is to be durable. With those
# before _APPENDED the batch is appended, and the mutex given back.
_KNOWN: Final = 0
_MUTEX: Final = 1
_FILE: Final = 3
_WRITE: Final = 4
_APPENDED: Final = 6
_POINT: Final = 7
_SYNC: Final = 8
_NEW_POINT: Final = 9
_SYNCED: Final = 11


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


_NOT_MADE: Final = Made(is_appended=False, is_synced=False)
_APPENDED_ONLY: Final = Made(is_appended=True, is_synced=False)
_SYNCED_TOO: Final = Made(is_appended=True, is_synced=True)


class CommitCalls:
    """The calls on one open file of a group; for one thread at a time.

    Attributes:
        slots: the member's open lock file.

    Args:
        file: the group's file, open for writing, which has the name `name`.
    """

    def __init__(
        self, root: Directory, slots: Slots, name: str, file: SyncedFile
    ) -> None:
        self.slots = slots
        self._path = root.path_of(name)
        self._files = root.files
        # The references keep the descriptors open.
        self._root_file = root.held()
        self._file = file
        device, inode = file.identity
        take, is_lock_file, end = slots.mutex_steps()
        take_turn, is_point, new_point, end_turn = slots.point.steps()
        self._steps = native.Steps(
            [
                is_point,
                take,
                is_lock_file,
                native.Step(
                    native.STEP_FILE,
                    self._root_file.fd,
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
        # The durable point in the lock file, as bytes, if it is of this file, and no
        # sync has failed.
        self._point = b""

    def make(self, end: int, data: bytes, *, durable: bool) -> Made:
        """Append bytes to the file, if it ends at `end`, and sync it if `durable`.

        Raises:
            StorageError: the system refuses to read the lock file, or to unlock it.
        """
        self._steps.set_size(_FILE, end)
        self._steps.set_bytes(_WRITE, data, end)
        if not durable:
            return self._made(end, _MUTEX, _APPENDED)
        made = _NOT_MADE
        if self._point:
            made = self._made_durable(end, end + len(data))
        if made is _NOT_MADE:
            # Another member has moved the point since.
            self._point = self._read_point()
            if self._point:
                made = self._made_durable(end, end + len(data))
        return made

    def _made_durable(self, end: int, size: int) -> Made:
        """Make the calls with a sync; with a `_point`."""
        steps, before = self._steps, self._point
        steps.set_bytes(_KNOWN, before)
        steps.set_bytes(_POINT, before)
        new, after = self.slots.point.next(before, self._file.id, size)
        steps.set_bytes(_NEW_POINT, new)
        made = self._made(end, _KNOWN, _SYNCED)
        if made.is_synced:
            self._point = after
        return made

    def _made(self, end: int, begin: int, stop: int) -> Made:
        done = -1
        try:
            done, error = self._files.make_steps(self._steps, stop, begin)
        finally:
            # In this order an interrupt leaves no lock.
            if done != stop:
                self._end_early(done, end, is_durable=stop == _SYNCED)
        if done == stop:
            return _SYNCED_TOO if stop == _SYNCED else _APPENDED_ONLY
        if done <= _FILE and error is None:
            return _NOT_MADE
        return Made(
            done >= _APPENDED - 1,
            done > _NEW_POINT,
            None if error is None else self._refused(done, error),
            done == _SYNC and error is not None,
        )

    def _end_early(self, done: int, end: int, *, is_durable: bool) -> None:
        """After `done` calls, not all; -1: the number is unknown."""
        if done == _WRITE:
            # Cut off what was written; else the next member that appends does.
            with contextlib.suppress(OSError):
                self._files.truncate(self._file.fd, end)
        self._point = b""
        try:
            # Before another member gets the turn. After an interrupt nobody knows
            # whether the sync has failed.
            if is_durable and done in (_SYNC, -1):
                with contextlib.suppress(StorageError):
                    self.slots.point.doubt(self._file.id)
        finally:
            if done not in (_KNOWN, _MUTEX):
                self.slots.give_back()

    def _read_point(self) -> bytes:
        """The durable point, if it is of this file and no sync has failed; else
        nothing."""
        data = self.slots.point.data()
        point = self.slots.point.of(data)
        return data if self._file.is_of(point) and not point.is_doubtful else b""

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
