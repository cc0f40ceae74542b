"""The topics of a store: which there are, and their settings.

Topics are found by the directories of their partitions, as Kafka finds them. In
addition, `.logstore-topics` (docs/format.md) records their settings, how many
partitions there must be, and whether a creation or deletion is in progress.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logstore import _native as native
from logstore._native.locks import RANK_JOURNAL, logger
from logstore.config import TopicConfig, compacts, from_stored, sets_retention
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    CorruptionError,
    DiskFullError,
    TopicExistsError,
    is_disk_full,
    storage_error,
    storage_errors,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.recovery_report import (
    LOST_SEGMENT,
    STATE_DAMAGED,
    RecoveryAction,
)
from logstore.io.checkpoint.state_fields import check_partition_count
from logstore.io.checkpoint.topic_identity import TopicIdentity, kafka_id_of
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.store.catalog.topic_ids import TopicIds, identity_in

__all__ = ["Catalog", "leading"]

# Up to this many lost directories of a topic are reported one by one.
LOST_MAX = 10_000


def leading(numbers: Sequence[int]) -> int:
    """How many partitions there are from 0 on without a gap (`numbers` are sorted). A
    broker's log directory may hold any subset of a topic's."""
    for expected, number in enumerate(numbers):
        if number != expected:
            return expected
    return len(numbers)


def _partitions(settings: Mapping[str, Any] | None) -> int:
    """How many partitions the settings of a topic name."""
    return 0 if settings is None else int(settings["partitions"])


def _noted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a topic that `identify` has found out."""
    return {key: settings[key] for key in ("identified", "kafka_id") if key in settings}


def _text_of(topics: Mapping[str, Any]) -> str:
    """The topics file, or an entry of it: None for a topic that is removed."""
    return checkpoints.state_text({"topics": topics})


