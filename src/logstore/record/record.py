"""Records as values: callers append and read them."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore import _native as native
from logstore._native import Record, TopicRecord

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


# The types of records are C (pyrecords_record.c); what follows here is in Python.
native.configure_records(
    (
        TimestampType.NO_TIMESTAMP,
        TimestampType.CREATE_TIME,
        TimestampType.LOG_APPEND_TIME,
    )
)


def _make(cls: type[Any], iterable: Iterable[Any]) -> Any:
    values = tuple(iterable)
    if len(values) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(values)}")
    return cls(*values)


def _replace(record: Record | TopicRecord, **changes: Any) -> Any:
    fields = record._asdict()
    if unknown := [name for name in changes if name not in fields]:
        raise ValueError(f"Got unexpected field names: {unknown!r}")
    return type(record)(**{**fields, **changes})


def _asdict(record: Record | TopicRecord) -> dict[str, Any]:
    return dict(zip(record._fields, record, strict=True))


def _count(record: Record | TopicRecord, value: object) -> int:
    """How many of the fields equal a value."""
    return tuple(record).count(value)


def _index(record: Record | TopicRecord, value: object, *bounds: int) -> int:
    """The number of the first field that equals a value."""
    return tuple(record).index(value, *bounds)


def _timestamp(record: Record | TopicRecord) -> datetime.datetime | None:
    """The timestamp as a datetime in UTC; None without a timestamp, or if it is after
    the year 9999, the last year of a datetime."""
    return _to_datetime(record.timestamp_ms)


def _complete(record: type[Any], fields: tuple[str, ...], doc: str) -> None:
    """Add the attributes of a named tuple, and `timestamp`, to a type of C."""
    attributes = {
        "__doc__": doc,
        "__match_args__": fields,
        "_fields": fields,
        "_field_defaults": {"headers": (), "timestamp_type": TimestampType.CREATE_TIME},
        "_make": classmethod(_make),
        "_replace": _replace,
        "__replace__": _replace,
        "_asdict": _asdict,
        "count": _count,
        "index": _index,
        "timestamp": property(_timestamp),
    }
    for name, attribute in attributes.items():
        setattr(record, name, attribute)
    Sequence.register(record)


_RECORD_FIELDS: Final = (
    "offset",
    "timestamp_ms",
    "key",
    "value",
    "headers",
    "timestamp_type",
)

_complete(
    Record,
    _RECORD_FIELDS,
    """One record of a partition: a plain value, compared and hashed by content.

    It behaves as a named tuple of its fields, but is not one.

    Attributes:
        offset: its place in the partition.
        timestamp_ms: Unix milliseconds; -1 if there is none: in magic 0, and where a
            producer has given none.
        key: bytes, or None for a null key (an empty key is ``b""``).
        value: bytes, or None for a null value.
        headers: (name, value or None) pairs in the order written; magic 2 only.
        timestamp_type: which clock the timestamp is from.
    """,
)

_complete(
    TopicRecord,
    ("topic", "partition", *_RECORD_FIELDS),
    """A record of a topic: a `Record` with its topic and partition.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        others: as in `Record`.
    """,
)


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
