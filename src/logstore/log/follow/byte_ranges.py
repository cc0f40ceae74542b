"""Where the bytes of a range of offsets are, for a reader outside of this process.

Such a reader reads the planned bytes of the planned files, and checks after each read
that the guards have not changed: then the log was not cut, and it has read the planned
bytes. It decides nothing else: if a guard has changed, a file is another one, or a
batch is not valid, it leaves the rest to a reader of logstore.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.io.directory import Directory
from logstore.io.segment_place import REPLACED
from logstore.io.stamps import NO_FILE, FileStamp, settled, stamp_of
from logstore.log.follow.change_stamps import CUT_BY_BROKER, CUT_BY_LOGSTORE
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.read.transactions import EndedTransactions, ended_transactions
from logstore.log.read.view import ChangedError, View

__all__ = ["ByteRanges", "FileRange", "Guard", "byte_ranges"]

# No file has this stamp: the guard never holds.
UNSETTLED: Final[FileStamp] = (-2, -1, -1, -1)


class Guard(NamedTuple):
    """A file that changes before the log is cut.

    Attributes:
        path: of the file.
        stamp: inode, times of modification and of change in ns, size; -1 where a value
            does not count. `NO_FILE`: the file did not exist.
    """

    path: str
    stamp: FileStamp


class FileRange(NamedTuple):
    """Bytes of one segment.

    Attributes:
        path, inode: of the file. If it is deleted it is named ``.deleted`` for a while.
        position: a batch begins here, at or before the first offset wanted.
        size: where the whole batches of the file ended.
        last_offset: the offset before `position`; -2: unknown.
        next_offset: no offset of the segment reaches it.
        is_contiguous: each batch begins where the one before ended.
    """

    path: str
    inode: int
    position: int
    size: int
    last_offset: int
    next_offset: int
    is_contiguous: bool


class ByteRanges(NamedTuple):
    """Where the records of a range of offsets are.

    Attributes:
        files: in order.
        guards: as long as they hold, the log was not cut.
        decompressed_max: the most bytes of a decompressed batch.
        transaction_free: offsets at which certainly no batch belongs to a transaction.
        transactions: for ``read_committed``, the transactions in the range; None: not
            asked for, or not all have ended, or not all could be read.
    """

    files: tuple[FileRange, ...]
    guards: tuple[Guard, ...]
    decompressed_max: int
    transaction_free: range
    transactions: EndedTransactions | None = None

    @property
    def is_contiguous(self) -> bool:
        """Whether every offset has a record."""
        return all(file.is_contiguous for file in self.files)


def byte_ranges(
    log: ReadOnlyLog,
    view: View,
    start: int,
    stop: int,
    stable: Callable[[], int] | None = None,
) -> ByteRanges | None:
    """The byte ranges with the records start <= offset < stop of a view.

    None: the view does not have all of them, or a file cannot be examined now.

    Args:
        stable: for ``read_committed``, the last stable offset of the view.
    """
    if not view.start_offset <= start < stop <= view.end_offset:
        return None
    try:
        return _byte_ranges(log, view, start, stop, stable)
    except (OSError, CorruptRecordError, UnsupportedError):
        return None  # a reader meets it again, and reports it


def _byte_ranges(
    log: ReadOnlyLog,
    view: View,
    start: int,
    stop: int,
    stable: Callable[[], int] | None,
) -> ByteRanges | None:
    with log.directory.use() as fd:
        files = log.directory.files
        begun_ms = files.now_ms()
        ranges, guards = [], list(_guards(log))
        for segment in view.from_offset(start):
            if segment.base_offset >= stop:
                break
            info = files.stat_name(fd, os.path.basename(segment.path))
            if segment.is_lost or segment.place is REPLACED or info.size < segment.size:
                return None
            place = segment.locate(start)
            ranges.append(
                FileRange(
                    segment.path,
                    info.inode,
                    place.pos,
                    segment.size,
                    place.last_offset,
                    segment.next_offset,
                    segment.is_contiguous,
                )
            )
            if log.is_foreign:
                stamp = _settled(stamp_of(info), begun_ms, log.directory)
                guards.append(Guard(segment.path, stamp))
    ended = None if stable is None else _transactions(view, start, stop, stable)
    # The guards are newer than the view: nothing may have been cut before them.
    if not ranges or view.if_changed() is not None:
        return None
    return ByteRanges(
        tuple(ranges),
        tuple(guards),
        view.decompressed_max,
        view.transaction_free,
        ended,
    )


def _transactions(
    view: View, start: int, stop: int, stable: Callable[[], int]
) -> EndedTransactions | None:
    free = view.transaction_free
    if start in free and stop - 1 in free:
        return EndedTransactions((), stop)
    try:
        if stable() < stop:
            return None
        return ended_transactions(view, start, stop)
    except (ChangedError, CorruptRecordError, UnsupportedError):
        return None  # a reader meets it again, and reports it


def _guards(log: ReadOnlyLog) -> Iterator[Guard]:
    """The guard files: one of them changes before the log is cut. The directory is one,
    too: it is another one after a backup was put back."""
    directory = log.directory
    look = directory.look(CUT_BY_BROKER if log.is_foreign else CUT_BY_LOGSTORE)
    yield Guard(directory.path, (look.place[1], -1, -1, -1))
    for name, stamp in look.stamps().items():
        path = os.path.normpath(directory.path_of(name))
        if stamp is None:
            yield Guard(path, NO_FILE)
        else:
            yield Guard(path, _settled(stamp, look.begun_ms, directory))


def _settled(stamp: FileStamp, begun_ms: int, directory: Directory) -> FileStamp:
    """The stamp, if the next change of the file alters it."""
    return stamp if settled(stamp[2], begun_ms, directory.files) >= 0 else UNSETTLED
