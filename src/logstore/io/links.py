"""Calls about files with several names, and about the copies that take their place.

`cp -al` gives each file of a store a second name, in another directory: what is written
through one of them is read through the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Final

__all__ = ["Links"]

# FS_IOC_GETFSUUID of Linux 6.9, and struct fsuuid2: a length, and 16 bytes.
_GET_FS_UUID: Final = 0x80111500
_FS_UUID_BYTES: Final = 17


class Links:
    """A part of `Files`."""

    def links(self, dir_fd: int, name: str) -> int:
        """How many names a file has."""
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_nlink

    def links_of(self, fd: int, dir_fd: int, name: str) -> int:
        """How many names an open file has; 0 if another file has the name by which it
        was opened. 1: no other name leads to it.

        Raises:
            FileNotFoundError: no file has the name.
        """
        # In this order: a file that lost the name meanwhile may have one name again.
        mine = os.fstat(fd)
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        return mine.st_nlink if os.path.samestat(mine, named) else 0

    def link(self, dir_fd: int, name: str, to_fd: int, new: str) -> None:
        """Give a file another name, in a directory of the same file system."""
        os.link(name, new, src_dir_fd=dir_fd, dst_dir_fd=to_fd, follow_symlinks=False)

    def set_mode_of(self, fd: int, original_fd: int) -> None:
        """Give a copy the permissions, the time and, if this user may, the owner of its
        original."""
        info = os.fstat(original_fd)
        if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(PermissionError):
                os.fchown(fd, info.st_uid, info.st_gid)
        os.fchmod(fd, info.st_mode & 0o7777)
        os.utime(fd, ns=(info.st_mtime_ns, info.st_mtime_ns))

    def file_system_id(self, fd: int) -> str:
        """The UUID of the file system of an open file, as hexadecimal digits; "" if it
        is unknown."""
        answer = bytearray(_FS_UUID_BYTES)
        try:
            fcntl.ioctl(fd, _GET_FS_UUID, answer)
        except OSError:
            return ""
        uuid = bytes(answer[1 : 1 + answer[0]])
        return uuid.hex() if any(uuid) else ""

    def has_open(self, pid: int, dir_fd: int, name: str) -> bool:
        """Whether a process has a file open under its name in a directory. Also True
        if the process cannot be examined."""
        try:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
            files = f"/proc/{pid}/fd"
            return any(
                os.readlink(os.path.join(files, number)) == path
                for number in os.listdir(files)
            )
        except OSError:
            return True
