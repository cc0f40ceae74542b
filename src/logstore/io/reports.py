"""The reports of the system to this process: changes of files and directories.

A user may have 128 instances of inotify, so a process has one, for all that wait in it.
Of the threads that wait, one reads the reports, and puts each into the inboxes that it
is for; the others sleep. When the reader ends its wait, it wakes another one to read.
Others may read as well, and do not wait for that: a call that takes what there is, and
event loops, which the system wakes by themselves.

If an interrupt divides a read from the inboxes, or the system had no room for all
reports, each inbox gets the note that anything may have changed. A thread that sleeps
looks for itself once a second, whichever thread reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from logstore import _native as native
from logstore._native.locks import RANK_LEAF
from logstore.io.files import Files, Report, keeps

__all__ = ["Inbox", "Reports", "reports_of"]

# Number of a watch, name of the entry or "".
Change = tuple[int, str]

# An inbox with more holds none of them: anything may have changed.
_CHANGES_MAX: Final = 4096
# The longest sleep of a thread that does not read: the reader may have been interrupted
# before it could wake another one.
_SLEEP_S_MAX: Final = 1.0
# Attempts to add a watch while other threads do, and the pause between them. Each needs
# some microseconds.
_ATTEMPTS: Final = 5000
_PAUSE_S: Final = 0.0002
# A read takes less time, but for the wait for reports.
_READ_S: Final = 1.0
# In the place of one reading: that of the thread whose turn it is.
_TURN: Final = "the turn to read"


class Inbox:
    """Reports for one that waits: a thread, or the owner of `bell`.

    Args:
        bell: called by any thread when there is something, after `take` once; raises
            nothing but `RuntimeError`, which is ignored.

    Attributes:
        end_read: ends its read, if it reads just now.
    """

    __slots__ = (
        "__weakref__",
        "_bell",
        "_changes",
        "_is_called",
        "_is_rung",
        "end_read",
        "woken",
    )

    def __init__(self, bell: Callable[[], object] | None = None) -> None:
        self._bell = bell
        self._changes: deque[Change | None] = deque()
        # Since `take` it was woken.
        self._is_rung = False
        self._is_called = False
        self.end_read: Callable[[], None] | None = None
        # Held while there is no reason to look.
        self.woken = threading.Lock()
        self.woken.acquire()

    @property
    def has_changes(self) -> bool:
        """Whether `take` would return some."""
        return bool(self._changes)

    @property
    def is_due(self) -> bool:
        """Whether the time to wait is over."""
        return bool(self._changes) or self._is_called

    def put(self, change: Change | None) -> None:
        """A change was reported; None: anything may have changed."""
        changes = self._changes
        if len(changes) >= _CHANGES_MAX:
            changes.clear()
            change = None
        changes.append(change)
        if not self._is_rung or change is None:
            self._is_rung = True
            self.wake()

    def take(self) -> list[Change] | None:
        """The changes since the last call; None: anything may have changed."""
        self._is_rung = False  # first: a change from now on wakes again
        taken_changes: list[Change] = []
        is_known, changes = True, self._changes
        while changes:
            try:
                change = changes.popleft()
            except IndexError:
                break  # there were too many
            if change is None:
                is_known = False
            else:
                taken_changes.append(change)
        return taken_changes if is_known else None

    def call(self) -> None:
        """End its wait, or the next one."""
        self._is_called = True
        self.wake()

    def was_called(self) -> bool:
        """Whether it was, since the last call of this method."""
        is_called, self._is_called = self._is_called, False
        return is_called

    def wake(self) -> None:
        """Let the thread that waits look again."""
        if self.woken.locked():
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self.woken.release()
        end_read = self.end_read
        if end_read is not None:
            end_read()
        if self._bell is not None:
            with contextlib.suppress(RuntimeError):
                self._bell()


# A reference to an inbox, which keeps it not alive.
_Reference = weakref.ref[Inbox]


class _Wait:
    """A wait of an inbox in a thread. It lives as long as the call: so an interrupt
    that comes before the turn to read was given back gives it back."""

    __slots__ = ("__weakref__", "inbox", "thread")

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.thread = threading.get_ident()


class Reports:
    """One instance of inotify, and the inboxes that its reports are for. Any thread may
    call it; an inbox waits in one thread at a time.

    Attributes:
        fd: readable while there are reports; -1 in the child of a fork.

    Raises:
        OSError: the system has no more instances, or descriptors.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._file: native.OpenFile | None = native.OpenFile(files.new_watch(), None)
        self._event: native.OpenFile | None = native.OpenFile(files.new_event(), None)
        # Numbers for the calls, no references, which a child of a fork would keep.
        self.fd, self._event_fd = self._file.fd, self._event.fd
        # Of each number, the inboxes and the changes for them; and the numbers of each.
        self._listening: dict[int, dict[_Reference, int]] = {}
        self._numbers: dict[_Reference, set[int]] = {}
        # Watches are added and removed by one thread at a time: the system would give
        # one that is being removed to another one.
        self._guard = native.Mutex(RANK_LEAF, "what this process watches")
        # (an inbox, its number to remove; None: all of them).
        self._gone: deque[tuple[_Reference | None, int | None]] = deque()
        # A watch is being added; and the reports that came before it was noted.
        self._is_adding = False
        self._early: set[int] = set()
        # At most one entry: whose turn to read it is.
        self._turn: dict[str, weakref.ref[_Wait]] = {}
        self._asleep: deque[Inbox] = deque()
        # Reads whose reports are not all in their inboxes, and when they began.
        self._unfinished: dict[Hashable, float] = {}
        _all.add(self)

    def abandon(self) -> None:
        """In the child of a fork: the reports are the parent's."""
        self.fd = self._event_fd = -1
        self._file = self._event = None

    # ------------------------------------------------------------ watches

    def reference(self, inbox: Inbox) -> _Reference:
        """The name of an inbox for its watches: it keeps it not alive."""
        reference = weakref.ref(inbox, self.remove)
        hash(reference)  # it cannot be found out any more when the inbox is gone
        return reference

    def add(self, reference: _Reference, watched_fd: int, what: int, name: str) -> int:
        """Report what happens to an open file or directory, or to one in it. Returns
        the number of the watch.

        Raises:
            OSError: the system does not report it.
        """
        self.read()  # what has happened before is not for it
        for _ in range(_ATTEMPTS):
            if self._guard.is_mine:
                break
            # Not waited for: this thread may hold locks of a store.
            with self._guard.attempt() as is_free:
                if is_free:
                    self._remove_gone()
                    return self._added(reference, watched_fd, what, name)
            time.sleep(_PAUSE_S)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _added(
        self, reference: _Reference, watched_fd: int, what: int, name: str
    ) -> int:
        self._early.clear()
        self._is_adding = True
        try:
            number = self._files.watch(self.fd, watched_fd, what, name)
            listening = self._listening.setdefault(number, {})
            self._numbers.setdefault(reference, set()).add(number)
            listening[reference] = listening.get(reference, 0) | what
        finally:
            self._is_adding = False
        inbox = reference()
        if number in self._early and inbox is not None:
            inbox.put(None)
        return number

    def remove(self, reference: _Reference, number: int | None = None) -> None:
        """Report no more to an inbox, of one number or at all."""
        self._gone.append((reference, number))
        # If the guard is not free, the next addition does it.
        with self._guard.attempt() as is_free:
            if is_free:
                self._remove_gone()

    def _remove_gone(self) -> None:
        while self._gone:
            reference, number = self._gone.popleft()
            if reference is None:
                numbers: Iterable[int | None] = (number,)
            elif number is None:
                numbers = self._numbers.pop(reference, ())
            else:
                numbers = (number,)
                self._numbers.get(reference, set()).discard(number)
            for each in numbers:
                assert each is not None
                listening = self._listening.get(each, {})
                if reference is not None:
                    listening.pop(reference, None)
                if not listening:
                    self._listening.pop(each, None)
                    # The watch of a file that is gone has ended.
                    with contextlib.suppress(OSError):
                        self._files.unwatch(self.fd, each)

    # ------------------------------------------------------------ waiting

    def wait(self, inbox: Inbox, seconds: float | None) -> None:
        """Wait until something is reported to an inbox, or it is called, or the time
        is over (None: without a limit).

        Raises:
            OSError: the reports cannot be read; all inboxes have a note of that.
        """
        if seconds is not None and seconds <= 0:
            self.read()
            return
        end = None if seconds is None else time.monotonic() + seconds
        wait = _Wait(inbox)
        mine = weakref.ref(wait)
        try:
            while not inbox.is_due and self.fd >= 0:
                if self._turn.setdefault(_TURN, mine) is mine or self._is_inside(wait):
                    self._read(_TURN, seconds, inbox)
                else:
                    self._sleep(inbox, seconds)
                if end is not None:
                    seconds = end - time.monotonic()
                    if seconds <= 0:
                        return
        finally:
            self._end_turn(wait, mine)

    def _is_inside(self, wait: _Wait) -> bool:
        """Whether the one whose turn it is waits in the same thread: this is a signal
        handler inside its wait, and reads as well."""
        reader = self._turn.get(_TURN)
        other = None if reader is None else reader()
        if other is not None:
            return other.thread == wait.thread
        if reader is not None and self._turn.get(_TURN) is reader:
            self._turn.pop(_TURN, None)  # it has ended
        return False

    def _end_turn(self, wait: _Wait, mine: weakref.ref[_Wait]) -> None:
        reader = self._turn.get(_TURN)
        if reader is mine:
            self._turn.pop(_TURN, None)
        elif reader is not None:
            other = reader()
            if other is not None and other.thread == wait.thread:
                other.inbox.wake()  # what woke it may have been taken by this one
        if self._asleep and not self._turn:
            with contextlib.suppress(IndexError):
                self._asleep.popleft().wake()

    def _sleep(self, inbox: Inbox, seconds: float | None) -> None:
        """Sleep until another thread has put something into an inbox, or reads no
        more."""
        limit = _SLEEP_S_MAX if seconds is None else min(seconds, _SLEEP_S_MAX)
        self._asleep.append(inbox)
        try:
            # Looked at after that: the reader wakes one that it finds there.
            is_woken = not self._turn or inbox.is_due
            is_woken = is_woken or inbox.woken.acquire(timeout=limit)
        finally:
            with contextlib.suppress(ValueError):
                self._asleep.remove(inbox)
        if not is_woken:
            self.read()  # as if no thread did

    def _wake_reader(self) -> None:
        event = self._event_fd
        if event >= 0:
            self._files.set_event(event)

    # ------------------------------------------------------------ reading

    def read(self) -> None:
        """Put what was reported so far into the inboxes.

        Raises:
            OSError: the reports cannot be read; all inboxes have a note of that.
        """
        self._read(object(), None, None)

    def _read(self, mine: Hashable, seconds: float | None, inbox: Inbox | None) -> None:
        """Read reports, after a wait for them if an inbox is given.

        Args:
            mine: names this read, while it is not finished.
        """
        now = time.monotonic()
        # Reads that were interrupted, and once more before all inboxes had a note.
        before: list[Hashable] = []
        if self._unfinished:
            before = [
                other
                for other, since in list(self._unfinished.items())
                if other is mine or (other is not _TURN and now - since > _READ_S)
            ]
        is_finished = False
        self._unfinished[mine] = now
        try:
            if inbox is None:
                self._put(self._files.reports(self.fd))
            else:
                reports: Sequence[Report] | None = ()
                inbox.end_read = self._wake_reader
                if self.fd >= 0 and not inbox.is_due:
                    reports = self._files.reports_within(
                        self.fd, seconds, self._event_fd
                    )
                inbox.end_read = None
                if reports != ():
                    self._put(reports)
            is_finished = not before
        finally:
            if inbox is not None:
                inbox.end_read = None
            if not is_finished:
                for reference in list(self._numbers):
                    self._tell(reference, None)
            for other in (*before, mine):
                self._unfinished.pop(other, None)

    def _put(self, reports: Sequence[Report] | None) -> None:
        if reports is None:
            for reference in list(self._numbers):
                self._tell(reference, None)
            return
        for number, changes, name in reports:
            listening = self._listening.get(number)
            if listening is None and self._is_adding:
                self._early.add(number)
                listening = self._listening.get(number)
            if listening is None:
                if not changes & native.WATCH_ENDED:
                    # Its addition was interrupted; or this is from before its removal.
                    self._gone.append((None, number))
                continue
            for reference, what in list(listening.items()):
                if changes & (what | native.WATCH_ENDED):
                    self._tell(reference, (number, name))
                if changes & native.WATCH_ENDED:
                    self._numbers.get(reference, set()).discard(number)
            if changes & native.WATCH_ENDED:
                self._listening.pop(number, None)

    @staticmethod
    def _tell(reference: _Reference, change: Change | None) -> None:
        inbox = reference()
        if inbox is not None:
            inbox.put(change)


# Calls that an instance needs. If one of them is replaced, it is not shared.
_CALLS: Final = (
    "new_watch",
    "watch",
    "unwatch",
    "reports",
    "reports_within",
    "wait_for_any",
    "new_event",
    "set_event",
    "clear_event",
)
_all: weakref.WeakSet[Reports] = weakref.WeakSet()
# The one of this process, if it has one, under "".
_shared: dict[str, Reports] = {}


def reports_of(files: Files) -> Reports:
    """The reports of this process; its own ones for an object with other calls.

    Raises:
        OSError: the system has no more instances, or descriptors.
    """
    if not keeps(type(files), _CALLS):
        return Reports(files)
    shared_reports = _shared.get("")
    return shared_reports or _shared.setdefault("", Reports(Files()))


def _forget() -> None:
    """In the child of a fork, which would take reports that are its parent's."""
    _shared.clear()
    for reports in list(_all):
        reports.abandon()


os.register_at_fork(after_in_child=_forget)
