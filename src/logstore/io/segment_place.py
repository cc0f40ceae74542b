"""Places of segments: the sources of their bytes.

`Segment` asks its place for bytes. The code above it does not know the place, apart
from the parts of the package whose subject is the file itself: byte ranges, snapshots,
and the comparison of a log with its files.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final, Protocol

from logstore._native import OpenFile
from logstore.errors import storage_error
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.stamps import FileInfo

__all__ = ["LOCAL_FILE", "LocalFile", "Place", "Placed", "Rest"]


class Placed(Protocol):
    """A segment, as its place sees it."""

    _serial: int
    base_offset: int
    directory: Directory
    descriptors: Descriptors
    inode: int
    is_sealed: bool
    place: Place
    size: int
    version: int

    @property
    def path(self) -> str:
        """The path of its file, for messages."""

    def file(self, suffix: str) -> str:
        """The name of one of its files."""

    def file_names(self) -> tuple[str, ...]:
        """The names that its log may have, the likely one first."""

    def bytes_below(self, stop: int) -> int:
        """The end of the batches with offsets below `stop`, or a position after it."""


class Rest(Protocol):
    """The segments after one, in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Placed: ...


class Place(Protocol):
    """A source of the bytes of segments. Any thread may call the methods."""

    def read(
        self, segment: Placed, view: memoryview, pos: int, rest: Rest, stop: int
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
        """The open file of the log, which C may read as long as it is referred to; None
        if there is none to read directly."""


class LocalFile:
    """The files in the directory of the partition. The system reads ahead in them."""

    def read(
        self, segment: Placed, view: memoryview, pos: int, rest: Rest, stop: int
    ) -> int:
        """As `Place.read`."""
        try:
            file = self.borrow(segment)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                raise
            raise storage_error(error, "open", segment.path) from error
        try:
            return segment.directory.files.read(file.fd, view, pos)
        except OSError as error:
            raise storage_error(error, "read", segment.path) from error

    def index_bytes(self, segment: Placed, suffix: str) -> bytes:
        """As `Place.index_bytes`."""
        return segment.directory.read_file(segment.file(suffix))

    def open_file(self, segment: Placed) -> OpenFile | None:
        """As `Place.open_file`."""
        if type(segment.directory.files).read is not Files.read:
            return None
        file = segment.descriptors.kept(segment._serial)
        if file is None:
            with contextlib.suppress(OSError):
                return self._open(segment)
        return file

    def borrow(self, segment: Placed) -> OpenFile:
        """The open file of the log, which stays open as long as a reference to it
        exists.

        Raises:
            OSError: as opening does; ESTALE if it is another file now.
        """
        file = segment.descriptors.kept(segment._serial)
        return self._open(segment) if file is None else file

    @staticmethod
    def _open(segment: Placed) -> OpenFile:
        def is_it(info: FileInfo) -> bool:
            # The inode number of a removed file may be given to another file.
            return info.inode == segment.inode and (
                not segment.is_sealed or info.size == segment.size
            )

        borrow, directory = segment.descriptors.borrow, segment.directory
        serial, names = segment._serial, segment.file_names
        if segment.inode < 0:
            file = borrow(serial, directory, names)
            if segment.inode < 0 or is_it(directory.files.stat(file.fd)):
                return file
            # It was replaced meanwhile, and this is the other file.
            segment.descriptors.forget(serial)
        return borrow(serial, directory, names, is_it)


LOCAL_FILE: Final = LocalFile()
