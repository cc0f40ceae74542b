"""Places of segments: the sources of their bytes.

`Segment` asks its place for bytes. The code above it does not know the place, apart
from the parts of the package whose subject is the file itself: byte ranges, snapshots,
and the comparison of a log with its files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
from typing import Any, Final, Protocol

from logstore._native import OpenFile
from logstore.errors import storage_error
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.layout import DELETED, LOG, segment_file
from logstore.io.stamps import FileInfo

__all__ = ["REPLACED", "LocalFile", "Place", "Placed", "FollowingSegments"]

# A multiple of the sizes of the entries of an index, 8 and 12 bytes.
_INDEX_BLOCK: Final = 12 << 10
_ENTRY_MAX: Final = 12

_serials = itertools.count(1)


class Placed(Protocol):
    """A segment, as its place sees it."""

    base_offset: int
    file: LocalFile
    place: Place
    size: int
    version: int

    def bytes_below(self, stop: int) -> int:
        """The end of the batches with offsets below `stop`, or a position after it."""


class FollowingSegments(Protocol):
    """The segments after one, in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Placed: ...


class Place(Protocol):
    """A source of the bytes of segments. Any thread may call the methods."""

    def read(
        self,
        segment: Placed,
        view: memoryview,
        pos: int,
        rest: FollowingSegments,
        stop: int,
    ) -> int:
        """Fill `view` from byte `pos` of the log; return the bytes read, fewer only at
        the end of the data.

        Args:
            rest, stop: the segments that will be read after this one, and the offset at
                which that ends: what may be read ahead.

        Raises:
            FileNotFoundError: the log does not exist.
            OSError: ESTALE: it is another one now; else it cannot be read.
        """

    def index_bytes(self, segment: Placed, suffix: str) -> bytes:
        """The content of an index.

        Raises:
            OSError: it cannot be read.
        """

    def open_file(self, segment: Placed) -> OpenFile | None:
        """The open file of the log, which C may read while a reference to it exists;
        None if the log cannot be read directly."""


