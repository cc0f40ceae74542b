"""The known topics of a store.

Topics are found by the directories of their partitions, as Kafka finds them. The
settings say in addition how many partitions there must be (`TopicSettings`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from logstore.config import compacts, sets_retention
from logstore.errors import (
    ConfigError,
    CorruptionError,
    TopicExistsError,
    is_disk_full,
)
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import LOST_SEGMENT, RecoveryAction
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.store.catalog.deleted_directories import DeletedDirectories
from logstore.store.catalog.known_ids import KnownIds
from logstore.store.catalog.topic_settings import TopicSettings, leading

__all__ = ["Catalog"]

# Up to this many lost directories of a topic are reported one by one.
LOST_MAX = 10_000


class Catalog:
    """The known topics of a store. The store's lock guards it.

    Attributes:
        settings: of the topics, and their file.
        ids: of the topics.
        deleted: the directories of deleted topics.
        numbers: topic -> numbers of its partitions, in order.
        missing_partitions: partitions whose directory is unexpectedly missing.
        directories: all in the root, when the topics were found.
        begun: topic -> partitions whose directories a call that did not complete may
            have made.
    """

    def __init__(
        self, root: Directory, *, read_only: bool, lock_group: int = 0
    ) -> None:
        self._root = root
        self._read_only = read_only
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.settings = TopicSettings(root, lock_group, self.numbers)
        self.ids = KnownIds(root, self.numbers, self.settings)
        self.deleted = DeletedDirectories(root, self.settings)
        self.missing_partitions: dict[TopicPartition, CorruptionError] = {}
        self.directories: list[str] = []
        self.begun: dict[str, range] = {}
        # The topics by their names, with "_" for each ".", from the first use on.
        self._flat_names: dict[str, str] | None = None

    def find(self) -> None:
        """Find the topics by their directories."""
        numbers_by_topic: dict[str, list[int]] = {}
        self.directories = self._root.directories()
        for name in self.directories:
            parsed = layout.parse_partition_directory(name)
            if parsed is not None:
                numbers_by_topic.setdefault(parsed[0], []).append(parsed[1])
        for topic, numbers in sorted(numbers_by_topic.items()):
            self.numbers[topic] = tuple(sorted(numbers))
        self._take_renamed()

    def _take_renamed(self) -> None:
        """A topic whose directories have another name now keeps its settings."""
        stored = dict(self.settings.stored)
        lost = {
            settings["id"]: topic
            for topic, settings in stored.items()
            if settings.get("id") and topic not in self.numbers
        }
        if not lost:
            return
        for topic in self.numbers:
            if topic in stored:
                continue
            # The name in it may be an older one: it is written with the next append.
            identity = self.ids.identity(topic)
            if identity is not None and identity.topic_id in lost:
                stored[topic] = stored.pop(lost.pop(identity.topic_id))
        self.settings.take_over(stored)

    def check(self, report: Callable[[RecoveryAction], None]) -> None:
        """Compare the directories with the known topics: create missing directories of
        a topic whose creation was interrupted, and report lost ones."""
        renamed = [n for n in self._root.names() if n.endswith("-delete")]
        for topic, settings in list(self.settings.stored.items()):
            numbers = self.numbers.get(topic, ())
            is_changing = settings.get("creating") or settings.get("deleting")
            if not is_changing and leading(numbers) >= settings["partitions"]:
                continue
            have = set(numbers)
            missing = [n for n in range(settings["partitions"]) if n not in have]
            if settings.get("deleting") or layout.is_renamed_for_deletion(
                renamed if missing or not have else (),
                topic,
                self.ids.topic_id(topic),
                set(missing) if have else None,
            ):
                self._finish_deletion(topic)
                continue
            if not settings.get("creating"):
                pass
            elif not self._read_only and self._finish(topic, missing):
                have.update(missing)
                missing = []
            else:
                # The owner will create them, or an opening that finds room; until then
                # only those before the first missing one exist.
                have = set(range(min(missing, default=settings["partitions"])))
                if not have:
                    self.numbers.pop(topic, None)
                missing = []
            if len(missing) > LOST_MAX:
                raise CorruptionError(
                    f"the directories of {len(missing)} partitions of topic "
                    f"{topic} are gone from {self._root.path}, more than "
                    f"{LOST_MAX}: this is not the store that {layout.TOPICS} "
                    "describes, or most of it is lost. Nothing was changed. Put "
                    f"the directories back; without {layout.TOPICS} the rest can "
                    "be opened, with default settings",
                    path=self._root.path_of(layout.TOPICS),
                )
            for number in missing:
                name = layout.partition_directory(topic, number)
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

    def _finish(self, topic: str, missing: list[int]) -> bool:
        """Complete a creation that was interrupted, unless the disk is full; returns
        whether it is complete."""
        settings = self.settings.of(topic)
        try:
            for number in missing:
                self._root.make(layout.partition_directory(topic, number))
            self._root.sync()  # before the settings say that they exist
            done = {k: v for k, v in settings.items() if k != "creating"}
            self.settings.write(topic, done)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.begun[topic] = range(settings["partitions"])
            return False
        return True

    def claim(self) -> None:
        """Another program was the last writer: of the known topics, keep what their
        directories confirm. Topics that it deleted are not lost; one that it has made
        again is another topic.
        """
        if not self.settings.stored:
            return  # as in a log directory that only Kafka has used
        claimed = {}
        for topic, stored in self.settings.stored.items():
            if topic not in self.numbers:
                continue
            claimed[topic] = {
                "partitions": min(stored["partitions"], leading(self.numbers[topic])),
                **{key: stored[key] for key in ("config",) if key in stored},
                **self.ids.claimed(topic, stored),
            }
        self.settings.take_over(claimed)

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
            self.deleted.rename(
                layout.partition_directory(topic, number),
                layout.deleted_directory(topic, number, self.ids.deletion_mark(topic)),
                is_recorded=bool(self.settings.of(topic).get("deleting")),
            )
        self._root.sync()
        self.settings.write_if_room(topic, None)

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
                f"topic {name} collides with {other}: Kafka does not distinguish "
                "'.' and '_'",
                topic=name,
            )

    def retaining(self) -> list[TopicPartition]:
        """The partitions of the topics whose settings say after what time, or beyond
        what size, segments are deleted."""
        partitions: list[TopicPartition] = []
        for topic, settings in list(self.settings.stored.items()):
            config = settings.get("config") or {}
            # Only for these: creating the settings of ten thousand topics takes a
            # second.
            if sets_retention(config):
                numbers = self.numbers.get(topic, ())
                with contextlib.suppress(ConfigError):  # its partitions do not open
                    if numbers and self.settings.config(topic).deletes:
                        partitions += [TopicPartition(topic, n) for n in numbers]
        return partitions

    def compacting(self) -> list[TopicPartition]:
        """The partitions of the topics that are compacted."""
        return [
            TopicPartition(topic, number)
            for topic, settings in list(self.settings.stored.items())
            if compacts(settings.get("config") or {})
            for number in self.numbers.get(topic, ())
        ]

    def make_directories(self, topic: str, numbers: range) -> None:
        """Create the directories of new partitions, durably."""
        self.drop_begun(topic)
        self.begun[topic] = numbers
        for number in numbers:
            with contextlib.suppress(FileExistsError):
                self._root.make(layout.partition_directory(topic, number))
        self._root.sync()

    def drop_begun(self, topic: str) -> bool:
        """Remove the directories of an earlier call that did not complete: the next
        opening would find partitions that were not requested. Returns whether they are
        gone."""
        numbers = self.begun.get(topic, ())
        is_gone = True
        for number in set(numbers).difference(self.numbers.get(topic, ())):
            name = layout.partition_directory(topic, number)
            with contextlib.suppress(OSError):  # it does not exist, or is not empty
                self._root.remove(name)
            is_gone &= not self._root.exists(name)
        self.begun.pop(topic, None)
        return is_gone

    def add(self, topic: str, numbers: tuple[int, ...]) -> None:
        """Set the partitions of a topic: the new ones exist."""
        if self._flat_names is not None:
            self._flat_names[topic.replace(".", "_")] = topic
        self.numbers[topic] = numbers
        self.ids.forget(topic)
        self.begun.pop(topic, None)
