"""A bounded set of open segment files, and of index contents kept in memory.

Owned by a store, used by its segments. The least recently used file leaves the set when
another one needs its place, and is closed when it is no longer in use: each reader has
a reference to the `OpenFile`, and dropping the last reference closes it. So an
interrupt leaves no file open, and no file is closed while a reader uses it (the system
may give the number of a closed descriptor to another file at once).

The files of active segments count, too. Their writers are asked to rest: they sync, and
open the file again at the next append.
"""

from __future__ import annotations

import errno
import itertools
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from logstore import _native as native
from logstore._native import OpenFile
from logstore._native.locks import RANK_FILES
from logstore.errors import StoreClosedError
from logstore.io.directory import Directory
from logstore.io.files import Files, held_open
from logstore.io.layout import INDEX, TIME_INDEX
from logstore.io.stamps import FileInfo

__all__ = ["Descriptors"]

_Key = TypeVar("_Key")

_INDEX_BYTES_MAX: Final = 64 << 20


class Descriptors:
    """Open files by owner (its serial number). Any thread may call the methods."""

    def __init__(self, files: Files, max_open: int, lock_group: int = 0) -> None:
        self.files = files
        self.max_open = max_open
        self._lock = native.Mutex(RANK_FILES, "the open files of a store", lock_group)
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        # The method that asks an owner's writer to rest; the least recent first.
        self._writers: OrderedDict[int, weakref.WeakMethod[Callable[[], bool]]]
        self._writers = OrderedDict()
        self._indexes: OrderedDict[tuple[int, str], tuple[Any, int]] = OrderedDict()
        self._index_bytes = 0
        self._closed = False
        # Owners that no longer exist; removed when a thread next has the lock.
        self._forgotten: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def kept(self, owner: int) -> OpenFile | None:
        """The file of an owner if it is open."""
        file = self._open.get(owner)
        if file is not None:
            _touch(self._open, owner)  # another thread may drop it: it is still open
        return file

    def borrow(
        self,
        owner: int,
        directory: Directory,
        names: Callable[[], tuple[str, ...]],
        is_it: Callable[[FileInfo], bool] | None = None,
    ) -> OpenFile:
        """The file of an owner, opened under the first of `names` that exists and, if
        `is_it` is given, fulfils it. It stays open as long as a reference to it exists.

        Raises:
            OSError: as opening does; ESTALE if it is another file.
            StoreClosedError: after `close`.
        """
        file = self.kept(owner)
        if file is not None:
            return file
        self.check_open(directory)
        # Make the system calls without the lock.
        opened = held_open(self.files, _open_first(directory, names(), is_it))
        dropped: list[OpenFile] = []
        with self._lock:
            self._drop_forgotten()
            file = self._open.get(owner)
            if file is None:
                dropped = self._evict(self.max_open - 1)
                file = opened
                if not self._closed:
                    self._open[owner] = file
        del dropped
        if len(self._open) > self.max_open:
            self._let_rest()
        return file

    def check_open(self, directory: Directory) -> None:
        """Raise `StoreClosedError` after `close`, for a read in a directory."""
        if self._closed:
            raise StoreClosedError(f"the store of {directory.path} is closed")

    def insert(self, owner: int, file: OpenFile, rest: Callable[[], bool]) -> None:
        """Let readers use the file of a writer, in place of the owner's present file.
        It counts until the writer gives it back with `release`.

        Args:
            rest: a method that asks the writer to do so; returns whether it has.
        """
        with self._lock:
            self._drop_forgotten()
            dropped = self._evict(self.max_open - 1)
            if not self._closed:
                # The last reader of the owner's previous file closes it.
                dropped += [self._open.pop(owner, file)]
                self._open[owner] = file
                self._writers[owner] = weakref.WeakMethod(rest)
        del dropped

    def release(self, owner: int) -> None:
        """The writer no longer needs the file. It may stay open for readers."""
        self._writers.pop(owner, None)

    def make_room(self) -> None:
        """Make room for a file before it is opened for a writer."""
        if len(self._open) >= self.max_open:
            with self._lock:
                self._drop_forgotten()
                dropped = self._evict(self.max_open - 1)
            del dropped
            if len(self._open) >= self.max_open:
                self._let_rest()

    def _let_rest(self) -> None:
        """Ask the writers that have worked for the longest time to rest, until there is
        room for one more file."""
        for owner, asked in list(self._writers.items()):
            if len(self._open) < self.max_open:
                return
            rest = asked()
            if rest is None:
                self._writers.pop(owner, None)
            elif rest():
                with self._lock:  # another thread may be about to evict it
                    dropped = self._open.pop(owner, None)
                del dropped

    def forget(self, owner: int) -> None:
        """Release the file of an owner that is gone, and its indexes.

        It never waits: the garbage collector may call it at any line of any thread,
        even of the thread that holds the lock. Then the next call does the work.
        """
        self._forgotten.append(owner)
        with self._lock.attempt() as is_mine:
            if is_mine:
                self._drop_forgotten()

    def close(self) -> None:
        """Close every file; a file in use is closed when its last user is done."""
        with self._lock:
            self._closed = True
            self._open.clear()
            self._writers.clear()
            self._indexes.clear()
            self._index_bytes = 0

    def _drop_forgotten(self) -> None:
        while self._forgotten:
            # It stays there until all of it is done: a finalizer may find no room on
            # the stack in between.
            owner = self._forgotten[0]
            self._open.pop(owner, None)
            self._writers.pop(owner, None)
            for kind in (INDEX, TIME_INDEX):
                self._drop_index((owner, kind))
            self._forgotten.popleft()

    def _evict(self, room: int) -> list[OpenFile]:
        """Remove the least recently used files from the set, except writers' files.
        The returned files are closed with the list, after the lock is released."""
        excess = len(self._open) - room
        if excess <= 0:
            return []
        # Some more, so that the next few need not look through all of them again.
        excess += self.max_open // 16
        free = (owner for owner in list(self._open) if owner not in self._writers)
        return [self._open.pop(owner) for owner in itertools.islice(free, excess)]

    # -- index contents

    def index(self, owner: int, kind: str) -> Any:
        cached = self._indexes.get((owner, kind))
        if cached is None:
            return None
        _touch(self._indexes, (owner, kind))
        return cached[0]

    def keep_index(self, owner: int, kind: str, entries: Any, size: int) -> None:
        with self._lock:
            self._drop_forgotten()
            self._drop_index((owner, kind))
            self._indexes[owner, kind] = entries, size
            self._index_bytes += size
            while self._index_bytes > _INDEX_BYTES_MAX and len(self._indexes) > 1:
                self._drop_index(next(iter(self._indexes)))

    def _drop_index(self, key: tuple[int, str]) -> None:
        dropped = self._indexes.pop(key, None)
        if dropped is not None:
            self._index_bytes -= dropped[1]


def _touch(cache: OrderedDict[_Key, Any], key: _Key) -> None:
    """Make an element the most recently used one, if it is still there. Needs no lock:
    it is one operation."""
    try:
        cache.move_to_end(key)
    except KeyError:
        return


def _open_first(
    directory: Directory,
    names: tuple[str, ...],
    is_it: Callable[[FileInfo], bool] | None,
) -> int:
    error: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for name in dict.fromkeys(names):
        try:
            fd = directory.open(name)
        except FileNotFoundError:
            continue
        try:
            if is_it is None or is_it(directory.files.stat(fd)):
                return fd
        except BaseException:
            directory.files.close(fd)
            raise
        directory.files.close(fd)
        error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    raise error
