"""Records of a log as they come, for ``async for``."""

from __future__ import annotations

import abc
import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from logstore.aio.loops import Binding
from logstore.aio.wakes import FollowedPlace
from logstore.log.read.options import ReadOptions
from logstore.log.read.view import Bounds
from logstore.record.arguments import Start
from logstore.record.record import Record, TopicRecord
from logstore.store.partition.partition import Partition
from logstore.store.partition.partition_views import Turn
from logstore.store.topic import merging

__all__ = ["Follower", "OnePartition", "SomePartitions"]

_Item = TypeVar("_Item")

# Records after which a follower that need not wait lets other tasks run.
_RECORDS_MAX: Final = 256
# A loop cannot wait without an end: after this the follower looks, and waits again.
_TIMER_S_MAX: Final = 3600.0
# How long a follower of a topic waits until it looks for partitions that were added.
_ADDED_S: Final = 1.0


class _Seat:
    """A follower in a place: from `begin` on it shares the place's looks at the log.
    Before, the place may have looked at the log earlier than this follower."""

    def __init__(self, place: FollowedPlace, partition: Partition) -> None:
        self.place = place
        self._has_begun = False
        self._views = partition._views

    def begin(self) -> bool:
        """Begin to follow. Returns False if it had begun; after True, look once
        more."""
        if self._has_begun:
            return False
        self._has_begun = True
        self.place.begin()
        return True

    def look(self) -> Bounds:
        return self.place.look() if self._has_begun else self._views.refreshed_bounds()

    def has_more(self, turn: Turn | None, durable_only: bool) -> bool:
        """Whether the log that this store writes may have more than at a turn. That of
        another process is looked at by its place, which then wakes this one."""
        views = self._views
        if views.writer is None or turn is None:
            return False
        return views.has_more(turn.view, durable_only)


class Followed(abc.ABC, Generic[_Item]):
    """The source of a follower.

    Attributes:
        patience_s: how long it may wait before it looks without being woken; None:
            without a limit.
    """

    patience_s: float | None = None

    @abc.abstractmethod
    def steps(self) -> Iterator[Iterator[_Item] | bool]:
        """Runs of records, and at each end of the logs whether there was something to
        read. Without end."""

    @abc.abstractmethod
    def seats(self) -> Sequence[_Seat]: ...

    @abc.abstractmethod
    def has_more(self) -> bool:
        """Whether there may be more than at the last end."""


class OnePartition(Followed[Record]):
    """One partition."""

    def __init__(
        self,
        partition: Partition,
        place: FollowedPlace,
        start: Start,
        options: ReadOptions,
    ) -> None:
        self._seat = _Seat(place, partition)
        self._turn: Turn | None = None
        self._durable_only = options.durable_only
        self._items = partition._views.turns(start, options, self._seat.look)

    def steps(self) -> Iterator[Iterator[Record] | bool]:
        for item in self._items:
            if isinstance(item, Turn):
                self._turn = item
                yield item.has_moved
            else:
                yield item

    def seats(self) -> Sequence[_Seat]:
        return (self._seat,)

    def has_more(self) -> bool:
        return self._seat.has_more(self._turn, self._durable_only)


class SomePartitions(Followed[TopicRecord]):
    """The partitions of a topic, also partitions added later.

    Args:
        partitions: returns the current partitions, each with its place.
        starts: of the partitions that exist at first, by number.
        order: as in `Topic.follow`.
    """

    patience_s = _ADDED_S

    def __init__(
        self,
        partitions: Callable[[], Sequence[tuple[Partition, FollowedPlace]]],
        starts: dict[int, Start],
        order: str,
        options: ReadOptions,
    ) -> None:
        self._partitions = partitions
        self._order = order
        self._options = options
        self._cursors: dict[int, tuple[merging.PartitionPosition, _Seat]] = {}
        self._add(starts)

    def _add(self, starts: dict[int, Start]) -> None:
        for partition, place in self._partitions():
            if partition.number not in self._cursors:
                seat = _Seat(place, partition)
                start = starts.get(partition.number)
                cursor = merging.PartitionPosition(
                    partition, start, self._options, seat.look
                )
                self._cursors[partition.number] = cursor, seat

    def steps(self) -> Iterator[Iterator[TopicRecord] | bool]:
        while True:
            cursors = [cursor for cursor, _ in self._cursors.values()]
            yield merging.merged([cursor.records() for cursor in cursors], self._order)
            yield any(cursor.has_moved for cursor in cursors)
            self._add({})

    def seats(self) -> Sequence[_Seat]:
        return [seat for _, seat in self._cursors.values()]

    def has_more(self) -> bool:
        durable_only = self._options.durable_only
        return any(
            seat.has_more(cursor.turn, durable_only)
            for cursor, seat in self._cursors.values()
        )


