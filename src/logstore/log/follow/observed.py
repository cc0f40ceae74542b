"""A log at the time of one look: values, to compare with an earlier look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.io.checkpoint.cuts import Cuts
from logstore.io.stamps import FileStamp

__all__ = ["Bytes", "End", "Names", "Observed", "SeenFile", "ChangeStamps"]


class SeenFile(NamedTuple):
    """The file of one segment.

    Attributes:
        base, end: the segment has the offsets base <= offset < end.
        size: bytes of whole batches.
        inode: of the file; -1: no file exists.
        is_sealed: its writer, another program, has begun a later segment.
    """

    base: int
    end: int
    size: int
    inode: int
    is_sealed: bool = False


class End(NamedTuple):
    """An end that the log was seen to have.

    Attributes:
        offset: the end.
        base: base offset of the file that it was in.
        size: of that file then.
    """

    offset: int
    base: int
    size: int


class Bytes(NamedTuple):
    """Result of comparing the bytes of an earlier look with the present bytes.

    Attributes:
        standing: the earlier ends before which the bytes are unchanged.
        copies: base offsets of the files that have been replaced by copies of them.
    """

    standing: frozenset[End]
    copies: frozenset[int] = frozenset()


class Observed(NamedTuple):
    """A log as one look found it.

    Attributes:
        is_foreign: another program than logstore writes it.
        place: device and inode of the directory.
        start, end: of the log.
        files: of its segments, in order.
        ends: that it was seen to have so far, the newest last.
        damage: the reason why it ends there; "" without damage.
        bytes: how it compares with an earlier look; None: not read.
        log_id, compactions, durable: of logstore's own log, as its state says.
        cuts: that its state has, also if the log is another program's now.
        writer: of logstore's own log: the mark of its writer in the root, when what was
            read certainly existed.
        epochs: of a foreign log: the rows of its leader epochs, for the part that was
            read.
    """

    is_foreign: bool
    place: tuple[int, int]
    start: int
    end: int
    files: tuple[SeenFile, ...]
    ends: tuple[End, ...]
    damage: str = ""
    bytes: Bytes | None = None
    log_id: str = ""
    cuts: Cuts = Cuts()
    compactions: int = 0
    durable: int = 0
    writer: FileStamp | None = None
    epochs: tuple[tuple[int, int], ...] = ()


class ChangeStamps(NamedTuple):
    """The signs by which a look finds out how deep it has to go.

    Attributes:
        place: device and inode of the directory.
        writer: the stamps of the files in the root that show which program writes.
        mtime_ns: of the directory; -1: a later change may not change it.
        state: the stamp of logstore's own state.
        epochs: the rows of the leader epochs of a foreign log.
        stamp: of the whole partition, if bytes after the end of the log will be
            removed: it shows when. None: they are part of it; or, now, the last file
            is another one.
        has_next: there is a segment that begins at the end of the log.
    """

    place: tuple[int, int]
    writer: tuple[FileStamp | None, ...]
    mtime_ns: int
    state: FileStamp | None
    epochs: tuple[tuple[int, int], ...] = ()
    stamp: object = None
    has_next: bool = False


class Names(NamedTuple):
    """The names of a log that was read.

    Attributes:
        bases: base offsets of its segments, in order.
        is_foreign: another program than logstore writes it.
    """

    bases: Sequence[int]
    is_foreign: bool