class LocalFile:
    """The file of one segment in the directory of its partition, with its indexes: the
    place of the segment, if no other has it. The system reads ahead in it.

    Invariant: if `inode` is known, bytes come only from the file with that number,
    whichever of its names that has.

    Attributes:
        directory, descriptors: of the log.
        serial: identifies it among all segments of this process.
        inode: the number of the file if another process may replace it, else -1.
        sealed_size: its exact size then, if its writer has finished it, else -1: the
            number of a removed file may be given to another file.
        moved_to: its name after another file has got its own; "" before.

    Args:
        transition: ".swap" for a segment that recovery would rename, else "".
        log_name: of a log that may have any name.
    """

    __slots__ = (
        "_base_offset",
        "_log_name",
        "_transition",
        "descriptors",
        "directory",
        "inode",
        "moved_to",
        "sealed_size",
        "serial",
    )

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        base_offset: int,
        *,
        transition: str = "",
        log_name: str = "",
    ) -> None:
        self.directory = directory
        self.descriptors = descriptors
        self.serial = next(_serials)
        self.inode = self.sealed_size = -1
        self.moved_to = ""
        self._base_offset = base_offset
        self._transition = transition
        self._log_name = log_name

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError, TypeError):
            self.forget()

    # -- its names

    def name(self, suffix: str) -> str:
        """The name of the log or of an index while the segment is in its log."""
        if suffix == LOG and self._log_name:
            return self._log_name
        return segment_file(self._base_offset, suffix) + self._transition

    @property
    def path(self) -> str:
        """The path of the log, for messages."""
        return self.directory.path_of(self.name(LOG))

    def names(self) -> tuple[str, ...]:
        """The names that the log may have, the likely one first."""
        if self._log_name:
            return (self._log_name,)
        # Another process may have deleted it: then it keeps the old name with a suffix
        # until the delay is over. Or another process may have finished a swap.
        name = segment_file(self._base_offset, LOG)
        if self.moved_to:
            return (name, self.moved_to)
        return (name + self._transition, name, name + DELETED)

    def move(self, name: str) -> None:
        """Another file is about to get the name of this one, which gets another name.
        Its readers continue with this file, while it has that name.

        Raises:
            OSError: as the system gives it.
        """
        self.inode = self.directory.stat(self.name(LOG)).inode
        self.moved_to = name

    # -- its descriptor

    def kept(self) -> OpenFile | None:
        """The open file of the log, if it is open."""
        return self.descriptors.kept(self.serial)

    def forget(self) -> None:
        """Let the open file and the content of the indexes go."""
        self.descriptors.forget(self.serial)

    def check_open(self) -> None:
        """Raise `StoreClosedError` if the store was closed."""
        self.descriptors.check_open(self.directory)

    def borrow(self) -> OpenFile:
        """The open file of the log, which stays open as long as a reference to it
        exists.

        Raises:
            OSError: as opening does; ESTALE if it is another file now.
        """
        file = self.descriptors.kept(self.serial)
        return self._open() if file is None else file

    def _open(self) -> OpenFile:
        borrow, directory = self.descriptors.borrow, self.directory
        if self.inode < 0:
            file = borrow(self.serial, directory, self.names)
            if self.inode < 0 or self._is_it(directory.files.stat(file.fd)):
                return file
            # It was replaced meanwhile, and this is the other file.
            self.forget()
        return borrow(self.serial, directory, self.names, self._is_it)

    def _is_it(self, info: FileInfo) -> bool:
        return info.inode == self.inode and self.sealed_size in (-1, info.size)

    def cached_index(self, suffix: str) -> Any:
        """The content of an index that `keep_index` has kept; None if it is gone."""
        return self.descriptors.index(self.serial, suffix)

    def keep_index(self, suffix: str, entries: Any, size: int) -> None:
        """Keep the content of an index, which has `size` bytes in memory."""
        self.descriptors.keep_index(self.serial, suffix, entries, size)

    # -- its bytes

    def read(
        self,
        segment: Placed,
        view: memoryview,
        pos: int,
        rest: FollowingSegments,
        stop: int,
    ) -> int:
        """Read as `Place.read`."""
        try:
            file = self.borrow()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                raise
            raise storage_error(error, "open", self.path) from error
        try:
            return self.directory.files.read(file.fd, view, pos)
        except OSError as error:
            raise storage_error(error, "read", self.path) from error

    def index_bytes(self, segment: Placed, suffix: str) -> bytes:
        """Read an index as `Place.index_bytes`; without most of the zeros at its end,
        behind the entries: a broker that runs has it at its full size, 10 MB."""
        size_of = functools.partial(_filled, self.directory.files)
        return self.directory.read_file(self.name(suffix), size_of=size_of)

    def open_file(self, segment: Placed) -> OpenFile | None:
        """Open the log as `Place.open_file`."""
        if type(self.directory.files).read is not Files.read:
            return None
        file = self.kept()
        if file is None:
            with contextlib.suppress(OSError):
                return self._open()
        return file


def _filled(files: Files, fd: int) -> int:
    """The size of an index without the blocks of zeros at its end. A block is used if
    its last entry is not zero; the one after the used ones is counted, too: so what is
    left out comes after an entry of zeros, where the order of the entries ends."""

    def is_used(number: int) -> bool:
        end = bytearray(_ENTRY_MAX)
        files.read(fd, end, (number + 1) * _INDEX_BLOCK - _ENTRY_MAX)
        return any(end)

    size = files.size(fd)
    low, high = 0, size // _INDEX_BLOCK
    if high < 2 or is_used(high - 1):
        return size
    # The block before `low` is used, if there is one; block `high` is not.
    high -= 1
    while low < high:
        middle = (low + high) // 2
        if is_used(middle):
            low = middle + 1
        else:
            high = middle
    return (high + 1) * _INDEX_BLOCK


class _Replaced:
    """The place of segments whose file another process has cut or replaced: other
    objects stand for their logs."""

    def read(
        self,
        segment: Placed,
        view: memoryview,
        pos: int,
        rest: FollowingSegments,
        stop: int,
    ) -> int:
        """Refuse: the name belongs to another log now."""
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def index_bytes(self, segment: Placed, suffix: str) -> bytes:
        """Refuse: the index belongs to another log now."""
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def open_file(self, segment: Placed) -> OpenFile | None:
        """Return None: the file does not exist."""
        return None


REPLACED: Final = _Replaced()
