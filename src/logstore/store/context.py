"""The context that the parts of an open store share: its directory, locks and state,
open files, and the thread for later work.

`Store` makes one and hands it down. The writers of its partitions need nothing else of
it (`logstore.log.write.context.StoreServices`), and it is not public.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from logstore import _native as native
from logstore._native.locks import RANK_STORE, new_group
from logstore.config import StoreConfig
from logstore.errors import (
    ForkedError,
    LogStoreError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
    storage_error,
)
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import check_is_store, prepare_root
from logstore.io.lock import StoreLock
from logstore.io.lock_record import Purpose
from logstore.io.lock_wait import take_lock
from logstore.io.scheduler import Scheduler, weakly
from logstore.io.service_calls import collect_garbage
from logstore.store.state import StoreState

__all__ = ["StoreContext"]

# How long the threads of a forgotten store may still be inside a call.
_INSIDE_S: Final = 0.2
_LOOK_S: Final = 0.001


class StoreContext:
    """The shared parts of one store.

    Attributes:
        store: their owner: it stays open as long as one of its parts is used.
        path: absolute path of its directory.
        read_only: whether it was opened with `read_only`, or with `shared`.
        store_config: the `StoreConfig` it was opened with.
        files: the system calls to use.
        root: its directory.
        lock_group: of all its locks.
        lock: held by a thread that changes topics, or loads partitions.
        descriptors: of all open files.
        scheduler: runs tasks that are due later.
        state: the last writer, and the checkpoints; recorded by files in the root.
        is_closed: whether no call may begin any more.
        unreported: a failure in the background; the next call raises it.
    """

    def __init__(
        self,
        store: object,
        path: str,
        *,
        read_only: bool,
        create: bool,
        config: StoreConfig,
        files: Files,
    ) -> None:
        self.store = store
        self.path = path
        self.read_only = read_only
        self.store_config = config
        self.files = files
        group = self.lock_group = new_group()
        self.lock = native.Mutex(RANK_STORE, f"store {path}", group)
        self.is_closed = False
        self.unreported: deque[LogStoreError] = deque(maxlen=1)
        self._forks = native.forks()
        self._store_lock: StoreLock | None = None
        self.root = self._open_root(create)
        self.descriptors = Descriptors(files, _open_files_max(config, files), group)
        self.scheduler = Scheduler(files, os.path.basename(path))
        self.state = StoreState(
            self.root, self.scheduler, lambda: self.is_closed, group
        )

    def _open_root(self, create: bool) -> Directory:
        try:
            is_new = create and self.files.make_root(self.path)
            root = Directory.open_root(self.files, self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"there is no store at {self.path}", path=self.path
            ) from error
        except OSError as error:
            raise storage_error(error, "open", self.path) from error
        try:
            check_is_store(root, must_exist=self.read_only)
            if not self.read_only:
                prepare_root(root, self.store_config, is_new=bool(is_new))
        except BaseException:
            root.close()
            raise
        return root

    # ------------------------------------------------------------ the writer's lock

    def take_lock(self, purpose: Purpose) -> None:
        """Take the writer's lock. An unclosed store in a reference cycle keeps it until
        the garbage collector finds that store, so the collector is run: once, or as
        long as a thread of such a store may keep it, at most 200 ms.

        Raises:
            StoreLockedError: another writer has it.
        """
        try:
            self._store_lock = take_lock(self.root, purpose)
            return
        except StoreLockedError as error:
            if error.holder_pid != os.getpid():
                raise
        deadline = time.monotonic() + _INSIDE_S
        while True:
            is_last = collect_garbage() or time.monotonic() >= deadline
            try:
                self._store_lock = take_lock(self.root, purpose)
                return
            except StoreLockedError:
                if is_last:
                    raise
            time.sleep(_LOOK_S)

    def tell_others(self, doing: str) -> None:
        """Show other processes the present work of this one, which has the lock."""
        if self._store_lock is not None and self._store_lock.record is not None:
            self._store_lock.record.say(doing)

    @property
    def has_lock(self) -> bool:
        return self._store_lock is not None

    @property
    def opened_at(self) -> str:
        """Where in the program the lock was taken; "" if that is not known."""
        return "" if self._store_lock is None else self._store_lock.opened_at

    def lock_taken_by(self) -> int | None:
        return None if self._store_lock is None else self._store_lock.hold()

    @property
    def lock_file(self) -> native.OpenFile | None:
        """The file that this program has locked."""
        return None if self._store_lock is None else self._store_lock.file

    def let_go(self) -> None:
        """Close all descriptors and, with the last, the lock."""
        self.descriptors.close()
        if self._store_lock is not None:
            self._store_lock.release()
        self.root.close()

    # ------------------------------------------------------------ guards

    def check_open(self) -> None:
        """Raise unless the store can be used here and now."""
        if self.is_closed:
            raise StoreClosedError(f"store {self.path} is closed")
        if native.forks() != self._forks:
            raise ForkedError(
                f"store {self.path} was opened before a fork; open it in the child"
            )

    @property
    def is_forked(self) -> bool:
        """Whether this is the child of a fork, and the store belongs to its parent."""
        return native.forks() != self._forks

    def use_in_child(self) -> None:
        """In the child of a fork: let the store be used there."""
        self._forks = native.forks()

    def after_fork(self) -> None:
        """In the child of a fork."""
        self.scheduler.abandon()
        if self._store_lock is not None:
            # The parent's lock must not stay held here when the parent has released it.
            self._store_lock.abandon()

    # ------------------------------------------------------------ later

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        # A task that is due in a year does not keep its object alive.
        self.scheduler.call_later(delay_ms, weakly(task))

    def waiting_bytes(self) -> int:
        return self.scheduler.waiting_bytes

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object],
    ) -> None:
        self.scheduler.unlink_later(directory, names, delay_ms, users)


def _open_files_max(config: StoreConfig, files: Files) -> int:
    """`max_open_files`, but at most three quarters of the process's limit."""
    limit = files.resource_limits()[0]
    if limit is None:
        return config.max_open_files
    return max(min(config.max_open_files, limit * 3 // 4), 8)
