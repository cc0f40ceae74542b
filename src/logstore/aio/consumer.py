"""A consumer for tasks of asyncio."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from logstore.aio.loops import Binding
from logstore.aio.store import Store
from logstore.aio.turns import Turns
from logstore.config import check_int
from logstore.errors import ConfigError
from logstore.group.consumer.consumer import Consumer as BlockingConsumer
from logstore.group.consumer.consumer import deliveries_of
from logstore.group.consumer.deliveries import Deliveries
from logstore.group.consumer.options import (
    Callback,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetStore,
)
from logstore.group.consumer.transaction import ConsumerTransaction
from logstore.group.member.assignors import Assignor
from logstore.io.layout import TopicPartition
from logstore.log.read.corruption import OnCorruption
from logstore.record.record import TopicRecord

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["AsyncTransaction", "Consumer"]

_Result = TypeVar("_Result")
_Found = dict[TopicPartition, list[TopicRecord]]

# A record that was delivered in between makes other tasks wait no longer than this.
_RECORDS_MAX: Final = 256


class Consumer:
    """A `logstore.Consumer` for tasks of one event loop; an asynchronous context
    manager, and an asynchronous iterator over the records.

        async with logstore.aio.Consumer("data", group="mail", topics=["orders"]) as c:
            async for record in c:
                ...
                await c.commit()

    Every call is awaited. A thread of the consumer makes them, one after the other, so
    that neither a disk nor another member of the group blocks the loop. The callbacks
    are called by that thread, too: they are plain functions, and use `blocking`.

    Args: as `logstore.Consumer`; `store` is a path, a `logstore.aio.Store` or a
        `logstore.Store`. Nothing is opened before `start`.

    Attributes:
        blocking: the `logstore.Consumer`; None before `start`. It is only for
            callbacks: outside of them the thread may be in a call of it.
    """

    def __init__(
        self,
        store: Store | Any | str | os.PathLike[str],
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        assignor: (
            Literal["cooperative-sticky", "range", "roundrobin"] | Assignor
        ) = "cooperative-sticky",
        reset: (Literal["earliest", "latest", "error"] | datetime.timedelta) = "error",
        offsets: OffsetStore | None = None,
        auto_commit_ms: int | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        durable_only: bool = True,
        max_poll_records: int = 500,
        max_poll_interval_ms: int = 300_000,
        on_stuck: Literal["report", "evict"] = "report",
        instance: str | None = None,
        on_corruption: OnCorruption = "raise",
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        _check_callbacks(on_assign, on_revoke, on_lost, on_corruption)
        self.blocking: BlockingConsumer | None = None
        self._make = partial(
            BlockingConsumer,
            store.blocking if isinstance(store, Store) else store,
            group=group,
            topics=topics,
            pattern=pattern,
            assignor=assignor,
            reset=reset,
            offsets=offsets,
            auto_commit_ms=auto_commit_ms,
            isolation=isolation,
            durable_only=durable_only,
            max_poll_records=max_poll_records,
            max_poll_interval_ms=max_poll_interval_ms,
            on_stuck=on_stuck,
            instance=instance,
            on_corruption=on_corruption,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
        )
        self._name = "a consumer" if group is None else f"a consumer of {group!r:.100}"
        self._binding = Binding(self._name)
        self._turns = Turns(self._name, self._binding, self._read_ahead)
        # Records that tasks got without waiting, one after the other.
        self._delivered = 0
        self._stopping: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<logstore.aio.Consumer: {self._name}>"

    # ------------------------------------------------------------ begin and end

    async def start(self) -> None:
        """Open the store, if a path was given. The first call for records joins the
        group. Other calls start it, too.

        Raises: as the constructor of `logstore.Consumer`; `StoreClosedError`: it was
        stopped.
        """
        if self.blocking is not None and not self._turns.is_ended:
            return

        def made() -> BlockingConsumer:
            # Two tasks may start it: the thread does it once.
            if self.blocking is None:
                self.blocking = self._make()
            return self.blocking

        await self._turns.call(made)

    async def stop(self) -> None:
        """Call `on_revoke`, commit if it commits by itself, and leave the group. Tasks
        that wait for records get `StoreClosedError`. May be called again. If the task
        is cancelled, it is stopped nevertheless.

        Raises: what the callback or the commit raise; it is stopped in any case.
        """
        await self._stop(None)

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it. After an error it does not commit by itself: the records that were
        delivered may not be done."""
        await self._stop(error)

    async def _stop(self, error: BaseException | None) -> None:
        self._binding.loop()
        if self._stopping is None:

            def close() -> None:
                if self.blocking is not None:
                    kind = None if error is None else type(error)
                    self.blocking.__exit__(kind, error, None)

            self._check_fork()
            self._stopping = self._turns.end(close)
            if self._stopping is None:
                return
        elif self._stopping.done():
            return
        await asyncio.shield(self._stopping)

    # ------------------------------------------------------------ the thread

    def _check_fork(self) -> None:
        if self.blocking is not None:
            deliveries_of(self.blocking).entry.check_fork()

    def _read_ahead(self, limit: int | None, seconds: float) -> bool:
        assert self.blocking is not None
        return deliveries_of(self.blocking).read_ahead(limit, seconds)

    async def _asked(
        self,
        ask: Callable[[BlockingConsumer], _Result],
        undo: Callable[[], object] | None = None,
        *,
        is_kept: bool = False,
    ) -> _Result:
        """See `Turns.call`."""
        await self.start()
        blocking = self.blocking
        assert blocking is not None
        self._check_fork()
        return await self._turns.call(partial(ask, blocking), undo, is_kept=is_kept)

    # ------------------------------------------------------------ records

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> TopicRecord:
        """See `getone`."""
        return await self.getone()

    async def getone(self) -> TopicRecord:
        """The next record; waits for it. The position of its partition is then after
        it.

        If the task is cancelled, no record is lost: the next call returns it.

        Raises: as `logstore.Consumer.poll`; `StoreClosedError`: it was stopped.
        """
        record = await self._taken(
            lambda deliveries, at_once: deliveries.next_read(at_once=at_once)
        )
        assert record is not None  # it waits without a limit
        return record

    async def getmany(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> _Found:
        """The next records of each partition, as soon as there are any; as
        `logstore.Consumer.poll`.

        If the task is cancelled, no record is lost: the next call returns them.
        """
        check_int("timeout_ms", timeout_ms, 0, 1 << 53)
        if max_records is not None:
            check_int("max_records", max_records, 1, 1 << 31)
        records = await self._taken(
            lambda deliveries, at_once: deliveries.next_many(
                max_records, at_once=at_once
            ),
            timeout_ms / 1000,
            max_records,
        )
        return records or {}

    async def _taken(
        self,
        take: Callable[[Deliveries, bool], _Result | None],
        seconds: float = math.inf,
        limit: int | None = None,
    ) -> _Result | None:
        """Result of `take` when there are records; None when the time is over.

        Args:
            seconds: how long to wait for records.
            limit: see `Turns.records`.
        """
        end = self._binding.loop().time() + seconds
        while self._turns.is_free and not self._turns.is_ended:
            blocking = self.blocking
            if blocking is None:
                break
            deliveries = deliveries_of(blocking)
            deliveries.entry.check_fork()
            if self._delivered >= _RECORDS_MAX:
                self._delivered = 0
                await asyncio.sleep(0)
                continue
            # From here to the return nothing is awaited.
            result = take(deliveries, True)
            if not result:
                break
            self._delivered += 1
            return result
        self._delivered = 0
        await self.start()
        blocking = self.blocking
        assert blocking is not None
        self._check_fork()
        return await self._turns.records(
            partial(take, deliveries_of(blocking)), end, limit
        )

    # ------------------------------------------------------------ topics

    async def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Ask for topics, instead of those before; as `logstore.Consumer.subscribe`."""
        _check_callbacks(on_assign, on_revoke, on_lost)
        await self._asked(
            lambda consumer: consumer.subscribe(
                topics,
                pattern=pattern,
                on_assign=on_assign,
                on_revoke=on_revoke,
                on_lost=on_lost,
            )
        )

    async def unsubscribe(self) -> None:
        """Give up all partitions, with `on_revoke`, and leave the group."""
        await self._asked(lambda consumer: consumer.unsubscribe())

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, and no others; as `logstore.Consumer.assign`."""
        keys = list(partitions)
        await self._asked(lambda consumer: consumer.assign(keys))

    async def subscription(self) -> set[str]:
        """The names of the topics that it asks for."""
        return await self._asked(lambda consumer: consumer.subscription())

    async def assignment(self) -> set[TopicPartition]:
        """The partitions that it has."""
        return await self._asked(lambda consumer: consumer.assignment())

    # ------------------------------------------------------------ commits

    async def commit(
        self, offsets: Mapping[Any, Any] | None = None, *, durable: bool = True
    ) -> None:
        """Commit positions; as `logstore.Consumer.commit`. A task that is cancelled
        does not know whether it is done."""
        commits = None if offsets is None else dict(offsets)
        await self._asked(lambda consumer: consumer.commit(commits, durable=durable))

    async def committed(self, partition: tuple[str, int]) -> OffsetAndMetadata | None:
        """The offset that the group has committed for a partition; None: no commit
        counts."""
        return await self._asked(lambda consumer: consumer.committed(partition))

    def transaction(self, *, timeout_ms: int | None = None) -> AsyncTransaction:
        """Records that are published together with the positions, all or nothing; as
        `logstore.Consumer.transaction`::

            async with consumer.transaction() as transaction:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    for record in records:
                        await transaction.append("out", work(record))

        Args:
            timeout_ms: how long the commit waits for another process that has the store
                open for writing, in milliseconds; None: no limit.
        """
        return AsyncTransaction(self, timeout_ms)

    # ------------------------------------------------------------ positions

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record of a partition that it has."""
        return await self._asked(lambda consumer: consumer.position(partition))

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue a partition at an offset; as `logstore.Consumer.seek`."""
        await self._asked(lambda consumer: consumer.seek(partition, offset))

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue partitions at their first record; none given: all."""
        await self._asked(lambda consumer: consumer.seek_to_beginning(*partitions))

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue partitions after the last record that could be delivered now; none
        given: all."""
        await self._asked(lambda consumer: consumer.seek_to_end(*partitions))

    async def seek_to_time(self, time_ms: Any) -> None:
        """Continue at the first record since a time; as
        `logstore.Consumer.seek_to_time`."""
        await self._asked(lambda consumer: consumer.seek_to_time(time_ms))

    async def seek_to_committed(self, *partitions: tuple[str, int]) -> None:
        """Continue partitions at the committed offsets, or by ``reset``; none given:
        all."""
        await self._asked(lambda consumer: consumer.seek_to_committed(*partitions))

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Deliver no records of partitions until `resume`."""
        await self._asked(lambda consumer: consumer.pause(*partitions))

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Deliver records of partitions again."""
        await self._asked(lambda consumer: consumer.resume(*partitions))

    async def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return await self._asked(lambda consumer: consumer.paused())

    # ------------------------------------------------------------ offsets of the log

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        keys = list(partitions)
        return await self._asked(lambda consumer: consumer.beginning_offsets(keys))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition that could be delivered
        now."""
        keys = list(partitions)
        return await self._asked(lambda consumer: consumer.end_offsets(keys))

    async def offsets_for_times(
        self, times: Mapping[Any, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition since a time, Unix milliseconds; None: no
        record is that late."""
        lookup_times = dict(times)
        return await self._asked(
            lambda consumer: consumer.offsets_for_times(lookup_times)
        )

    async def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from the position of each of its partitions to the end
        of the records that could be delivered now."""
        return await self._asked(lambda consumer: consumer.lag())

    async def group_metadata(self) -> tuple[str | None, int, str]:
        """(group, generation, member); as `logstore.Consumer.group_metadata`."""
        return await self._asked(lambda consumer: consumer.group_metadata())


class AsyncTransaction:
    """The result of `logstore.Consumer.transaction`, for tasks; an asynchronous context
    manager. Made by `Consumer.transaction`.

    A task that is cancelled while it enters has not begun it, and one that is cancelled
    in `append` has added nothing. A commit or an end in which a task is cancelled is
    completed; the next `getmany` continues accordingly.
    """

    def __init__(self, consumer: Consumer, timeout_ms: int | None) -> None:
        self._consumer = consumer
        self._timeout_ms = timeout_ms
        self._blocking: ConsumerTransaction | None = None

    async def _asked(
        self,
        ask: Callable[[ConsumerTransaction], _Result],
        undo: Callable[[ConsumerTransaction], object] | None = None,
        *,
        is_kept: bool = False,
    ) -> _Result:
        def asked(consumer: BlockingConsumer) -> _Result:
            if self._blocking is None:
                self._blocking = consumer.transaction(timeout_ms=self._timeout_ms)
            return ask(self._blocking)

        def undone() -> None:
            assert undo is not None
            assert self._blocking is not None
            undo(self._blocking)

        return await self._consumer._asked(
            asked, None if undo is None else undone, is_kept=is_kept
        )

    async def __aenter__(self) -> AsyncTransaction:
        def forget(transaction: ConsumerTransaction) -> None:
            transaction.forget()
            self._blocking = None

        await self._asked(lambda transaction: transaction.__enter__(), forget)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._asked(
            lambda transaction: transaction.__exit__(kind, error, trace), is_kept=True
        )

    async def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        *,
        key: ReadableBuffer | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a record; it is kept in memory until the commit."""
        await self._asked(
            lambda transaction: transaction.append(
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            ),
            lambda transaction: transaction.take_back(),
        )

    async def commit(self) -> None:
        """Publish the records and the positions, durably, both or neither.

        Raises: as `logstore.Consumer.transaction` in its commit: `FencedError`,
        `CommitFailedError` and the errors of `Store.submit`.
        """
        await self._asked(lambda transaction: transaction.commit(), is_kept=True)

    async def abort(self) -> None:
        """Publish nothing, and let `getmany` deliver the same records again."""
        await self._asked(lambda transaction: transaction.abort(), is_kept=True)


def _check_callbacks(*callbacks: object) -> None:
    for callback in callbacks:
        if inspect.iscoroutinefunction(callback):
            raise ConfigError(
                f"{callback!r:.100} is a coroutine function; callbacks are plain "
                f"functions, which the thread of the consumer calls",
                name="callback",
                value=callback,
            )
