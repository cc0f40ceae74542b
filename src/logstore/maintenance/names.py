"""Names and small text files, as a Kafka broker reads them when it starts."""

from __future__ import annotations

import re
from typing import Final

from logstore.io import layout
from logstore.io.layout import TopicPartition

__all__ = [
    "broker_checkpoint_fault",
    "broker_partition",
    "foreign_text",
    "is_refused_file",
    "is_refused_name",
]

_RENAMED: Final = re.compile(r"\S+-\S+\.\S+-(delete|future|stray)")
_ENDINGS: Final = ("-delete", "-future", "-stray")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_DIGITS_MAX: Final = 40
# Names that a broker takes for a segment's files.
_OF_SEGMENTS: Final = re.compile(
    r".*\.(log|index|timeindex|txnindex|snapshot)(\.cleaned|\.swap)?"
)


def _java_number(text: str, bits: int) -> int | None:
    """The number that Java reads from a text: with a sign, or with zeros before it;
    None if it reads none."""
    if _NUMBER.fullmatch(text) is None:
        return None
    sign = -1 if text[0] == "-" else 1
    digits = text.lstrip("+-").lstrip("0")
    number = sign * int(digits or "0") if len(digits) <= _DIGITS_MAX else 1 << bits
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def broker_partition(name: str) -> TopicPartition | None:
    """The partition that a broker takes a directory's name for; None: it takes it for
    none, and refuses to start."""
    if name.endswith(_ENDINGS):
        if _RENAMED.fullmatch(name) is None:
            return None
        name = name.rpartition(".")[0]
    topic, _, number = name.rpartition("-")
    partition = _java_number(number, 32)
    return None if partition is None or not topic else TopicPartition(topic, partition)


def is_refused_name(name: str) -> bool:
    """Whether a broker refuses to start while a directory in its log directory has this
    name."""
    return name not in layout.NOT_PARTITIONS and broker_partition(name) is None


def is_refused_file(name: str) -> bool:
    """Whether a broker refuses to start while a file in a partition's directory has
    this name: it takes it for a segment's, and reads no offset from it."""
    if _OF_SEGMENTS.fullmatch(name) is None:
        return False
    return _java_number(name.partition(".")[0], 64) is None


def foreign_text(name: str) -> str:
    """Description of a directory that is not a partition to logstore, and that does
    not wait for its removal either; "" for a name that is no such directory's."""
    if (
        name in layout.NOT_PARTITIONS
        or layout.parse_partition_directory(name) is not None
        or layout.transition_topic(name) is not None
    ):
        return ""
    if is_refused_name(name):
        return "is not a partition; a Kafka broker refuses to start on it"
    return (
        "is not a partition for logstore; a Kafka broker takes it for "
        f"{broker_partition(name)}"
    )


def broker_checkpoint_fault(data: bytes) -> str:
    """Why a broker refuses a checkpoint of offsets; "" if it reads it. It accepts
    numbers below 0."""
    text = data.decode("utf-8", "replace")
    lines = re.split("\r\n|\r|\n", text)
    if not lines[-1]:
        del lines[-1]
    if not lines:
        return ""
    if _java_number(lines[0], 32) != 0:
        return f"its version is {lines[0][:40]!r}, not 0"
    if len(lines) == 1:
        return ""
    for line in lines[2:]:
        fields = re.split("[ \t\x0b\f]+", line)
        is_entry = len(fields) == 3 and _java_number(fields[1], 32) is not None
        if not is_entry or _java_number(fields[2], 64) is None:
            return f"{line[:40]!r} is not a topic, a partition and an offset"
    if _java_number(lines[1], 32) != len(lines) - 2:
        return f"it has {len(lines) - 2} entries, not {lines[1][:40]}"
    return ""
