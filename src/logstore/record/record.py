"""Records as values: callers append and read them."""

from __future__ import annotations

import datetime
import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import TypeAlias

    Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

__all__ = ["Record", "RecordMetadata", "TimestampType", "TopicRecord"]


class TimestampType(enum.IntEnum):
    """The meaning of a record's timestamp."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def kafka_name(self) -> str:
        """Kafka's name for it: CreateTime, LogAppendTime or NoTimestampType."""
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
        timestamp_ms: Unix milliseconds; -1 if there is none (magic 0).
        key: bytes, or None for a null key (an empty key is ``b""``).
        value: bytes, or None for a null value.
        headers: (name, value or None) pairs in the order written; magic 2 only.
        timestamp_type: which clock the timestamp is from.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The timestamp as a datetime in UTC; None if there is none, or if it is after
        the year 9999, the last year of a datetime."""
        return _to_datetime(self.timestamp_ms)


class TopicRecord(NamedTuple):
    """A record of a topic: a `Record` with its topic and partition.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        others: as in `Record`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    @property
    def timestamp(self) -> datetime.datetime | None:
        """As `Record.timestamp`."""
        return _to_datetime(self.timestamp_ms)


def topic_record(place: tuple[str, int], record: Record) -> TopicRecord:
    """A record with its (topic, partition), made in a third of the time that the class
    takes."""
    result: TopicRecord = tuple.__new__(TopicRecord, place + record)
    return result


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def _to_datetime(timestamp_ms: int) -> datetime.datetime | None:
    if timestamp_ms < 0:
        return None
    try:
        return _EPOCH + datetime.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


class RecordMetadata(NamedTuple):
    """The place of an appended record. `timestamp_ms` is as stored (-1 in magic 0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
