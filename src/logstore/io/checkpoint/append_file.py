"""An append-only file: whole entries count, and a torn end does not.

It owns one open file, and the calls on it: whether it still has its name, read what was
appended, append, undo an append that failed, cut, sync, write another file in its
place. Where entries end, and which of them count, its callers know, each by a codec:
`logstore.io.checkpoint.growing_file` (checksummed JSON) writes state files, such as the
journal of publications, alone; `logstore.group.file.group_log` (record batches) writes
the file of a group, in turn with other processes. Bytes and positions flow through
here, never entries.

The calls of an append are one list (`AppendCalls`), with the calls of its caller around
them, as locks. `Files.make_steps` makes any part of it in one call of the core.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.files import held_open

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

__all__ = ["AppendCalls", "AppendFile", "Point", "SyncedFiles"]

_READ_BYTES: Final = 1 << 20


class Point(NamedTuple):
    """End of the bytes in a file that were appended, or must be durable.

    Attributes:
        file: its device and inode; None: there is no file.
        size: number of bytes at its beginning.
    """

    file: tuple[int, int] | None
    size: int


class AppendFile:
    """One open file of a directory; another file that gets its name is another object.
    For one thread at a time. Callers keep other writers out while they change it.

    Attributes:
        directory, name: its place.
        fd: the descriptor; it is closed with the last reference to this object.
        size: its size when it was opened.
        identity: its device and inode.

    Raises:
        OSError: as the system gives it, here and in each call.
    """

    def __init__(self, directory: Directory, name: str, fd: int) -> None:
        self.directory = directory
        self.name = name
        self._files = directory.files
        self._file = held_open(self._files, fd)
        self.fd = fd
        info = self._files.stat(fd)
        self.size = info.size
        self.identity = info.device, info.inode

    @property
    def path(self) -> str:
        """Its path, for messages."""
        return self.directory.path_of(self.name)

    @classmethod
    def written(cls, directory: Directory, name: str, data: bytes) -> Self:
        """A new file with some bytes, which are durable. It has another name until
        `take_name`."""
        file = cls(directory, name, directory.create(f"{name}.tmp", exclusive=False))
        file._files.write(file.fd, data, 0)
        file.sync()
        return file

    def take_name(self) -> None:
        """Give a `written` file its name, in the place of another file. The caller
        syncs the directory."""
        self.directory.rename(f"{self.name}.tmp", self.name)

    def size_now(self) -> int | None:
        """The size of the file; None: another file has its name.

        Raises:
            FileNotFoundError: no file has it.
        """
        info = self.directory.stat(self.name)
        return info.size if (info.device, info.inode) == self.identity else None

    # ------------------------------------------------------------ reading

    def read(self, pos: int, size: int) -> bytes:
        """The bytes from a position on; fewer than `size` at the end of the file."""
        data = bytearray(size)
        n = self._files.read(self.fd, data, pos)
        return bytes(memoryview(data)[:n])

    def read_on(
        self, pos: int, size: int, take_in: Callable[[bytes], int], entry_bytes_max: int
    ) -> None:
        """Read the whole entries from `pos` on up to `size`.

        Args:
            take_in: takes in the whole entries at the beginning of some bytes; returns
                how many bytes these are.
            entry_bytes_max: more bytes are not taken for an entry.
        """
        wanted = _READ_BYTES
        while pos < size:
            asked = min(wanted, size - pos)
            data = self.read(pos, asked)
            taken = take_in(data)
            if taken:
                wanted = _READ_BYTES
            elif len(data) < asked or pos + asked == size or wanted > entry_bytes_max:
                return
            else:
                wanted *= 2
            pos += taken

    # ------------------------------------------------------------ changing it

    def undo(self, pos: int) -> None:
        """Cut off what an append has left that failed. If that fails, too, the next
        writer does it."""
        with contextlib.suppress(OSError):
            self.cut_to(pos)

    def cut_to(self, pos: int) -> None:
        """Cut off all bytes from a position on."""
        self._files.truncate(self.fd, pos)

    def sync(self) -> None:
        """Make durable what was written."""
        self._files.sync(self.fd)


class SyncedFiles:
    """Files that an append syncs together with its file, at the same time.

    Args:
        fds: their descriptors.
    """

    __slots__ = ("_calls", "fds")

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = fds
        self._calls: AppendCalls | None = None

    def sync_with(self, calls: AppendCalls) -> None:
        """Their syncs are a part of these calls from now on, for one append."""
        fds = [*self.fds, calls.file.fd] if self.fds else []
        calls.steps.set_files(calls.sync, fds)
        self._calls = calls

    @property
    def errors(self) -> list[int]:
        """The error of each sync that was made, as errno; 0: no error. ECANCELED:
        it was not made, or not by this append."""
        count = len(self.fds)
        if self._calls is None:
            return [errno.ECANCELED] * count
        return self._calls.steps.sync_results()[:count]

    @property
    def are_synced(self) -> bool:
        """Whether all of these syncs were made, without an error."""
        return not any(self.errors)

    @property
    def is_all_synced(self) -> bool:
        """Whether they and the file itself were synced at the same time."""
        calls = self._calls
        return (
            bool(self.fds) and calls is not None and not any(calls.steps.sync_results())
        )


class AppendCalls:
    """The calls of an append to a file, in this order: steps `before` it; the check
    that the file is unchanged; the write; steps `between`; the sync; steps
    `after` it. Each is made if the one before has had the result that it must have.

    Args:
        by_stamp: look at the stamp of the file, not only at its end.

    Attributes:
        file: the open file.
        steps: all calls.
        look, write, sync, end: the numbers of these calls, and that of all.
    """

    __slots__ = ("_files", "_held", "end", "file", "look", "steps", "sync", "write")

    def __init__(
        self,
        file: AppendFile,
        *,
        by_stamp: bool = False,
        before: Sequence[native.Step] = (),
        between: Sequence[native.Step] = (),
        after: Sequence[native.Step] = (),
    ) -> None:
        self.file = file
        self._files = file.directory.files
        # The reference keeps the descriptor open.
        self._held = file.directory.held()
        name, (device, inode) = os.fsencode(file.name), file.identity
        if by_stamp:
            name = bytes(native.STAMP_BYTES) + name
        self.look = len(before)
        self.write = self.look + 1
        self.sync = self.write + 1 + len(between)
        self.end = self.sync + 1 + len(after)
        self.steps = native.Steps(
            [
                *before,
                native.Step(
                    native.STEP_STAMP if by_stamp else native.STEP_FILE,
                    self._held.fd,
                    data=name,
                    device=device,
                    inode=inode,
                ),
                native.Step(native.STEP_WRITE, file.fd),
                *between,
                native.Step(native.STEP_SYNC, file.fd),
                *after,
            ]
        )

    def set(self, data: bytes, pos: int, stamp: bytes | None = None) -> None:
        """Set data and position: the file must end there, or have `stamp`."""
        if stamp is None:
            self.steps.set_append(self.look, data, pos)
        else:
            self.steps.set_stamp(self.look, stamp)
            self.steps.set_bytes(self.write, data, pos)

    def make(self, end: int, begin: int = 0) -> tuple[int, OSError | None]:
        """Make the calls from number `begin` on up to before `end`: see
        `Files.make_steps`."""
        return self._files.make_steps(self.steps, end, begin)
