"""A bounded set of open segment files, and of index contents kept in memory.

Owned by a store, used by its segments. A file is closed when it is the one used least
recently and nobody is reading it at this moment.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Any, Final

from logstore._files import Directory, Files

__all__ = ["Descriptors"]

_INDEX_BYTES_MAX: Final = 64 << 20


class _Open:
    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0


class Descriptors:
    """Open files by owner (its serial number). Any thread may call the methods."""

    def __init__(self, files: Files, max_open: int) -> None:
        self.files = files
        self.max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._indexes: OrderedDict[tuple[int, str], tuple[Any, int]] = OrderedDict()
        self._index_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def borrow(self, owner: int, directory: Directory, names: tuple[str, ...]) -> int:
        """The descriptor of a file, opened under the first of `names` that is there.

        To be followed by `give_back`. Raises OSError as opening does.
        """
        with self._lock:
            entry = self._open.get(owner)
            if entry is None:
                self._evict(self.max_open - 1)
                entry = self._open[owner] = _Open(_open_first(directory, names))
            else:
                self._open.move_to_end(owner)
            entry.users += 1
            return entry.fd

    def give_back(self, owner: int) -> None:
        with self._lock:
            entry = self._open.get(owner)
            if entry is not None:
                entry.users -= 1

    def adopt(self, owner: int, fd: int) -> None:
        """Take over an open descriptor, in use until `give_back`."""
        with self._lock:
            entry = self._open[owner] = _Open(fd)
            entry.users = 1

    def forget(self, owner: int) -> None:
        """Close the file of an owner that is gone, and drop its indexes."""
        with self._lock:
            entry = self._open.pop(owner, None)
            for key in [key for key in self._indexes if key[0] == owner]:
                self._drop_index(key)
        if entry is not None:
            with contextlib.suppress(OSError):
                self.files.close(entry.fd)

    def abandon(self) -> None:
        """After a fork, in the child: the lock may be held by a thread that is gone.

        The files stay open: they are the parent's, and closing them does no harm, but
        the bookkeeping cannot be trusted.
        """
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            entries = list(self._open.values())
            self._open.clear()
            self._indexes.clear()
            self._index_bytes = 0
        for entry in entries:
            with contextlib.suppress(OSError):
                self.files.close(entry.fd)

    def _evict(self, room: int) -> None:
        if len(self._open) <= room:
            return
        for owner in [o for o, entry in self._open.items() if entry.users == 0]:
            entry = self._open.pop(owner)
            self.files.close(entry.fd)
            if len(self._open) <= room:
                return

    # -- index contents

    def index(self, owner: int, kind: str) -> Any:
        with self._lock:
            found = self._indexes.get((owner, kind))
            if found is None:
                return None
            self._indexes.move_to_end((owner, kind))
            return found[0]

    def keep_index(self, owner: int, kind: str, entries: Any, size: int) -> None:
        with self._lock:
            self._drop_index((owner, kind))
            self._indexes[owner, kind] = entries, size
            self._index_bytes += size
            while self._index_bytes > _INDEX_BYTES_MAX and len(self._indexes) > 1:
                self._drop_index(next(iter(self._indexes)))

    def _drop_index(self, key: tuple[int, str]) -> None:
        found = self._indexes.pop(key, None)
        if found is not None:
            self._index_bytes -= found[1]


def _open_first(directory: Directory, names: tuple[str, ...]) -> int:
    for name in names[:-1]:
        try:
            return directory.open(name)
        except FileNotFoundError:
            continue
    return directory.open(names[-1])
