"""A state file written by a single object, whole or by appended entries."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from logstore import _native as native
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.append_file import AppendCalls, AppendFile, SyncedFiles
from logstore.io.checkpoint.entries import (
    ENTRY_BYTES,
    FileEnd,
    end_of,
    later_entry,
    seal_of,
    with_room_for_seal,
)
from logstore.io.directory import Directory
from logstore.io.stamps import stamp_bytes, stamp_of

__all__ = ["GrowingFile"]


class _Entry(NamedTuple):
    """An entry before it is appended.

    Attributes:
        end: where the file ends with it.
        calls: the calls that append it; they keep the file open.
    """

    end: FileEnd
    calls: AppendCalls


class GrowingFile:
    """Writes one state file. Its caller's lock guards it.

    An append is one call of the core: 1. write the entry, if the file was not changed
    meanwhile; 2. sync the file, and others made durable with it; 3. write the seal,
    if it has one.

    Args:
        growth_bytes: bytes of entries that may follow the first one in any case.
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
        self._stays_open = stays_open
        # Of the open file; None: it is not open.
        self._calls: AppendCalls | None = None
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
        """End of its entries; None: unknown."""
        return self._end

    def cut_to(self, end: FileEnd) -> bool:
        """Take back, durably, what was appended since the file ended at `end`, also in
        part. This needs no room on the disk. Returns False if the file was written
        whole since: nothing was changed.

        Raises:
            OSError: as the system gives it; the next write is of the whole file.
        """
        self._end = self._calls = None
        calls = self._opened()
        file = calls.file
        if (
            end.stamp is None
            or file.identity[1] != end.stamp[0]
            or file.size < end.size
        ):
            return False
        is_sealed = self._is_sealed and end.first < end.size < file.size
        # The appended bytes are in the place of a seal: one of them shows the same.
        file.cut_to(end.size + is_sealed)
        if is_sealed:
            calls.steps.set_bytes(calls.sync + 1, seal_of(end), end.size)
            end = _sealed(end, calls)
        file.sync()
        self._end = end._replace(stamp=stamp_of(self._directory.files.stat(file.fd)))
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

    def append(self, text: str, others: SyncedFiles | None = None) -> bool:
        """Append an entry, durably; `text` is JSON as `state_text` makes it. Returns
        False if that is not possible, and nothing was written, and nothing synced: then
        the file must be written whole.

        Args:
            others: synced at the same time as the file. If one of them cannot be, the
                entry has no seal.

        Raises:
            OSError: as the system gives it. The file has its old content, or the new
                one; the next write is of the whole file.
        """
        entry = self._prepared(text)
        if entry is None:
            return False
        end, calls = entry
        (others or SyncedFiles(())).sync_with(calls)
        done = self._made(calls, calls.sync + 1 + self._is_sealed)
        if not done:
            return False
        # A seal that could not be written does no harm: the next entry shows the same.
        self._ended(end._replace(is_sealed=done > calls.sync + 1), calls)
        return True

    def _prepared(self, text: str) -> _Entry | None:
        """The calls that append an entry. None: it must not be appended."""
        end, self._end = self._end, None
        calls, self._calls = self._calls, None
        body = text.encode("utf-8", "surrogatepass")
        if end is None or not self._may_append(end, body):
            return None
        calls = calls or self._opened()
        if end.stamp is None or end.stamp[0] != calls.file.identity[1]:
            return None
        if self._is_sealed:
            body = with_room_for_seal(end, body)
        data = later_entry(end, body)
        calls.set(data, end.size, stamp_bytes(end.stamp))
        new = end.after(data)
        calls.steps.set_bytes(calls.sync + 1, seal_of(new), new.size)
        return _Entry(new, calls)

    def _made(self, calls: AppendCalls, stop: int) -> int:
        """Make the calls up to before `stop`; returns how many, 0: the file is not as
        it was left. That a seal could not be written is not an error."""
        done, error = calls.make(stop)
        if error is not None and done <= calls.sync:
            raise error
        if not done:
            calls.file.size_now()  # an error if the file is gone
        return done

    def _may_append(self, end: FileEnd, body: bytes) -> bool:
        size = end.size + ENTRY_BYTES + len(body)
        is_long = end.is_long(self._growth_bytes)
        return not is_long and size <= checkpoints.STATE_BYTES_MAX

    def _opened(self) -> AppendCalls:
        fd = self._directory.open(self._name, write=True)
        file = AppendFile(self._directory, self._name, fd)
        seal = native.Step(native.STEP_WRITE, fd)
        return AppendCalls(file, by_stamp=True, after=[seal])

    def _ended(self, end: FileEnd, calls: AppendCalls) -> None:
        """Note the end after a durable entry. If the stamp of the file is unknown, the
        next write is of the whole file."""
        with contextlib.suppress(OSError):
            info = self._directory.files.stat(calls.file.fd)
            end = end._replace(stamp=stamp_of(info))
        self._end, self._calls = end, calls if self._stays_open else None


def _sealed(end: FileEnd, calls: AppendCalls) -> FileEnd:
    """Write the seal of the entry that ends there, if the disk has room for it."""
    number = calls.sync + 1
    done, _ = calls.make(number + 1, number)
    return end._replace(is_sealed=done > number)
