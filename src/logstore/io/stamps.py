"""Stamps of files: values that change with a file, and how old they have to be.

A `Look` has the stamps of several files, from one call. Two looks at the same names are
equal if, and only if, none of the files has changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias

__all__ = [
    "NO_FILE",
    "FileInfo",
    "FileStamp",
    "Look",
    "LookNames",
    "place_bytes",
    "settled",
    "stamp_bytes",
    "stamp_of",
]

# File systems keep time in ticks, up to 10 ms apart: a second change within one tick
# does not change the recorded time.
_TICK_MS: Final = 20

# Of a file: inode, mtime_ns, ctime_ns, size. A backup copied over a file may keep its
# inode and restore the saved time and size; no program can set a ctime.
FileStamp: TypeAlias = tuple[int, int, int, int]

# That of a name without a file, in a look.
NO_FILE: Final[FileStamp] = (0, -1, -1, -1)

_PLACE: Final = struct.Struct("=2Q")
_STAMP: Final = struct.Struct("=Q3q")


class FileInfo(NamedTuple):
    """The result of `Files.stat`."""

    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    is_file: bool
    is_directory: bool
    uid: int = -1  # the owner, and
    gid: int = -1  # its group; -1 unknown
    mode: int = 0  # permission bits


def stamp_of(info: FileInfo) -> FileStamp:
    """The values of a file that change when it is replaced, overwritten, or grows."""
    return info.inode, info.mtime_ns, info.ctime_ns, info.size


def stamp_bytes(stamp: FileStamp) -> bytes:
    """The stamp as `Look` has it, native.STAMP_BYTES bytes."""
    return _STAMP.pack(*stamp)


def place_bytes(info: FileInfo) -> bytes:
    """Device and inode of a directory, as `Look` has them."""
    return _PLACE.pack(info.device, info.inode)


class LookNames:
    """The files that a look examines, in order.

    Attributes:
        names: of files in a directory; ``../name``: of a file next to the directory;
            ``.``: the directory itself.
        encoded: the same, each with its NUL.
    """

    __slots__ = ("encoded", "names")

    def __init__(self, *names: str) -> None:
        self.names = names
        self.encoded = "".join(f"{name}\0" for name in names).encode()


class Look(NamedTuple):
    """The result of `Directory.look`.

    Attributes:
        names: what was examined.
        data: device and inode of the directory, and the stamp of each file.
        begun_ms: the time when the look began, Unix milliseconds.
    """

    names: LookNames
    data: bytes
    begun_ms: int

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode of the directory."""
        device, inode = _PLACE.unpack_from(self.data)
        return device, inode

    def stamps(self) -> dict[str, FileStamp | None]:
        """The stamp of each name; None if there is no such file."""
        rows: Iterable[FileStamp] = _STAMP.iter_unpack(self.data[_PLACE.size :])
        stamps = (row if row[0] else None for row in rows)
        return dict(zip(self.names.names, stamps, strict=True))

    def first(self, names: LookNames) -> Look:
        """The look at the first of the names alone."""
        size = _PLACE.size + len(names.names) * _STAMP.size
        return Look(names, self.data[:size], self.begun_ms)

    def has_settled(self, clock: Clock) -> bool:
        """Whether the next change of each of the files will alter its stamp."""
        now_ms, first_ms = clock.now_ms(), self.begun_ms - _TICK_MS
        # Programs can set the time of modification, but not that of status change.
        return not any(
            stamp is not None and first_ms < stamp[2] // 1_000_000 <= now_ms
            for stamp in self.stamps().values()
        )


class Clock(Protocol):
    """Gives the time: `Files`."""

    def now_ms(self) -> int: ...


def settled(time_ns: int, begun_ms: int, clock: Clock) -> int:
    """A time of change to record and compare later; -1 if it is so recent that the next
    change may not alter it, or may not have altered it.

    Args:
        begun_ms: Unix milliseconds, from before the file was examined.
    """
    first_ms = begun_ms - _TICK_MS
    is_recent = first_ms < time_ns // 1_000_000 <= clock.now_ms()
    return -1 if is_recent else time_ns
