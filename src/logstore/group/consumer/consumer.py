"""`Consumer`: reads topics as a member of a group."""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias

from logstore.config import INT64_MAX, check_int
from logstore.errors import (
    ConfigError,
    LogStoreError,
)
from logstore.group.consumer.core import Core
from logstore.group.consumer.deliveries import CallGate, Deliveries
from logstore.group.consumer.inputs import begin_transaction
from logstore.group.consumer.options import (
    Callback,
    Callbacks,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetStore,
    Options,
    as_commits,
    as_partition,
    as_partitions,
    as_subscription,
)
from logstore.group.consumer.positions import offsets_for_times
from logstore.group.consumer.reading import PartitionReader
from logstore.group.consumer.transaction import ConsumerTransaction
from logstore.group.member.assignors import Assignor
from logstore.io.layout import TopicPartition
from logstore.log.read.corruption import OnCorruption
from logstore.record.arguments import as_offset, as_time_ms, refuse_pickling
from logstore.record.record import TopicRecord
from logstore.store.opening import open_store
from logstore.store.package_access import topics_now
from logstore.store.store import Store

__all__ = ["Consumer", "deliveries_of"]

_Found: TypeAlias = dict[TopicPartition, list[TopicRecord]]


class Consumer:
    """Reads topics, alone or as a member of a group; a context manager, and an iterator
    over the records.

    The partitions of the topics are distributed over the members of the group: each
    partition is read by one of them, and what it commits is where another one continues
    later. Members may be in any number of processes on this machine. There is no
    daemon: everything happens in the calls of the consumer, the callbacks, too.

    A consumer is for one thread at a time.

    Args:
        store: an open store, or the path of one, which is opened read-only.
        group: the id of the group: 1 to 10,000 characters but NUL. None: no group: all
            partitions of the topics are this consumer's, and it cannot commit.
        topics, pattern: as in `subscribe`.
        assignor: how partitions are distributed; the same for all members:
            "cooperative-sticky", "range", "roundrobin", or an `Assignor`.
        reset: where to begin without a committed offset, or if that was deleted:
            "earliest", "latest", a span of time before now, or "error": raise
            `NoOffsetForPartitionError` or `OffsetOutOfRangeError`. If the log is cut
            below the position, reading continues at the cut, except with "error".
        offsets: keeps committed offsets, instead of the group's file.
        auto_commit_ms: commit automatically, in `poll` and the iterator, what they
            delivered before, after this many milliseconds; without a sync, and
            with one when partitions are given up. None: never.
        isolation: "read_committed" leaves out aborted transactions and stops at an open
            one; "read_uncommitted" does not.
        durable_only: deliver a record when it is on stable storage. Otherwise a power
            failure may take back what was delivered.
        max_poll_records: how many records a call of `poll` returns at most.
        max_poll_interval_ms: after this many milliseconds without a call the member
            counts as stuck.
        on_stuck: what this member does with others that are stuck: "report" them (a
            warning, and in `groups`), or "evict" them: the others get their partitions,
            and their next commit raises `FencedError`.
        instance: makes a static member of this name; two cannot live at a time.
        on_corruption: as in `Partition.read`; a function is called in the call that
            reads, and again after a `seek`.
        on_assign, on_revoke, on_lost: as in `subscribe`.

    Raises:
        ConfigError, TypeError: an argument cannot be used; or there is a group, and
            opening the store for writing would need a setting.
        StoreNotFoundError, StorageError: the store cannot be opened.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
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
        # Until it is complete: no call is let in; nothing is left to be closed.
        self._is_finished = True
        self._own_store: Store | None = None
        self._options = Options.of(
            group=group,
            assignor=assignor,
            reset=reset,
            offsets=offsets,
            auto_commit_ms=auto_commit_ms,
            isolation=isolation,
            durable_only=bool(durable_only),
            max_poll_records=max_poll_records,
            max_poll_interval_ms=max_poll_interval_ms,
            on_stuck=on_stuck,
            instance=instance,
            on_corruption=on_corruption,
        )
        wanted = as_subscription(topics, pattern)
        if not isinstance(store, Store):
            store = self._own_store = open_store(store, read_only=True)
        try:
            self._core = Core(store, self._options)
        except BaseException:
            if self._own_store is not None:
                self._own_store.close()
            raise
        self._entry = CallGate(self._core)
        self._deliveries = Deliveries(self._entry, self._options.max_poll_records)
        self._is_finished = False
        if topics or pattern is not None:
            self._core.place.wanted = wanted
        self._core.partitions.callbacks = Callbacks(on_assign, on_revoke, on_lost)

    def __repr__(self) -> str:
        return self._entry.name

    def __reduce__(self) -> Any:
        refuse_pickling(self, self._core.place.store.path)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it. Records delivered before an error are not committed by itself:
        they may not be done."""
        self._close(commits=error is None)

    def __del__(self) -> None:
        # The files are closed with their last reference, which ends the membership.
        if getattr(self, "_is_finished", True) or self._entry.is_forked:
            return
        text = f"{self!r} was not closed"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    # ------------------------------------------------------------ its partitions

    def _reader(self, core: Core, key: Any) -> PartitionReader:
        reader = core.readers.get(as_partition(key))
        if reader is None:
            raise self._not_assigned(key)
        return reader

    def _not_assigned(self, key: Any) -> ConfigError:
        return ConfigError(
            f"partition {key!r:.100} is not assigned to {self!r}; `assignment()` says "
            f"which are",
            name="partition",
            value=key,
        )

    def _readers(self, core: Core, keys: Iterable[Any]) -> list[PartitionReader]:
        keys = list(keys)
        return [self._reader(core, key) for key in keys or core.readers]

    # ------------------------------------------------------------ topics

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Ask for topics, instead of those before. The change happens in the
        next `poll`.

        Args:
            topics: names; a topic that does not exist yet is waited for.
            pattern: a regular expression; topics whose names it matches at their
                beginning are asked for, too, as soon as they exist.
            on_assign: called with partitions that this consumer has got, before their
                first record: it may seek. If it raises, `poll` raises that, and the
                next one calls it again.
            on_revoke: called with partitions that it is to give up. No other member has
                them before it returns: it may commit. If it raises, they are given up
                nevertheless, and nothing is committed by itself.
            on_lost: called with partitions that the group has given to others already,
                or whose topics were deleted; None: `on_revoke` is called.

        Raises:
            ConfigError, TypeError: an argument cannot be used.
        """
        wanted = as_subscription(topics, pattern)
        with self._entry.call(False) as core:
            if core.place.wanted is None:
                # Partitions that it has by `assign` or by a commit.
                core.partitions.unsubscribe()
            core.place.wanted = wanted
            core.partitions.callbacks = Callbacks(on_assign, on_revoke, on_lost)
            core.look_now()

    def unsubscribe(self) -> None:
        """Give up all partitions, with `on_revoke`, and leave the group."""
        with self._entry.call(False) as core:
            core.partitions.unsubscribe()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, and no others, whatever the other members read.

        In a group each is taken if it is free; a commit of one that another member has
        raises `CommitFailedError`.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: one does not exist; nothing was
                changed.
        """
        keys = as_partitions(partitions)
        with self._entry.call(False) as core:
            for key in keys:
                core.place.positions.partition(key)
            core.partitions.assign(keys)

    def subscription(self) -> set[str]:
        """The names of the topics that it asks for; by a pattern, the existing ones."""
        with self._entry.call() as core:
            wanted, store = core.place.wanted, core.place.store
            if wanted is None:
                return set()
            names = () if wanted.pattern is None else topics_now(store)
            return {*wanted.topics, *wanted.of(names)}

    def assignment(self) -> set[TopicPartition]:
        """The partitions that it has."""
        with self._entry.call() as core:
            return set(core.readers)

    # ------------------------------------------------------------ records

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> _Found:
        """The next records of each partition, as soon as there are any.

        The first call joins the group. The position of a partition is after the
        records that were returned.

        Args:
            timeout_ms: wait at most this many milliseconds for the first record.
            max_records: return at most this many; None: ``max_poll_records``.

        Raises:
            NoOffsetForPartitionError, OffsetOutOfRangeError: with ``reset="error"``, at
                each call until a `seek`.
            CorruptRecordError: after the records before the damage, at each call until
                a `seek`, for example to its ``next_offset``.
            MemberIdInUseError, InconsistentAssignorError: it cannot join the group.
            ForkedError: it belongs to the parent of this process.
            StorageError: the system refuses, also a commit by itself.
        """
        check_int("timeout_ms", timeout_ms, 0, 1 << 53)
        return self._deliveries.poll(timeout_ms / 1000, max_records)

    def __iter__(self) -> Iterator[TopicRecord]:
        """The records, one by one, without an end. The position of a partition is
        after the record that came last."""
        return self

    def __next__(self) -> TopicRecord:
        record = None
        try:
            with self._entry.call(False) as core:
                record = core.next_at_once()
                if record is None:
                    core.read_ahead(self._options.max_poll_records)
                    record = core.fetcher.next_read()
                assert record is not None  # it waits without a limit
                return record
        except BaseException:
            if record is not None:
                self._core.fetcher.not_delivered(record)
            raise

    # ------------------------------------------------------------ commits

    def commit(
        self, offsets: Mapping[Any, Any] | None = None, *, durable: bool = True
    ) -> None:
        """Commit positions: after a restart the group continues there.

        Args:
            offsets: by partition, an offset (the next one to be read) or an
                `OffsetAndMetadata`; None: all positions.
            durable: return after a sync, which several members share. Without it the
                commit survives the end of processes, and not a power failure.

        Raises:
            CommitFailedError: this consumer does not have one of the partitions, the
                group commits by transactions, or the log was cut below a position, or
                replaced, since it was read; nothing was committed.
            FencedError: the group has gone on without this consumer; nothing was
                committed.
            OffsetMetadataTooLargeError, ConfigError, TypeError: an argument cannot be
                used; nothing was committed.
            DiskFullError, StorageError: nothing was committed.
            SyncFailedError: it counts, and may be lost in a power failure.
        """
        group = self._options.group or ""
        requested_offsets = None if offsets is None else as_commits(group, offsets)
        with self._entry.call() as core:
            commits = (
                core.committer.moved(core.readers)
                if requested_offsets is None
                else requested_offsets
            )
            core.committer.commit(commits, durable=bool(durable))

    def committed(self, partition: tuple[str, int]) -> OffsetAndMetadata | None:
        """The committed offset of a partition in the group; None: none that counts.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: it does not exist.
            ConfigError: the consumer has no group.
        """
        key = as_partition(partition)
        with self._entry.call() as core:
            core.place.positions.partition(key)
            return core.committer.committed(key)

    def transaction(self, *, timeout_ms: int | None = None) -> ConsumerTransaction:
        """Records that are published together with the positions, all or nothing::

            with consumer.transaction() as transaction:
                for records in consumer.poll(timeout_ms=1000).values():
                    for record in records:
                        transaction.append("out", work(record))

        Leaving it commits; if an error leaves it, nothing is published, and the next
        `poll` delivers the same records again. So the effect of each record is in the
        store once, whatever ends in between. A group that has committed so once cannot
        `commit`, and the other way round.

        Args:
            timeout_ms: how long the commit waits for another process that has the store
                open for writing, in milliseconds; None: no limit. See `Store.submit`.

        Raises:
            CommitFailedError: the last transaction of this consumer was neither
                committed nor aborted: it is aborted now.
            ConfigError: the consumer has no group, or keeps its offsets elsewhere; or
                ``timeout_ms`` is invalid.
        """
        if timeout_ms is not None:
            check_int("timeout_ms", timeout_ms, 0, INT64_MAX)
        with self._entry.call() as core:
            return begin_transaction(core, self._entry.call, timeout_ms)

    # ------------------------------------------------------------ positions

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record of a partition that it has.

        Raises:
            ConfigError: it does not have it.
            NoOffsetForPartitionError: see ``reset``.
        """
        with self._entry.call() as core:
            reader = self._reader(core, partition)
            if reader.position is None:
                core.fetcher.place(reader)
            if reader.position is None:
                raise self._not_assigned(partition)  # it was deleted just now
            return reader.position

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue a partition at an offset. One that is not there, or below which the
        log was cut since it was read, raises an error in `poll`, or is reset.

        Raises:
            ConfigError: it does not have the partition, or the offset is negative.
        """
        offset = as_offset("offset", offset)
        check_int("offset", offset, 0, (1 << 63) - 1)
        with self._entry.call() as core:
            self._reader(core, partition).seek_in_seen(offset)
            core.look_now()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue partitions at their first record; none given: all."""
        with self._entry.call() as core:
            for reader in self._readers(core, partitions):
                reader.seek(reader.partition.start_offset)
            core.look_now()

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue partitions after the last record that could be delivered now; none
        given: all."""
        with self._entry.call() as core:
            for reader in self._readers(core, partitions):
                reader.seek(reader.log.readable_end())
            core.look_now()

    def seek_to_time(self, time_ms: Any) -> None:
        """Continue at the first record since a time, or at the end.

        Args:
            time_ms: Unix milliseconds or a time as in `Partition.read`, for all
                partitions; or a mapping of partitions to such values.
        """
        with self._entry.call() as core:
            if isinstance(time_ms, Mapping):
                times = {
                    self._reader(core, key).key: as_time_ms("time_ms", value)
                    for key, value in time_ms.items()
                }
            else:
                times = dict.fromkeys(core.readers, as_time_ms("time_ms", time_ms))
            for key, value in times.items():
                core.place.positions.seek_to_time(core.readers[key], value)
            core.look_now()

    def seek_to_committed(self, *partitions: tuple[str, int]) -> None:
        """Continue partitions at the committed offsets, or by ``reset``; none
        given: all."""
        with self._entry.call() as core:
            for reader in self._readers(core, partitions):
                reader.seek(None)
                core.place.refresh()
                core.fetcher.place(reader)
            core.look_now()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Deliver no records of partitions until `resume`. They stay this
        consumer's."""
        with self._entry.call() as core:
            for reader in [self._reader(core, key) for key in partitions]:
                reader.is_paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Deliver records of partitions again."""
        with self._entry.call() as core:
            for reader in [self._reader(core, key) for key in partitions]:
                reader.is_paused = False
            core.look_now()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        with self._entry.call() as core:
            return {key for key, reader in core.readers.items() if reader.is_paused}

    # ------------------------------------------------------------ offsets of the log

    def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition; it need not have them."""
        keys = as_partitions(partitions)
        with self._entry.call() as core:
            return {
                key: core.place.positions.partition(key).start_offset for key in keys
            }

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition that could be delivered
        now, by ``durable_only`` and ``isolation``; it need not have them."""
        keys = as_partitions(partitions)
        with self._entry.call() as core:
            return {
                key: core.place.positions.reader(key).log.readable_end() for key in keys
            }

    def offsets_for_times(
        self, times: Mapping[Any, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition since a time, Unix milliseconds; None:
        no such record."""
        wanted = {
            as_partition(key): as_time_ms("time", value) for key, value in times.items()
        }
        with self._entry.call() as core:
            return offsets_for_times(core.place.positions, wanted)

    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from the position of each of its partitions to the end
        of the records that could be delivered now."""
        with self._entry.call() as core:
            lags = {}
            for key, reader in core.readers.items():
                core.fetcher.place(reader)
                if reader.position is not None:
                    lags[key] = max(reader.log.readable_end() - reader.position, 0)
            return lags

    def group_metadata(self) -> tuple[str | None, int, str]:
        """(id of the group, generation if known, id of the member); -1 and
        "" before the first `poll` and without a group."""
        with self._entry.call() as core:
            member = core.place.member
            if member is None or not member.holder.id:
                return self._options.group, -1, ""
            generation = member.group.file.state.generation
            return self._options.group, generation, member.holder.id

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Call `on_revoke`, commit if it commits by itself, leave the group, and close
        a store that it has opened. Closing twice is allowed; so is closing again after
        an interrupt, which continues from there.

        Raises: what the callback or the commit raise; it is closed in any case.
        """
        self._close(commits=True)

    def _close(self, *, commits: bool) -> None:
        if self._is_finished:
            return
        if self._entry.is_forked:
            self._entry.is_closed = self._is_finished = True
            self._core.abandon()
            return
        with self._entry.enter(False) as core:
            try:
                core.close(commits=commits)
            finally:
                self._entry.is_closed = True
                core.abandon()  # an interrupt may have cut it short
                if self._own_store is not None:
                    with contextlib.suppress(LogStoreError):
                        self._own_store.close()
                # Last: what is interrupted before is done again.
                self._is_finished = True


def deliveries_of(consumer: Consumer) -> Deliveries:
    """The deliveries of a consumer, for `logstore.aio`."""
    return consumer._deliveries
