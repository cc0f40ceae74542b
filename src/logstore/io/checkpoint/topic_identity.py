"""Which topic, and which log, the files of a partition's directory belong to.

`.logstore-topic` (docs/format.md, "Identity") is in the same directory as the
log, so that each copy of the records has it. It is written once, before the first
append.
"""

from __future__ import annotations

import base64
import contextlib
import re
from typing import Final, NamedTuple

import xxhash

from logstore.io.checkpoint import checkpoints
from logstore.io.directory import NOT_A_FILE, Directory
from logstore.io.layout import (
    DAMAGED,
    OWN_PREFIX,
    PARTITION_METADATA,
    TOPIC_IDENTITY,
    TORN_PREFIX,
)

__all__ = [
    "TopicIdentity",
    "counts_in",
    "derived_id",
    "has_own_files",
    "kafka_id_of",
    "log_id_of",
]

_KAFKA_ID: Final = re.compile(rb"topic_id:[ \t]*([A-Za-z0-9_-]{22})[ \t]*(?:\n|\Z)")
_METADATA_BYTES_MAX: Final = 4096
_NO_ID: Final = "0" * 32
# An opening makes them, also in a log to which logstore has never appended.
_OF_OPENINGS: Final = (TORN_PREFIX, DAMAGED)


class TopicIdentity(NamedTuple):
    """The content of `.logstore-topic`.

    Attributes:
        topic_id: 32 hexadecimal digits.
        topic, partition: the name and the number when it was written.
        kafka_id: Kafka's id of the topic then, 32 hexadecimal digits; "": not assigned.
        log_id: of the log, 32 hexadecimal digits.
    """

    topic_id: str
    topic: str
    partition: int
    kafka_id: str
    log_id: str

    @classmethod
    def read(cls, directory: Directory) -> TopicIdentity | None:
        """The identity in a partition's directory; None if it has no such file.

        Raises:
            CorruptCheckpointError: it is damaged.
            OSError: as the system gives it.
        """
        try:
            value = checkpoints.read_state(directory, TOPIC_IDENTITY)
        except NotADirectoryError:
            return None
        if value is None:
            return None
        return cls(
            value["id"],
            value["topic"],
            value["partition"],
            value["kafka_id"],
            value["log_id"],
        )

    def write(self, directory: Directory, *, sync: bool = True) -> None:
        """Write it, durably.

        Args:
            sync: also its name; without it the caller syncs the directory.

        Raises:
            OSError: as the system gives it.
        """
        value = {
            "id": self.topic_id,
            "topic": self.topic,
            "partition": self.partition,
            "kafka_id": self.kafka_id,
            "log_id": self.log_id,
        }
        checkpoints.check_state(directory, TOPIC_IDENTITY, value)
        data = checkpoints.pack_state(value)
        directory.write_file(TOPIC_IDENTITY, data, sync=sync)

    def id_as(self, topic: str, *, is_copy: bool) -> str:
        """The id of the topic that has its directory now.

        Args:
            topic: the name now.
            is_copy: the directory that it was copied from is still there.
        """
        if topic == self.topic or not is_copy:
            return self.topic_id
        return derived_id(self.topic_id, topic)

    def is_of(self, topic_id: str, topic: str) -> bool:
        """Whether a topic with this id may have its directory, under this name."""
        ids = (self.topic_id, self.id_as(topic, is_copy=True))
        return topic_id in ids


def counts_in(topic_id: str, committed_for: str | None) -> bool:
    """Whether a position counts in the topic of its name: if it was committed for the
    one that has the id, or before topics had ids.

    Args:
        topic_id: "" if it is not known: it may be another topic.
    """
    return not committed_for or committed_for == topic_id


def derived_id(topic_id: str, name: str) -> str:
    """The id of the copy of a topic, under another name."""
    return xxhash.xxh3_128_hexdigest(f"{topic_id} {name}".encode())


def log_id_of(topic_id: str, partition: int) -> str:
    """The id of a partition's log, if no earlier release has given it another one."""
    return xxhash.xxh3_128_hexdigest(f"{topic_id}-{partition}".encode())


def kafka_id_of(directory: Directory) -> str:
    """The id that Kafka has given to the topic of a partition's directory, as 32
    hexadecimal digits; "" without an id, as before Kafka 2.8.

    Raises:
        OSError: as the system gives it.
    """
    try:
        _, data = directory.read_small(PARTITION_METADATA, _METADATA_BYTES_MAX)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno in NOT_A_FILE:
            return ""
        raise
    match = _KAFKA_ID.search(data)
    if match is None:
        return ""
    topic_id = base64.urlsafe_b64decode(match[1] + b"==").hex()
    return "" if topic_id == _NO_ID else topic_id


def has_own_files(directory: Directory) -> bool:
    """Whether logstore has a file in a partition's directory that an append has made.
    One that was not finished says nothing: the first append may have been interrupted.

    Raises:
        OSError: as the system gives it.
    """
    with contextlib.suppress(FileNotFoundError):
        return any(
            name.startswith(OWN_PREFIX)
            and not name.startswith(_OF_OPENINGS)
            and not name.endswith(".tmp")
            for name in directory.names()
        )
    return False
