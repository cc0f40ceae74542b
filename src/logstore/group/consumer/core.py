"""The work of a consumer: keeps its place in the group, reads, commits.

`Consumer` checks the arguments, and lets one call in at a time: it is here then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    ConfigError,
    LogStoreError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from logstore.group.consumer.ahead import Ahead
from logstore.group.consumer.options import (
    Callback,
    Callbacks,
    OffsetAndMetadata,
    Options,
)
from logstore.group.consumer.positions import Positions, commit_of
from logstore.group.consumer.reading import (
    LASTING,
    Before,
    PartitionReader,
)
from logstore.group.consumer.transaction import COMMITTED, FORGOTTEN, TransactionState
from logstore.group.consumer.waiting import Waiting
from logstore.group.errors import CommitFailedError, FencedError
from logstore.group.member.generations import Subscription
from logstore.group.member.membership import Membership
from logstore.group.member.open_group import OpenGroup
from logstore.io import layout
from logstore.io.layout import TopicPartition
from logstore.record.record import TopicRecord
from logstore.store.inside import files_directory, root_of, topics_now
from logstore.store.store import Store

__all__ = ["Core"]

# The group is looked at once in this time while records come.
_CHECK_S: Final = 0.1
# All partitions are looked at once in this time, also without a report.
_LOOK_S: Final = 1.0

_Result = TypeVar("_Result")
Commits: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]


class Core:
    """The inside of one consumer; for one thread at a time.

    Attributes:
        readers: of the partitions that it has, in the order in which they came.
        wanted: the topics that it has subscribed to; None: it has not.
        callbacks: of the subscription.
        member: its place in the group; None: there is no group, or not yet.
        calls: those of the user that are under way.
        ahead: records that `fill` has read for tasks.
        positions: where it begins to read.
        before: the positions before a `poll` that is under way, or did not come to its
            end: what it has read was not delivered.
        transaction_state: of the last transaction, until its end was taken note of.
        given_up: partitions that were given up with records that were not committed.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self.store = store
        self.options = options
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.wanted: Subscription | None = None
        self.callbacks = Callbacks()
        self.member: Membership | None = None
        self.calls = native.Calls(f"<logstore.Consumer of {options.group!r:.100}>")
        # A consumer without a group makes no files.
        self._root = root_of(store) if options.group is None else files_directory(store)
        self.files = self._root.files
        self._waiting = Waiting(self._root, writes=not store.read_only)
        self.positions = Positions(store, options, None)
        self._turn = 0  # which partition is asked first
        self._current: PartitionReader | None = None  # whose records are delivered
        self.ahead = Ahead()
        self._check_at = 0.0
        self._look_at = 0.0
        self._committed_at = self.files.monotonic()
        # Whether something was committed that may not be durable.
        self._has_unsynced = False
        self._unknown: set[str] = set()
        # The partitions for which the callback was called, and those for which it has
        # not returned: it is called again, before their first record.
        self._told: set[TopicPartition] = set()
        self._untold: set[TopicPartition] = set()
        self.given_up: set[TopicPartition] = set()
        self.before: Before = []
        self.transaction_state: TransactionState | None = None

    # ------------------------------------------------------------ the group

    def join(self) -> Membership | None:
        """The place in the group, whose files are opened at the first call; None: the
        consumer has no group.

        Raises:
            StorageError: the system refuses.
        """
        options, store = self.options, self.store
        if self.member is None and options.group is not None:
            root, name = files_directory(store), layout.group_file(options.group)
            group = OpenGroup(root, name, options.group)
            member = Membership(
                group,
                lambda: topics_now(store),
                options.assignor,
                instance=options.instance,
                interval_ms=options.max_poll_interval_ms,
                evicts=options.on_stuck == "evict",
            )
            positions = Positions(store, options, group.file)
            # Together, with no call in between that could be interrupted: without the
            # group's file a consumer knows nothing of what was committed.
            self.member, self.positions = member, positions
        return self.member

    def coordinate(self, *, at_once: bool = False) -> bool:
        """Look at the group, if it is time: give up partitions, then take others.
        Returns whether anything was given up or taken."""
        if self.wanted is None:
            if self.member is not None and self.member.group.slots.slot is not None:
                self.member.group.slots.polled()
            return False
        now = self.files.monotonic()
        if now < self._check_at and not at_once:
            return False
        self._check_at = 0.0  # again in the next call, if this one fails
        member = self.join()
        if member is None:
            is_changed = self._have_all(self.wanted)
            self._check_at = now + _CHECK_S
            return is_changed
        member.subscribe(self.wanted)
        member.look()
        # Whatever fails from here on: no record of those is delivered any more.
        gone = [key for key in self.readers if key not in member.holder.held]
        self._lose(gone)
        member.check()
        revoked, lost = member.surplus()
        if lost:
            self._lose(lost)
        if revoked:
            self.give_up(revoked)
        member.take()
        # Also those that were taken by a call that failed before it came here.
        taken = [key for key in member.holder.held if key not in self.readers]
        self._get(taken)
        self._warn_unknown(self.wanted)
        self._check_at = now + _CHECK_S
        return bool(gone or lost or revoked or taken)

    def _have_all(self, wanted: Subscription) -> bool:
        """Without a group: have all partitions of the topics."""
        topics = topics_now(self.store)
        keys = {
            TopicPartition(name, number)
            for name in sorted(wanted.of(topics))
            for number in topics[name][1]
        }
        ids = {key: topics[key.topic][0] for key in keys}
        lost = [
            key
            for key, reader in self.readers.items()
            if ids.get(key) != reader.topic_id
        ]
        self._lose(lost)
        self._get(sorted(keys - self.readers.keys()))
        self._warn_unknown(wanted)
        return bool(lost)

    def _warn_unknown(self, wanted: Subscription) -> None:
        unknown = {name for name in wanted.topics if name not in self._unknown}
        if not unknown:
            return
        unknown -= set(topics_now(self.store, wanted.topics))
        for name in sorted(unknown):
            logger.warning(
                "%s has no topic %s yet; the consumer waits for it",
                self.store.path,
                name,
            )
        # Each is looked for once: one that is deleted later is no news.
        self._unknown.update(wanted.topics)

    def _get(self, keys: Sequence[TopicPartition]) -> None:
        for key in keys:
            try:
                self.readers[key] = self.positions.reader(key)
            except TopicNotFoundError:
                continue  # deleted just now; the next look at the group sees it
        news = [
            key for key in self.readers if key not in self._told or key in self._untold
        ]
        if not news:
            return
        self._look_at = 0.0
        self._untold.update(news)
        self._told.update(news)
        self.call(self.callbacks.assign, news)
        self._untold.clear()

    def give_up(self, keys: Sequence[TopicPartition], *, commits: bool = True) -> None:
        """Call the callback, commit, and then give partitions up.

        Args:
            commits: whether to commit, if the consumer does it by itself.
        """
        if not keys:
            return
        try:
            told = [key for key in keys if key in self._told]
            self.call(self.callbacks.revoke, told)
            if commits and self.options.auto_commit_ms is not None:
                self.commit(self.moved(keys), durable=True)
        finally:
            self._drop(keys)

    def _lose(self, keys: Sequence[TopicPartition]) -> None:
        if not keys:
            return
        told = [key for key in keys if key in self._told]
        self._drop(keys)
        self.call(self.callbacks.lost or self.callbacks.revoke, told)

    def _drop(self, keys: Sequence[TopicPartition]) -> None:
        self._current = None
        self.ahead.clear()
        self._told.difference_update(keys)
        self._untold.difference_update(keys)
        for key in keys:
            reader = self.readers.pop(key, None)
            if reader is not None and reader.has_delivered:
                self.given_up.add(key)
        if self.member is not None:
            self.member.holder.release(keys)

    def call(self, callback: Callback | None, keys: Sequence[TopicPartition]) -> None:
        """Run code of the user, which may call the consumer."""
        if callback is None or not keys:
            return
        self.calls.is_open = True
        try:
            callback(list(keys))
        finally:
            self.calls.is_open = False

    # ------------------------------------------------------------ reading

    def collect(
        self, limit: int, before: Before
    ) -> dict[TopicPartition, list[TopicRecord]]:
        """Records that are there now, at most `limit`.

        Args:
            before: gets the positions before it, of what it reads.

        Raises: the error of a partition that needs a `seek`, or what reading it met, if
        no other partition has given records before.
        """
        found: dict[TopicPartition, list[TopicRecord]] = {}
        before.clear()
        for reader in self._in_turn():
            before.append((reader, reader.position))
            try:
                records = self._read(reader, partial(reader.take, limit))
            except LogStoreError:
                if found:
                    break  # the next call meets it again
                raise
            if records:
                found[reader.key] = records
                limit -= len(records)
                if limit <= 0:
                    break
        return found

    def _in_turn(self) -> list[PartitionReader]:
        """The partitions to be read, each time another one first.

        Raises: the error of one that needs a `seek`.
        """
        readers = []
        for reader in self.readers.values():
            if not reader.is_paused:
                self.place(reader)
                if reader.position is not None:
                    readers.append(reader)
        if len(readers) > 1:
            self._turn = (self._turn + 1) % len(readers)
            readers = readers[self._turn :] + readers[: self._turn]
        return readers

    def place(self, reader: PartitionReader) -> None:
        """Give a reader its position, if it has none, and begin there.

        Raises: why that cannot be; it needs a `seek`.
        """
        if reader.has_begun and reader.error is None:
            return

        def begin() -> None:
            if reader.position is None:
                self.positions.begin(reader)
            reader.begin()

        self._read(reader, begin)

    def _read(
        self, reader: PartitionReader, work: Callable[[], _Result]
    ) -> _Result | None:
        """What `work` returns. Raises: the error of a partition that needs a `seek`."""
        found = None if reader.error is not None else self._guarded(reader, work)
        if reader.error is not None:
            raise reader.error.with_traceback(None)
        return found

    def _guarded(
        self, reader: PartitionReader, work: Callable[[], _Result]
    ) -> _Result | None:
        """What `work` returns; None if the partition is gone, or its error is kept."""
        try:
            return work()
        except TopicNotFoundError as error:
            cause: LogStoreError = error
            if not (reader.knows_log and self.positions.has_topic(reader)):
                # Of a subscription, the next look at the group drops it.
                self._check_at = 0.0
                if self.wanted is None:
                    reader.error = error
                return None
        except OffsetOutOfRangeError as error:
            cause = error
            if self.options.reset == "error":
                reader.error = error
        except LASTING as error:
            reader.error = error
            return None
        # What is committed may be of another log, or lowered meanwhile.
        reader.is_disproved = True
        if reader.has_delivered and getattr(cause, "cut_to", 0) is not None:
            self.given_up.add(reader.key)
        if reader.error is None:
            self._guarded(reader, partial(self.positions.go_on, reader, cause))
        return None if reader.error is not None else self._guarded(reader, work)

    def poll(
        self, limit: int, seconds: float | None, before: Before
    ) -> dict[TopicPartition, list[TopicRecord]]:
        """Records as soon as there are any; none after `seconds` (None: no limit)."""
        is_plain = self.options.auto_commit_ms is None
        if is_plain and self.files.monotonic() < self._check_at:
            found = self.collect(limit, before)
            if found:
                return found
        return self._until(lambda: self.collect(limit, before), seconds) or {}

    def next_at_once(self) -> TopicRecord | None:
        """As `next_read`, unless it is time to look at the group."""
        return None if self.is_late else self.next_read()

    def next_read(self) -> TopicRecord | None:
        """The next record, if it was read ahead."""
        reader = self._current
        return None if reader is None or reader.is_paused else reader.next_ahead()

    def not_delivered(self, record: TopicRecord) -> None:
        """Deliver the record again that was delivered last."""
        if self._current is not None:
            self._current.back_to(record.offset)

    def read_ahead(self, limit: int, seconds: float | None) -> bool:
        """Read records ahead, as soon as there are any. Whether there are; none after
        `seconds` (None: no limit)."""
        self._current = self._until(lambda: self._with_records(limit), seconds)
        return self._current is not None

    def _with_records(self, limit: int) -> PartitionReader | None:
        """A partition with records to be delivered one by one."""
        current = self._current
        if current is not None and current.ahead and not current.is_paused:
            is_there = self.readers.get(current.key) is current
            if is_there:
                return current
        for reader in self._in_turn():
            if self._read(reader, partial(reader.read_ahead, limit)):
                return reader
        return None

    def fill(self, limit: int, seconds: float) -> bool:
        """Read at most `limit` records ahead for `ahead`, as soon as there are any.
        Whether there are; none after `seconds`.

        Raises: as `collect`.
        """
        self.ahead.clear()
        return bool(self._until(lambda: self._fill(limit), seconds))

    def _fill(self, limit: int) -> bool:
        def read(reader: PartitionReader, most: int) -> bool | None:
            return self._read(reader, partial(reader.read_ahead, most))

        return self.ahead.fill(self._in_turn(), read, limit)

    @property
    def is_late(self) -> bool:
        """Whether it is time to look at the group."""
        return self.files.monotonic() >= self._check_at

    def _until(
        self, look: Callable[[], _Result | None], seconds: float | None
    ) -> _Result | None:
        """What `look` finds, as soon as it finds anything, or nothing after so many
        seconds. The group is looked at meanwhile."""
        deadline = None if seconds is None else self.files.monotonic() + seconds
        self.auto_commit()
        self._waiting.begin()
        is_woken, is_due = True, False
        while True:
            is_changed = self.coordinate(at_once=is_due)
            now = self.files.monotonic()
            readers = self.readers.values()
            if (
                is_woken
                or is_changed
                or now >= self._look_at
                or any(reader.waits_for_sync for reader in readers)
            ):
                self._look_at = now + _LOOK_S
                found = look()
                if found:
                    return found
            if deadline is not None and now >= deadline:
                return None
            left = _LOOK_S if deadline is None else deadline - now
            reading = [one for one in self.readers.values() if not one.is_paused]
            is_woken = self._waiting.wait(reading, self.member, left)
            is_due = True
            self.auto_commit()

    def look_now(self) -> None:
        """Look at all partitions, and at the group, in the next call."""
        self._look_at = self._check_at = 0.0

    # ------------------------------------------------------------ committing

    def moved(self, keys: Iterable[TopicPartition]) -> Commits:
        """The positions that differ from what is committed."""
        found = {}
        for key in keys:
            reader = self.readers.get(key)
            if reader is None or reader.position is None:
                continue
            if reader.position != reader.committed or reader.is_disproved:
                found[key] = OffsetAndMetadata(reader.position)
        return found

    def commit(self, offsets: Commits, *, durable: bool) -> None:
        """Commit offsets of partitions that this consumer has.

        Raises: as `Membership.commit`.
        """
        member = self.in_group()
        if self.options.offsets is not None:
            if offsets:
                member.check_holds_now(offsets)
                self.options.offsets.commit(offsets, durable=durable)
        elif offsets:
            self._commit_to_file(member, offsets, durable)
        elif durable and self._has_unsynced:
            member.group.sync()
            self._has_unsynced = False
        for key, commit in offsets.items():
            reader = self.readers.get(key)
            if reader is not None:
                reader.set_committed(commit.offset)
                reader.has_delivered = False

    def _commit_to_file(
        self, member: Membership, offsets: Commits, durable: bool
    ) -> None:
        if not member.group.file.state.way and self.positions.is_published():
            raise CommitFailedError(
                f"group {self.options.group!r:.100} commits by transactions. Nothing "
                f"was committed",
                group=member.group.id,
            )
        if self.wanted is None:
            # Of a subscription, the next look at the group drops such a partition.
            self.positions.check_same(
                self.readers[key] for key in offsets if key in self.readers
            )
            self.have_alone([key for key in offsets if key not in member.holder.held])
        now_ms = self.files.now_ms()
        commits = []
        for key, commit in offsets.items():
            reader = self.readers.get(key) or self.positions.reader(key)
            proof = self.positions.proof_of(reader, commit.offset)
            topic_id = reader.topic_id
            commits.append(
                commit_of(member.group.file.group, key, commit, topic_id, now_ms, proof)
            )
        self._has_unsynced = True
        try:
            member.commit(commits, durable=durable)
        except FencedError:
            self._check_at = 0.0  # the next call joins again
            raise
        self._has_unsynced = not durable

    def in_group(self) -> Membership:
        member = self.join()
        if member is None:
            raise ConfigError(
                "this consumer has no group, and so it cannot commit", name="group"
            )
        return member

    def have_alone(self, keys: Sequence[TopicPartition]) -> None:
        """Without a subscription: take partitions in the group, if they are free."""
        member = self.join()
        if member is not None and keys:
            topics = topics_now(self.store, {key.topic for key in keys})
            member.take_alone([key for key in keys if key.topic in topics], topics)

    def auto_commit(self) -> None:
        """Commit, if the consumer does it by itself and it is time.

        Raises:
            StorageError: the system refuses.
        """
        every_ms = self.options.auto_commit_ms
        if every_ms is None:
            return
        now = self.files.monotonic()
        if now - self._committed_at < every_ms / 1000:
            return
        self._committed_at = now
        offsets = self.moved(self.readers)
        if not offsets:
            return
        try:
            self.commit(offsets, durable=False)
        except (CommitFailedError, FencedError) as error:
            logger.warning("cannot commit by itself: %s", error)

    def committed(self, key: TopicPartition) -> OffsetAndMetadata | None:
        """The committed offset of a partition, of any member."""
        self.in_group()
        self.refresh()
        return self.positions.committed([key]).get(key)

    def refresh(self) -> None:
        """Read what others have committed."""
        if self.member is not None and self.options.offsets is None:
            self.member.group.file.refresh()

    # ------------------------------------------------------------ transactions

    @property
    def is_unsettled(self) -> bool:
        """Whether a call or a transaction has ended, and nobody has settled it. A
        callback is inside of a call that has not ended."""
        state = self.transaction_state
        is_over = bool(self.before) or (state is not None and state.ended != "")
        return is_over and not self.calls.is_open

    def settle(self) -> None:
        """Deliver again what a `poll` has read that did not come to its end; and if the
        last transaction has ended otherwise than by a commit, what it has read."""
        for reader, position in self.before:
            reader.back_to(position)
        self.before = []
        state = self.transaction_state
        if state is None or not state.ended:
            return
        if state.ended not in (COMMITTED, FORGOTTEN):
            self.given_up.clear()
            for reader in self.readers.values():
                reader.rewind()
            self.look_now()
        self.transaction_state = None

    # ------------------------------------------------------------ the end

    def assign(self, keys: Sequence[TopicPartition]) -> None:
        """Have these partitions, and no others, without a subscription."""
        self.unsubscribe()
        readers = {key: self.positions.reader(key) for key in keys}
        self.have_alone(keys)
        # The positions are those of the file, which was read with the mutex.
        self.readers = readers
        self._look_at = 0.0

    def unsubscribe(self, *, commits: bool = True) -> None:
        """Give up all partitions, and leave the group."""
        keys = list(self.readers)
        try:
            if self.wanted is not None:
                self.give_up(keys, commits=commits)
            elif keys:
                try:
                    if commits and self.options.auto_commit_ms is not None:
                        self.commit(self.moved(keys), durable=True)
                finally:
                    self._drop(keys)
        finally:
            self.wanted = None
            self._check_at = 0.0
            if self.member is not None:
                self.member.leave()

    def close(self, *, commits: bool) -> None:
        """Leave the group, and close everything."""
        try:
            self.unsubscribe(commits=commits)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files; in the child of a fork they are closed already."""
        self._waiting.close()
        self.readers.clear()
        if self.member is not None:
            self.member.group.close()