class Follower(AsyncIterator[_Item]):
    """The records of a log, then records appended later. Made by `Partition.follow` and
    `Topic.follow`.

    Waiting needs no thread. A task that is cancelled while it waits for the next record
    loses none: the next call of `__anext__` continues there. If several tasks iterate
    over one follower, each record goes to one of them.
    """

    def __init__(
        self,
        binding: Binding,
        followed: Followed[_Item],
        timeout: float | None,
        limit: int | None,
    ) -> None:
        self._binding = binding
        self._followed = followed
        self._timeout = timeout
        self._left = limit
        self._steps: Iterator[Iterator[_Item] | bool] = followed.steps()
        self._run: Iterator[_Item] = iter(())
        # Of the run, in memory: a record is taken from here and returned in one step.
        self._burst: Iterator[_Item] = iter(())
        # Raised by the run after the records of the burst.
        self._failure: BaseException | None = None
        self._without_pause = 0
        self._moved_at: float | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def __aiter__(self) -> Follower[_Item]:
        return self

    async def __anext__(self) -> _Item:
        """The next record.

        Raises:
            StopAsyncIteration: after `limit` records, `timeout` seconds without one,
                an error, or `aclose`.
            others: as `Partition.follow`.
        """
        for record in self._burst:
            return record
        while await self._advance():
            # Nothing is awaited from here to the return: a record that was taken is
            # returned.
            for record in self._burst:
                return record
        self._end()
        raise StopAsyncIteration

    async def _advance(self) -> bool:
        """Fill the burst, which is empty, or do a step towards that; False: there is
        nothing more. When it has waited, another task may have filled the burst."""
        loop = self._binding.loop()
        if self._moved_at is None:
            self._moved_at = loop.time()
        if self._without_pause >= _RECORDS_MAX:
            self._without_pause = 0
            await asyncio.sleep(0)
            return True
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._end()
            raise failure
        if self._left == 0:
            return False
        if self._take():
            return True
        step = next(self._steps, None)
        if step is None:
            return False
        if not isinstance(step, bool):
            self._run = step
        elif step:
            self._moved_at = loop.time()
        else:
            return await self._wait(loop)
        return True

    def _take(self) -> bool:
        """Fill the burst from the run; False: the run has no more."""
        most = _RECORDS_MAX if self._left is None else min(_RECORDS_MAX, self._left)
        burst: list[_Item] = []
        try:
            # An error leaves those before it in the list.
            burst.extend(itertools.islice(self._run, most))
        except BaseException as error:
            if not burst:
                raise
            self._failure = error
        if self._left is not None:
            self._left -= len(burst)
        self._without_pause += len(burst)
        self._burst = iter(burst)
        return bool(burst)

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return when there may be more; False: the time is over."""
        seats = self._followed.seats()
        is_new = [seat.begin() for seat in seats]
        if any(is_new):
            return True
        limit = self._followed.patience_s
        if self._timeout is not None:
            assert self._moved_at is not None
            left = self._moved_at + self._timeout - loop.time()
            if left <= 0:
                return False
            limit = left if limit is None else min(left, limit)
        self._without_pause = 0
        woken = loop.create_future()
        self._waiting.add(woken)
        timer = None
        if limit is not None:
            timer = loop.call_later(min(limit, _TIMER_S_MAX), _wake, woken)
        try:
            for seat in seats:
                seat.place.add(woken)
            if not self._followed.has_more():
                await woken
        finally:
            self._waiting.discard(woken)
            if timer is not None:
                timer.cancel()
            for seat in seats:
                seat.place.discard(woken)
        return True

    async def aclose(self) -> None:
        """End the iteration, also for tasks that wait for a record, and release its
        memory. It may be called again."""
        self._end()
        for woken in list(self._waiting):
            _wake(woken)

    def _end(self) -> None:
        self._left = 0
        self._run = self._burst = iter(())
        self._steps = iter(())


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
