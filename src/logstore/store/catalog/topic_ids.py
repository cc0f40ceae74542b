"""The ids of topics, from the directories of their partitions.

The catalog has a copy of each id. This module finds the ids of other topics: their
directories were moved, copied or restored, or only Kafka has used them. It also finds
out whether another program has made a topic again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from logstore.errors import CorruptCheckpointError, UnsupportedError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.topic_identity import (
    TopicIdentity,
    derived_id,
    has_own_files,
    kafka_id_of,
)
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

__all__ = ["CatalogFile", "TopicIds", "identity_in"]


class TopicIds:
    """Looks into the directories of partitions. All processes find the same.

    Args:
        root: the store's directory.
        numbers: topic -> numbers of its partitions that have a directory.
    """

    def __init__(self, root: Directory, numbers: Mapping[str, Sequence[int]]) -> None:
        self._root = root
        self._numbers = numbers

    def _directories(self, topic: str) -> Iterable[Directory]:
        for number in self._numbers.get(topic, ()):
            yield self._root.child(layout.partition_directory(topic, number))

    def identity(self, topic: str) -> TopicIdentity | None:
        """The first identity found in the directories of its partitions.

        Raises:
            OSError: as raised by the system.
        """
        for directory in self._directories(topic):
            identity = identity_in(directory)
            if identity is not None:
                return identity
        return None

    def kafka_id(self, topic: str) -> str:
        """The id that Kafka has given to the topic; "" if Kafka has given it no id."""
        return next(filter(None, map(_kafka_id, self._directories(topic))), "")

    def found(self, topic: str, is_taken: Callable[[str, str], bool]) -> str:
        """The id of a topic that has no id in the catalog: from its partitions, else
        Kafka's; "" if both are missing.

        Args:
            is_taken: whether an id is that of the topic with another name, which is
                still there.
        """
        identity = self.identity(topic)
        if identity is None:
            kafka_id = self.kafka_id(topic)
            return (
                derived_id(kafka_id, topic)
                if kafka_id and is_taken(kafka_id, "")
                else kafka_id
            )
        # With another name it was moved, if the original topic is gone.
        is_copy = is_taken(identity.topic_id, identity.topic)
        if topic == identity.topic and is_copy:
            return derived_id(identity.topic_id, topic)
        return identity.id_as(topic, is_copy=is_copy)

    def has_id(self, topic: str, topic_id: str) -> bool:
        """Whether a partition of a topic has been written to under this id."""
        return any(
            identity is not None
            and identity.topic_id == topic_id
            and identity.topic == topic
            for identity in map(identity_in, self._directories(topic))
        )

    def is_made_again(self, topic: str, kafka_ids: Container[str]) -> bool:
        """Whether another program has made a topic again that logstore has written to:
        each directory is another one, in which logstore has no file.

        Args:
            kafka_ids: Kafka's id of the topic that was there, if it had one: a broker
                that has copied the same topic again has given it the same.
        """
        if any(map(has_own_files, self._directories(topic))):
            return False
        return self.kafka_id(topic) not in kafka_ids


class CatalogFile:
    """The ids in the current topics file, for a handle whose topic another process may
    have deleted. Any thread may ask.

    Args:
        root: the store's directory.
    """

    def __init__(self, root: Directory) -> None:
        self._root = root
        # The stamp of the file, and the ids of the topics in it.
        self._seen: tuple[object, Mapping[str, str]] = (None, {})

    def is_of(
        self,
        key: TopicPartition,
        identity: TopicIdentity | None,
        held: str,
        *,
        ask_catalog: bool,
    ) -> bool:
        """Whether a partition's directory may be of the topic with the id `held`: true
        unless a file contradicts it.

        Args:
            identity: the identity in the directory.
            ask_catalog: the topics file counts: no other program has written since.

        Raises:
            OSError: as the system gives it.
        """
        if identity is not None:
            return identity.is_of(held, key.topic)
        return not ask_catalog or self._ids().get(key.topic, held) == held

    def _ids(self) -> Mapping[str, str]:
        stamp = self._root.stamp(layout.TOPICS)
        if stamp != self._seen[0]:
            try:
                value = checkpoints.read_state(self._root, layout.TOPICS)
            except (CorruptCheckpointError, UnsupportedError):
                value = None
            topics = value["topics"] if value else {}
            ids = {name: topics[name]["id"] for name in topics if "id" in topics[name]}
            self._seen = stamp, ids
        return self._seen[1]


def identity_in(directory: Directory) -> TopicIdentity | None:
    """The identity in a directory; None also if it is damaged, or there is no such
    directory."""
    try:
        return TopicIdentity.read(directory)
    except (CorruptCheckpointError, UnsupportedError, FileNotFoundError):
        return None


def _kafka_id(directory: Directory) -> str:
    try:
        return kafka_id_of(directory)
    except FileNotFoundError:
        return ""
