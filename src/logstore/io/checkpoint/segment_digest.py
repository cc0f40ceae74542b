"""Digests of sealed segments: an optional side file that records a `.log` file as it
was when it was rolled (docs/format.md, "`.logstore-digest-*`"). A Kafka broker ignores
it.

Checksums of batches do not cover all bytes of their headers, and do not protect against
a program that recomputes them with care. A digest of the whole file, kept elsewhere,
shows any change.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import xxhash

from logstore import _native as native
from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.layout import LOG, digest_file, segment_file

__all__ = ["SegmentDigest", "read_digest", "write_digest"]


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentDigest:
    """The facts about a segment when it was sealed.

    Attributes:
        base_offset, next_offset: its first offset, and one past its last.
        size: bytes of its log.
        max_timestamp, max_timestamp_offset: largest record timestamp and the last
            offset of the first batch that has it; -1 if none.
        xxh3: XXH3 (128 bit, seed 0) of its log, 32 hex digits.
    """

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    xxh3: str

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def hash_log(directory: Directory, base_offset: int, size: int) -> str:
    """XXH3 of the first `size` bytes of a segment's log, as hex digits; of fewer bytes
    if the file is shorter."""
    state = xxhash.xxh3_128()
    buffer = native.Buffer(1 << 20)
    files = directory.files
    with directory.opened(segment_file(base_offset, LOG)) as fd:
        pos = 0
        while pos < size:
            n = files.read(fd, buffer.view[: min(buffer.capacity, size - pos)], pos)
            if n == 0:
                break
            state.update(buffer.view[:n])
            pos += n
    return state.hexdigest()


def write_digest(directory: Directory, digest: SegmentDigest) -> None:
    """Write the side file of a segment, atomically and durably."""
    name = digest_file(digest.base_offset)
    checkpoints.write_state(directory, name, digest.to_dict())


def read_digest(directory: Directory, base_offset: int) -> SegmentDigest | None:
    """The side file of a segment; None if it does not exist.

    Raises:
        CorruptCheckpointError: it is not a valid side file.
        UnsupportedError: a later logstore wrote it.
    """
    name = digest_file(base_offset)
    value = checkpoints.read_state(directory, name)
    if value is None:
        return None
    try:
        numbers = {field: int(value[field]) for field in _NUMBERS}
        digest = SegmentDigest(xxh3=str(value["xxh3"]), **numbers)
        if digest.base_offset == base_offset:
            return digest
        reason = f"it is that of the segment at {digest.base_offset}"
    except (KeyError, TypeError, ValueError) as error:
        reason = repr(error)
    path = directory.path_of(name)
    raise CorruptCheckpointError(
        f"{path} is not a digest of this segment: {reason}", path=path, reason=reason
    )


_NUMBERS = (
    "base_offset",
    "next_offset",
    "size",
    "max_timestamp",
    "max_timestamp_offset",
)
