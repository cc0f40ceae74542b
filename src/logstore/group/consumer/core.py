"""The work of a consumer: keeps its place in the group, reads, commits.

`Consumer` checks the arguments, and lets one call in at a time: it is here then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from logstore import _native as native
from logstore.group.consumer.assigned_partitions import AssignedPartitions
from logstore.group.consumer.committer import Committer
from logstore.group.consumer.fetcher import Fetcher
from logstore.group.consumer.group_place import GroupPlace
from logstore.group.consumer.options import Options
from logstore.group.consumer.reading import Before, PartitionReader
from logstore.group.consumer.transaction import COMMITTED, FORGOTTEN, TransactionState
from logstore.group.consumer.waiting import Waiting
from logstore.io.layout import TopicPartition
from logstore.record.record import TopicRecord
from logstore.store.store import Store

__all__ = ["Core"]

# All partitions are looked at once in this time, also without a report.
_LOOK_S: Final = 1.0

_Result = TypeVar("_Result")


class Core:
    """The inside of one consumer; for one thread at a time.

    Records read by a call count as delivered when the call has ended: `before` and
    `transaction_state` say what the next call delivers again if it has not.

    Attributes:
        place: in the group.
        readers: of the partitions that it has, in the order in which they came.
        partitions: the same, as known to the group and the callbacks.
        committer: commits their positions.
        fetcher: reads them.
        calls: of the user, which are under way.
        before: the positions before a `poll` that is under way, or did not come to its
            end: its records were not delivered.
        transaction_state: of the last transaction, until its end was taken note of.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self.calls = native.Calls(f"<logstore.Consumer of {options.group!r:.100}>")
        self.place = GroupPlace(store, options)
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.committer = Committer(self.place, self.readers)
        self.partitions = AssignedPartitions(
            self.place, self.committer, self.readers, self.calls
        )
        self.fetcher = Fetcher(self.place, self.partitions)
        self.before: Before = []
        self.transaction_state: TransactionState | None = None
        self._files = self.place.root.files
        self._waiting = Waiting(self.place.root, writes=not store.read_only)

    # ------------------------------------------------------------ reading

    def poll(
        self, limit: int, seconds: float | None, before: Before
    ) -> dict[TopicPartition, list[TopicRecord]]:
        """Records as soon as there are any; none after `seconds` (None: no limit)."""
        place, fetcher = self.place, self.fetcher
        is_plain = place.options.auto_commit_ms is None
        if is_plain and self._files.monotonic() < place.check_at:
            records = fetcher.collect(limit, before)
            if records:
                return records
        return self._until(lambda: fetcher.collect(limit, before), seconds) or {}

    def next_at_once(self) -> TopicRecord | None:
        """The next record, if it was read ahead, and it is not time to look at the
        group."""
        return None if self.is_late else self.fetcher.next_read()

    def read_ahead(self, limit: int) -> None:
        """Read at most `limit` records for `Fetcher.next_read`, as soon as there are
        any."""
        self._until(lambda: self.fetcher.read_ahead(limit), None)

    def fill(self, limit: int, seconds: float) -> bool:
        """Read at most `limit` records for `Fetcher.ahead`, as soon as there are any.
        Whether there are; none after `seconds`.

        Raises: as `Fetcher.collect`.
        """
        self.fetcher.ahead.clear()
        return bool(self._until(lambda: self.fetcher.fill(limit), seconds))

    def _until(
        self, look: Callable[[], _Result | None], seconds: float | None
    ) -> _Result | None:
        """Call `look`, after each change, until it finds anything, and look at the
        group meanwhile.

        Returns:
            The result of `look`; None after `seconds` (None: no limit).
        """
        deadline = None if seconds is None else self._files.monotonic() + seconds
        self.committer.auto_commit()
        self._waiting.begin()
        look_at, is_due = 0.0, False
        while True:
            is_changed = self.partitions.coordinate(at_once=is_due)
            now = self._files.monotonic()
            readers = self.readers.values()
            if (
                is_changed
                or now >= look_at
                or any(reader.log.waits_for_sync for reader in readers)
            ):
                look_at = now + _LOOK_S
                result = look()
                if result:
                    return result
            if deadline is not None and now >= deadline:
                return None
            left = _LOOK_S if deadline is None else deadline - now
            reading = [reader for reader in readers if not reader.is_paused]
            if self._waiting.wait(reading, self.place.member, left):
                look_at = 0.0
            is_due = True
            self.committer.auto_commit()

    @property
    def is_late(self) -> bool:
        """True if it is time to look at the group."""
        return self._files.monotonic() >= self.place.check_at

    def look_now(self) -> None:
        """Look at the group, and at all partitions, in the next call."""
        self.place.check_at = 0.0

    # ------------------------------------------------------------ deliveries

    @property
    def is_unsettled(self) -> bool:
        """True if a call or a transaction has ended, and is not settled. A
        callback is inside of a call that has not ended."""
        state = self.transaction_state
        is_over = bool(self.before) or (state is not None and state.ended != "")
        return is_over and not self.calls.is_open

    def settle(self) -> None:
        """Deliver again what a `poll` has read that did not come to its end; and if the
        last transaction has ended otherwise than by a commit, its records."""
        for reader, position in self.before:
            reader.back_to(position)
        self.before = []
        state = self.transaction_state
        if state is None or not state.ended:
            return
        if state.ended not in (COMMITTED, FORGOTTEN):
            self.partitions.given_up.clear()
            for reader in self.readers.values():
                reader.rewind()
            self.look_now()
        self.transaction_state = None

    # ------------------------------------------------------------ the end

    def close(self, *, commits: bool) -> None:
        """Leave the group, and close everything."""
        try:
            self.partitions.unsubscribe(commits=commits)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files; in the child of a fork they are closed already."""
        self._waiting.close()
        self.readers.clear()
        if self.place.member is not None:
            self.place.member.group.close()
