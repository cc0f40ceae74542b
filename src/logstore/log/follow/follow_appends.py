"""A quick look at a log that another process writes: only its end has changed.

A writer changes one of a few files before, or when, it does more than append to the
last segment: its state, its mark in the root, the files of a publication, or a name in
the directory. These are the guards: one call examines them all. If they have not
changed since a whole look, another one would find the same, and appends since then are
read from the last file alone. Otherwise nothing is changed, and the caller looks at
everything.

1. Examine the guards and the last file: the same inode, and not shorter.
2. Read the appended bytes, together with the last bytes before them. These must be
   unchanged: a program may have truncated the file and have continued writing. The new
   bytes must be whole batches with valid checksums.
3. Examine the guards again. A log is cut, and a publication begins, after one of them
   has changed: the bytes were part of the log when they were read.
4. Take the batches over. This makes no system call.

The directory is opened for each examination: kept open, it could be one that a backup
has replaced. The file is kept open, so that its inode number is not reused.
"""

from __future__ import annotations

from typing import Final

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.layout import (
    LOG,
    PARTITION_STATE,
)
from logstore.io.stamps import NO_FILE, Look
from logstore.log.follow.change_stamps import WRITER
from logstore.log.follow.file_identity import LogEnd, LogFiles
from logstore.log.follow.followed import FollowedLog
from logstore.log.read.tail import VerifiedTail
from logstore.log.recover import RecoveredLog
from logstore.log.scan import take_batches
from logstore.segment import READ_BYTES, Segment

__all__ = ["AppendFollower"]

# A larger tail is kept only until the next look: there may be many partitions.
_KEPT_BYTES: Final = 16 * 1024


class AppendFollower:
    """The quick looks at one log. The caller's lock guards it.

    Attributes:
        guards: the last look, with the guards of the last whole look; None: no quick
            look is possible.
        tail: what the last quick look has read, if it is at the end of the log.
    """

    def __init__(self, directory: Directory, index_interval_bytes: int) -> None:
        self.guards: Look | None = None
        self.tail: VerifiedTail | None = None
        self._directory = directory
        self._interval = index_interval_bytes
        self._planner: native.Planner | None = None
        # Whether the last file was read as far as the last look has found it.
        self._is_at_end = False

    def forget(self) -> None:
        """Make no quick look before the next whole one."""
        self.guards = self.tail = None

    def begin(self, log: FollowedLog, first: Look, last: Look) -> None:
        """Call after a whole look at a log that logstore writes, without damage at its
        end: between these looks, if they are not the same one, everything was read."""
        # They name the last file. An empty one may have been found after both.
        names = log.guards
        looked_at = {first.names.names, last.names.names}
        if not log.segments or looked_at != {names.all.names}:
            return
        guards, stamps = first.first(names.quick), last.stamps()
        is_same = last.data.startswith(guards.data)
        has_own = stamps[WRITER] and stamps[PARTITION_STATE]
        if is_same and has_own and guards.has_settled(self._directory.files):
            # A torn batch after the end was examined, and remains after a kill.
            stamp = stamps[names.last]
            self._is_at_end = stamp is not None and not log.files.has_more(
                log.segments[-1], stamp
            )
            self.guards = last

    def look(self, log: FollowedLog) -> bool:
        """Take in appends to the last segment, if nothing else has changed. False:
        nothing was taken in, and a whole look is necessary."""
        guards = self.guards
        if guards is None:
            return False
        last = log.segments[-1]
        try:
            now = self._directory.look(guards.names, guards)
            size = self._size(log, guards, now)
            if size < 0:
                return False
            if size == last.size:
                self.guards, self._is_at_end = now, True
                if self.tail is not None and self.tail.size > _KEPT_BYTES:
                    self.tail = None
                return True
            tail = self._read(log.log, last, log.files, size)
            if tail is None or self._size(log, guards, log.look()) < size:
                return False
        except OSError:
            return False  # the whole look reports why
        if not self._take(tail, log.log, last, log.files):
            return False
        self.tail = tail if last.is_contiguous else None
        self.guards, self._is_at_end = now, True
        return True

    def _size(self, log: FollowedLog, guards: Look, now: Look) -> int:
        """The size of the last file; -1 if anything but the end of the log may have
        changed."""
        last = log.segments[-1]
        if now is guards and self._is_at_end:
            return last.size
        names = log.guards
        if not now.data.startswith(guards.first(names.quick).data):
            return -1
        inode, _, _, size = now.stamps()[names.last] or NO_FILE
        return size if inode == last.file.inode and size >= last.size else -1

    def _read(
        self, loaded: RecoveredLog, last: Segment, files: LogFiles, size: int
    ) -> VerifiedTail | None:
        """The batches from the end of the last segment up to `size` bytes, if there are
        only whole ones, and the bytes before them are the same as when they were
        read."""
        end = files.newest_end()
        if end is None or (end.end.size, end.name) != (last.size, last.file.name(LOG)):
            return None
        if not end.pieces:
            return None
        first = min(position for position, _ in end.pieces)
        length = size - first
        if length > READ_BYTES:
            return None
        file = last.file.borrow()
        buffer = native.Buffer(length)
        if self._directory.files.read(file.fd, buffer.view, first) != length:
            return None
        for position, data in end.pieces:
            if buffer.raw[position - first : position - first + len(data)] != data:
                return None
        pos, before = last.size - first, loaded.active_state.last_offset
        stop, last_offset, _, _, error, has_wrappers = native.walk_batches(
            buffer.c, length, pos=pos, last_offset=before, checks=last.checks
        )
        # No checksum covers the offset of a wrapper: only a reader can check it.
        if error is not None or stop != length or has_wrappers:
            return None
        return VerifiedTail(
            before + 1, last_offset + 1, buffer, pos, length, last.checks
        )

    def _take(
        self, tail: VerifiedTail, loaded: RecoveredLog, last: Segment, files: LogFiles
    ) -> bool:
        """Add these batches to the known log. False if that is not possible: nothing
        was changed."""
        if self._planner is None:
            self._planner = native.Planner(self._interval, None)
        state, index, times = loaded.active_state, loaded.index, loaded.times
        before, counts = state.copy(), (index.count, times.count)
        data, wanted = tail.buffer.c + tail.pos, tail.size - tail.pos
        try:
            done, _ = take_batches(self._planner, state, data, wanted, index, times)
        except native.NativeError:
            done = -1
        if done != wanted:
            state.assign(before)
            index.cut(counts[0])
            times.cut(counts[1])
            return False
        # In this order: see `SegmentWriter.show`.
        last.next_offset = tail.end_offset
        last.size += wanted
        last.max_timestamp = None
        loaded.end_offset = max(loaded.end_offset, tail.end_offset)
        loaded.tail_start, loaded.tail_bytes = last.size, 0
        position, _ = native.last_batch(data, wanted)
        header = last.size - wanted + position if position >= 0 else None
        begin, raw = last.size - tail.size, tail.buffer.raw
        files.add_end(
            last,
            tuple(
                (place, raw[place - begin : place - begin + length])
                for place, length in LogEnd.places(last.size, header)
            ),
        )
        return True
