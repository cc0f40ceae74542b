"""How long a consumer waits, and for which changes of its group. New records wake it
by `logstore.store.partition.new_records`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logstore import _native as native
from logstore.group.consumer.reading import PartitionReader
from logstore.group.member.membership import Membership
from logstore.io.directory import Directory
from logstore.io.wakeups import Watch
from logstore.store.package_access import views_of
from logstore.store.partition.new_records import NewRecords

__all__ = ["Waiting"]

# After a report that explains nothing yet (a process that ends closes its files before
# it gives back their locks): so long at first, then twice as long.
_AGAIN_S: Final = 0.002
# Sleep no longer: members that are stuck, and what a watch has missed, give no sign.
_GROUP_S_MAX: Final = 1.0
# The same while there are records that another process has not made durable yet.
_DURABLE_S_MAX: Final = 0.02


class Waiting:
    """The waits of one consumer, for one thread at a time.

    Args:
        root: the directory of the store.
        writes: whether this process writes the store, and so knows of each sync.
    """

    def __init__(self, root: Directory, *, writes: bool) -> None:
        self._writes = writes
        self._new_records = NewRecords(root)
        self._pause_s = _GROUP_S_MAX

    def begin(self) -> None:
        """A call begins: where changes are not reported, sleep shortly at first."""
        self._new_records.restart_pauses()

    def wait(
        self,
        readers: Sequence[PartitionReader],
        member: Membership | None,
        seconds: float,
    ) -> bool:
        """Wait for a change, at most `seconds`, or less; whether something may have
        changed.

        Args:
            member: also wait for other members of its group.
        """
        seconds = min(seconds, self._pause_s)
        if not self._writes and any(reader.log.waits_for_sync for reader in readers):
            seconds = min(seconds, _DURABLE_S_MAX)
        watches = []
        if member is not None:
            seconds = min(seconds, member.liveness.due_s())
            watches.append(Watch(member.group.slots.fd, native.WATCH_WRITES))
        is_woken = self._new_records.wait(
            [views_of(reader.partition) for reader in readers],
            seconds,
            more=watches,
            # A topic that is made again has other directories of the same names.
            incarnation=[reader.topic_id for reader in readers],
        )
        is_reported = is_woken and self._new_records.is_reporting
        again = _AGAIN_S if is_reported else self._pause_s * 2
        self._pause_s = min(again, _GROUP_S_MAX)
        return is_woken

    def close(self) -> None:
        """Wait for nothing any more."""
        self._new_records.close()
