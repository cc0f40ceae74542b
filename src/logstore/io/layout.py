"""Names on disk: of Kafka's and of logstore's files and directories in a store.

Only this module forms and parses such names (docs/format.md).
"""

from __future__ import annotations

import hashlib
import itertools
import re
import urllib.parse
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from logstore.errors import ConfigError

__all__ = [
    "ANSWERS_PREFIX",
    "CLEANED",
    "CLEAN_SHUTDOWN",
    "CLOSED",
    "CLUSTER_BOOTSTRAP",
    "CLUSTER_METADATA",
    "DAMAGED",
    "DELETED",
    "DURABLE",
    "GROUP_PREFIX",
    "HIGH_WATERMARKS",
    "INDEX",
    "KAFKA_STORE_FILES",
    "LEADER_EPOCHS",
    "LOCK",
    "LOCK_RECORD",
    "LOG",
    "LOG_START_CHECKPOINT",
    "OFFSET_MAX",
    "OWNER",
    "OWN_PREFIX",
    "PARTITION_METADATA",
    "PARTITION_STATE",
    "PROCESS_PREFIX",
    "PRODUCERS",
    "PUBLICATION",
    "PUBLISHED",
    "RECOVERY_CHECKPOINT",
    "SNAPSHOT",
    "STAGED_PREFIX",
    "SWAP",
    "TIME_INDEX",
    "TOPICS",
    "TOPIC_IDENTITY",
    "TXN_INDEX",
    "UNKNOWN",
    "SegmentFile",
    "TopicPartition",
    "check_new_topic_name",
    "check_topic_name",
    "deleted_directory",
    "deletion_mark",
    "digest_file",
    "group_file",
    "group_files",
    "group_lock_file",
    "group_of_file",
    "is_partition_file",
    "is_renamed_for_deletion",
    "is_store_file",
    "own_copy_file",
    "parse_digest_file",
    "parse_partition_directory",
    "parse_segment_file",
    "partition_directory",
    "segment_file",
    "torn_files",
    "transition_topic",
]

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
CLUSTER_BOOTSTRAP = "bootstrap.checkpoint"
CLUSTER_METADATA = "__cluster_metadata-0"
RECOVERY_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

OWN_PREFIX = ".logstore"
OWNER = ".logstore-owner"
LOCK_RECORD = ".logstore-lock"
TOPICS = ".logstore-topics"
PARTITION_STATE = ".logstore-state"
TOPIC_IDENTITY = ".logstore-topic"
DURABLE = ".logstore-durable"
DAMAGED = ".logstore-damaged"
# Of earlier releases; it is read once more, and not written.
CLOSED = ".logstore-closed"
PRODUCERS = ".logstore-producers"
PUBLICATION = ".logstore-publication"
PUBLISHED = ".logstore-published"
UNKNOWN = ".logstore-unknown"
STAGED_PREFIX = ".logstore-staged-"
PROCESS_PREFIX = ".logstore-process-"
ANSWERS_PREFIX = ".logstore-answers-"
GROUP_PREFIX = ".logstore-group-"
TORN_PREFIX = ".logstore-torn-"
DIGEST_PREFIX = ".logstore-digest-"
QUARANTINE_PREFIX = ".logstore-quarantine-"
OWN_COPY_PREFIX = ".logstore-own-"
SNAPSHOT_REQUEST = ".logstore-request-snapshot"
UNFINISHED = ".logstore-unfinished"

TOPIC_NAME_BYTES_MAX = 249
GROUP_CHARACTERS_MAX = 10_000
_GROUP_BYTES_MAX = 180
_GROUP_ESCAPED = re.compile(rb"[^A-Za-z0-9_-]")
OFFSET_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
# Directories in a log directory that are not partitions.
NOT_PARTITIONS = frozenset({"remote-log-index-cache", CLUSTER_METADATA})

# Kafka's files in the root of a log directory.
KAFKA_STORE_FILES = frozenset(
    {
        LOCK,
        CLEAN_SHUTDOWN,
        META_PROPERTIES,
        RECOVERY_CHECKPOINT,
        LOG_START_CHECKPOINT,
        HIGH_WATERMARKS,
        CLEANER_CHECKPOINT,
        CLUSTER_BOOTSTRAP,
    }
)

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_NO_TOPICS = (".", "..")
_PARTITION = re.compile(
    rf"([A-Za-z0-9._-]{{1,{TOPIC_NAME_BYTES_MAX}}})-(0|[1-9][0-9]{{0,9}})"
)
_SEGMENT = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?:\.[0-9]{1,9}(?=\.deleted))?(\.deleted|\.cleaned|\.swap)?"
)
_TRANSITION = re.compile(r"(.+)-([0-9]+)\.([0-9a-f]{32})-(delete|future|stray)")


