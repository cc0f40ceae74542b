"""Records as values: what callers get and give."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import TypeAlias

    Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

__all__ = ["Record", "RecordMetadata", "TimestampType"]


class TimestampType(enum.IntEnum):
    """What the timestamp of a record means."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def kafka_name(self) -> str:
        """Kafka's word for it: CreateTime, LogAppendTime or NoTimestampType."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES = {
    TimestampType.NO_TIMESTAMP: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
TIMESTAMP_TYPES = {int(t): t for t in TimestampType}


class Record(NamedTuple):
    """One record of a partition: a plain value, compared and hashed by content.

    Attributes:
        offset: its place in the partition.
        timestamp_ms: Unix milliseconds; -1 where there is none (magic 0).
        key: bytes, or None for a null key (an empty key is ``b""``).
        value: bytes, or None for a null value.
        headers: (name, value or None) pairs in the order written; magic 2 only.
        timestamp_type: whose clock the timestamp is.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


class RecordMetadata(NamedTuple):
    """Where a record went. `timestamp_ms` is what was stored (-1 in magic 0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
