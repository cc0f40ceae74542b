"""The locks of a disk in memory: on single bytes, and the holder of a store's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logstore.io.files import Files, ProcessId

__all__ = ["ByteLocks"]


class ByteLocks(Files):
    """A part of `MemoryDisk`: a lock belongs to an open file of a process."""

    medium: Any
    pid: int

    def _call(self, method: str, name: str) -> Any:
        raise NotImplementedError

    def _name(self, fd: int) -> str:
        raise NotImplementedError

    def _node(self, fd: int) -> int:
        raise NotImplementedError

    def links(self, dir_fd: int, name: str) -> int:
        """Number of names of a file: always 1, hard links are not modelled."""
        return 1

    def links_of(self, fd: int, dir_fd: int, name: str) -> int:
        """The same as `links`: no file is replaced between two calls."""
        return 1

    def file_system_id(self, fd: int) -> str:
        return ""

    def lock_byte(self, fd: int, pos: int) -> bool:
        self._call("lock_byte", self._name(fd))
        mine = self.pid, fd
        return self.medium.bytes.setdefault((self._node(fd), pos), mine) == mine

    def unlock_byte(self, fd: int, pos: int) -> None:
        self._call("unlock_byte", self._name(fd))
        key = self._node(fd), pos
        if self.medium.bytes.get(key) == (self.pid, fd):
            del self.medium.bytes[key]

    def locked_bytes(self, fd: int, begin: int, end: int) -> Sequence[int]:
        self._call("locked_bytes", self._name(fd))
        node, mine = self._node(fd), (self.pid, fd)
        return sorted(
            pos
            for (other, pos), owner in self.medium.bytes.items()
            if other == node and begin <= pos < end and owner != mine
        )

    def boot_id(self) -> bytes:
        """Id of the boot: a disk after a power cut has another medium, and id."""
        return bytes(self.medium.boot)

    def process_id(self) -> ProcessId:
        # Process numbers have 32 bits.
        return ProcessId(self.pid & 0x7FFFFFFF, 0, self.medium.boot)

    def lock_holder(self, fd: int) -> int | None:
        holder = self.medium.locks.get(self._node(fd))
        return None if holder in (None, self.pid) else holder

    def _unlock_bytes(self, owner: tuple[int, ...]) -> None:
        """Release the locks of a process, or of one of its open files."""
        taken = self.medium.bytes
        for key in [key for key, has in taken.items() if has[: len(owner)] == owner]:
            del taken[key]
