"""The ids of the topics of a store, by their settings and by their directories."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from logstore.errors import storage_errors
from logstore.io import layout
from logstore.io.checkpoint.topic_identity import TopicIdentity, kafka_id_of
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.store.catalog.topic_ids import TopicIds, identity_in
from logstore.store.catalog.topic_settings import TopicSettings, leading

__all__ = ["KnownIds"]


class KnownIds:
    """Knows the id of each topic, and records it before the first append.

    Args:
        numbers: topic -> numbers of its partitions that have a directory.

    Invariant: a topic keeps the id that it was given once, until another topic is made
    with its name (`forget`).
    """

    def __init__(
        self,
        root: Directory,
        numbers: Mapping[str, tuple[int, ...]],
        settings: TopicSettings,
    ) -> None:
        self._root = root
        self._numbers = numbers
        self._settings = settings
        self._directories = TopicIds(root, numbers)
        # Ids of the topics without settings that were looked up so far.
        self._found: dict[str, str] = {}
        self._names_by_id: dict[str, str] | None = None
        # New ids of topics that get an id only at the first append.
        self._minted: dict[str, str] = {}

    def identity(self, topic: str) -> TopicIdentity | None:
        """See `TopicIds.identity`."""
        return self._directories.identity(topic)

    def topic_id(self, topic: str) -> str:
        """Distinguishes a topic from an earlier one of its name; "" if it has no id
        yet: only Kafka has used it, and has given it none."""
        topic_id: str = self._settings.of(topic).get("id", "")
        if topic_id or topic not in self._numbers:
            return topic_id
        directory_id = self._found.get(topic)
        if directory_id is None:

            def is_taken(topic_id: str, name: str) -> bool:
                return self._is_taken(topic, topic_id, name)

            directory_id = self._found[topic] = self._directories.found(topic, is_taken)
        return directory_id

    def _is_taken(self, topic: str, topic_id: str, name: str) -> bool:
        """Whether another topic than `topic` has an id, perhaps the one with a name."""
        if self._names_by_id is None:
            self._names_by_id = {
                stored["id"]: other
                for other, stored in list(self._settings.stored.items())
                if stored.get("id")
            }
        other = self._names_by_id.get(topic_id, topic)
        is_known = other != topic and other in self._numbers
        return is_known or (name != topic and self._directories.has_id(name, topic_id))

    def id_for_appends(self, topic: str) -> str:
        """The id under which the topic is written to: a new one if it has no id yet."""
        return self.topic_id(topic) or self._minted.setdefault(topic, uuid.uuid4().hex)

    def partition_id(self, key: TopicPartition) -> str:
        """The id of the topic that a partition's directory belongs to: its topic's, but
        for one that was put back from an earlier topic of the name.

        Raises:
            StorageError: it cannot be looked at.
        """
        directory = self._root.child(layout.partition_directory(*key))
        with storage_errors("examine", directory.path):
            topic_id = self.topic_id(key.topic)
            identity = identity_in(directory)
        if identity is None or identity.is_of(topic_id, key.topic):
            return topic_id
        return identity.topic_id

    def identify(
        self, key: TopicPartition, directory: Directory, log_id: str, *, is_empty: bool
    ) -> str:
        """Before the first append to a partition: write its `.logstore-topic`, and then
        into the settings that the topic has one, and the format in which it is
        continued. Returns the id of the topic.

        Args:
            is_empty: its first segment is created next, which syncs the directory.

        Raises:
            OSError: as raised by the system.
            StorageError: as `TopicSettings.continued`.
        """
        topic, number = key
        topic_id = self.id_for_appends(topic)
        present_identity = identity_in(directory)
        kafka_id = (
            kafka_id_of(directory)
            if present_identity is None
            else present_identity.kafka_id
        )
        identity = TopicIdentity(topic_id, topic, number, kafka_id, log_id)
        count = leading(self._numbers[topic])
        is_noted = not count or self._settings.is_identified(topic)
        if present_identity != identity:
            # Without a sync, only records appended since can be lost with its name.
            identity.write(directory, sync=not (is_noted and is_empty))
        if not is_noted:
            settings = {
                "partitions": count,
                **self._settings.of(topic),
                "id": topic_id,
                "identified": True,
                **self._settings.continued(topic),
            }
            if kafka_id:
                settings["kafka_id"] = kafka_id
            self._settings.write(topic, settings)
        return topic_id

    def deletion_mark(self, topic: str) -> str:
        """The mark in the names of the directories of a topic that is being deleted."""
        return layout.deletion_mark(self.topic_id(topic), uuid.uuid4().hex)

    def with_id(
        self, topic: str, settings: dict[str, Any], new_id: str = ""
    ) -> dict[str, Any]:
        """New settings of a topic, with its id: a new one (`new_id`, if that is not
        empty) if there is no such topic yet. A topic that was found by its directories
        has the id of these."""
        is_new = topic not in self._numbers
        topic_id = new_id or uuid.uuid4().hex if is_new else self.topic_id(topic)
        return {**settings, "id": topic_id} if topic_id else settings

    def forget(self, topic: str) -> None:
        """Another topic has the name now."""
        self._found.pop(topic, None)
        self._minted.pop(topic, None)

    def claimed(self, topic: str, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a topic's identity, and the format in which it is continued,
        after a write by another program."""
        topic_id = stored.get("id", "")
        if not topic_id:
            return {}
        kafka_id = stored.get("kafka_id", "")
        if not stored.get("identified"):
            return {"id": topic_id}
        if self._directories.is_made_again(topic, {kafka_id, topic_id} - {""}):
            return {}  # it is found by its directories
        kafka_id = kafka_id or self._directories.kafka_id(topic)
        also = {"kafka_id": kafka_id} if kafka_id else {}
        if "message_format" in stored:
            also["message_format"] = stored["message_format"]
        return {"id": topic_id, "identified": True, **also}