def check_topic_name(name: object) -> str:
    """Return `name` if Kafka allows it as a topic's, else raise `ConfigError`.

    1 to 249 characters out of ``[A-Za-z0-9._-]``, neither ``.`` nor ``..``.
    """
    if (
        not isinstance(name, str)
        or name in _NO_TOPICS
        or len(name) > TOPIC_NAME_BYTES_MAX
        or not _TOPIC.fullmatch(name)
    ):
        shown = repr(name) if len(repr(name)) <= 300 else f"{repr(name)[:300]}..."
        raise ConfigError(
            f"bad topic name {shown}: a topic name has 1 to {TOPIC_NAME_BYTES_MAX} "
            f"characters out of [A-Za-z0-9._-] and is not '.' or '..'; nothing was "
            f"created",
            name="topic",
            value=name,
        )
    return name


def check_new_topic_name(name: object) -> str:
    """Check the name of a topic to create: some names are reserved."""
    checked = check_topic_name(name)
    if checked.startswith(OWN_PREFIX) or checked == "__cluster_metadata":
        raise ConfigError(
            f"topic name {checked!r} is reserved; nothing was created",
            name="topic",
            value=name,
        )
    return checked


class SegmentFile(NamedTuple):
    """A parsed file name of a partition directory."""

    base_offset: int
    suffix: str
    transition: str  # "", ".deleted", ".cleaned" or ".swap"


def segment_file(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def torn_files(base_offset: int, position: int) -> Iterator[str]:
    """Names for the bytes torn from a log at a position: for the first time, the second
    time, and so on."""
    first = f"{TORN_PREFIX}{base_offset:020d}-{position}"
    yield first
    for number in itertools.count(2):
        yield f"{first}.{number}"


def digest_file(base_offset: int) -> str:
    return f"{DIGEST_PREFIX}{base_offset:020d}"


def parse_digest_file(name: str) -> int | None:
    """The base offset of the segment that a side file is for; None for other names."""
    digits = name.removeprefix(DIGEST_PREFIX)
    if digits == name or len(digits) != 20 or not digits.isascii():
        return None
    return int(digits) if digits.isdigit() else None


def own_copy_file(name: str) -> str:
    """The temporary name of the copy that replaces a file with several names."""
    return f"{OWN_COPY_PREFIX}{name}.tmp"


def group_file(group: str) -> str:
    """Name of the file of a consumer group; two groups never have the same.

    Letters, digits, ``_`` and ``-`` stand for themselves, every other byte of the UTF-8
    text is ``%XX``. More than 180 bytes become ``%sha256-`` and 64 digits.

    Raises:
        ConfigError: the id has no character or more than 10,000, a NUL, or half of a
            surrogate pair.
    """
    value: object = group
    if not isinstance(value, str) or not 1 <= len(group) <= GROUP_CHARACTERS_MAX:
        raise _bad_group(group, f"1 to {GROUP_CHARACTERS_MAX:,} characters (str)")
    if "\0" in group:
        raise _bad_group(group, "no NUL")
    try:
        data = group.encode()
    except UnicodeEncodeError as error:
        raise _bad_group(group, "no half of a surrogate pair") from error
    escaped = _GROUP_ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}".encode(), data)
    if len(escaped) > _GROUP_BYTES_MAX:
        return f"{GROUP_PREFIX}%sha256-{hashlib.sha256(data).hexdigest()}"
    return GROUP_PREFIX + escaped.decode()


def group_lock_file(name: str) -> str:
    """Name of the lock file that belongs to a group's file."""
    return f"{name}.lock"


def group_of_file(name: str) -> str:
    """The id of the group that a file's name stands for; of a shortened one, the name
    without its prefix."""
    escaped = name.removeprefix(GROUP_PREFIX)
    if escaped.startswith("%sha256-"):
        return escaped
    return urllib.parse.unquote(escaped, errors="replace")


