"""Checks of the fields of logstore's state files, of which only the form is
known so far: a checksum is not a signature (docs/format.md).
"""

from __future__ import annotations

import base64
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from logstore.config import PARTITIONS_MAX
from logstore.errors import ConfigError
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    LOST_END,
    LOST_SEGMENT,
    UNSUPPORTED,
)
from logstore.io.layout import (
    CLOSED,
    DAMAGED,
    OFFSET_MAX,
    OWNER,
    PARTITION_MAX,
    PRODUCERS,
    PUBLICATION,
    PUBLISHED,
    TOPIC_IDENTITY,
    TOPICS,
    UNKNOWN,
    check_topic_name,
)

__all__ = [
    "CHECKS",
    "boolean",
    "check_journal",
    "check_partition_count",
    "integer",
    "integers",
]

# Bytes that are kept with a publication.
METADATA_BYTES_MAX: Final = 4096
# Most verdicts that a partition keeps.
VERDICTS_MAX: Final = 100
# Most partitions that all topics together may have.
STORE_PARTITIONS_MAX: Final = 2_000_000
# Of a producer: a batch has 16 bits for it.
EPOCH_MAX: Final = (1 << 15) - 1
# From the first version on, `.logstore-publication` is a journal; the other is written.
FIRST_JOURNAL_VERSION: Final = 3
JOURNAL_VERSION: Final = 4
_ID: Final = re.compile("[0-9a-f]{32}")
_DIGEST: Final = re.compile("[0-9a-f]{16}")


def integer(what: str, value: object, low: int, high: int) -> int:
    """`value`, an integer in [low, high]; raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} is not an integer")
    if not low <= value <= high:
        raise ValueError(f"{what} is {value}, outside [{low}, {high}]")
    return value


def integers(fields: Mapping[str, object], lows: Mapping[str, int]) -> dict[str, int]:
    """The fields of these names, each an integer in [its low, OFFSET_MAX].

    Raises:
        KeyError, ValueError: a field is missing, or no such integer.
    """
    return {
        name: integer(name, fields[name], low, OFFSET_MAX) for name, low in lows.items()
    }


def boolean(what: str, value: object) -> bool:
    """`value`, true or false; raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} is neither true nor false")
    return value


def check_partition_count(count: int) -> None:
    """Raise `ConfigError` if a store would have too many partitions."""
    if count > STORE_PARTITIONS_MAX:
        raise ConfigError(
            f"{count} partitions are more than a store may have, "
            f"{STORE_PARTITIONS_MAX}; nothing was changed",
            name="partitions",
            value=count,
        )


def _check_owner(value: dict[str, Any]) -> None:
    boolean("clean", value["clean"])
    fingerprints = value["fingerprints"]
    if not isinstance(fingerprints, list) or not all(
        isinstance(f, dict) for f in fingerprints
    ):
        raise ValueError("fingerprints is not a list of objects")


def _check_closed(value: dict[str, Any]) -> None:
    if not isinstance(value["generation"], str):
        raise ValueError("generation is not a string")
    for name in ("base_offset", "size"):
        integer(name, value[name], -1, OFFSET_MAX)


# The end of the year 9999.
_LAST_TIME_MS: Final = 253_402_300_799_999
_VERDICT_KINDS: Final = (CORRUPT, UNSUPPORTED, LOST_END, LOST_SEGMENT)
_VERDICT_TEXTS: Final = ("kind", "detail", "digest", "reason", "release")
_VERDICT_NUMBERS: Final = (
    "segment",
    "position",
    "size",
    "good_end",
    "end_position",
    "end_offset",
    "time_ms",
)


def _check_damaged(value: dict[str, Any]) -> None:
    for row in _list("rows", value["rows"]):
        if not isinstance(row, dict):
            raise ValueError("a verdict is not an object")
        for name in _VERDICT_TEXTS:
            if not isinstance(row[name], str):
                raise ValueError(f"{name} is not a string")
        if row["kind"] not in _VERDICT_KINDS:
            # Of a later release, perhaps: what it says is not understood.
            raise ValueError(f"{row['kind']!r} is not a kind of damage")
        for name in _VERDICT_NUMBERS:
            integer(name, row[name], -1, OFFSET_MAX)
        integer("time_ms", row["time_ms"], 0, _LAST_TIME_MS)
    closed = value.get("closed")
    if closed is not None:
        if not isinstance(closed, dict):
            raise ValueError("closed is not an object")
        _check_closed(closed)


def _check_topics(value: dict[str, Any]) -> None:
    topics = value["topics"]
    if not isinstance(topics, dict):
        raise ValueError("topics is not an object")
    for name, settings in topics.items():
        # A text that becomes the name of a directory is checked whatever its source.
        check_topic_name(name)
        if not isinstance(settings, dict):
            raise ValueError(f"topic {name} is not an object")
        integer("partitions", settings["partitions"], 1, PARTITIONS_MAX)
        if not isinstance(settings.get("config", {}), dict):
            raise ValueError(f"config of topic {name} is not an object")
        for flag in ("creating", "deleting", "identified"):
            boolean(flag, settings.get(flag, False))
        integer("message_format", settings.get("message_format", 0), 0, 2)
        for field in ("id", "kafka_id"):
            if settings.get(field, "") != "":
                _id(f"{field} of topic {name}", settings[field])
    check_partition_count(sum(map(operator.itemgetter("partitions"), topics.values())))


def _check_identity(value: dict[str, Any]) -> None:
    _id("id", value["id"])
    _id("log_id", value["log_id"])
    if value["kafka_id"] != "":
        _id("kafka_id", value["kafka_id"])
    check_topic_name(value["topic"])
    integer("partition", value["partition"], 0, PARTITION_MAX)


