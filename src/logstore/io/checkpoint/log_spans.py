"""The bytes that a publication has put into a log, as its entry in the journal
describes them, and whether the log has these bytes.

The entry is written before the log is synced. After a crash it counts if every log has
the bytes that it names (docs/format.md, `.logstore-publication`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import xxhash

from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import LOG, TopicPartition, segment_file

__all__ = [
    "SpanState",
    "LogSpan",
    "Spans",
    "digest_of",
    "found_in",
    "has_all",
    "span_rows",
    "spans_of",
]

_CHUNK_BYTES: Final = 1 << 20
# A page that a power failure has kept from the disk is zeros; a disk writes at least
# this many bytes at once.
_SECTOR_BYTES: Final = 512


class LogSpan(NamedTuple):
    """The bytes that a publication has put into one log.

    Attributes:
        base, end: its offsets, end exclusive.
        segment: base offset of the segment that the log ends in.
        position, size: its bytes in that segment; earlier segments were synced
            when the next one was begun.
        digest: XXH3 (64 bit, seed 0) of these bytes.
    """

    base: int
    end: int
    segment: int
    position: int
    size: int
    digest: int


Spans: TypeAlias = "Mapping[TopicPartition, LogSpan]"


class SpanState(enum.Enum):
    """State of a log's bytes at the place of a publication."""

    WHOLE = "whole"
    """The bytes are all there."""

    TORN = "torn"
    """The log is too short, or has zeros in the place of sectors."""

    OTHER = "other"
    """The log is long enough, and has other bytes there."""


def digest_of(files: Files, fd: int, position: int, size: int) -> int | None:
    """The digest of bytes of an open file; None: the file has fewer.

    Raises:
        OSError: as the system gives it.
    """
    buffer = memoryview(bytearray(min(size, _CHUNK_BYTES)))
    if size <= _CHUNK_BYTES:
        if files.read(fd, buffer, position) < size:
            return None
        return xxhash.xxh3_64_intdigest(buffer)
    digest, done = xxhash.xxh3_64(), 0
    while done < size:
        part = buffer[: size - done]
        if files.read(fd, part, position + done) < len(part):
            return None
        digest.update(part)
        done += len(part)
    return digest.intdigest()


def found_in(root: Directory, key: TopicPartition, span: LogSpan) -> SpanState:
    """State of a log's bytes in the place of a span. A log with a later segment, which
    begins at the span's end or after it, was synced before that was created.

    Raises:
        OSError: as the system gives it.
    """
    name = segment_file(span.segment, LOG)
    try:
        directory = root.child(layout.partition_directory(*key))
        if _has_later(directory, span.end):
            return SpanState.WHOLE
        with directory.opened(name) as fd:
            digest = digest_of(directory.files, fd, span.position, span.size)
            if digest is None:
                return SpanState.TORN
            if digest == span.digest:
                return SpanState.WHOLE
            is_torn = _has_zeros(directory.files, fd, span)
            return SpanState.TORN if is_torn else SpanState.OTHER
    except (FileNotFoundError, NotADirectoryError):
        return SpanState.TORN


def _has_later(directory: Directory, end: int) -> bool:
    files = map(layout.parse_segment_file, directory.names())
    return any(
        file is not None
        and (file.suffix, file.transition) == (LOG, "")
        and file.base_offset >= end
        for file in files
    )


def _has_zeros(files: Files, fd: int, span: LogSpan) -> bool:
    """Whether one of its sectors, or the part of one, is all zeros."""
    position, end = span.position, span.position + span.size
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while position < end:
        part = buffer[: min(end - position, _CHUNK_BYTES - position % _SECTOR_BYTES)]
        files.read(fd, part, position)
        begin = 0
        while begin < len(part):
            stop = begin + _SECTOR_BYTES - (position + begin) % _SECTOR_BYTES
            if not any(part[begin:stop]):
                return True
            begin = stop
        position += len(part)
    return False


def has_all(root: Directory, spans: Spans) -> bool:
    """Whether every log has the bytes of its span. Raises: OSError, as `found_in`."""
    return all(found_in(root, *each) is SpanState.WHOLE for each in spans.items())


def span_rows(spans: Spans) -> list[list[Any]]:
    """The rows of spans, as the journal has them."""
    return [
        [*key, *span[:-1], f"{span.digest:016x}"] for key, span in sorted(spans.items())
    ]


def spans_of(rows: Iterable[list[Any]]) -> dict[TopicPartition, LogSpan]:
    """The spans of such rows, which were checked."""
    return {
        TopicPartition(topic, number): LogSpan(
            base, end, segment, position, size, int(digest, 16)
        )
        for topic, number, base, end, segment, position, size, digest in rows
    }
