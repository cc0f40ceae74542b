"""The two files of a group, as one member has them open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import CommitFailedError
from logstore.group.file.group_file import GroupFile, record_id
from logstore.group.file.slots import BusyError, Slots
from logstore.group.file.state import GroupState
from logstore.io.directory import Directory

__all__ = ["OpenGroup"]

# How long a call waits for the mutex, and how long a poll does, which may come again.
_WAIT_S: Final = 10.0
_POLL_WAIT_S: Final = 0.02

_Result = TypeVar("_Result")


class OpenGroup:
    """The group's file and its lock file; for one thread at a time.

    To change the file, a caller holds the mutex, and has read the end of the file since
    it took that: each `locked` method does both before it calls `work`.

    Attributes:
        id: the id of the group.
        slots: the lock file.
        file: the group's file.

    Args:
        name: of the group's file (`layout.group_file`).

    Raises:
        StorageError: the system refuses.
    """

    def __init__(self, root: Directory, name: str, id: str) -> None:
        self.id = id
        self.slots = Slots(root, name, id)
        self.file = GroupFile(root, name, record_id(id), write=True)

    def locked_within(self, wait_s: float, work: Callable[[], _Result]) -> _Result:
        """The result of `work`.

        Raises: as `Slots.locked` and `GroupFile.refresh`.
        """

        def read_and_work() -> _Result:
            self.file.refresh_held(self.slots)
            return work()

        return self.slots.locked(read_and_work, wait_s)

    def locked(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`; waits 10 s for the mutex.

        Raises:
            CommitFailedError: another member had the mutex all the time.
            others: as `locked_within`.
        """
        try:
            return self.locked_within(_WAIT_S, work)
        except BusyError:
            slots = self.slots
            pids = sorted(slots.info(slot).process.pid for slot in slots.members())
            raise CommitFailedError(
                f"the mutex of group {self.id!r:.100} was not free for "
                f"{_WAIT_S:.0f} s: one of the processes {pids} holds it and does "
                "not respond. Nothing was changed; continue or end that process",
                group=self.id,
            ) from None

    def try_locked(self, work: Callable[[], object]) -> None:
        """Call `work`, unless another member has the mutex for 20 ms.

        Raises: as `locked_within`, except BusyError.
        """
        with contextlib.suppress(BusyError):  # the next poll tries it again
            self.locked_within(_POLL_WAIT_S, work)

    def append(
        self, commits: Sequence[OffsetCommit] = (), state: GroupState | None = None
    ) -> None:
        """Append to the file, with the mutex; see `GroupFile.append`."""
        self.file.append(self.slots, commits, state=state)

    def sync(self) -> None:
        """Make durable what the file has.

        Raises: as `GroupFile.sync`.
        """
        self.file.sync(self.slots, self.file.end)

    def close(self) -> None:
        """Close both files; the locks end with that."""
        self.slots.close()
        self.file.close()