def group_files(names: Iterable[str]) -> list[str]:
    """The names that are files of groups."""
    # No group's file has a dot after the prefix: that is escaped.
    return [
        name
        for name in names
        if name.startswith(GROUP_PREFIX) and "." not in name[len(GROUP_PREFIX) :]
    ]


def _bad_group(group: object, rule: str) -> ConfigError:
    shown = repr(group) if len(repr(group)) <= 100 else f"{repr(group)[:100]}..."
    return ConfigError(
        f"bad group id {shown}: a group id has {rule}; nothing was changed",
        name="group",
        value=group,
    )


def parse_segment_file(name: str) -> SegmentFile | None:
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    offset = int(match[1])
    if offset > OFFSET_MAX:
        return None
    return SegmentFile(offset, match[2], match[3] or "")


def deleted_file(name: str, number: int) -> str:
    """The name that a file gets when it waits for its removal. Others, which had the
    same name before, may be waiting: so there are several, from number 0 on."""
    return f"{name}.{number}{DELETED}" if number else name + DELETED


def is_store_file(name: str) -> bool:
    """Whether Kafka or logstore use this name for a file in the root of a store."""
    is_kafka_file = name.removesuffix(".tmp") in KAFKA_STORE_FILES
    return is_kafka_file or name.startswith(f"{OWN_PREFIX}-")


def is_partition_file(name: str) -> bool:
    """Whether Kafka or logstore use this name in a partition's directory. Deleting the
    partition removes these files, and nothing else."""
    final = name.removesuffix(".tmp")
    if parse_segment_file(final) is not None or name.startswith(f"{OWN_PREFIX}-"):
        return True
    return final in (LEADER_EPOCHS, PARTITION_METADATA)


class TopicPartition(NamedTuple):
    """One partition of one topic. It compares equal to the plain tuple.

    Attributes:
        topic: its name.
        partition: its number, from 0.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return partition_directory(*self)


def partition_directory(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> TopicPartition | None:
    """(topic, partition) of a partition's directory; None for any other name."""
    if name in NOT_PARTITIONS or name.startswith(OWN_PREFIX):
        return None
    match = _PARTITION.fullmatch(name)
    if match is None or match[1] in _NO_TOPICS or int(match[2]) > PARTITION_MAX:
        return None
    return TopicPartition(match[1], int(match[2]))


def transition_topic(name: str) -> tuple[str, int, str] | None:
    """(topic, partition, kind) of a ``-delete``, ``-future`` or ``-stray`` name."""
    match = _TRANSITION.fullmatch(name)
    if match is None:
        return None
    return match[1], int(match[2]), match[4]


def deleted_directory(topic: str, partition: int, unique: str) -> str:
    """Name of a partition directory that waits to be removed (32 hex digits)."""
    tail = f"-{partition}.{unique}-delete"
    return topic[: 255 - len(tail)] + tail


def deletion_mark(topic_id: str, unique: str) -> str:
    """32 hex digits for the names of a deleted topic's directories: the first half is
    that of its id, if it has one, the rest that of `unique` (also 32 hex digits)."""
    own = _own_mark(topic_id)
    return own + unique[len(own) :]


def _own_mark(topic_id: str) -> str:
    """The part of a deleted topic's id in the names of its directories; "" if its id
    has another form."""
    own = topic_id[:16]
    return own if re.fullmatch("[0-9a-f]{16}", own) else ""


def is_renamed_for_deletion(
    names: Iterable[str], topic: str, topic_id: str, missing: Container[int] | None
) -> bool:
    """Whether a topic whose settings do not say so is being deleted: the disk may have
    been too full to write that.

    Args:
        names: the names in the store's directory.
        missing: the partitions that have no directory. One that was renamed is that of
            this topic only if it has its id: an earlier one of its name may have been
            deleted. None if there is no directory at all: then nothing can be lost, and
            the name is enough.
    """
    own = _own_mark(topic_id)
    for name in names:
        match = _TRANSITION.fullmatch(name)
        if match is None or match[4] != "delete":
            continue
        prefix, number, unique = match[1], int(match[2]), match[3]
        if topic != prefix and not (len(prefix) > 200 and topic.startswith(prefix)):
            continue
        if missing is None or (own and unique.startswith(own) and number in missing):
            return True
    return False
