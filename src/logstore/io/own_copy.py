"""A separate file for a writer, in place of one that has other names, too."""

from __future__ import annotations

import contextlib
from typing import Final

from logstore import _native as native
from logstore._native.locks import Signal
from logstore.io.files import PRIVATE, Access, Files, held_open
from logstore.io.layout import own_copy_file

__all__ = ["open_own"]

_COPY_BYTES: Final = 1 << 20
# The pause of a process while another one makes a copy.
_TURN_S: Final = 0.001


def open_own(
    files: Files, dir_fd: int, name: str, *, empty: Access | None = None
) -> int:
    """Open a file for writing after replacing it by its own copy.

    1. Copy it to a temporary name. 2. Sync that. 3. Rename it to `name`. 4. Sync
    the directory. Of processes that do this at the same time, one does it.

    Args:
        empty: the access of an empty file that replaces it in place of a copy; the
            original is then never opened.
    """
    turn = held_open(files, files.open_directory(dir_fd, "."))
    while not files.lock_file(turn.fd):
        files.wait(Signal().register(), _TURN_S)
    try:
        if files.links(dir_fd, name) < 2:
            return files.open(dir_fd, name, write=True)
        temporary = own_copy_file(name)
        fd = files.create(dir_fd, temporary, exclusive=False)
        try:
            if empty is None:
                _copy(files, held_open(files, files.open(dir_fd, name)), fd)
            elif empty != PRIVATE:
                files.set_access(fd, empty)
            files.sync(fd)
            files.rename(dir_fd, temporary, name)
            files.sync_directory(dir_fd)
        except BaseException:
            files.close(fd)
            with contextlib.suppress(OSError):
                files.unlink(dir_fd, temporary)
            raise
        return fd
    finally:
        files.unlock_file(turn.fd)


def _copy(files: Files, original: native.OpenFile, fd: int) -> None:
    """Copy the bytes and the mode of a file."""
    buffer, pos = memoryview(bytearray(_COPY_BYTES)), 0
    while (n := files.read(original.fd, buffer, pos)) > 0:
        files.write(fd, buffer[:n], pos)
        pos += n
    files.set_mode_of(fd, original.fd)