class Catalog:
    """The known topics of a store. The store's lock guards it, and a lock of its own
    its file: the first append to a partition may write there (`identify`).

    Attributes:
        settings: topic -> {"partitions", "config"?, "id"?, "kafka_id"?, "identified"?,
            "creating"?, "deleting"?}.
        numbers: topic -> numbers of its partitions, in order.
        missing_partitions: those whose directory is gone and should not be.
        dying: ``-delete`` directories whose delay is not over.
        is_dirty: `settings` are not persisted, since the disk is full.
        begun: topic -> partitions whose directories a call that did not complete may
            have made.
    """

    def __init__(
        self, root: Directory, *, read_only: bool, lock_group: int = 0
    ) -> None:
        self._root = root
        self._lock = native.Mutex(RANK_JOURNAL, "the topics of a store", lock_group)
        self._read_only = read_only
        self._is_damaged = False
        self.settings: dict[str, dict[str, Any]] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.missing_partitions: dict[TopicPartition, CorruptionError] = {}
        self.dying: list[str] = []
        self.is_dirty = False
        self.begun: dict[str, range] = {}
        self._file = GrowingFile(root, layout.TOPICS)
        # A change was interrupted: the file may have it, and `settings` not.
        self._is_in_doubt = False
        # All in the root, when the topics were found.
        self.directories: list[str] = []
        # Of all partitions in `settings`.
        self._count = 0
        # Whether opening has changed the settings.
        self._is_taken_over = False
        self._ids = TopicIds(root, {})
        # Of the topics without settings: their ids, as far as they were looked for.
        self._found: dict[str, str] = {}
        self._names_by_id: dict[str, str] | None = None
        # The ids of topics that have none until the first append.
        self._minted: dict[str, str] = {}
        # The topics by their names, with "_" for each ".", from the first use on.
        self._flat_names: dict[str, str] | None = None

    def read(self, report: Callable[[RecoveryAction], None]) -> None:
        """Read the settings of topics."""
        try:
            value = checkpoints.read_state(self._root, layout.TOPICS)
        except CorruptCheckpointError as error:
            path = self._root.path_of(layout.TOPICS)
            text = f"{error}; topics have defaults"
            report(RecoveryAction(STATE_DAMAGED, "", -1, path, -1, 0, -1, None, text))
            self._is_damaged = True
            return
        self.settings = dict(value["topics"]) if value else {}
        self._count = sum(map(_partitions, self.settings.values()))

    def find(self) -> None:
        """Find the topics by their directories."""
        numbers_by_topic: dict[str, list[int]] = {}
        self.directories = self._root.directories()
        for name in self.directories:
            parsed = layout.parse_partition_directory(name)
            if parsed is not None:
                numbers_by_topic.setdefault(parsed[0], []).append(parsed[1])
        self.numbers = {
            topic: tuple(sorted(numbers))
            for topic, numbers in sorted(numbers_by_topic.items())
        }
        self._ids = TopicIds(self._root, self.numbers)
        self._take_renamed()

    def _take_renamed(self) -> None:
        """A topic whose directories have another name now keeps its settings."""
        lost = {
            stored["id"]: topic
            for topic, stored in self.settings.items()
            if stored.get("id") and topic not in self.numbers
        }
        if not lost:
            return
        for topic in self.numbers:
            if topic in self.settings:
                continue
            # The name in it may be an older one: it is written with the next append.
            identity = self._ids.identity(topic)
            if identity is not None and identity.topic_id in lost:
                before = lost.pop(identity.topic_id)
                self.settings[topic] = self.settings.pop(before)
                self._is_taken_over = True

    def check(self, report: Callable[[RecoveryAction], None]) -> None:
        """Compare the directories with the known topics: create those of a topic whose
        creation was interrupted, and report those that are lost."""
        renamed = [n for n in self._root.names() if n.endswith("-delete")]
        for topic, settings in list(self.settings.items()):
            numbers = self.numbers.get(topic, ())
            is_changing = settings.get("creating") or settings.get("deleting")
            if not is_changing and leading(numbers) >= settings["partitions"]:
                continue
            have = set(numbers)
            missing = [n for n in range(settings["partitions"]) if n not in have]
            if settings.get("deleting") or layout.is_renamed_for_deletion(
                renamed if missing or not have else (),
                topic,
                self.topic_id(topic),
                set(missing) if have else None,
            ):
                self._finish_deletion(topic)
                continue
            if settings.get("creating") and self._read_only:
                # The owner will create them; until then only those before the first
                # missing one exist.
                have = set(range(min(missing, default=settings["partitions"])))
                if not have:
                    self.numbers.pop(topic, None)
                missing = []
            if len(missing) > LOST_MAX and not settings.get("creating"):
                raise CorruptionError(
                    f"the directories of {len(missing)} partitions of topic {topic} "
                    f"are gone from {self._root.path}, more than {LOST_MAX}: this is "
                    f"not the store that {layout.TOPICS} speaks of, or most of it is "
                    f"lost. Nothing was changed. Put the directories back; without "
                    f"{layout.TOPICS} what is there can be opened, with default "
                    f"settings",
                    path=self._root.path_of(layout.TOPICS),
                )
            for number in missing:
                name = layout.partition_directory(topic, number)
                if settings.get("creating"):
                    self._root.make(name)
                    have.add(number)
                    continue
                error = CorruptionError(
                    f"the directory of partition {name} is gone from "
                    f"{self._root.path}; the others can be used",
                    path=self._root.path_of(name),
                )
                self.missing_partitions[TopicPartition(topic, number)] = error
                have.add(number)
                report(
                    RecoveryAction(
                        LOST_SEGMENT, topic, number, error.path, -1, 0, -1, None,
                        str(error),
                    )
                )  # fmt: skip
            if have:
                self.numbers[topic] = tuple(sorted(have))
            if settings.get("creating") and not self._read_only:
                self._root.sync()  # before the settings say that they exist
                done = {k: v for k, v in settings.items() if k != "creating"}
                self.write(topic, done)

    def claim(self) -> None:
        """Another program was the last writer: of the known topics, keep what their
        directories confirm. Topics that it deleted are not lost; one that it has made
        again is another topic.
        """
        if not self.settings:
            return  # as in a log directory that only Kafka has used
        settings = {}
        for topic, stored in self.settings.items():
            if topic not in self.numbers:
                continue
            settings[topic] = {
                "partitions": min(stored["partitions"], leading(self.numbers[topic])),
                **{key: stored[key] for key in ("config",) if key in stored},
                **self._claimed_id(topic, stored),
            }
        self._is_taken_over |= settings != self.settings
        self.settings = settings
        self._count = sum(map(_partitions, settings.values()))

    def _claimed_id(self, topic: str, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a topic's identity, after another program has written."""
        topic_id = stored.get("id", "")
        if not topic_id:
            return {}
        kafka_id = stored.get("kafka_id", "")
        if not stored.get("identified"):
            return {"id": topic_id}
        if self._ids.is_made_again(topic, {kafka_id, topic_id} - {""}):
            return {}  # it is found by its directories
        kafka_id = kafka_id or self._ids.kafka_id(topic)
        also = {"kafka_id": kafka_id} if kafka_id else {}
        return {"id": topic_id, "identified": True, **also}

    def persist_claim(self) -> None:
        """Persist what opening has found out, before the first change."""
        if self._is_taken_over:
            checkpoints.check_state(
                self._root, layout.TOPICS, {"topics": self.settings}
            )
            with self._lock:
                self._replace(self.settings)
            self._is_taken_over = False

    def _finish_deletion(self, topic: str) -> None:
        """Complete a deletion that was interrupted after its commit."""
        numbers = self.numbers.pop(topic, ())
        if self._read_only:
            return
        # The commit may be in the page cache only, as a file or an entry of it.
        with self._root.opened(layout.TOPICS) as fd:
            self._root.files.sync(fd)
        self._root.sync()
        for number in numbers:
            self.rename_deleted(
                layout.partition_directory(topic, number),
                layout.deleted_directory(topic, number, self.deletion_mark(topic)),
                is_recorded=bool(self.settings[topic].get("deleting")),
            )
        self._root.sync()
        self.write_if_room(topic, None)

    def check_collision(self, name: str) -> None:
        """Raise `TopicExistsError` if Kafka could not distinguish two names."""
        flat = name.replace(".", "_")
        if "_" not in flat:
            return
        if self._flat_names is None:
            self._flat_names = {
                other.replace(".", "_"): other for other in self.numbers
            }
        other = self._flat_names.get(flat)
        if other in self.numbers:
            raise TopicExistsError(
                f"topic {name} collides with {other}: Kafka takes '.' and '_' for the "
                f"same",
                topic=name,
            )

    def config(self, topic: str) -> TopicConfig:
        """The settings of a topic; the defaults if none were persisted. Raises
        `ConfigError` if what was persisted is not valid."""
        settings = self.settings.get(topic, {}).get("config")
        try:
            return TopicConfig() if settings is None else from_stored(settings)
        except (ConfigError, TypeError) as error:
            raise ConfigError(
                f"the stored settings of topic {topic} are not valid: {error}. "
                f"Configure it and open the store again, or delete it"
            ) from error

    def retaining(self) -> list[TopicPartition]:
        """The partitions of the topics whose settings say after what time, or beyond
        what size, segments are deleted."""
        partitions: list[TopicPartition] = []
        for topic, settings in list(self.settings.items()):
            config = settings.get("config") or {}
            # Only for these: creating the settings of ten thousand topics takes a
            # second.
            if sets_retention(config):
                numbers = self.numbers.get(topic, ())
                with contextlib.suppress(ConfigError):  # its partitions do not open
                    if numbers and self.config(topic).deletes:
                        partitions += [TopicPartition(topic, n) for n in numbers]
        return partitions

    def compacting(self) -> list[TopicPartition]:
        """The partitions of the topics that are compacted."""
        return [
            TopicPartition(topic, number)
            for topic, settings in list(self.settings.items())
            if compacts(settings.get("config") or {})
            for number in self.numbers.get(topic, ())
        ]

    def topic_id(self, topic: str) -> str:
        """Distinguishes a topic from an earlier one of its name; "" if it has no id
        yet: only Kafka has used it, and has given it none."""
        topic_id: str = self.settings.get(topic, {}).get("id", "")
        if topic_id or topic not in self.numbers:
            return topic_id
        found = self._found.get(topic)
        if found is None:

            def is_taken(topic_id: str, name: str) -> bool:
                return self._is_taken(topic, topic_id, name)

            found = self._found[topic] = self._ids.found(topic, is_taken)
        return found

    def _is_taken(self, topic: str, topic_id: str, name: str) -> bool:
        """Whether another topic than `topic` has an id, perhaps the one with a name."""
        if self._names_by_id is None:
            self._names_by_id = {
                stored["id"]: other
                for other, stored in list(self.settings.items())
                if stored.get("id")
            }
        other = self._names_by_id.get(topic_id, topic)
        is_known = other != topic and other in self.numbers
        return is_known or (name != topic and self._ids.has_id(name, topic_id))

    def id_for_appends(self, topic: str) -> str:
        """The id under which the topic is written to: a new one if it has none."""
        return self.topic_id(topic) or self._minted.setdefault(topic, uuid.uuid4().hex)

    def partition_id(self, key: TopicPartition) -> str:
        """The id of the topic that a partition's directory belongs to: its topic's, but
        for one that was put back from an earlier topic of the name.

        Raises:
            StorageError: it cannot be looked at.
        """
        directory = self._root.child(layout.partition_directory(*key))
        with storage_errors("look at", directory.path):
            topic_id = self.topic_id(key.topic)
            found = identity_in(directory)
        if found is None or found.is_of(topic_id, key.topic):
            return topic_id
        return found.topic_id

    def is_identified(self, topic: str) -> bool:
        """Whether the settings say that a partition of the topic was written to."""
        return bool(self.settings.get(topic, {}).get("identified"))

    def identify(
        self, key: TopicPartition, directory: Directory, log_id: str, *, is_empty: bool
    ) -> str:
        """Before the first append to a partition: write its `.logstore-topic`, and then
        into the settings that the topic has one. Returns the id of the topic.

        Args:
            is_empty: its first segment is created next, which syncs the directory.

        Raises:
            OSError: as the system gives it.
        """
        topic, number = key
        topic_id = self.id_for_appends(topic)
        found = identity_in(directory)
        kafka_id = kafka_id_of(directory) if found is None else found.kafka_id
        identity = TopicIdentity(topic_id, topic, number, kafka_id, log_id)
        count = leading(self.numbers[topic])
        is_noted = not count or self.is_identified(topic)
        if found != identity:
            # Without a sync nothing is lost with its name but what is appended then.
            identity.write(directory, sync=not (is_noted and is_empty))
        if not is_noted:
            settings = {
                "partitions": count,
                **self.settings.get(topic, {}),
                "id": topic_id,
                "identified": True,
            }
            if kafka_id:
                settings["kafka_id"] = kafka_id
            self.write(topic, settings)
        return topic_id

    def deletion_mark(self, topic: str) -> str:
        """For the name of a directory of a topic that is being deleted."""
        return layout.deletion_mark(self.topic_id(topic), uuid.uuid4().hex)

    def with_id(self, topic: str, settings: dict[str, Any]) -> dict[str, Any]:
        """New settings of a topic, with its id: a new one if there is no such topic
        yet. A topic that was found by its directories has the id of these."""
        is_new = topic not in self.numbers
        topic_id = uuid.uuid4().hex if is_new else self.topic_id(topic)
        return {**settings, "id": topic_id} if topic_id else settings

    def write(self, name: str, value: dict[str, Any] | None) -> None:
        """Persist the settings of a topic, or remove them.

        The file says afterwards what it said before if one bit of the last entry is
        damaged and the store was not closed. If that was not the topic's creation or
        deletion, which opening finishes in any case, `confirm` must follow.
        """
        with self._lock:
            self._persist(name, value)

    def confirm(self) -> None:
        """The last `write` is not the last entry of the file any more."""
        if self._file.has_entries and not self._is_in_doubt:
            with contextlib.suppress(OSError), self._lock:
                if not self._file.append(_text_of({})):
                    self._replace(self.settings)

    def _persist(self, name: str, value: dict[str, Any] | None) -> None:
        """Disk first, memory after: append an entry, or write the file whole."""
        before, known = self.settings.get(name, {}), self._count
        if value is not None and before.get("id", "") == value.get("id"):
            # Found out by the first append, perhaps since `value` was made.
            value = {**_noted(before), **value}
        if self._is_in_doubt:
            known = sum(map(_partitions, self.settings.values()))
        count = known + _partitions(value) - _partitions(self.settings.get(name))
        check_partition_count(count)
        if value is not None:
            checkpoints.check_state(
                self._root, layout.TOPICS, {"topics": {name: value}}
            )
        is_whole = self.is_dirty or self._is_damaged or self._is_in_doubt
        # Until memory has it, too: after an interrupt the file is written whole.
        self._is_in_doubt = True
        if is_whole or not self._file.append(_text_of({name: value})):
            settings = dict(self.settings)
            checkpoints.merge_topics(settings, {name: value})
            self._replace(settings)
        self._count = count
        checkpoints.merge_topics(self.settings, {name: value})
        self.is_dirty = self._is_in_doubt = False

    def _replace(self, settings: dict[str, dict[str, Any]]) -> None:
        """Write the file whole."""
        if self._is_damaged:
            # The unreadable file is kept: it has the settings of other topics.
            kept = f"{layout.TOPICS}.damaged-{self._root.files.now_ms()}"
            self._root.rename(layout.TOPICS, kept)
            self._is_damaged = False
        self._file.replace(_text_of(settings))

    def rename_deleted(self, name: str, new: str, *, is_recorded: bool) -> None:
        """Rename the directory of a partition that is being deleted. If a full disk has
        no room for the new name, and the deletion `is_recorded`, remove it at once.
        Else its indexes make room, because they can be built again."""
        try:
            self._root.rename(name, new)
        except OSError as error:
            if not is_disk_full(error):
                raise
            if not is_recorded:
                _remove_indexes(self._root.child(name))
            elif self.empty_directories([name]):
                self._root.remove(name)
                return
            self._root.rename(name, new)

    def write_if_room(self, name: str, value: dict[str, Any] | None) -> None:
        """As `write`, but a full disk does not stop a deletion: `catch_up` then writes
        them. Until then the names of the renamed directories say that it was begun;
        those of several partitions do so only if the topic has an id.
        """
        try:
            with self._lock:
                self._persist(name, value)
        except OSError as error:
            failed = storage_error(error, "write the settings in", self._root.path)
            is_half_possible = value is not None and len(self.numbers[name]) > 1
            if not isinstance(failed, DiskFullError) or (
                is_half_possible and not self.topic_id(name)
            ):
                raise failed from error
            logger.warning("deleting topic %s goes on: %s", name, failed)
            self._count += _partitions(value) - _partitions(self.settings.get(name))
            checkpoints.merge_topics(self.settings, {name: value})
            self.is_dirty = True

    def catch_up(self) -> None:
        """Persist the settings for which there was no room."""
        if self.is_dirty:
            with contextlib.suppress(OSError), self._lock:
                self._replace(self.settings)
                self.is_dirty = self._is_in_doubt = False

    def close(self) -> None:
        """Write the file whole, for the next opening; if that fails, it has entries."""
        self.catch_up()
        if self._file.has_entries and not self._is_in_doubt:
            with contextlib.suppress(OSError), self._lock:
                self._replace(self.settings)

    def finish_deletions(self, names: list[str]) -> None:
        """Complete deletions of topics that an earlier writer began: now if the delay
        is over, else when this one begins to write."""
        delay_ms = TopicConfig().file_delete_delay_ms
        over: list[str] = []
        for name in names:
            parsed = layout.transition_topic(name)
            if parsed is None or parsed[2] != "delete":
                continue
            age_ms = (
                self._root.files.now_ms() - self._root.stat(name).ctime_ns // 1_000_000
            )
            (self.dying if 0 <= age_ms < delay_ms else over).append(name)
        emptied = self.empty_directories(over)
        self.catch_up()
        if self.is_dirty:
            self.dying += emptied  # their names say that nothing is lost
        else:
            self.remove_directories(emptied)

    def empty_directories(self, names: list[str]) -> list[str]:
        """Remove the files of partition directories that were renamed for deletion.
        Returns the names of those that are empty now.

        Files that are not named as Kafka or logstore name files are foreign: they stay,
        and so does the directory.
        """
        emptied = []
        for name in names:
            directory = self._root.child(name)
            try:
                foreign = _empty(directory)
                if foreign:
                    logger.warning(
                        "%s is kept: %d files in it are not of a log (%r)",
                        directory.path,
                        len(foreign),
                        foreign[0],
                    )
                    continue
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("cannot remove %s: %s", directory.path, error)
                continue
            emptied.append(name)
        return emptied

    def make_directories(self, topic: str, numbers: range) -> None:
        """Create the directories of new partitions, durably."""
        self.drop_begun(topic)
        self.begun[topic] = numbers
        for number in numbers:
            with contextlib.suppress(FileExistsError):
                self._root.make(layout.partition_directory(topic, number))
        self._root.sync()

    def drop_begun(self, topic: str) -> None:
        """Remove the directories of an earlier call that did not complete: the next
        opening would find partitions that were not requested."""
        if topic not in self.begun:
            return
        numbers = self.numbers.get(topic, ())
        for number in set(self.begun[topic]).difference(numbers):
            with contextlib.suppress(OSError):  # it does not exist, or is not empty
                self._root.remove(layout.partition_directory(topic, number))
        self.begun.pop(topic, None)

    def add(self, topic: str, numbers: tuple[int, ...]) -> None:
        """Set the partitions of a topic: the new ones exist."""
        if self._flat_names is not None:
            self._flat_names[topic.replace(".", "_")] = topic
        self.numbers[topic] = numbers
        self._found.pop(topic, None)
        self._minted.pop(topic, None)
        self.begun.pop(topic, None)

    def remove_directories(self, names: list[str]) -> None:
        """Remove empty directories."""
        for name in names:
            try:
                self._root.remove(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                path = self._root.path_of(name)
                logger.warning("cannot remove %s: %s", path, error)


def _remove_indexes(directory: Directory) -> None:
    """Remove the index files of a partition."""
    for name in directory.names():
        parsed = layout.parse_segment_file(name)
        if parsed and parsed.suffix in (layout.INDEX, layout.TIME_INDEX):
            directory.unlink(name, missing_ok=True)


def _empty(directory: Directory) -> list[str]:
    """Remove the files that logstore or Kafka put into a partition's directory, also
    the directories in it that are logstore's own (`layout.QUARANTINE_PREFIX`). Returns
    the names of foreign files, which stay."""
    foreign: list[str] = []
    for name in directory.names():
        if name.startswith(layout.OWN_PREFIX) and directory.stat(name).is_directory:
            inner = directory.child(name)
            for file in inner.names():
                inner.unlink(file, missing_ok=True)
            directory.remove(name)
        elif layout.is_partition_file(name):
            directory.unlink(name, missing_ok=True)
        else:
            foreign.append(name)
    return foreign
