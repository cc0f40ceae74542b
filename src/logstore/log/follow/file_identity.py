"""Finds out whether the files of a log are still the files that were read.

logstore's own writer appends to the last file, and records every cut. Another program
may replace any file with a compacted one, or truncate the last one and continue
writing: only the files show it. Their inode numbers are reused, and their times may be
old ones, so neither is sufficient.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import CorruptRecordError, StorageError, UnsupportedError
from logstore.io.directory import Directory
from logstore.io.layout import DELETED, LOG, SWAP, parse_segment_file
from logstore.io.stamps import FileStamp, settled, stamp_of
from logstore.log.follow.observed import End
from logstore.segment import READ_BYTES, Segment

__all__ = [
    "LogEnd",
    "LogFiles",
    "adopt_copy",
    "is_copy",
    "last_batch_at",
    "log_bases",
]

# A program that truncates a log and continues writing leaves other bytes at the old
# end: in the header of the last batch (its checksum, if not its time), or in its last
# bytes.
_LAST_BYTES: Final = 64
_LAST_BYTES_MAX: Final = 1024
# How much of a damaged batch is compared again.
_DAMAGED_BYTES: Final = 64 * 1024
# How many ends that the log was seen to have are kept.
_ENDS_MAX: Final = 32


class _Stamp(NamedTuple):
    """Distinguishes two files. The inode number of a removed file is reused, and a
    broker keeps the time of a file that it compacts."""

    inode: int
    size: int
    mtime_ns: int


def _stamp(stamp: FileStamp) -> _Stamp:
    inode, mtime_ns, _, size = stamp
    return _Stamp(inode, size, mtime_ns)


class LogEnd(NamedTuple):
    """An end that a log had, and the bytes before it.

    Attributes:
        end: its offset and its file.
        name: of the last file.
        pieces: (position, bytes) read from the file; empty: it could not be read.
    """

    end: End
    name: str
    pieces: tuple[tuple[int, bytes], ...]

    @staticmethod
    def places(size: int, header: int | None) -> list[tuple[int, int]]:
        """(position, length) of the pieces of an end at this size, if its last batch
        begins at `header`; None: unknown."""
        places = [max(size - _LAST_BYTES, 0)]
        if header is not None:
            places.append(header)
        # One piece, if they are near each other.
        first = min(places)
        if size - first <= _LAST_BYTES_MAX:
            return [(first, size - first)]
        return [(position, min(_LAST_BYTES, size - position)) for position in places]


def _read(segment: Segment, pos: int, length: int) -> bytes:
    data = bytearray(length)
    return bytes(data[: segment.read(memoryview(data), pos)])


class LogFiles:
    """The `.log` files of a partition at the last refresh.

    It is created before the log is loaded. Then `have_stayed` reports whether the log
    was the same one all the time, and `adopt` takes the segments that were loaded.

    Attributes:
        is_foreign: another program writes the log, and so may replace segments.
        has_last_stayed: certainly the last file of a foreign log was not written while
            the log was loaded. If it was, apparent damage may mix two moments: from
            before and after a truncation, or within an append.
    """

    def __init__(self, directory: Directory, *, is_foreign: bool) -> None:
        self.is_foreign = is_foreign
        self._directory = directory
        self._begun_ms = directory.files.now_ms()
        self._before = self._present() if is_foreign else {}
        self._stamps: dict[str, _Stamp] = {}
        # For a foreign log: the stamp of its last file before it was read.
        self._last: _Stamp | None = None
        self.has_last_stayed = True
        # The ends that it had; the newest is last.
        self._ends: deque[LogEnd] = deque(maxlen=_ENDS_MAX)
        # Position and bytes of the damage that was found in its last file.
        self._damage: tuple[int, bytes] | None = None
        # When each file was examined, by the directory's time.
        self._checked_ns = -1
        # Size and time of a last file whose end was examined and found torn.
        self._torn = (-1, -1)
        # The last file of a foreign log has more bytes, none of which are part of this
        # log.
        self._is_stuck = False

    def _present(self) -> dict[str, _Stamp]:
        """The stamps of the existing files, including `.swap` files, by name."""
        parsed = {name: parse_segment_file(name) for name in self._directory.names()}
        return self._stamps_of(
            name
            for name, file in parsed.items()
            if file and file.suffix == LOG and file.transition in ("", SWAP)
        )

    def _stamps_of(self, names: Iterable[str]) -> dict[str, _Stamp]:
        """The stamps of the named files, by name, without files that do not exist."""
        stamps = {}
        for name in names:
            stamp = self._directory.stamp(name)
            if stamp is not None:
                stamps[name] = _stamp(stamp)
        return stamps

    def have_stayed(self, segments: Sequence[Segment]) -> bool:
        """Whether all files but the last are unchanged since before they were read; for
        logstore's own log, whether none has lost its name."""
        names = [segment.file.name(LOG) for segment in segments]
        self._stamps = self._stamps_of(names)
        if not self.is_foreign:
            # If it was deleted since the names were read, its file has another name for
            # a while.
            gone = [name + DELETED for name in names if name not in self._stamps]
            for name, stamp in self._stamps_of(gone).items():
                self._stamps[name.removesuffix(DELETED)] = stamp
            return all(
                segment.is_lost or segment.file.name(LOG) in self._stamps
                for segment in segments
            )
        return all(
            self._before.get(name) == self._stamps.get(name) for name in names[:-1]
        )

    def insert(self, segments: Sequence[Segment], torn_size: int) -> None:
        """Take over the segments of the log.

        Args:
            torn_size: size of the last file if its end is torn; else -1.
        """
        for segment in segments:
            stamp = self._stamps.get(segment.file.name(LOG))
            segment.file.inode = -1 if stamp is None else stamp.inode
            if self.is_foreign and segment is not segments[-1]:
                segment.file.sealed_size = segment.size
        if segments:
            name = segments[-1].file.name(LOG)
            self._last = self._before.get(name)
            stamp = self._stamps.get(name)
            if stamp is not None:
                settled_ns = self._settled(stamp.mtime_ns, self._begun_ms)
                if stamp.size == torn_size:
                    self._torn = torn_size, settled_ns
                if self.is_foreign:
                    self.has_last_stayed = stamp == self._last and settled_ns >= 0
            # An empty segment does not show what is below it.
            for segment in segments[-2:] if not segments[-1].size else segments[-1:]:
                if not segment.is_lost:
                    self.record_end(segment)
        self._before = {}

    def record_end(self, last: Segment) -> None:
        """Record that more of the last segment was read."""
        if self._ends and self._ends[-1].end == _end_of(last):
            return
        header = last_batch_at(last) if last.size else None
        pieces = LogEnd.places(last.size, header)
        # If the file cannot be read, nothing shows that the end is unchanged: records
        # that were read then count as replaced as soon as they may have been.
        contents: tuple[tuple[int, bytes], ...] = ()
        with contextlib.suppress(OSError, CorruptRecordError):
            # Through the file that was read, which is open already.
            contents = tuple(
                (position, _read(last, position, length)) for position, length in pieces
            )
        self.add_end(last, contents)

    def add_end(self, last: Segment, pieces: tuple[tuple[int, bytes], ...]) -> None:
        """Record the end that the last segment has now; `pieces` were read there."""
        self._ends.append(LogEnd(_end_of(last), last.file.name(LOG), pieces))

    def newest_end(self) -> LogEnd | None:
        """The newest end that the log was seen to have."""
        return self._ends[-1] if self._ends else None

    def ends(self) -> tuple[LogEnd, ...]:
        """The ends that the log was seen to have, for `restore_ends`."""
        return tuple(self._ends)

    def restore_ends(self, ends: tuple[LogEnd, ...]) -> None:
        """Keep only these ends: ends recorded since may be of another log."""
        self._ends = deque(ends, maxlen=_ENDS_MAX)

    def _bytes_at(
        self, name: str, pieces: Iterable[tuple[int, int]]
    ) -> tuple[tuple[int, bytes], ...]:
        """The bytes of a file at some (position, length)."""
        contents = []
        with self._directory.opened(name) as fd:
            for position, length in pieces:
                data = bytearray(length)
                n = self._directory.files.read(fd, data, position) if length else 0
                contents.append((position, bytes(data[:n])))
        return tuple(contents)

    def _stands(self, end: LogEnd) -> bool:
        """Whether the bytes before an end are unchanged."""
        if not end.pieces:
            return False
        try:
            ranges = [(position, len(data)) for position, data in end.pieces]
            return self._bytes_at(end.name, ranges) == end.pieces
        except FileNotFoundError:
            return False

    def standing(self, segments: Sequence[Segment]) -> frozenset[End]:
        """The ends that are still in a log that was loaded again: up to the highest of
        them it is unchanged.

        Raises:
            OSError: a file cannot be read.
        """
        sizes = {segment.file.name(LOG): segment.size for segment in segments}
        return frozenset(
            end.end
            for end in self._ends
            if sizes.get(end.name, -1) >= end.end.size and self._stands(end)
        )

    def keep_ends(self, before: LogFiles, cut_to: int) -> None:
        """Take over the ends that were seen before a log was loaded again."""
        newest = list(self._ends)
        self._ends.clear()
        self._ends.extend(end for end in before._ends if end.end.offset <= cut_to)
        self._ends.extend(newest)

    def record_damage(self, last: Segment, position: int) -> None:
        """Record the damage at `position` in the last segment; nothing after it counts.
        It is recorded only if the damaged batch is complete, and therefore stays as it
        is."""
        with contextlib.suppress(OSError):
            name = last.file.name(LOG)
            [damage] = self._bytes_at(name, [(position, _DAMAGED_BYTES)])
            buffer = native.pointer(damage[1])
            scan = native.first_header(buffer, len(damage[1]), checks=native.CHECK_CRC)
            # Or the batch is intact, and its offset does not follow.
            if scan.error is not None or scan.headers:
                self._damage = damage

    def _is_damaged_as_before(self, last: Segment, stamp: _Stamp) -> bool:
        """Whether the last file has only grown, after the place of its damage."""
        before = self._last
        if self._damage is None or before is None or stamp.inode != before.inode:
            return False
        if stamp.size < before.size:
            return False
        position, data = self._damage
        return self._bytes_at(last.file.name(LOG), [(position, len(data))]) == (
            self._damage,
        )

    def is_unchanged(self, last: Segment, stamp: FileStamp) -> bool:
        """Whether the last segment is unchanged, except that it may have grown."""
        now = _stamp(stamp)
        if now.inode != last.file.inode:
            # Nothing was read of an empty segment: it may be another file.
            if last.size:
                return False
            last.file.inode = now.inode
        if now.size < last.size:
            return False
        if not self.is_foreign and now.size == last.size:
            return True
        if self.is_foreign and now == self._last:
            return True
        is_unchanged = not self._ends or self._stands(self._ends[-1])
        # Recorded before more of it is read: the next refresh examines later changes.
        self._last = now
        return is_unchanged

    def has_more(self, last: Segment, stamp: FileStamp) -> bool:
        """Whether there are bytes after the end that were not examined yet."""
        _, mtime_ns, _, size = stamp
        return size > last.size and (size, mtime_ns) != self._torn

    def _settled(self, mtime_ns: int, begun_ms: int) -> int:
        return settled(mtime_ns, begun_ms, self._directory.files)

    def record_torn(self, stamp: FileStamp, begun_ms: int) -> bool:
        """Record that the bytes after the end are part of a batch, or not of this log.

        Args:
            stamp: of the file, from before they were read.
            begun_ms: from before the stamp.

        Returns:
            Whether another program has left them there, and is not writing now.
        """
        quiet_ns = self._settled(stamp[1], begun_ms)
        self._torn, self._is_stuck = (stamp[3], quiet_ns), self.is_foreign
        return self.is_foreign and quiet_ns >= 0

    def is_last_other(self, segments: Sequence[Segment]) -> bool:
        """Whether another program has changed the last file."""
        if not self.is_foreign or not segments:
            return False
        if segments[-1].is_lost:
            return self._directory.exists(segments[-1].file.name(LOG))  # it is back
        stamp = _stamp(stamp_of(self._directory.stat(segments[-1].file.name(LOG))))
        if stamp != self._last and self._is_damaged_as_before(segments[-1], stamp):
            self._last = stamp
        return stamp != self._last

    def are_sealed_replaced(self, segments: Sequence[Segment]) -> bool:
        """Whether another program has replaced sealed files. If not, takes over the
        stamps of the files that exist now."""
        if not self.is_foreign:
            return False
        stamps, now = self._stamps, self._present()
        names = (
            segment.file.name(LOG)
            for segment in segments
            if segment.file.sealed_size >= 0
        )
        if any(now.get(name) != stamps.get(name) for name in names):
            return True
        self._stamps = now
        return False

    def is_any_replaced(self, segments: Sequence[Segment]) -> bool:
        """Whether a file was replaced, whichever program writes the log. Each file is
        examined once per time of the directory."""
        begun_ms = self._directory.files.now_ms()
        mtime_ns = self._directory.info().mtime_ns
        if self._is_stuck or self.is_last_other(segments):
            return True
        if mtime_ns == self._checked_ns:
            return False
        files = self._present()
        self._checked_ns = self._settled(mtime_ns, begun_ms)
        for segment in segments:
            name = segment.file.name(LOG)
            if not segment.is_lost:
                now, stamp = files.get(name), self._stamps.get(name)
                if now is None or now.inode != segment.file.inode:
                    return True
                if segment.file.sealed_size >= 0 and now != stamp:
                    return True
        return False


