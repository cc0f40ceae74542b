"""A state file that one object writes, whole or by appended entries."""

from __future__ import annotations

from typing import NamedTuple

from logstore import _native as native
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import (
    ENTRY_BYTES,
    EntryCalls,
    FileEnd,
    append_entry,
    end_of,
    write_entry,
    write_seal,
)
from logstore.io.directory import Directory
from logstore.io.files import Files, held_open
from logstore.io.stamps import stamp_of

__all__ = ["BegunEntry", "GrowingFile"]


class BegunEntry(NamedTuple):
    """An entry that is in the file, and perhaps not durable.

    Attributes:
        fd: of the file, to be synced.
        before, end: where the file ended before it, and where it ends.
        calls, file: what keeps it open; None: not this one.
    """

    fd: int
    before: FileEnd
    end: FileEnd
    calls: EntryCalls | None
    file: native.OpenFile | None


class GrowingFile:
    """Writes one state file. Its caller's lock guards it.

    Args:
        growth_bytes: so many bytes of entries may follow the first one in any case.
        is_sealed: one damaged bit of the last entry must not undo it in silence.
        stays_open: keep the file open between two entries, which come often.

    Invariant: while an end is known, the file has no bytes after it, unless another
    program has changed the file.
    """

    __slots__ = (
        "_calls",
        "_directory",
        "_end",
        "_growth_bytes",
        "_is_sealed",
        "_name",
        "_stays_open",
    )

    def __init__(
        self,
        directory: Directory,
        name: str,
        *,
        growth_bytes: int = 64 << 10,
        is_sealed: bool = False,
        stays_open: bool = False,
    ) -> None:
        self._directory = directory
        self._name = name
        self._growth_bytes = growth_bytes
        self._is_sealed = is_sealed
        # Where other methods may be replaced, each call is made by itself.
        self._stays_open = stays_open and type(directory.files) is Files
        # Of the open file; None: it is not open.
        self._calls: EntryCalls | None = None
        # None: the next write is of the whole file.
        self._end: FileEnd | None = None

    @property
    def has_entries(self) -> bool:
        """Whether this object has appended to the file since it wrote it whole."""
        return self._end is not None and self._end.size > self._end.first

    @property
    def is_known(self) -> bool:
        """Whether this object has written the file, and no write has failed since."""
        return self._end is not None

    @property
    def end(self) -> FileEnd | None:
        """Where its entries end; None: that is not known."""
        return self._end

    def cut_to(self, end: FileEnd) -> bool:
        """Take back, durably, what was appended since the file ended at `end`, also in
        part. This needs no room on the disk. Returns False if the file was written
        whole since: nothing was changed.

        Raises:
            OSError: as the system gives it; the next write is of the whole file.
        """
        self._end = self._calls = None
        files = self._directory.files
        with self._directory.opened(self._name, write=True) as fd:
            info = files.stat(fd)
            if end.stamp is None or info.inode != end.stamp[0] or info.size < end.size:
                return False
            is_sealed = self._is_sealed and end.first < end.size < info.size
            # What was appended is in the place of a seal: a byte of it shows the same.
            files.truncate(fd, end.size + is_sealed)
            if is_sealed:
                end = write_seal(files, fd, end)
            files.sync(fd)
            self._end = end._replace(stamp=stamp_of(files.stat(fd)))
        return True

    def forget(self) -> None:
        """The file is removed: the next write is of the whole file."""
        self._end = self._calls = None

    def replace(self, text: str, *, in_place: bool = False) -> None:
        """Write the file whole, durably; `text` is JSON as `state_text` makes it.

        Args:
            in_place: if a full disk has no room for a second file, change it in
                place: a power failure during that can damage it.

        Raises:
            OSError: as the system gives it; EFBIG if it could not be read again. The
                file has its old content, or the new one; with `in_place`, an
                `UnknownContentError` unless it has the old one.
        """
        self._end = self._calls = None
        data = checkpoints.write_prepared(
            self._directory, self._name, text, in_place=in_place
        )
        self._end = end_of(data, self._directory.stamp(self._name))

    def append(self, text: str) -> bool:
        """Append an entry, durably; `text` is JSON as `state_text` makes it. Returns
        False if that is not possible, and nothing was written: then the file must be
        written whole.

        Raises:
            OSError: as the system gives it. The file has its old content, or the new
                one; the next write is of the whole file.
        """
        end, self._end = self._end, None
        calls, self._calls = self._calls, None
        body = text.encode("utf-8", "surrogatepass")
        if end is None or not self._may_append(end, body):
            return False
        new = None
        if self._stays_open:
            calls = calls or EntryCalls(self._directory, self._name)
            new = calls.append(end, body, is_sealed=self._is_sealed)
        if new is None:
            calls = None
            new = append_entry(
                self._directory, self._name, end, body, is_sealed=self._is_sealed
            )
        self._end, self._calls = new, calls
        return new is not None

    def _may_append(self, end: FileEnd, body: bytes) -> bool:
        size = end.size + ENTRY_BYTES + len(body)
        is_long = end.is_long(self._growth_bytes)
        return not is_long and size <= checkpoints.STATE_BYTES_MAX

    def begin(self, text: str) -> BegunEntry | None:
        """Append an entry, which the caller syncs, and then ends with `seal`. Returns
        None if that is not possible, and nothing was written: then the file must be
        written whole.

        Raises:
            OSError: as for `append`.
        """
        end, self._end = self._end, None
        calls, self._calls = self._calls, None
        body = text.encode("utf-8", "surrogatepass")
        if end is None or not self._may_append(end, body):
            return None
        if self._stays_open:
            calls = calls or EntryCalls(self._directory, self._name)
            new = calls.write(end, body)
            if new is not None:
                return BegunEntry(calls.fd, end, new, calls, None)
        files, directory = self._directory.files, self._directory
        file = held_open(files, directory.open(self._name, write=True))
        new = write_entry(files, file.fd, end, body)
        return None if new is None else BegunEntry(file.fd, end, new, None, file)

    def seal(self, entry: BegunEntry) -> None:
        """Seal an entry, which is durable, as far as the disk has room for a seal."""
        if entry.calls is not None:
            end = entry.calls.seal(entry.end)
        else:
            end = write_seal(self._directory.files, entry.fd, entry.end)
        self._end, self._calls = end, entry.calls
