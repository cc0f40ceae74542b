"""The one thread that serves the open stores of this process, and its helpers.

A store has two services: requests of other processes, and snapshots for them. One
thread waits for the reports and the times of all of them, and calls them: so a request
is served by the thread that was woken by it. A call may take long. Then a second
thread, the spare, waits in its place: it looks every 5 ms whether the call is still the
same, and at once if another service is due. It is started with the first call, and ends
when there was none for two seconds. So there are at most two threads more than calls
under way, and one while there is no work.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from logstore.errors import LogStoreError, StorageError
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.service_calls import begin_call, end_call
from logstore.io.wakeups import PAUSE_S_MAX, Wakeups, Watch

__all__ = ["THREAD", "Again", "Service"]

# The name of the threads.
THREAD: Final = "the services of logstore"
# How often the spare looks. A thread that computes keeps the interpreter lock as long.
_LOOK_S: Final = 0.005
# After a time without calls it ends.
_IDLE_S: Final = 2.0
# A call that can be divided ends after this time if there is more to do.
_CALL_S: Final = 0.003
# The pause after an error of the thread itself.
_PAUSE_S: Final = 0.05


class Again(enum.Enum):
    """When a service is to be called again, though nothing wakes it."""

    NOW = enum.auto()
    AFTER_PAUSE = enum.auto()


class Service:
    """A method that is called at the start, and each time when there is something to
    do. Only one thread is inside a call.

    While it is not called, nothing keeps the object of the method alive: when that is
    gone, the service ends.

    Args:
        root: the directory of the store.
        what: is served: "requests".
        method: called with no lock held, and again after an error, or as it returns.
        log_error: gets that error.
        pause_s: how long after an error, in seconds.
        every_s: it is called so often, in seconds, the first time after this; None:
            when it is woken.
        look: whether there is something to do; asked before each call, and so quick
            that no spare is needed for it.

    Attributes:
        wakeups: what wakes it; None: it was not started, or has ended.
    """

    def __init__(
        self,
        root: Directory,
        what: str,
        method: Callable[[], Again | None],
        log_error: Callable[[BaseException], None],
        pause_s: float,
        every_s: float | None = None,
        look: Callable[[], bool] | None = None,
    ) -> None:
        self._root = root
        self._what = what
        self._method = weakref.WeakMethod(method, lambda _: self._end())
        self._look = None if look is None else weakref.WeakMethod(look)
        self._log_error = log_error
        self._pause_s = pause_s
        self._every_s = every_s
        self.wakeups: Wakeups | None = None
        self._threads: _Threads | None = None
        # When it is called, if nothing wakes it before.
        self.at: float | None = None
        self._is_woken = False
        self._is_stopped = False
        # Held during a call, by this thread, since then.
        self._busy = threading.Lock()
        self._caller: int | None = None
        self._begun = math.inf

    def start(self, *watches: Watch) -> None:
        """Call it from now on, also at changes of `watches`.

        Raises:
            StorageError: there is no thread for it.
        """
        wakeups = Wakeups(
            self._root.files, watches=watches or None, bell=self._reported
        )
        self.wakeups, self._threads = wakeups, _threads_for(wakeups)
        try:
            if self._every_s is None:
                self.at = time.monotonic()
            else:
                self.at = _next_time(self._every_s)
            self._threads.add(self)
        except RuntimeError as error:
            self._end()
            path = self._root.path
            raise StorageError(
                f"no thread for the {self._what} in {path}: {error}. Without it those "
                f"of other processes are not served. See the limits of the process for "
                f"threads and memory",
                path=path,
                action="start a thread for",
            ) from error

    @property
    def is_due(self) -> bool:
        """Whether it is to be called."""
        wakeups = self.wakeups
        return wakeups is not None and (self._is_woken or wakeups.has_changes)

    @property
    def is_late(self) -> bool:
        """Whether its call takes so long that it is to end, and be made again."""
        return self.is_inside and time.monotonic() - self._begun > _CALL_S

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside a call."""
        return self._caller == threading.get_ident()

    def wake(self) -> None:
        """Call it once more."""
        self._is_woken = True
        self._reported()

    def _reported(self) -> None:
        # If it is busy, it is asked again at the end of its call.
        threads = self._threads
        if threads is not None and self._caller is None:
            threads.ring(self)

    def take(self) -> bool:
        """Begin a call, unless it is under way. `call` is to follow."""
        return not self._is_stopped and self._busy.acquire(blocking=False)

    def ends_at_once(self) -> bool:
        """Whether there is nothing to do: then the call that was begun has ended."""
        if self._look is None:
            return False
        has_work = True
        try:
            begin_call()
            look = self._look()
            has_work = look is not None and look()
        except LogStoreError:
            pass  # the call finds the same
        finally:
            look = None
            end_call()
            if not has_work:
                self._plan(None)
                self._busy.release()
        return not has_work

    def call(self) -> None:
        """Make the call that was begun, in this thread."""
        self._caller, self._begun = threading.get_ident(), time.monotonic()
        again: Again | None = None
        try:
            begin_call()
            self.at, self._is_woken = None, False
            method = self._method()
            if method is not None and not self._is_stopped:
                again = method()
            self._plan(again)
        except BaseException as error:
            # It has another try, also if there was no memory to say so.
            self.at = time.monotonic() + self._pause_s
            with contextlib.suppress(BaseException):
                self._log_error(error)
        finally:
            method = None
            end_call()
            self._begun, self._caller = math.inf, None
            self._busy.release()
        threads = self._threads
        if threads is not None and self.is_due:
            threads.due.append(self)  # the thread of this call looks at once

    def _plan(self, again: Again | None) -> None:
        wakeups = self.wakeups
        if again is Again.NOW:
            self._is_woken = True
        elif again is Again.AFTER_PAUSE:
            self.at = time.monotonic() + self._pause_s
        elif self._every_s is not None:
            self.at = _next_time(self._every_s)
        elif wakeups is not None and wakeups.is_blind:
            self.at = time.monotonic() + PAUSE_S_MAX

    def stop(self) -> None:
        """End it, after the call that may be under way in another thread. May be called
        again."""
        self._is_stopped = True
        if self._threads is not None and not self.is_inside:
            with self._busy:
                pass
        self._end()

    def _end(self) -> None:
        threads, self._threads = self._threads, None
        wakeups, self.wakeups = self.wakeups, None
        if wakeups is not None:
            wakeups.close()
        if threads is not None:
            threads.remove(self)

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there."""
        self._is_stopped = True
        self._threads = self.wakeups = None


def _next_time(every_s: float) -> float:
    """The same for all stores: one wake-up of the thread serves them all."""
    return (math.floor(time.monotonic() / every_s) + 1) * every_s


class _Worker:
    """A thread that waits for services, calls them, or is the spare.

    Attributes:
        wakeups: end its wait.
        call: changes with each call; None: it is in none.
        rung: held by the spare until it is to look.
    """

    def __init__(self, threads: _Threads) -> None:
        self._threads = threads
        self.wakeups = threads.new_wakeups()
        self.call: object = None
        self.rung = threading.Lock()
        self.rung.acquire()

    def start(self) -> None:
        """Raises: RuntimeError: the system has no thread, or no memory for it."""
        threading.Thread(target=self._run, name=THREAD, daemon=True).start()

    def _run(self) -> None:
        is_there = True
        while is_there:
            try:
                is_there = self._step()
            except BaseException:
                # There is no memory. The services are to be served when there is.
                with contextlib.suppress(BaseException):
                    time.sleep(_PAUSE_S)

    def _step(self) -> bool:
        """One call, or one wait. Returns whether the thread goes on."""
        threads = self._threads
        if threads.turn.setdefault("", self) is not self:
            service = threads.next_due()
            if service is None:
                return self._rest()
        else:
            service, seconds = threads.next_or_wait()
            if service is None:
                if not threads.services:
                    threads.turn.pop("", None)
                    # One may have been added by a thread that has seen the turn.
                    return bool(threads.services)
                self._wait(seconds)
                return True
        if service.ends_at_once():
            return True
        self.call = object()
        try:
            threads.keep_spare()
            # Nothing may come between, which would leave it taken.
        finally:
            service.call()
            self.call = None
            holder = threads.turn.get("")
            if holder is not None and holder is not self and service.at is not None:
                holder.wakeups.wake()  # it waits, and does not know this time
        return True

    def _wait(self, seconds: float) -> None:
        if not self.wakeups.is_reporting:
            # There may be an instance of inotify by now.
            self.wakeups = self._threads.new_wakeups()
            if self._threads.due:
                return
        self.wakeups.wait(None if seconds == math.inf else max(seconds, 0.0))

    def ring(self) -> None:
        """Let the spare look."""
        with contextlib.suppress(RuntimeError):
            self.rung.release()

    def _rest(self) -> bool:
        """Be the spare, until there is something to do. Returns whether there is."""
        threads = self._threads
        if threads.spare.setdefault("", self) is not self:
            return False
        try:
            busy, seen = time.monotonic(), None
            while not threads.due:
                if self.rung.acquire(timeout=_LOOK_S):
                    return True
                holder, now = threads.turn.get(""), time.monotonic()
                if holder is None:
                    return bool(threads.services)
                if holder.call is None:
                    if now - busy > _IDLE_S:
                        return False
                elif holder.call is seen:
                    threads.turn[""] = self
                    return True
                else:
                    busy, seen = now, holder.call
            return True
        finally:
            threads.spare.pop("", None)


class _Threads:
    """The threads for some services: those of this process, or of one store whose
    system calls a test has replaced.

    Attributes:
        services: those that are started.
        due: some of them that may be due.
        turn: whose turn it is to wait and to call: at most one.
        spare: the spare: at most one.
    """

    def __init__(self, own: Wakeups | None = None) -> None:
        self._own = own
        self.services: set[Service] = set()
        self.due: deque[Service] = deque()
        self.turn: dict[str, _Worker] = {}
        self.spare: dict[str, _Worker] = {}
        # When the times were looked at last.
        self._looked_at = -math.inf

    def new_wakeups(self) -> Wakeups:
        """What a thread waits with."""
        return self._own or Wakeups(Files(), is_wakeable=True)

    def add(self, service: Service) -> None:
        """Raises: RuntimeError: there is no thread, and none can be started."""
        self.services.add(service)
        holder = self.turn.get("")
        if holder is None:
            _Worker(self).start()
        else:
            holder.wakeups.wake()

    def remove(self, service: Service) -> None:
        self.services.discard(service)
        holder = self.turn.get("")
        if holder is not None and not self.services:
            holder.wakeups.wake()  # it ends

    def ring(self, service: Service) -> None:
        """A service is due."""
        self.due.append(service)
        holder, spare = self.turn.get(""), self.spare.get("")
        if holder is not None and holder.call is None:
            holder.wakeups.wake()
        elif spare is not None:
            spare.ring()

    def keep_spare(self) -> None:
        """Before a call: others than this one may be due during it."""
        spare = self.spare.get("")
        if spare is None:
            if len(self.services) > 1:
                with contextlib.suppress(RuntimeError):  # then they wait
                    _Worker(self).start()
        elif self.due:
            spare.ring()

    def next_due(self) -> Service | None:
        """A service that is due, which is taken."""
        with contextlib.suppress(IndexError):
            while True:
                service = self.due.popleft()
                if service.is_due and service.take():
                    return service
        return None

    def next_or_wait(self) -> tuple[Service | None, float]:
        """(a service that is due, or whose time has come, which is taken; else the
        seconds until the next time)."""
        now = time.monotonic()
        # Also if there is always one that is due.
        if now - self._looked_at < _LOOK_S:
            service = self.next_due()
            if service is not None:
                return service, 0.0
        self._looked_at = now
        first = math.inf
        for each in list(self.services):
            at = each.at
            if at is not None and at <= now and each.take():
                return each, 0.0
            if at is not None and at > now:
                first = min(first, at)
        return self.next_due(), first - now


# The threads of this process.
_shared: dict[str, _Threads] = {}


def _threads_for(wakeups: Wakeups) -> _Threads:
    if wakeups.is_reporting and not wakeups.is_shared:
        return _Threads(wakeups)
    return _shared.setdefault("", _Threads())


# In the child of a fork those threads do not exist.
os.register_at_fork(after_in_child=_shared.clear)
