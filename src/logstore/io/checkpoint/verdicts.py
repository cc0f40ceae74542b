"""The verdicts on the damage of a partition, which outlive the process that found it.

`.logstore-damaged` (docs/format.md) names the bytes that were found damaged. It is
written before anything else of the partition, and asked at each opening against these
bytes: what marks and checkpoints say meanwhile changes nothing. Only the bytes, or
`repair`, take it away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import xxhash

from logstore import _native as native
from logstore.errors import CorruptCheckpointError, UnsupportedError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.state_fields import VERDICTS_MAX
from logstore.io.directory import Directory
from logstore.io.layout import CLOSED, DAMAGED, LOG, PARTITION_STATE, segment_file

__all__ = [
    "DIGEST_BYTES",
    "NO_SEGMENT",
    "NO_VERDICTS",
    "ClosedEnd",
    "Verdict",
    "Verdicts",
    "digest_at",
    "forget_verdicts",
    "mark_damaged",
    "write_verdicts",
]

# Number of bytes from the beginning of the damage that its digest covers.
DIGEST_BYTES: Final = 64 << 10
# In the place of the base offset of a segment: the log has no segment.
NO_SEGMENT: Final = -1


class Verdict(NamedTuple):
    """One damage that an opening for writing has found.

    Attributes:
        kind: its label, as in the table of docs/design.md.
        detail: what is damaged, if it is not a batch.
        segment: base offset of its segment; `NO_SEGMENT` if the log has no segment.
        position: of its first byte in the `.log` file.
        size: how many bytes from there the digest covers.
        digest: XXH3 (64 bit, seed 0) of them, 16 hex digits.
        good_end: the offset where the last good batch before it ends.
        end_position: how far the file reached, or must have reached.
        end_offset: where the log ended, or must have ended; 0 unknown.
        reason: what is wrong with it.
        release: of logstore that has found it.
        time_ms: when.
    """

    kind: str
    detail: str
    segment: int
    position: int
    size: int
    digest: str
    good_end: int
    end_position: int
    end_offset: int
    reason: str
    release: str
    time_ms: int

    @property
    def place(self) -> tuple[str, int, int]:
        """Two verdicts of one place are one."""
        return self.kind, self.segment, self.position

    @property
    def name(self) -> str:
        """Name of the file; "" if it is the directory."""
        return "" if self.segment < 0 else segment_file(self.segment, LOG)


class ClosedEnd(NamedTuple):
    """The end of a log that was closed before its damage was found.

    Attributes:
        generation: that of the store when the verdict was written.
        base_offset, size: of the active segment in the state that counted; -1 none.
    """

    generation: str
    base_offset: int
    size: int

    @classmethod
    def of(cls, store_epoch: str, active: Mapping[str, int] | None) -> ClosedEnd:
        """`active`: the active segment in the state that counts."""
        if active is None:
            return cls(store_epoch, -1, -1)
        return cls(store_epoch, active["base_offset"], active["size"])


class Verdicts(NamedTuple):
    """The content of `.logstore-damaged`.

    Attributes:
        rows: the verdicts, in the order in which they were found.
        closed: the end of the log, if it had been closed.
        fault: why the file cannot be used: then the log is damaged, and nothing shows
            where.
    """

    rows: tuple[Verdict, ...] = ()
    closed: ClosedEnd | None = None
    fault: str = ""

    @classmethod
    def read(cls, directory: Directory) -> Verdicts:
        """The verdicts on a partition; none if there is no file.

        Raises:
            OSError: as the system gives it.
        """
        try:
            value = checkpoints.read_state(directory, DAMAGED)
            if value is None:
                return cls()
        except (CorruptCheckpointError, UnsupportedError) as error:
            return cls(fault=str(error))
        closed = value.get("closed")
        return cls(
            tuple(Verdict(*(row[f] for f in Verdict._fields)) for row in value["rows"]),
            None if closed is None else ClosedEnd(*(closed[f] for f in _CLOSED_FIELDS)),
        )

    def with_earlier(self, directory: Directory) -> Verdicts:
        """Add the end of the log from `.logstore-closed`: earlier
        releases wrote that instead.

        Raises:
            OSError: as the system gives it.
        """
        if self.closed is not None or self:
            return self
        try:
            value = checkpoints.read_state(directory, CLOSED)
        except (CorruptCheckpointError, UnsupportedError):
            return self._replace(closed=_ANY_END)
        if value is None:
            return self
        closed = ClosedEnd(*(value[name] for name in _CLOSED_FIELDS))
        return self._replace(closed=closed)

    def __bool__(self) -> bool:
        """Whether damage of the partition is recorded."""
        return bool(self.rows or self.fault)

    def says_closed(self, store_epoch: str, active: Mapping[str, int] | None) -> bool:
        """Whether the log was closed before its damage was found, and was not written
        to since: its end is that of a closed log, however the store is stopped.

        Args:
            active: as in `ClosedEnd.of`.
        """
        return self.closed in (_ANY_END, ClosedEnd.of(store_epoch, active))


NO_VERDICTS: Final = Verdicts()
_CLOSED_FIELDS: Final = ClosedEnd._fields
# An end that cannot be read: the log that it protects must not be cut.
_ANY_END: Final = ClosedEnd("", -2, -2)


def digest_at(
    directory: Directory, name: str, position: int, end: int
) -> tuple[int, str]:
    """(number, digest) of the bytes from a position of a file on: up to
    64 KiB, and not beyond `end`.

    Raises:
        OSError: as the system gives it.
    """
    buffer = native.Buffer(DIGEST_BYTES)
    size = max(0, min(end - position, DIGEST_BYTES))
    with directory.opened(name) as fd:
        n = directory.files.read(fd, buffer.view[:size], position)
    return n, f"{xxhash.xxh3_64_intdigest(buffer.view[:n]):016x}"


def write_verdicts(
    directory: Directory, rows: Iterable[Verdict], closed: ClosedEnd | None
) -> None:
    """Write the verdicts on a partition down, durably, and let an earlier release
    refuse it. Of very many, the first ones count.

    Raises:
        OSError: as the system gives it.
    """
    value: dict[str, Any] = {"rows": [r._asdict() for r in rows][:VERDICTS_MAX]}
    if closed is not None:
        value["closed"] = closed._asdict()
    checkpoints.write_state(directory, DAMAGED, value)
    mark_damaged(directory, is_damaged=True)


def forget_verdicts(directory: Directory) -> None:
    """Take the verdicts on a partition away, durably: its log is whole.

    Raises:
        OSError: as the system gives it.
    """
    names = {DAMAGED, CLOSED}.intersection(directory.names())
    if not names:
        return
    mark_damaged(directory, is_damaged=False)
    for name in names:
        directory.unlink(name, missing_ok=True)
    directory.sync()


def mark_damaged(directory: Directory, *, is_damaged: bool) -> None:
    """Let the state file have the version of a damaged log, or no longer.

    A release that does not know the verdicts refuses that version. A state file that
    cannot be used is not changed.
    """
    with contextlib.suppress(CorruptCheckpointError, UnsupportedError):
        value = checkpoints.read_state(directory, PARTITION_STATE)
        if value is None and not is_damaged:
            return
        value = value or {}
        version = (
            checkpoints.DAMAGED_VERSION if is_damaged else checkpoints.STATE_VERSION
        )
        if value.get("version") == version:
            return
        if not is_damaged and "active" not in value:
            directory.unlink(PARTITION_STATE)
            return
        checkpoints.write_state(
            directory, PARTITION_STATE, {**value, "version": version}
        )
