"""A state file that one object writes, whole or by appended entries."""

from __future__ import annotations

from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import (
    ENTRY_BYTES,
    FileEnd,
    append_entry,
    end_of,
)
from logstore.io.directory import Directory

__all__ = ["GrowingFile"]


class GrowingFile:
    """Writes one state file. Its caller's lock guards it.

    Invariant: while an end is known, the file has no bytes after it, unless another
    program has changed the file.
    """

    __slots__ = ("_directory", "_end", "_name")

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name
        # None: the next write is of the whole file.
        self._end: FileEnd | None = None

    @property
    def has_entries(self) -> bool:
        """Whether this object has appended to the file since it wrote it whole."""
        return self._end is not None and self._end.size > self._end.first

    def replace(self, text: str) -> None:
        """Write the file whole, durably; `text` is JSON as `state_text` makes it.

        Raises:
            OSError: as the system gives it; EFBIG if it could not be read again. The
                file has its old content, or the new one.
        """
        self._end = None
        data = checkpoints.write_prepared(self._directory, self._name, text)
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
        body = text.encode("utf-8", "surrogatepass")
        if (
            end is None
            or end.is_long
            or end.size + ENTRY_BYTES + len(body) > checkpoints.STATE_BYTES_MAX
        ):
            return False
        self._end = append_entry(self._directory, self._name, end, body)
        return self._end is not None
