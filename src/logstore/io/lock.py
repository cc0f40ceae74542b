"""The lock of a store: one writer, logstore or a Kafka broker.

Two locks on one file, `.lock`. Kafka's is a POSIX record lock. It excludes a broker,
but not its own process, and the system drops it when the process closes any descriptor
of the file (copying the directory is enough). So there is also a `flock`, which
belongs to the open file: it excludes every other logstore until the file is closed. A
POSIX lock that was dropped is taken again at the next sync.

A child of a fork shares the open file and would keep the `flock` alive, so it closes
the file at once. The parent keeps its lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Final, TypeVar

from logstore import _native as native
from logstore._native.locks import RANK_LEAF
from logstore.errors import (
    Holder,
    ReentrantCallError,
    StoreLockedError,
    storage_error,
)
from logstore.io.checkpoint.place import is_left_over
from logstore.io.directory import Directory
from logstore.io.files import held_open
from logstore.io.layout import LOCK
from logstore.io.lock_record import (
    OWNER,
    TAKING,
    LockRecord,
    LockState,
    Purpose,
    state_of,
)
from logstore.io.own_copy import open_own
from logstore.io.stamps import FileInfo

__all__ = [
    "StoreLock",
    "caller",
    "description",
    "forget_locks",
    "holder_of",
    "opener",
    "time_text",
    "writer_of",
]

_NFS: Final = 0x6969

_guard = native.Mutex(RANK_LEAF, "the locks of this process")

# The pause between two attempts to take it.
_PAUSE_S: Final = 0.0002


_OWNS: Final = Purpose()

_Result = TypeVar("_Result")


def _alone(work: Callable[[], _Result]) -> _Result:
    """The result of `work`, called with the guard. A thread with a lock of a store does
    not wait for the lock of another group, but it has to get this one: to close one
    store while another is being opened. The thread that holds it waits for no lock, so
    this ends. It is no context manager: an interrupt between the parts of one that is
    written in Python leaves the guard held.

    Raises:
        ReentrantCallError: this thread itself holds it.
    """
    while True:
        if _guard.is_mine:
            raise ReentrantCallError(
                "a store was opened or closed from inside another such call of this "
                "thread. Nothing was changed"
            )
        with _guard.attempt() as is_mine:
            if is_mine:
                return work()
        time.sleep(_PAUSE_S)


# The `caller` for which another thread opens a store; "": the thread's own.
opener: ContextVar[str] = ContextVar("opener", default="")


class StoreLock:
    """The writer's lock on a store's directory; making the object takes it.

    Args:
        purpose: how the holder describes itself; its timeout is not used.

    Attributes:
        file: the lock file, while it is held.
        record: describes the holder, while it is held.
        opened_at: ``file:line`` of the call of logstore that made it; "" if unknown.

    Raises:
        StoreLockedError: another process, or this one, has it.
        StorageError: the system refuses.
    """

    def __init__(self, root: Directory, purpose: Purpose = _OWNS) -> None:
        self._files = root.files
        self._purpose = purpose
        self.file: native.OpenFile | None = None
        self.record: LockRecord | None = None
        self.opened_at = opener.get() or caller()
        # Of the directory, by device and inode.
        self.place = (-1, -1)
        try:
            _alone(lambda: self._take(root))
        except OSError as error:
            raise storage_error(error, "lock", root.path_of(LOCK)) from error

    def _take(self, root: Directory) -> None:
        self.place = _place(root)
        # A process that is refused makes no file in the directory of another program.
        record = LockRecord(root, may_create=_look(root) is None)
        is_taken = False
        try:
            record.begin()
            while not self._take_named(root, record):
                # It is the lock of nothing: another process has given a copy made of
                # hard links a new lock file since this one was opened.
                pass
            record.create()
            record.show(self._purpose)
            is_taken = True
        finally:
            if not is_taken:
                self.record = None
                record.close()

    def _take_named(self, root: Directory, record: LockRecord) -> bool:
        """Open the lock file and lock it; False if another file has its name then."""
        files = root.files
        is_shared = False
        with contextlib.suppress(FileNotFoundError):
            is_shared = _is_of_original(root)
            opened_at = None if is_shared else _holder_in_process(root.stat(LOCK))
            if opened_at is not None:
                raise _locked(root, os.getpid(), state_of(root), opened_at)
        try:
            file = held_open(files, root.create(LOCK))
        except FileExistsError:
            if is_shared:
                # It is the original's lock file, too, and never opened: closing it
                # would drop the lock that this process may have on the original.
                with root.use() as root_fd:
                    fd = open_own(files, root_fd, LOCK, empty=root.access)
            else:
                fd = root.open(LOCK, write=True, keep_links=True)
            file = held_open(files, fd)
        fd = file.fd
        try:
            # Before Kafka's lock: a process that is refused must not hold that, even
            # for a moment. If the owner's was dropped, it would find another writer.
            # NFS makes a record lock of a flock, which would exclude the one below.
            if files.file_system(fd) != _NFS and not files.lock_file(fd):
                raise _locked(root, files.lock_holder(fd) or None, record.state())
            holder = files.lock(fd)
            if holder is not None:
                raise _locked(root, holder or None, record.state())
            with root.use() as root_fd:
                if not files.links_of(fd, root_fd, LOCK):
                    file.close()
                    return False
            info = files.stat(fd)
        except BaseException:
            file.close()
            raise
        # Before it can be found by a fork.
        self.file, self.record = file, record
        _held[info.device, info.inode] = self
        return True

    @property
    def is_held(self) -> bool:
        """Whether it has not been released."""
        return self.file is not None and self.file.fd >= 0

    def hold(self) -> int | None:
        """Take Kafka's lock again if it was dropped. Returns the pid of a program that
        has taken it meanwhile (0: unknown); None if it is held."""
        return None if self.file is None else self._files.lock(self.file.fd)

    def abandon(self) -> None:
        """Leave the lock to the parent, in the child of a fork."""
        if self.record is not None:
            self.record.abandon()
        if self.file is not None:
            self.file.close()
            self.file = None

    def release(self) -> None:
        """Let other processes write. Releasing twice is allowed."""
        _alone(self._release)

    def _release(self) -> None:
        record = self.record
        if self.is_held:
            assert self.file is not None
            if record is not None:
                record.withdraw()
            # First: a child of a fork that shares the open file then holds no lock.
            self._files.unlock_file(self.file.fd)
            self.file.close()
        # Also after a close that was interrupted here.
        self.file = None
        if record is not None:
            record.close()


# By device and inode. The entry of a garbage-collected store disappears.
_held: weakref.WeakValueDictionary[tuple[int, int], StoreLock]
_held = weakref.WeakValueDictionary()


def _place(root: Directory) -> tuple[int, int]:
    info = root.info()
    return info.device, info.inode


def _is_of_original(root: Directory) -> bool:
    """Whether the lock file belongs to another directory, and this one is a copy of it
    made of hard links: its lock says nothing about this directory.

    Raises:
        FileNotFoundError: there is no lock file.
    """
    files = root.files
    with root.use() as root_fd:
        if not is_left_over(root, LOCK):
            return False
        info = root.stat(LOCK)
        mine = _held.get((info.device, info.inode))
        if mine is not None and mine.is_held:
            return mine.place != _place(root)
        with root.opened(LOCK) as fd:
            holder = files.lock_holder(fd)
        # A process may have the copy open: a broker does not know of owner files.
        return holder is None or not files.has_open(holder, root_fd, LOCK)


def _holder_in_process(info: FileInfo) -> str | None:
    """The path by which this process locked a file ("": unknown); None if not."""
    lock = _held.get((info.device, info.inode))
    return lock.opened_at if lock is not None and lock.is_held else None


# Frames of the package's own code are not the caller.
_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep


def caller() -> str:
    """``file:line`` of the code outside this package that called it; "": unknown."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def holder_of(root: Directory) -> int | None:
    """The pid of the writer of a store (0 if it is unknown); None if there is no
    writer.

    Takes no lock, and opens the lock file only if closing it drops none.

    Raises:
        OSError: as the system gives it; there may be no lock file at all.
    """

    return _alone(lambda: _holder(root))


