"""Changes of a store's topics: made, configured, grown and deleted.

Each change is committed by one write of the settings file; opening the store finishes,
or undoes, a change that was interrupted (docs/durability.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from logstore._native.locks import logger
from logstore.config import (
    PARTITIONS_MAX,
    TopicConfig,
    check_int,
    check_kind,
    compacts,
    sets_retention,
    to_stored,
)
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    LogStoreError,
    TopicExistsError,
    TopicNotFoundError,
    is_disk_full,
    storage_errors,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.io.scheduler import weakly
from logstore.log.write.calls import Creation
from logstore.log.write.writer import PartitionWriter
from logstore.segment import Segment
from logstore.store.catalog.topic_settings import BegunCreation, leading
from logstore.store.catalog.topics import Catalog
from logstore.store.context import StoreContext
from logstore.store.partition.partitions import PartitionWriters
from logstore.store.topic.open_topics import OpenTopics
from logstore.store.topic.topic import Topic

__all__ = ["TopicChanges"]

# After a crash, calls of the user come first.
_TAILS_AFTER_MS: Final = 100


class TopicChanges:
    """Changes the topics of one store, one change at a time."""

    def __init__(
        self, context: StoreContext, topics: OpenTopics, journal: PublicationJournal
    ) -> None:
        self._context = context
        self._topics = topics
        self._journal = journal
        context.state.topics = self

    @property
    def _writers(self) -> PartitionWriters:
        return self._topics.writers

    @property
    def _catalog(self) -> Catalog:
        return self._topics.catalog

    def create_for_others(self, asked: Creation) -> None:
        """Create the topic that another process asks for. Raises: as `create`."""
        self.create(
            asked.name,
            asked.partitions,
            asked.config,
            exist_ok=asked.exist_ok,
            topic_id=asked.id,
        )

    def create(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | None = None,
        *,
        exist_ok: bool = False,
        topic_id: str = "",
    ) -> Topic:
        """See `Store.create_topic`. The topic gets `topic_id`; a topic that already has
        it was made by an owner that was killed before it could answer.

        1. persist its settings, as being created (commit: opening finishes it);
        2. create the directories; 3. sync the store's; 4. write the settings again.
        If there is no room for 2 to 4, all is undone.
        """
        self._topics.check_writable(f"create topic {name!r}")
        layout.check_new_topic_name(name)
        check_int("partitions", partitions, 1, PARTITIONS_MAX)
        if config is not None:
            check_kind("config", config, TopicConfig)
        with self._context.lock:
            self._context.check_open()
            if name in self._catalog.numbers:
                if topic_id and self._topics.topic_id(name) == topic_id:
                    return self._topics.find(name)
                return self._existing(name, partitions, config, exist_ok)
            self._catalog.check_collision(name)
            if config is None:
                config = self._context.store_config.topic_defaults
            config = dataclasses.replace(config)
            self._create(name, range(partitions), config, topic_id)
            return self._topics.find(name)

    def _existing(
        self, name: str, partitions: int, config: TopicConfig | None, exist_ok: bool
    ) -> Topic:
        topic = self._topics.find(name)
        if not exist_ok:
            raise TopicExistsError(f"topic {name} is already there", topic=name)
        if len(topic) != partitions:
            raise TopicExistsError(
                f"topic {name} has {len(topic)} partitions, not {partitions}",
                topic=name,
            )
        if config is not None and "config" not in self._catalog.settings.of(name):
            # Only its directories existed: now it has settings, too.
            self._configure_held(name, config)
        if config is not None and config != topic.config:
            was, asked = topic.config.to_dict(), config.to_dict()
            differing = [k for k in was if was[k] != asked[k]]
            raise TopicExistsError(
                f"topic {name} has other settings: "
                + ", ".join(f"{k}={was[k]!r}, not {asked[k]!r}" for k in differing),
                topic=name,
            )
        return topic

    def _create(
        self, name: str, numbers: range, config: TopicConfig, topic_id: str = ""
    ) -> None:
        longest = layout.partition_directory(name, numbers[-1])
        if len(longest) > 255:
            raise ConfigError(
                f"directory name {longest[:40]}... has {len(longest)} characters, more "
                f"than 255",
                name="topic",
                value=name,
            )
        self._context.state.begin_writing()
        with storage_errors(f"create topic {name} in", self._context.path):
            for number in numbers:
                self._writers.forget(TopicPartition(name, number))
            keys = [TopicPartition(name, number) for number in numbers]
            self._forget_ownership(keys)
            self._journal.forget(keys)
            settings = self._catalog.ids.with_id(
                name,
                {"partitions": numbers[-1] + 1, "config": to_stored(config)},
                topic_id,
            )
            all_numbers = (*self._catalog.numbers.get(name, ()), *numbers)
            begun = self._catalog.settings.begin_creation(name, settings)
            try:
                self._catalog.make_directories(name, numbers)
                settings["partitions"] = leading(all_numbers)
                self._catalog.settings.write(name, settings)
            except OSError as error:
                if is_disk_full(error):
                    self._undo_create(begun)
                raise
        self._catalog.add(name, all_numbers)
        self._retain_as(config)

    def _undo_create(self, begun: BegunCreation) -> None:
        """Undo a creation for which there was no room. If the directories cannot be
        removed, the next opening finishes it. If the settings on the disk have its end,
        though the write failed, and cannot be changed, it stays."""
        settings = self._catalog.settings
        with contextlib.suppress(OSError, LogStoreError):
            # The directories go when the settings do not name them as complete.
            is_begun = settings.keep_begun(begun)
            if not (is_begun or self._recorded(begun.name).get("creating", False)):
                return
            if self._catalog.drop_begun(begun.name):
                self._context.root.sync()
                settings.take_back(begun)

    def _recorded(self, name: str) -> Mapping[str, Any]:
        """The settings of a topic on disk, after a write that has failed; empty if it
        is not in the file.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read.
        """
        value = checkpoints.read_state(self._context.root, layout.TOPICS)
        settings: Mapping[str, Any] = value["topics"].get(name, {}) if value else {}
        return settings

    def _retain_as(self, config: TopicConfig) -> None:
        """Apply retention and compaction from now on, if these settings of a topic
        require it."""
        stored = to_stored(config)
        if sets_retention(stored) or compacts(stored):
            self._topics.begin_rounds()

    def _forget_ownership(self, keys: Iterable[TopicPartition]) -> None:
        """Remove partitions that do not exist any more from Kafka's checkpoints."""
        with self._context.state.lock:
            self._context.state.ownership.forget(keys)

    def configure(self, name: str, config: TopicConfig) -> None:
        self._topics.check_writable(f"configure topic {name}")
        check_kind("config", config, TopicConfig)
        with self._context.lock:
            # A copy, which checks them: frozen objects can be changed by force.
            self._configure_held(name, dataclasses.replace(config))

    def _configure_held(self, name: str, config: TopicConfig) -> None:
        numbers = self._topics.partition_numbers(name)
        self._context.state.begin_writing()
        settings = self._catalog.ids.with_id(
            name, {"partitions": leading(numbers), "config": to_stored(config)}
        )
        with storage_errors(f"write the settings of {name} in", self._context.path):
            self._catalog.settings.write(name, settings)
            self._catalog.settings.confirm()
        self._retain_as(config)
        failure: LogStoreError | None = None
        for number in numbers:
            writer = self._writers.loaded.get(TopicPartition(name, number))
            if writer is not None and writer.health.is_intact:
                try:
                    writer.configure(config)
                except LogStoreError as error:
                    failure = failure or error
                    continue  # its appends keep the old settings, as `config` says
            partition = self._topics.partitions.get(TopicPartition(name, number))
            if partition is not None:
                partition.config = config
        if failure is not None:
            raise failure

    def grow(self, name: str, count: int) -> int:
        self._topics.check_writable(f"add partitions to {name}")
        with self._context.lock:
            topic = self._topics.find(name)
            first = self._catalog.numbers[name][-1] + 1
            if first + count > PARTITIONS_MAX:
                raise ConfigError(
                    f"{first + count} partitions are more than {PARTITIONS_MAX}",
                    name="count",
                    value=count,
                )
            self._create(name, range(first, first + count), topic.config)
            return len(self._catalog.numbers[name])

    def delete(self, name: str) -> None:
        """See `Store.delete_topic`.

        1. write into its settings that it is being deleted (commit: opening finishes
        it); 2. rename its directories to ``...-delete`` and sync the store's; 3. forget
        its settings; 4. remove the files after ``file_delete_delay_ms``.
        """
        self._topics.check_writable(f"delete topic {name!r}")
        with self._context.lock:
            self._context.check_open()
            self._delete_held(name)

    def _delete_held(self, name: str) -> None:
        self._topics.find(name)  # or raise
        self._context.state.begin_writing(is_deletion=True)
        numbers = self._catalog.numbers[name]
        renamed: list[str] = []
        users: list[Segment] = []
        try:
            delay_ms = self._catalog.settings.config(name).file_delete_delay_ms
        except ConfigError:
            # Its settings are used for nothing else: it can be deleted.
            delay_ms = TopicConfig().file_delete_delay_ms
        settings = self._catalog.settings.of(name) or {"partitions": leading(numbers)}
        going = TopicNotFoundError(
            f"topic {name} is being deleted, which was cut short by an error; "
            f"delete it again, or open the store again",
            topic=name,
        )
        keys = [TopicPartition(name, number) for number in numbers]
        mark = self._catalog.ids.deletion_mark(name)
        moved = {key: layout.deleted_directory(*key, mark) for key in keys}
        try:
            # Before the commit: after it nothing may be acknowledged, nor be loaded; no
            # compaction may record after `forget`.
            for key in keys:
                self._writers.suspend(key, going)
            self._context.state.compacted.forget(keys)
            # If this fails, a copy takes these for logs that it lacks.
            with contextlib.suppress(OSError, CorruptCheckpointError):
                self._journal.forget_ends(keys)
            # Without an id, the names of several directories do not say that all go.
            is_needed = len(numbers) > 1 and not self._catalog.ids.topic_id(name)
            deleting = {**settings, "deleting": True}
            self._catalog.settings.write_if_room(name, deleting, is_needed=is_needed)
        except BaseException:
            self._undo_delete(name, keys)
            raise
        with storage_errors(f"delete topic {name} of", self._context.path):
            for key in keys:
                self._writers.broken[key] = going
                self._topics.partitions.pop(key, None)
            self._catalog.drop_begun(name)
            for key in keys:
                writer = self._writers.loaded.get(key)
                if writer is not None:
                    users += self._end_writer(writer)
                    # Before the rename: a reader finds the files under one of the two
                    # names.
                    writer.directory.moved_to = moved[key]
                # It does not exist if an earlier attempt has renamed it.
                with contextlib.suppress(FileNotFoundError):
                    self._catalog.deleted.rename(
                        layout.partition_directory(*key),
                        moved[key],
                        is_recorded=not self._catalog.settings.is_dirty,
                    )
                    renamed.append(moved[key])
            self._context.root.sync()
            self._topics.topics.pop(name, None)
            self._catalog.numbers.pop(name, None)
            # After that: an interrupt leaves no partition that neither exists nor is
            # deleted. The rest of it is forgotten before another one is created
            # (`_create`).
            for key in keys:
                self._writers.forget(key)
        # On a full disk the lines stay until another topic of this name is created.
        with contextlib.suppress(OSError):
            self._forget_ownership(keys)
        self._catalog.settings.write_if_room(name, None)
        logger.info("topic %s with %d partitions deleted", name, len(numbers))
        # A read that has begun finishes on the files that it began with.
        self._context.scheduler.when_unused(users, self._removal_of(renamed), delay_ms)

    def _removal_of(self, names: list[str]) -> Callable[[], None]:
        """A task that removes directories. It does not keep the store alive: the next
        opening also removes them."""
        return weakly(self._remove, names)

    def _remove(self, names: list[str]) -> None:
        """Remove the directories of deleted topics."""
        deleted = self._catalog.deleted
        emptied = deleted.empty(names)
        with self._context.lock:
            if not self._context.is_closed:
                deleted.remove(emptied)

    def _undo_delete(self, name: str, keys: list[TopicPartition]) -> None:
        """Undo a deletion that may or may not have reached its commit: only if the
        settings on the disk do not record it, the topic is used again."""
        try:
            is_deleting = self._recorded(name).get("deleting", False)
        except (OSError, LogStoreError):
            return
        if not is_deleting:
            for key in keys:
                self._writers.resume(key)

    def _end_writer(self, writer: PartitionWriter) -> list[Segment]:
        """Release a partition that is about to be deleted. Returns its segments: the
        reads that have begun use them."""
        reason = TopicNotFoundError(
            f"topic {writer.context.topic} was deleted", topic=writer.context.topic
        )
        with contextlib.suppress(LogStoreError):
            writer.close(reason, record_end=False)
        segments = list(writer.segments)
        writer.abandon()
        return segments

    # ------------------------------------------------------------ for the state

    def starts(self) -> dict[TopicPartition, int]:
        """See `PartitionWriters.starts`."""
        return self._writers.starts()

    def before_cut(self, key: TopicPartition, offset: int) -> None:
        """See `PublicationJournal.before_cut`."""
        self._journal.before_cut(key, offset)

    def identify(
        self, key: TopicPartition, directory: Directory, log_id: str, is_empty: bool
    ) -> None:
        """Before the first append to a partition: record which topic it is of."""
        catalog = self._catalog
        topic_id = catalog.ids.identify(key, directory, log_id, is_empty=is_empty)
        for number in catalog.numbers.get(key.topic, ()):
            partition = self._topics.partitions.get((key.topic, number))
            if partition is not None and not partition.topic_id:
                partition.topic_id = topic_id

    def _make_durable(self, left: list[TopicPartition]) -> None:
        """In the background, after a crash: make the remaining tails of logs durable,
        also of logs not used since. Otherwise readers that wait for durable records
        would wait for the next append to the same log."""
        context, topics, writers = self._context, self._topics, self._writers
        for key in left:
            if context.is_closed or context.is_forked:
                return
            try:
                if key in writers.loaded or writers.may_have_tail(key):
                    topics.writer_of(key).make_durable()
            except LogStoreError as error:
                name = "{}-{}".format(*key)
                logger.warning("cannot make %s durable now: %s", name, error)

    def before_first_change(self, is_deletion: bool) -> None:
        """Remove the clean-shutdown markers; from then on retention is applied.

        A full disk must not prevent a deletion: damage that is not recorded before it
        is recorded when the store is closed.
        """
        with self._context.state.lock:
            if not self._context.state.ownership.is_writing:
                unwritten = self._writers.record_damage()
                if unwritten is not None and not is_deletion:
                    raise unwritten
                catalog = self._catalog
                ownership = self._context.state.ownership
                left = [] if ownership.is_clean else self._writers.all_keys()
                ownership.begin(catalog.settings.persist_claim)
                if left:
                    # From now on, readers trust only the new owner's reports.
                    later = weakly(self._make_durable, left)
                    self._context.scheduler.call_later(_TAILS_AFTER_MS, later)
                dying, catalog.deleted.dying = catalog.deleted.dying, []
                if dying:
                    delay_ms = TopicConfig().file_delete_delay_ms
                    self._context.scheduler.call_later(
                        delay_ms, self._removal_of(dying)
                    )
        self._topics.begin_rounds()
