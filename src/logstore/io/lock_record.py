"""`.logstore-lock`: which process has the store open for writing, and whether another
one waits (docs/format.md, "`.logstore-lock`").

`.lock` is Kafka's, and stays empty: it cannot name its holder. So the holder describes
itself in this file, from byte 64 on, in place. Three locks on single bytes of it count,
which end with the process:

    byte 0  a process that wants to own the store waits
    byte 1  the record is valid
    byte 2  a process takes `.lock`, or gives it back

A holder of `.lock` without the lock on byte 1 is another program, such as a broker,
unless byte 2 is locked. The file describes, and excludes no process: if it cannot be
written (a full disk), the store is opened anyway.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, Final, NamedTuple, TypeGuard

from logstore import _native as native
from logstore.errors import Holder, LogStoreError
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.entries import first_entry, split_entries
from logstore.io.checkpoint.place import is_left_over
from logstore.io.directory import Directory
from logstore.io.files import held_open
from logstore.io.layout import LOCK_RECORD

__all__ = [
    "KEEPER",
    "KEEPING",
    "LOCK_TIMEOUT_MS",
    "OWN",
    "OWNER",
    "RECOVERING",
    "TAKING",
    "TOOL",
    "LockRecord",
    "LockState",
    "Purpose",
    "program",
    "state_of",
]

# How long opening a store for writing waits for its lock, if nothing else is said.
LOCK_TIMEOUT_MS: Final = 5_000

# The values of `Holder.doing`.
OWNER: Final = "owner"
RECOVERING: Final = "recovering"
KEEPING: Final = "keeping"
# It takes the lock, or gives it back, and has not described itself.
TAKING: Final = "taking"

_WAITER: Final = 0
_VALID: Final = 1
_TAKING: Final = 2
_POKE_POS: Final = 8
_RECORD_POS: Final = 64
_FILE_BYTES: Final = 4096
_TEXT_MAX: Final = 200
# The year 10000.
_TIME_END_MS: Final = 253_402_300_800_000

# A process that is stopped while it takes the lock delays others by no more.
_TAKING_S: Final = 0.05
_PAUSE_S: Final = 0.0002


class Purpose(NamedTuple):
    """The purpose for which a process takes the lock of a store.

    Attributes:
        doing: OWNER or KEEPING.
        publishes_for_others: it publishes what other processes hand in.
        timeout_ms: how long it waits for the lock, in milliseconds; 0: it looks once.
    """

    doing: str = OWNER
    publishes_for_others: bool = False
    timeout_ms: int = 0


OWN: Final = Purpose()
# A process without the lock carries out what is handed in.
KEEPER: Final = Purpose(KEEPING, publishes_for_others=True)
# A tool that a person waits for.
TOOL: Final = Purpose(timeout_ms=1_000)


class LockState(NamedTuple):
    """State of a store's lock, as `.logstore-lock` records it.

    Attributes:
        holder: the process that has it; None: the file names none.
        until: when the last holder gave it back, in Unix milliseconds; None: there is a
            holder, or that is not known.
        unowned_since: since when no owner has it, though a process may keep it for a
            moment to carry out what is handed in, in Unix milliseconds; None: there is
            an owner, or that is not known.
        is_changing: a process takes the lock, or gives it back.
        is_awaited: a process that wants to own the store waits.
    """

    holder: Holder | None = None
    is_changing: bool = False
    is_awaited: bool = False
    until: int | None = None
    unowned_since: int | None = None


def state_of(root: Directory) -> LockState:
    """The state of a store's lock, for a process that does not take it. Empty if there
    is no file, or it cannot be read."""
    try:
        if is_left_over(root, LOCK_RECORD):
            return LockState()  # of the original of a copy made of hard links
        with root.opened(LOCK_RECORD) as fd:
            return _state(root, fd)
    except OSError:
        return LockState()


def _state(root: Directory, fd: int) -> LockState:
    locked = root.files.locked_bytes(fd, _WAITER, _TAKING + 1)
    value = _record(root, fd)
    is_changing, is_awaited = _TAKING in locked, _WAITER in locked
    if _VALID in locked:
        holder = _described(value)
        since = _unowned_since(value) if holder.doing == KEEPING else None
        return LockState(holder, is_changing, is_awaited, None, since)
    until, since = _time(value.get("until_ms")), _unowned_since(value)
    return LockState(None, is_changing, is_awaited, until, since)


def _unowned_since(value: dict[str, Any]) -> int | None:
    """Since when there is no owner, by the record of the last holder."""
    name = "unowned_since_ms" if value.get("doing") == KEEPING else "until_ms"
    return _time(value.get(name))


def _time(value: object) -> int | None:
    return value if _is_time(value) else None


def _record(root: Directory, fd: int) -> dict[str, Any]:
    """The fields of the record; none if it is damaged, or being written."""
    data = bytearray(_FILE_BYTES - _RECORD_POS)
    count = root.files.read(fd, data, _RECORD_POS)
    text = bytes(data[:count]).partition(b"\0")[0]
    try:
        bodies, _ = split_entries(text)
        return checkpoints.entry_value(root.path_of(LOCK_RECORD), bodies[0])
    except (ValueError, IndexError, LogStoreError):
        return {}


def _described(value: dict[str, Any]) -> Holder:
    """The holder that a record describes. Only its lock counts: the fields may not be
    known."""
    pid, since = value.get("pid"), value.get("since_ms")
    names = [value.get(name) for name in ("program", "host", "doing")]
    if type(pid) is not int or not _is_time(since):
        return Holder(doing=OWNER)
    program, host, doing = [name if isinstance(name, str) else "" for name in names]
    publishes = value.get("publishes_for_others") is True
    return Holder(pid, program, host, since, doing or OWNER, publishes)


def _is_time(value: object) -> TypeGuard[int]:
    """Whether a value is a time that can be shown, in Unix milliseconds."""
    return type(value) is int and 0 <= value < _TIME_END_MS


class LockRecord:
    """The file, of a process that has the lock, takes it or waits for it. Without
    effect if the file cannot be opened.

    Args:
        may_create: make the file if it is not there. `create` does it later.
    """

    def __init__(self, root: Directory, *, may_create: bool = False) -> None:
        self._root = root
        self._files = root.files
        self._file: native.OpenFile | None = None
        self._holder = Holder()
        self._unowned_since: int | None = None
        self._is_waiting = False
        with contextlib.suppress(OSError):
            self._file = self._opened()
        if may_create:
            self.create()

    def _opened(self) -> native.OpenFile:
        # Other processes use the file of the original. Only a copy made of hard links
        # gets another file.
        root = self._root
        keep_links = not is_left_over(root, LOCK_RECORD)
        fd = root.open(LOCK_RECORD, write=True, keep_links=keep_links)
        return held_open(self._files, fd)

    def create(self) -> None:
        """Make the file, if it is not there."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = self._created()

    def _created(self) -> native.OpenFile:
        root, files = self._root, self._files
        try:
            file = held_open(files, root.create(LOCK_RECORD))
        except FileExistsError:
            return self._opened()
        # A full disk does not prevent a later record.
        files.reserve(file.fd, 0, _FILE_BYTES)
        return file

    def _set(self, byte: int) -> bool | None:
        """Take the lock on a byte; False: another process has it; None: it cannot be
        taken."""
        if self._file is None:
            return None
        try:
            return self._files.lock_byte(self._file.fd, byte)
        except OSError:
            return None

    def _clear(self, byte: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._files.unlock_byte(self._file.fd, byte)

    # ------------------------------------------------------------ of a waiter

    def state(self) -> LockState:
        """The state of the lock, as others have made it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                return _state(self._root, self._file.fd)
        return LockState()

    def wait_for_lock(self) -> bool:
        """Ask a holder that publishes for a moment to give the lock back; False:
        another process asks already."""
        if not self._set(_WAITER):
            return False
        if not self._is_waiting and self._file is not None:
            self._is_waiting = True
            # This wakes a holder that watches the file.
            with contextlib.suppress(OSError):
                self._files.write(self._file.fd, b"w", _POKE_POS)
        return True

    def end_wait(self) -> None:
        """Take that back."""
        self._is_waiting = False
        self._clear(_WAITER)

    # ------------------------------------------------------------ of a holder

    def begin(self) -> None:
        """Before the lock is taken or given back: others see that it changes. If the
        system refuses, as on file systems without such locks, they do not."""
        self._take(_TAKING)

    def _take(self, byte: int) -> None:
        """Take the lock on a byte; another process may have it for a moment."""
        deadline = time.monotonic() + _TAKING_S
        while self._set(byte) is False and time.monotonic() <= deadline:
            time.sleep(_PAUSE_S)

    def show(self, purpose: Purpose) -> None:
        """Describe this process, which has taken the lock."""
        files = self._files
        if purpose.doing == KEEPING:
            self._unowned_since = self._last_unowned()
        self._holder = Holder(
            files.process_id().pid,
            program(),
            files.host()[:_TEXT_MAX],
            files.now_ms(),
            purpose.doing,
            purpose.publishes_for_others,
        )
        self._write()
        # The last holder may be dying, and lose one file after the other.
        self._take(_VALID)
        self.end()

    def _last_unowned(self) -> int | None:
        """Since when no owner has had the lock, before it was taken: since now if the
        last one was killed."""
        if self._file is None:
            return None
        try:
            value = _record(self._root, self._file.fd)
        except OSError:
            return None
        is_killed = bool(value) and value.get("doing") != KEEPING
        now = self._files.now_ms() if is_killed else None
        return _unowned_since(value) or now

    def say(self, doing: str) -> None:
        """Record the present work of the holder."""
        self._holder = self._holder._replace(doing=doing)
        self._write()

    def _write(self, until: int | None = None) -> None:
        if self._file is None:
            return
        holder, process = self._holder, self._files.process_id()
        value = {
            "version": 1,
            "pid": holder.pid,
            "start": process.start,
            "boot": process.boot.hex(),
            "host": holder.host,
            "program": holder.program,
            "since_ms": holder.since,
            "doing": holder.doing,
            "publishes_for_others": holder.publishes_for_others,
            "until_ms": until,
            "unowned_since_ms": self._unowned_since,
        }
        body = checkpoints.state_text(value).encode("utf-8", "surrogatepass")
        data = first_entry(body).ljust(_FILE_BYTES - _RECORD_POS, b"\0")
        with contextlib.suppress(OSError):
            self._files.write(self._file.fd, data, _RECORD_POS)

    def end(self) -> None:
        """The lock was taken, or could not be."""
        self._clear(_TAKING)

    @property
    def is_awaited(self) -> bool:
        """Whether another process waits for the lock."""
        return self.state().is_awaited

    def withdraw(self) -> None:
        """Before the lock is given back: the record does not count any more."""
        self.begin()
        self._write(self._files.now_ms())
        self._clear(_VALID)

    def close(self) -> None:
        """Release its locks. A child of a fork that shares the open file then
        holds nothing."""
        for byte in (_WAITER, _VALID, _TAKING):
            self._clear(byte)
        self.abandon()

    def abandon(self) -> None:
        """Leave the locks to the parent, in the child of a fork."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def program() -> str:
    """The name of the program that this process runs."""
    argv = getattr(sys, "argv", None) or [""]
    name = os.path.basename(argv[0]) if isinstance(argv[0], str) else ""
    if name in ("", "-c", "-m", "__main__.py"):
        name = os.path.basename(os.path.dirname(argv[0])) or "python"
    return name[:_TEXT_MAX]