def writer_of(root: Directory) -> int | None:
    """The holder, as `holder_of`; None also if the directory never had a writer."""
    try:
        return holder_of(root)
    except FileNotFoundError:
        return None


def _holder(root: Directory) -> int | None:
    if _is_of_original(root):
        return None
    if _holder_in_process(root.stat(LOCK)) is not None:
        return os.getpid()
    with root.opened(LOCK) as fd:
        return root.files.lock_holder(fd)


def _look(root: Directory) -> int | None:
    """The holder, or None on errors: taking the lock then raises the error."""
    try:
        return _holder(root)
    except OSError:
        return None


def _locked(
    root: Directory, pid: int | None, state: LockState, opened_at: str = ""
) -> StoreLockedError:
    holder = state.holder
    if holder is None:
        # Without a record it is another program, unless it is about to write one.
        holder = Holder(pid, doing=TAKING if state.is_changing else "")
    who = f"process {pid or holder.pid}" if pid or holder.pid else "another process"
    if pid == os.getpid():
        who = f"this process ({pid})"
        if opened_at:
            who += f", opened at {opened_at}"
    elif state.holder is not None:
        who += description(holder)
    elif not state.is_changing:
        who += " of another program than logstore, such as a Kafka broker"
    return StoreLockedError(
        f"store {root.path} is open for writing in {who}; open it with "
        f"read_only=True, or close it there",
        path=root.path,
        holder_pid=pid or holder.pid,
        opened_at=opened_at or None,
        holder=holder,
    )


def description(holder: Holder) -> str:
    """The description of a holder, without its process id, for a message."""
    parts = [f"{holder.program} on {holder.host}"] if holder.program else []
    if holder.since is not None:
        parts.append(f"since {time_text(holder.since)}")
    if holder.doing not in ("", OWNER):
        parts.append(holder.doing)
    if holder.publishes_for_others:
        parts.append("it publishes for others")
    return f" ({', '.join(parts)})" if parts else ""


def time_text(unix_ms: int) -> str:
    """A time in Unix milliseconds, for a message."""
    when = datetime.fromtimestamp(unix_ms / 1000, timezone.utc)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def forget_locks() -> None:
    """Leave the locks to the parent, in the child of a fork. Also locks that a thread
    had just taken, which does not exist here: its variables stay, and would keep the
    files open and so the locks when the parent has ended."""
    for lock in list(_held.values()):
        lock.abandon()
    _held.clear()
