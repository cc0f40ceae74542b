"""The system calls of a commit, in one list.

A commit that meets nothing unusual makes all of them in one call of the core; one that
is made step by step, under the locks of its caller, makes the same ones in two parts:
the write, and the sync. Each call is made only if the one before has shown what it
must: under each lock the state is read again first. If one shows something else, what
was locked is given back, and the caller continues step by step.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from logstore import _native as native
from logstore.errors import StorageError, storage_error
from logstore.group.file.slots import Slots
from logstore.group.file.synced_file import SyncedFile
from logstore.io.checkpoint.append_file import AppendCalls

__all__ = ["CommitCalls"]

# The first calls. The one on the point is for a durable commit.
_KNOWN: Final = 0
_MUTEX: Final = 1

# How many calls have had the right result, and the system's refusal then, as
# raised; None: the state differs.
_Made: TypeAlias = "tuple[int, StorageError | None]"


class CommitCalls(AppendCalls):
    """The calls on one open file of a group; for one thread at a time.

    Attributes:
        slots: the member's open lock file.
        synced: the number from which on the durable point says that it is durable.

    Args:
        file: the group's file, open for writing.
    """

    def __init__(self, slots: Slots, file: SyncedFile) -> None:
        take, is_lock_file, give_back = slots.mutex_steps()
        take_turn, is_point, new_point, end_turn = slots.point.steps()
        super().__init__(
            file,
            before=[is_point, take, is_lock_file],
            between=[give_back, take_turn, is_point],
            after=[new_point, end_turn],
        )
        self.slots = slots
        self.synced = self.sync + 2
        self._group_file = file
        # The bytes of the durable point in the lock file, and of the next one.
        # They count if the point is known to be of this file, without a failed sync.
        self._point = bytearray(slots.point.empty())
        self._next = native.PointBytes()
        self._knows_point = False
        self.steps.set_bytes(_KNOWN, self._point)
        self.steps.set_bytes(self.sync - 1, self._point)
        self.steps.set_bytes(self.sync + 1, self._next.data)

    def commit(self, end: int, data: bytes, *, durable: bool) -> _Made:
        """Append bytes to the file, if it ends at `end`, and sync it if `durable`.

        Raises:
            StorageError: the system refuses to read the lock file, or to unlock it.
        """
        self.steps.set_append(self.look, data, end)
        if not durable:
            return self._made(end, _MUTEX, self.write + 2)
        made: _Made = _KNOWN, None
        if self._knows_point:
            made = self._made_durable(end, end + len(data))
        if made[0] <= self.look and made[1] is None:
            # Another member has moved the point since.
            self._read_point()
            if self._knows_point:
                made = self._made_durable(end, end + len(data))
        return made

    def append(self, end: int, data: bytes) -> None:
        """Append bytes to the file, which ends at `end`, with the mutex.

        Raises:
            DiskFullError, StorageError: nothing was appended.
        """
        self.steps.set_bytes(self.write, data, end)
        _, error = self._made(end, self.write, self.write + 1)
        if error is not None:
            raise error

    def sync_to(self, end: int) -> None:
        """Sync the file, and set the durable point, which is of it, to `end`, with the
        turn to sync.

        Raises:
            StorageError: it is not known to be durable.
        """
        self._next.data[:] = self.slots.point.newer(self._group_file.id, end)
        _, error = self._made(end, self.sync, self.synced)
        if error is not None:
            raise error

    def _made_durable(self, end: int, size: int) -> _Made:
        """Make all calls; the point is known, and becomes `size` then."""
        self._next.move(size)
        made = self._made(end, _KNOWN, self.end)
        if made[0] >= self.synced:
            self._point[-native.POINT_BYTES :] = self._next.data
        return made

    def _made(self, end: int, begin: int, stop: int) -> _Made:
        """Make some of the calls; the file ends at `end` before the write."""
        done, error = -1, None
        try:
            done, error = self._files.make_steps(self.steps, stop, begin)
        finally:
            # In this order an interrupt leaves no lock.
            if done != stop:
                self._end_early(done, end, begin, stop)
        return done, None if error is None else self._refused(done, error)

    def _end_early(self, done: int, end: int, begin: int, stop: int) -> None:
        """After the calls up to number `done`, not all; -1: the number is unknown."""
        # A caller that has the mutex is the only one that appends. Without it, an
        # interrupt leaves the bytes to the next member that appends.
        if done == self.write or (done == -1 and begin == self.write):
            self.file.undo(end)
        self._knows_point = False
        try:
            # Before another member gets the turn. An interrupt hides whether the sync
            # has failed.
            if done == self.sync or (done == -1 and stop > self.sync):
                self._group_file.doubt(self.slots.point)
        finally:
            if begin < self.look and done not in (_KNOWN, _MUTEX):
                self.slots.give_back()

    def _read_point(self) -> None:
        """Read the durable point; it is known then if it is of this file and no sync
        has failed."""
        self._knows_point = False
        shared, file = self.slots.point, self._group_file
        data = shared.data()
        point = shared.of(data)
        if file.is_of(point) and not point.is_doubtful:
            self._point[:] = data
            self._next.data[:] = shared.newer(file.id, point.size)
            self._knows_point = True

    def _refused(self, number: int, error: OSError) -> StorageError:
        action = {
            native.STEP_LOCK: "lock",
            native.STEP_UNLOCK: "unlock",
            native.STEP_FILE: "examine",
            native.STEP_BYTES: "read",
            native.STEP_WRITE: "write",
            native.STEP_SYNC: "sync",
        }[self.steps[number].kind]
        is_of_file = number in (self.look, self.write, self.sync)
        return storage_error(
            error, action, self.file.path if is_of_file else self.slots.path
        )
