"""The topics of an open store: found on the disk, and each opened once.

`OpenTopics` belongs to a `Store`, and knows its `Catalog` (which topics there are) and
its `PartitionWriters` (loaded partitions). `Topic` and the retention in the
background ask it for partitions; `topic_changes.py` makes and deletes topics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
from collections.abc import Callable
from typing import Any, Final

from logstore.errors import (
    LogStoreError,
    PartitionNotFoundError,
    ReadOnlyError,
    StorageError,
    TopicNotFoundError,
    again,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint.ownership import OWNERSHIP_FILES, OwnershipKey
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.publications import Publications
from logstore.io.checkpoint.recovery_report import UNPUBLISHED, RecoveryAction
from logstore.io.layout import TopicPartition
from logstore.io.stamps import LookNames, settled
from logstore.log.follow.read_only_log import ATTEMPTS, ReadOnlyLog
from logstore.log.write.writer import PartitionWriter
from logstore.store.background import BackgroundRounds
from logstore.store.catalog.identifying import log_id_in
from logstore.store.catalog.topic_ids import CatalogFile, identity_in
from logstore.store.catalog.topic_settings import TopicSettings
from logstore.store.catalog.topics import Catalog
from logstore.store.context import StoreContext
from logstore.store.measures import IdleLogs, log_row
from logstore.store.partition.partition import Partition, upkeep_of
from logstore.store.partition.partitions import PartitionWriters
from logstore.store.partition.shared_appends import HandInCalls
from logstore.store.topic.topic import Changes, Topic

__all__ = ["OpenTopics"]

# An unknown name is compared with at most this many topics: more take too long.
_NAMES_COMPARED: Final = 500
_STAMPED: Final = LookNames(".", layout.TOPICS, *OWNERSHIP_FILES)


class OpenTopics:
    """The topics and partitions of one store.

    Attributes:
        changes: makes, changes and deletes topics.
        hand_in: how a shared store appends; None: it is not shared.
        writers: of the partitions, by (topic, partition).
        retention, compaction: in the background.
        topics: the topics that callers have requested, by name: one object for each.
        partitions: the same of the partitions.
        has_stages: of a read-only store: records are staged for appends.
    """

    changes: Changes
    hand_in: HandInCalls | None = None

    def __init__(self, context: StoreContext, publications: Publications) -> None:
        self._context = context
        self._publications = publications
        self.topics: dict[str, Topic] = {}
        # Plain tuples: one is made at each append to a topic.
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.has_stages = False
        # Of the root, the topics and the owner, when the topics were found: see
        # `_stamp_of_root`.
        self._stamps: tuple[object, object, object] = (None, None, None)
        name = os.path.basename(context.path)
        settings = context.store_config
        self.retention = BackgroundRounds(
            "retention",
            lambda: self.catalog.retaining(),
            self.retain,
            context.files,
            name,
            settings.retention_check_ms,
            context.unreported,
        )
        self.compaction = BackgroundRounds(
            "compaction",
            lambda: self.catalog.compacting(),
            self.compact,
            context.files,
            name,
            settings.compaction_ms,
            context.unreported,
        )
        catalog = self._new_catalog(context)
        self.writers = PartitionWriters(context, catalog)
        self._idle = IdleLogs()
        self._catalog_file = CatalogFile(context.root)

    @staticmethod
    def _new_catalog(context: StoreContext) -> Catalog:
        return Catalog(
            context.root, read_only=context.read_only, lock_group=context.lock_group
        )

    @property
    def path(self) -> str:
        return self._context.path

    @property
    def catalog(self) -> Catalog:
        """The existing topics, with their settings."""
        return self.writers.catalog

    def check_open(self) -> None:
        self._context.check_open()

    def load(
        self, read_ownership: Callable[[Callable[[RecoveryAction], None]], None]
    ) -> list[RecoveryAction]:
        """Find the topics; repeat if the writer creates or deletes one meanwhile: its
        settings and its directories change one after the other."""
        files = self._context.files
        for _ in range(ATTEMPTS):
            begun_ms, seen = files.now_ms(), self._stamp_of_root()
            actions: list[RecoveryAction] = []
            read_ownership(actions.append)
            catalog = self._new_catalog(self._context)
            catalog.settings.read(actions.append)
            catalog.find()
            if self._context.state.ownership.is_own:
                catalog.check(actions.append)
            else:
                catalog.claim()
            if not self._context.read_only or self._is_as_before(seen, catalog):
                break
        self.writers.catalog = catalog
        self._drop_others(catalog)
        self.writers.broken = dict(catalog.missing_partitions)
        mtime_ns, topics, owner = seen
        self._stamps = settled(mtime_ns, begun_ms, files), topics, owner
        return actions

    def _drop_others(self, catalog: Catalog) -> None:
        """Read-only: drop the objects of topics that were made again. Objects that
        callers still have raise errors."""
        for name in list(self.topics):
            if self.topics[name].is_of(catalog.ids.topic_id(name)):
                continue
            del self.topics[name]
        for topic, number in list(self.partitions):
            topic_id = self.partitions[topic, number].topic_id
            if topic_id in ("", catalog.ids.topic_id(topic)):
                continue
            if topic_id != catalog.ids.partition_id(TopicPartition(topic, number)):
                del self.partitions[topic, number]

    def _is_as_before(self, seen: tuple[int, object, object], catalog: Catalog) -> bool:
        """Whether topics were neither created nor deleted, and no writer has begun or
        ended, since a stamp of the root, after which `catalog` has found them."""
        now = self._stamp_of_root()
        if now == seen:
            return True
        # Each publication makes and removes files in the root. While processes hand in
        # to the owner, its time changes all the time.
        is_own = self._context.state.ownership.is_own
        is_same = is_own and now[1:] == seen[1:]
        return is_same and self._context.root.directories() == catalog.directories

    def _stamp_of_root(self) -> tuple[int, object, object]:
        """(time, and two values). The time and the first value change if topics are
        created, configured or deleted, the second one if a writer begins or ends."""
        stamps = self._context.root.look(_STAMPED).stamps()
        root, topics = stamps.pop("."), stamps.pop(layout.TOPICS)
        return root[1] if root else -1, topics, stamps

    def rescan(self) -> None:
        """Read-only: take over the changes that the writer has made meanwhile."""
        with self._context.lock:
            try:
                begun_ms, seen = self._context.files.now_ms(), self._stamp_of_root()
                is_same = seen[:2] == self._stamps[:2]
                if not is_same and not self._is_only_files(seen, begun_ms):
                    self.load(self._context.state.ownership.read_owner)
            except OSError as error:
                raise storage_error(error, "read", self._context.path) from error

    def _is_only_files(self, seen: tuple[int, object, object], begun_ms: int) -> bool:
        """Whether nothing but files has come and gone in the root, as with each
        publication: then the topics have not changed."""
        context = self._context
        if seen[1:] != self._stamps[1:] or not context.state.ownership.is_own:
            return False
        # A directory that comes or goes meanwhile changes the time again.
        if context.root.directories() != self.catalog.directories:
            return False
        self._stamps = settled(seen[0], begun_ms, context.files), *seen[1:]
        return True

    def begin_call(self) -> None:
        """Do `check_open` for a new call, and raise any error that occurred in the
        background since the last one."""
        self._context.check_open()
        self.retention.raise_failure()

    def check_writable(self, what: str) -> None:
        self.begin_call()
        if self._context.read_only:
            raise ReadOnlyError(
                f"store {self._context.path} was opened read-only; cannot {what}"
            )

    def now(self, name: str) -> Topic:
        if self._context.read_only:
            self.rescan()
        return self.find(name)

    def find(self, name: str) -> Topic:
        value: object = name
        if not isinstance(value, str) or name not in self.catalog.numbers:
            raise self._no_topic(name)
        topic = self.topics.get(name)
        if topic is None:
            # Without a lock: if two threads create one, both use the first.
            topic = self.topics.setdefault(name, Topic(self, name))
        return topic

    def _no_topic(self, name: object) -> TopicNotFoundError:
        """The error, with the name that may have been meant."""
        near: list[str] = []
        if isinstance(name, str) and len(self.catalog.numbers) <= _NAMES_COMPARED:
            # A copy: other threads make and delete topics while it is compared.
            near = difflib.get_close_matches(name, sorted(self.catalog.numbers), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return TopicNotFoundError(
            f"store {self._context.path} has no topic {name!r}{hint}", topic=str(name)
        )

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        """Numbers of a topic's partitions, in order.

        Raises:
            TopicNotFoundError: it was deleted.
        """
        self._context.check_open()
        if self._context.read_only:
            self.rescan()
        numbers = self.catalog.numbers.get(topic, ())
        if not numbers:
            raise self._no_topic(topic)
        return numbers

    def settings_of(self, topic: str) -> TopicSettings:
        """The settings of the topics, if there is this one."""
        if topic not in self.catalog.numbers:
            raise self._no_topic(topic)
        return self.catalog.settings

    def topic_id(self, topic: str) -> str:
        return self.catalog.ids.topic_id(topic)

    def open_partition(self, topic: str, number: int) -> Partition:
        """A partition; the same object every time."""
        partition = self.partitions.get((topic, number))
        if partition is not None:
            return partition
        key = TopicPartition(topic, number)
        with self._context.lock:
            broken = self.writers.broken.get(key)
            # If the system refused it, `get` tries again.
            if broken is not None and not isinstance(broken, StorageError):
                raise again(broken)
            if number not in self.catalog.numbers.get(topic, ()):
                raise PartitionNotFoundError(
                    f"topic {topic} has no partition {number}",
                    topic=topic,
                    partition=number,
                )
            partition = self.partitions.get(key)
            if partition is None:
                context, config = self._context, self.catalog.settings.config(topic)
                if self.has_stages or self.hand_in is not None or not context.read_only:
                    config = self.catalog.settings.append_config(topic)
                partition = Partition(
                    topic,
                    number,
                    config,
                    self._live(key) if context.read_only else self.writers.get(key),
                    context.check_open,
                    context.store_config.max_batch_decompressed_bytes,
                    self.catalog.ids.partition_id(key),
                    self.begin_call,
                    self.hand_in,
                )
                self.partitions[key] = partition
            return partition

    def _live(self, key: TopicPartition) -> ReadOnlyLog:
        topic, number = key
        directory = self._context.root.child(layout.partition_directory(topic, number))

        held = self.catalog.ids.partition_id(key)

        def metadata(owner: OwnershipKey | None = None, /) -> PartitionMetadata:
            ownership = self._context.state.ownership_now(owner)
            # Before the log is looked at, which is cut only when it is not in there.
            ends = self._publications.durable_ends(ownership)
            log_metadata = ownership.metadata(directory, key, ends.get(key, -1))
            identity = identity_in(directory)
            if held and not self._catalog_file.is_of(
                key, identity, held, ask_catalog=log_metadata.is_own
            ):
                raise PartitionNotFoundError(
                    f"partition {key} now belongs to another topic: the topic of "
                    f"this object, with the id {held}, was deleted, and its name "
                    "was used again. Ask the store for the topic again",
                    topic=topic,
                    partition=number,
                )
            state = log_metadata.state
            if state is not None and state.log_id:
                # As its owner gives it: the state of a copied topic has the original's.
                log_id = log_id_in(key, held, identity, state.log_id)
                state = dataclasses.replace(state, log_id=log_id)
                log_metadata = dataclasses.replace(log_metadata, state=state)
            return log_metadata

        return ReadOnlyLog(
            directory,
            self._context.descriptors,
            topic,
            number,
            self.catalog.settings.config(topic),
            metadata,
            self._context.state.ownership,
            self._publications,
            self._context.check_open,
            self._context.lock_group,
        )

    def writer_of(self, key: TopicPartition) -> PartitionWriter:
        topic, number = key
        with self._context.lock:
            writer = self.writers.usual(key)
        if writer is not None:
            return writer
        self.now(topic)[number]  # raises if it does not exist
        with self._context.lock:
            self.find(topic)  # it may have been deleted meanwhile
            return self.writers.get(key)

    def drop_unpublished(self, key: TopicPartition, base: int) -> None:
        """Remove the records of an unfinished publication from a log. If that fails,
        the log takes no appends until the store is opened again."""
        topic, number = key
        try:
            writer = self.writer_of(key)
            count = writer.end_offset - base
            if count <= 0:
                return
            partition = self.now(topic)[number]
            reason = "a publication was not finished"
            upkeep_of(partition).truncate_to(writer, base, reason)
        except TopicNotFoundError:
            raise
        except BaseException as error:
            # The next opening will cut the log here.
            self.writers.hide_from(key, base, error)
            raise
        # The original of a copy may have finished it since the files were read.
        meaning = "nothing of it was acknowledged"
        if self._context.state.ownership.is_copy:
            meaning = "the store that was copied may have them"
        records = f"{count} record{'s' * (count != 1)}"
        self.writers.record(
            RecoveryAction(
                UNPUBLISHED, topic, number, partition.path, -1, 0, base, None,
                f"undid an unfinished publication, {records} from offset {base} on in "
                f"{partition.name}; {meaning}",
            )
        )  # fmt: skip

    def retain(self, topic: str, number: int) -> None:
        """Apply the retention of a partition, in the background."""
        self._context.check_open()
        upkeep_of(self.open_partition(topic, number)).apply_due_retention()

    def compact(self, topic: str, number: int) -> None:
        """Compact a partition, if its settings ask for it, in the background."""
        self._context.check_open()
        upkeep_of(self.open_partition(topic, number)).compact_due()

    def begin_rounds(self) -> None:
        """Begin the background work that topics' settings require."""
        self.retention.begin()
        self.compaction.begin()

    def stop_rounds(self, reason: LogStoreError) -> None:
        """End the background work, after the current step. A compaction that
        another thread has begun ends, too, and raises `reason`."""
        for writer in list(self.writers.loaded.values()):
            writer.compaction_gate.stop(reason)
        self.retention.stop()
        self.compaction.stop()

    def abandon_rounds(self) -> None:
        """Abandon the rounds of the parent, in the child of a fork."""
        self.retention.abandon()
        self.compaction.abandon()

    def rows(self) -> list[dict[str, Any]]:
        """The numbers of each partition: see `Store.metrics`."""
        keys = [
            TopicPartition(topic, number)
            for topic, numbers in sorted(self.catalog.numbers.copy().items())
            for number in numbers
        ]
        rows = []
        for key in keys:
            # One that was deleted meanwhile is left out.
            with contextlib.suppress(TopicNotFoundError):
                rows.append(log_row(*key, self._measured(key)))
        return rows

    def _measured(
        self, key: TopicPartition
    ) -> PartitionWriter | ReadOnlyLog | LogStoreError | dict[str, Any]:
        """The source of a partition's numbers, without reading its log."""
        if self._context.read_only:
            try:
                views = self.open_partition(*key)._views
                views.refreshed()
                return views.log
            except TopicNotFoundError:
                raise
            except LogStoreError as error:
                return error
        writer = self.writers.loaded.get(key)
        if writer is not None:
            self._idle.forget(key)
            return writer
        broken = self.writers.broken.get(key)
        if broken is not None:
            return broken
        directory = self._context.root.child(layout.partition_directory(*key))
        return self._idle.row(directory, key, self._context.state.ownership)
