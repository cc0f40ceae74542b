"""Makes bytes of a log durable, whatever an earlier sync has done."""

from __future__ import annotations

import contextlib

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.files import Files

__all__ = ["begins", "copy_bytes", "cut_for_good", "make_durable"]


def make_durable(directory: Directory, log: str, size: int, durable_pos: int) -> None:
    """Write all bytes past the durable point of a log again, and sync the log.

    Args:
        log: name of the file in `directory`.
        size: where the log ends in it; it is cut there.

    A sync that failed before the crash may have left pages, or a file size, that the
    kernel takes for clean and that are not on the disk: a sync alone would not write
    them.
    """
    with directory.opened(log, write=True) as fd:
        copy_bytes(directory, fd, durable_pos, size, fd, durable_pos)
        cut_for_good(directory.files, fd, size)
    # This syncs the names of the files, including the state file: its content counts
    # from now on, and the sync after its rename may have failed.
    directory.sync()


def cut_for_good(files: Files, fd: int, size: int) -> None:
    """Cut a file to `size` bytes, durably, also if an earlier cut to it was not."""
    with contextlib.suppress(OSError):
        # A truncation to the current size would do nothing.
        files.truncate(fd, size + 1)
    files.truncate(fd, size)
    files.sync(fd)


def copy_bytes(
    directory: Directory, fd: int, begin: int, end: int, to_fd: int, to_pos: int = 0
) -> int:
    """Copy bytes [begin, end) of one open file to another; returns how many there
    were."""
    files = directory.files
    buffer = native.Buffer(1 << 20)
    pos = begin
    while pos < end:
        n = files.read(fd, buffer.view[: min(buffer.capacity, end - pos)], pos)
        if n == 0:
            break
        files.write(to_fd, buffer.view[:n], to_pos + pos - begin)
        pos += n
    return pos - begin


def begins(directory: Directory, name: str, fd: int, begin: int, end: int) -> bool:
    """Whether bytes [begin, end) of a file begin with the whole content of the file
    `name`: it is a copy of them, perhaps an incomplete one."""
    files = directory.files
    mine, other = native.Buffer(1 << 16), native.Buffer(1 << 16)
    try:
        with directory.opened(name) as kept:
            size = files.size(kept)
            for pos in range(0, size, mine.capacity):
                n = files.read(kept, mine.view, pos)
                files.read(fd, other.view[:n], begin + pos)
                if mine.view[:n] != other.view[:n]:
                    return False
            return size <= end - begin
    except OSError:
        return False