def log_bases(directory: Directory) -> list[int] | None:
    """The base offsets of the `.log` files in a directory, in no order. None: a file is
    about to be replaced (`.swap`), and the names alone do not say what the log is."""
    bases = []
    for name in directory.names():
        if not name.endswith((LOG, SWAP)):
            continue  # most of them; to parse a name costs more
        parsed = parse_segment_file(name)
        if parsed is None:
            continue
        if parsed.transition == SWAP:
            return None
        if parsed.suffix == LOG and not parsed.transition:
            bases.append(parsed.base_offset)
    return bases


def is_copy(segment: Segment, now: Segment) -> bool:
    """Whether the file of a segment, which had several names, was replaced by a copy of
    it (`Directory.open`), so that its readers can continue in the copy. All bytes that
    were read are compared: the new file may also be a backup that was put back."""
    before = segment.file.kept()
    if (
        before is None
        or segment.file.inode == now.file.inode
        or segment.size > now.size
    ):
        return False
    files, pos = segment.file.directory.files, 0
    mine, other = memoryview(bytearray(READ_BYTES)), memoryview(bytearray(READ_BYTES))
    with contextlib.suppress(OSError):
        after = now.file.borrow()
        while pos < segment.size:
            n = min(READ_BYTES, segment.size - pos)
            if files.read(before.fd, mine[:n], pos) < n:
                return False
            if files.read(after.fd, other[:n], pos) < n or mine[:n] != other[:n]:
                return False
            pos += n
        return True
    return False


def adopt_copy(segment: Segment, now: Segment) -> None:
    """Let the readers of a segment continue in the file of another one."""
    segment.file.inode = now.file.inode
    segment.file.forget()


def _end_of(last: Segment) -> End:
    return End(last.next_offset, last.base_offset, last.size)


def last_batch_at(segment: Segment) -> int | None:
    """The position of the last batch of a segment; None if it cannot be found."""
    last = None
    with contextlib.suppress(CorruptRecordError, UnsupportedError, StorageError):
        walk = segment.walk_from(segment.next_offset - 1, native.Buffer(READ_BYTES))
        while walk.read():
            position, scan = native.last_batch(walk.buffer.c, walk.n)
            if position >= 0:
                last = walk.pos + position
            walk.take(scan)
    return last