def _id(what: str, value: object) -> None:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(f"{what} is not 32 hexadecimal digits")


def _check_publication(value: dict[str, Any]) -> None:
    if not isinstance(value["generation"], str):
        raise ValueError("generation is not a string")
    if value["version"] >= FIRST_JOURNAL_VERSION:
        check_journal(value)
    else:
        _check_bases(value)
        _check_published(value)


def _check_bases(value: dict[str, Any], *, may_end: bool = False) -> None:
    for row in _list("bases", value["bases"]):
        topic, number, base = _list("a row of bases", row, 3)
        check_topic_name(topic)
        integer("partition", number, 0, PARTITION_MAX)
        if base is not None or not may_end:
            integer("base", base, 0, OFFSET_MAX)


def _check_logs(value: dict[str, Any]) -> None:
    for row in _list("logs", value.get("logs", [])):
        topic, number, *numbers, digest = _list("a row of logs", row, 8)
        check_topic_name(topic)
        integer("partition", number, 0, PARTITION_MAX)
        for offset in numbers:
            integer("a number of logs", offset, 0, OFFSET_MAX)
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError("a digest of logs is not 16 hexadecimal digits")


def check_journal(value: dict[str, Any]) -> None:
    """Check the fields that each entry of a journal of publications has.

    Raises:
        ValueError, KeyError: one is not as it must be, or missing.
    """
    _check_bases(value, may_end=True)
    if value["version"] >= JOURNAL_VERSION:
        _check_logs(value)
    for row in _list("changes", value["changes"]):
        identity, *entry = _list("a row of changes", row)
        if not isinstance(identity, str):
            raise ValueError("an identity is not a string")
        if entry:
            sequence, records, time_ms, note, pinned, metadata, *calls = _list(
                "the entry of an identity", entry
            )
            _check_numbers(sequence, records, time_ms)
            if not isinstance(note, str):
                raise ValueError("a note is not a string")
            boolean("pinned", pinned)
            _check_metadata(metadata)
            if calls:
                _check_calls(*_list("calls", calls, 1))


def _check_calls(calls: object) -> None:
    for row in _list("calls", calls):
        number, spans = _list("a row of calls", row, 2)
        integer("the number of a request", number, 0, OFFSET_MAX)
        for span in _list("spans", spans):
            topic, partition, *offsets = _list("a span", span, 4)
            check_topic_name(topic)
            integer("partition", partition, 0, PARTITION_MAX)
            for offset in offsets:
                integer("an offset of calls", offset, 0, OFFSET_MAX)


def _check_numbers(*numbers: object) -> None:
    for name, number in zip(("sequence", "records", "time_ms"), numbers, strict=True):
        integer(name, number, 0, OFFSET_MAX)


def _check_metadata(text: object) -> None:
    if not isinstance(text, str):
        raise ValueError("metadata is not a string")
    if len(base64.b64decode(text, validate=True)) > METADATA_BYTES_MAX:
        raise ValueError(f"metadata has more than {METADATA_BYTES_MAX} bytes")


def _check_published(value: dict[str, Any]) -> None:
    for row in _list("published", value["published"]):
        identity, *numbers = _list("a row of published", row, 4)
        if not isinstance(identity, str):
            raise ValueError("an identity is not a string")
        _check_numbers(*numbers)
    for row in _list("notes", value.get("notes", [])):
        if not all(isinstance(text, str) for text in _list("a row of notes", row, 2)):
            raise ValueError("a note is not a string")
    for identity in _list("pinned", value.get("pinned", [])):
        if not isinstance(identity, str):
            raise ValueError("a pinned identity is not a string")
    for row in _list("metadata", value.get("metadata", [])):
        identity, text = _list("a row of metadata", row, 2)
        if not isinstance(identity, str):
            raise ValueError("an identity is not a string")
        _check_metadata(text)

    for row in _list("calls", value.get("calls", [])):
        identity, calls = _list("a row of calls", row, 2)
        if not isinstance(identity, str):
            raise ValueError("an identity is not a string")
        _check_calls(calls)


def _check_unknown(value: dict[str, Any]) -> None:
    for row in _list("unknown", value["unknown"]):
        identity, sequence = _list("a row of unknown", row, 2)
        if not isinstance(identity, str):
            raise ValueError("an identity is not a string")
        integer("sequence", sequence, 0, OFFSET_MAX)


def _check_producers(value: dict[str, Any]) -> None:
    names = set()
    for row in _list("producers", value["producers"]):
        name, epoch, ids = _list("a row of producers", row, 3)
        if not isinstance(name, str) or not name or name in names:
            raise ValueError("a name of a producer is not a string, or occurs twice")
        names.add(name)
        integer("epoch", epoch, 0, EPOCH_MAX)
        if not _list("ids", ids):
            raise ValueError("a producer has no id")
        for producer_id in ids:
            integer("id", producer_id, 0, OFFSET_MAX)


def _list(name: str, value: Any, size: int | None = None) -> list[Any]:
    if not isinstance(value, list) or size not in (None, len(value)):
        raise ValueError(f"{name} is not a list" + (f" of {size}" if size else ""))
    return value


CHECKS: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    OWNER: _check_owner,
    CLOSED: _check_closed,
    DAMAGED: _check_damaged,
    TOPICS: _check_topics,
    TOPIC_IDENTITY: _check_identity,
    PUBLICATION: _check_publication,
    PUBLISHED: _check_published,
    UNKNOWN: _check_unknown,
    PRODUCERS: _check_producers,
}
