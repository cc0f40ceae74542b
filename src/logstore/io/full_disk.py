"""Changes small files and names in ways that work on a full disk."""

from __future__ import annotations

import errno
import os

from logstore.errors import is_disk_full
from logstore.io.directory import Directory

__all__ = ["UnknownContentError", "rename_or_unlink", "write_file_anyway"]


class UnknownContentError(OSError):
    """A file has its old content or the new one, or, after a power failure, a mixture:
    the system refused a step from which on it may have changed."""


def rename_or_unlink(directory: Directory, name: str, new: str) -> bool:
    """Rename a file to delete it later. If a full disk has no room for the
    new name, remove the file at once. Returns whether it was renamed."""
    try:
        directory.rename(name, new)
    except OSError as error:
        if not is_disk_full(error):
            raise
        directory.unlink(name)
        return False
    return True


def _overwrite_file(directory: Directory, name: str, data: bytes) -> None:
    """Replace a small file in place: this needs no space if the file has that much.

    Raises:
        UnknownContentError: from its first change on.
        OSError: as the system gives it; the file is unchanged.
    """
    files = directory.files
    with directory.opened(name, write=True) as fd:
        # Not space that it has already: xfs refuses that, too, when it is full.
        grows = files.size(fd) < len(data)
        if grows and not files.reserve(fd, 0, len(data)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        try:
            files.write(fd, data, 0)
            files.truncate(fd, len(data))
            files.sync(fd)
        except OSError as error:
            raise UnknownContentError(*error.args) from error


def write_file_anyway(directory: Directory, name: str, data: bytes) -> None:
    """Write as `Directory.write_file`. If a full disk has no room for that, the file is
    overwritten in place: a power failure can leave a mixture of the old bytes and the
    new ones.

    Raises:
        UnknownContentError: from the first change of the file on.
        OSError: as the system gives it; the file is unchanged.
    """
    try:
        directory.write_file(name, data, sync=False)
    except OSError as error:
        if not is_disk_full(error):
            raise
        directory.unlink(f"{name}.tmp", missing_ok=True)
        try:
            _overwrite_file(directory, name, data)
        except FileNotFoundError:
            raise error from None
        return
    try:
        directory.sync()
    except OSError as error:
        raise UnknownContentError(*error.args) from error
