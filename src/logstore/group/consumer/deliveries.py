"""Admits one call at a time to a consumer, and delivers its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from logstore import _native as native
from logstore.config import check_int
from logstore.errors import ForkedError, StoreClosedError
from logstore.group.consumer.core import Core
from logstore.group.consumer.reading import Before
from logstore.io.layout import TopicPartition
from logstore.record.record import TopicRecord

__all__ = ["Deliveries", "CallGate"]

_Found: TypeAlias = dict[TopicPartition, list[TopicRecord]]


class CallGate:
    """Lets one call at a time into a consumer.

    Attributes:
        name: of the consumer, for messages.
        is_closed: whether no call is let in any more, except for the end of `close`.
    """

    def __init__(self, core: Core) -> None:
        group = core.place.options.group
        of = "without a group" if group is None else f"of group {group!r:.100}"
        self.name = f"<logstore.Consumer {of} on {core.place.store.path}>"
        self.is_closed = False
        self._core = core
        self._forks = native.forks()

    def call(self, from_callback: bool = True) -> native.Call[Core]:
        """A context manager: the inside of the consumer, for one call.

        Args:
            from_callback: whether a callback may make it.

        Raises:
            StoreClosedError, ForkedError.
            ReentrantCallError: another call is under way.
        """
        core = self._core
        if (
            # As `enter`, without its calls: each record of an iteration comes this way.
            not self.is_closed
            and native.forks() == self._forks
            and not core.before
            and core.transaction_state is None
        ):
            return core.calls.call(core, from_callback)
        if self.is_closed:
            raise StoreClosedError(f"{self.name} is closed")
        return self.enter(from_callback)

    def enter(self, from_callback: bool) -> native.Call[Core]:
        """Let a call in, as `call` does, also after `close` was interrupted."""
        self.check_fork()
        core = self._core
        if core.is_unsettled:
            # Settling it was cut short, as by a second interrupt.
            with core.calls.call(core, from_callback):
                core.settle()
        return core.calls.call(core, from_callback)

    @property
    def is_forked(self) -> bool:
        """True in the child of a fork."""
        return native.forks() != self._forks

    def check_fork(self) -> None:
        """Raise `ForkedError` in the child of a fork."""
        if native.forks() != self._forks:
            raise ForkedError(
                f"{self.name} was opened before a fork, and belongs to the parent; "
                f"open another one in the child"
            )


class Deliveries:
    """The records of a consumer: as `poll` returns them, and read ahead for tasks. Each
    call raises the errors of `Consumer.poll`.

    Args:
        records_max: by default, at most this many at once.

    Attributes:
        entry: how its calls enter the consumer.
    """

    def __init__(self, entry: CallGate, records_max: int) -> None:
        self.entry = entry
        self._records_max = records_max

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._records_max
        check_int("max_records", max_records, 1, 1 << 31)
        return max_records

    def poll(self, seconds: float, max_records: int | None) -> _Found:
        """Deliver records: see `Consumer.poll`."""
        limit = self._limit(max_records)
        return self._many(lambda core, before: core.poll(limit, seconds, before))

    def _many(self, take: Callable[[Core, Before], _Found]) -> _Found:
        """The records that `take` returns. A call that is cut short delivers none."""
        before: Before = []
        try:
            with self.entry.call(False) as core:
                core.before = before
                records = take(core, before)
                core.before = []
                return records
        except BaseException:
            # The records that it has read are not delivered.
            for reader, position in before:
                reader.back_to(position)
            raise

    def read_ahead(self, max_records: int | None, seconds: float) -> bool:
        """Read records ahead for `next_read` and `next_many`; whether there are any,
        after `seconds` at most."""
        limit = max(self._limit(max_records), self._records_max)
        with self.entry.call(False) as core:
            return core.fill(limit, seconds)

    def next_read(self, *, at_once: bool) -> TopicRecord | None:
        """The next record, if it was read ahead; with `at_once`, only if it is not time
        to look at the group. It waits for nothing."""
        with self.entry.call(False) as core:
            return None if at_once and core.is_late else core.fetcher.ahead.next()

    def next_many(self, max_records: int | None, *, at_once: bool) -> _Found:
        """Deliver records that were read ahead, as `poll` does; see `next_read`."""
        limit = self._limit(max_records)
        return self._many(
            lambda core, before: (
                {}
                if at_once and core.is_late
                else core.fetcher.ahead.many(limit, before)
            )
        )
