"""Wakes the followers of a store in one event loop, without a thread for any of them.

A `FollowedPlace` is a partition that followers wait for. If this store writes it, the
append itself wakes them (`WrittenPlace`), from any thread. If another process does, the
system reports changes of its directory to the loop, by the descriptor that the process
has for all of them (`WatchedPlace`), and one look at the log serves all followers of a
partition.

Whatever wakes followers may come too often, and each follower looks for itself. Once a
second all places are checked: no report of a change is relied on alone.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from logstore.aio.loops import Binding
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.wakeups import (
    INTERVAL_S_MIN,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    WATCHED_S_MAX,
    Wakeups,
    Watch,
)
from logstore.log.read.view import Bounds
from logstore.store.partition.partition import Partition

__all__ = ["FollowedPlace", "Wakes"]

Woken = asyncio.Future[None]
# A value that differs if there may be more to read.
_State = object


class FollowedPlace(abc.ABC):
    """The followers that wait for one partition. Only the loop's thread uses it."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._waiting: set[Woken] = set()
        self._state: _State = None

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def add(self, future: Woken) -> None:
        """Wake it by the next change. Check after this call whether there was one
        before."""
        self._waiting.add(future)
        self._wakes.keep_checking()

    def discard(self, future: Woken) -> None:
        self._waiting.discard(future)

    def take_bell(self) -> bool:
        """Let an append by the loop's thread wake no follower. Returns whether some
        wait: then `wake` must be called after the append."""
        return False

    def wake(self) -> None:
        """Wake all that wait."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def changed(self) -> None:
        """There may be more."""
        self.wake()

    def check(self) -> bool:
        """Wake all that wait, if the partition has changed since the last check, or
        cannot be looked at: they find out why. Returns whether it has."""
        try:
            state = self._state_now()
        except Exception:
            state = object()
        if state == self._state:
            return False
        self._state = state
        self.wake()
        return True

    @abc.abstractmethod
    def begin(self) -> None:
        """Wake a follower from now on: it looks once more before it waits."""

    @abc.abstractmethod
    def look(self) -> Bounds:
        """The bounds of the log, now or at the last change that woke followers."""

    @abc.abstractmethod
    def _state_now(self) -> _State:
        """A value that is another one if there may be more to read. May raise."""


class _Bell:
    """Rung by an append: a `Wakeable`."""

    __slots__ = ("_loop", "_ring")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._ring = ring

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._ring)


class WrittenPlace(FollowedPlace):
    """A partition that this store writes."""

    def __init__(self, wakes: Wakes, partition: Partition) -> None:
        super().__init__(wakes)
        self._views = partition._views
        self._bell: _Bell | None = None

    def begin(self) -> None:
        pass

    def look(self) -> Bounds:
        return self._views.refreshed_bounds()

    def add(self, future: Woken) -> None:
        super().add(future)
        signal = self._views.appended
        if self._bell is None and signal is not None:
            self._bell = _Bell(self._wakes.loop(), self._rung)
            signal.add(self._bell)

    def _rung(self) -> None:
        self._bell = None
        self.wake()

    def take_bell(self) -> bool:
        bell, signal = self._bell, self._views.appended
        if bell is None or signal is None:
            return False
        signal.remove(bell)
        self._bell = None
        return True

    def _state_now(self) -> _State:
        self._views.check_alive()
        writer = self._views.writer
        assert writer is not None
        seen = writer.seen()
        return seen.start, seen.end, seen.durable, seen.cuts.serial


class WatchedPlace(FollowedPlace):
    """A partition that another process writes."""

    def __init__(self, wakes: Wakes, partition: Partition) -> None:
        super().__init__(wakes)
        self._views = partition._views
        # Of the partition, and those above it, up to the root of the store.
        self.directories: list[Directory] = []
        directory: Directory | None = partition._log.directory
        while directory is not None:
            self.directories.append(directory)
            directory = directory.parent
        # The bounds of the log at the last look; None: it may have changed since.
        self._seen: Bounds | None = None
        self._is_begun = False

    def begin(self) -> None:
        # A follower that begins has looked for itself, later than this place.
        self._seen = None
        if not self._is_begun:
            self._is_begun = True
            self._wakes.watch(self)

    def look(self) -> Bounds:
        if self._seen is None:
            self._seen = seen = self._views.refreshed_bounds()
            state = (
                seen.life,
                seen.cuts.serial,
                seen.start_offset,
                seen.end_offset,
                seen.durable_offset,
                seen.removal is None,
            )
            if state != self._state:
                self._state = state
                self.wake()
        return self._seen

    def changed(self) -> None:
        self._seen = None
        if self.is_waited_for:
            self.check()

    def check(self) -> bool:
        self._seen = None
        before = self._state
        try:
            self.look()
        except Exception:
            self._state = None
            self.wake()
            return True
        return self._state != before

    def _state_now(self) -> _State:
        self.look()
        return self._state


class _Reader:
    """Reads what is reported in a loop while followers wait in it, for all of its
    stores: a loop calls one function for a descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._loop = weakref.ref(loop)
        self._fd = fd
        self._stores: weakref.WeakSet[Wakes] = weakref.WeakSet()

    def add(self, wakes: Wakes) -> None:
        loop = self._loop()
        if not self._stores and loop is not None:
            loop.add_reader(self._fd, self._read)
        self._stores.add(wakes)

    def discard(self, wakes: Wakes) -> None:
        self._stores.discard(wakes)
        if not self._stores:
            self._end()

    def _end(self) -> None:
        loop = self._loop()
        if loop is not None:
            _readers.get(loop, {}).pop(self._fd, None)
            loop.remove_reader(self._fd)

    def _read(self) -> None:
        stores = list(self._stores)
        if not stores:
            self._end()  # they were forgotten
            return
        me = threading.get_ident()
        _reading[me] = self._loop()
        try:
            stores[0].read()
        finally:
            _reading.pop(me, None)
            for wakes in stores:
                wakes._rung()


_readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Reader]] = (
    weakref.WeakKeyDictionary()
)
# The loops that are reading reports, by their threads: they call `_rung` afterwards.
_reading: dict[int, asyncio.AbstractEventLoop | None] = {}


def _reader_in(loop: asyncio.AbstractEventLoop, fd: int) -> _Reader:
    """The reader of a descriptor in a loop."""
    return _readers.setdefault(loop, {}).setdefault(fd, _Reader(loop, fd))


def _ring(
    loop: asyncio.AbstractEventLoop, rung: weakref.WeakMethod[Callable[[], None]]
) -> None:
    """Call a method in a loop, from any thread."""
    method = rung()
    if method is not None and _reading.get(threading.get_ident()) is not loop:
        loop.call_soon_threadsafe(method)


class Wakes:
    """The places of one store, and what reports changes of them to the loop."""

    def __init__(self, binding: Binding, files: Files) -> None:
        self._binding = binding
        self._files = files
        self._places: weakref.WeakSet[FollowedPlace] = weakref.WeakSet()
        self._checking: asyncio.TimerHandle | None = None
        # One for all directories; None before the first.
        self._reports: Wakeups | None = None
        self._by_number: dict[int, weakref.WeakSet[WatchedPlace]] = {}
        self._is_reading = False
        self._woken_at = 0.0
        self._resting: asyncio.TimerHandle | None = None
        # Those whose changes are not reported: looked at by time.
        self._unreported: weakref.WeakSet[WatchedPlace] = weakref.WeakSet()
        self._polling: asyncio.TimerHandle | None = None
        self._pause = PAUSE_S_MIN

    def loop(self) -> asyncio.AbstractEventLoop:
        return self._binding.loop()

    def place_of(self, partition: Partition) -> FollowedPlace:
        """A new place; there should be one for each partition."""
        is_written = partition._views.writer is not None
        kind: Any = WrittenPlace if is_written else WatchedPlace
        place: FollowedPlace = kind(self, partition)
        self._places.add(place)
        return place

    def close(self) -> None:
        """Stop, and wake all: their store is closed."""
        for timer in (self._checking, self._polling):
            if timer is not None:
                timer.cancel()
        self._checking = self._polling = None
        self._stop_reading()
        if self._reports is not None:
            self._reports.close()
        for place in list(self._places):
            place.changed()

    # ------------------------------------------------------------ by time

    def keep_checking(self) -> None:
        """A follower waits."""
        if self._checking is None:
            self._checking = self.loop().call_later(WATCHED_S_MAX, self._check)
        self._read()
        if self._unreported and self._polling is None:
            self._polling = self.loop().call_later(self._pause, self._poll)

    def _waited_for(self) -> list[FollowedPlace]:
        return [place for place in self._places if place.is_waited_for]

    def _check(self) -> None:
        self._checking = None
        places = self._waited_for()
        if not places:
            self._stop_reading()
            return
        self._checking = self.loop().call_later(WATCHED_S_MAX, self._check)
        for place in places:
            place.check()

    def _poll(self) -> None:
        self._polling = None
        places = [place for place in self._unreported if place.is_waited_for]
        if places:
            changes = [place.check() for place in places]
            self._pause = PAUSE_S_MIN if any(changes) else self._pause * 2
            self._pause = min(self._pause, PAUSE_S_MAX)
            self._polling = self.loop().call_later(self._pause, self._poll)

    # ------------------------------------------------------------ by reports

    def watch(self, place: WatchedPlace) -> None:
        """Report the changes of a place from now on."""
        if self._reports is None:
            loop, ring = self.loop(), weakref.WeakMethod(self._rung)
            self._reports = Wakeups(self._files, bell=lambda: _ring(loop, ring))
        for directory in place.directories:
            number = self._reports.add(Watch(directory))
            if number is None:
                self._unreported.add(place)
                return
            self._by_number.setdefault(number, weakref.WeakSet()).add(place)

    def _read(self) -> None:
        """Watch the descriptor of reports in the event loop."""
        reports, is_on = self._reports, self._is_reading or self._resting is not None
        if is_on or reports is None or reports.fd < 0:
            return
        self._is_reading = True
        _reader_in(self.loop(), reports.fd).add(self)
        if reports.has_changes:
            # Another thread has read them before a follower waited.
            self.loop().call_soon(self._rung)

    def _stop_reading(self) -> None:
        """Stop watching in the event loop, and cancel a pending rest."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._reports is not None and self._is_reading:
            self._is_reading = False
            with contextlib.suppress(RuntimeError):  # a loop that is closed
                _reader_in(self.loop(), self._reports.fd).discard(self)

    def _rested(self) -> None:
        self._resting = None
        self._read()

    def _rung(self) -> None:
        """Something may have been reported."""
        if self._is_reading and self._reports is not None and self._reports.has_changes:
            self._reported()

    def read(self) -> None:
        """Read what is reported, also for others."""
        if self._reports is not None:
            self._reports.read()

    def _reported(self) -> None:
        reports, loop = self._reports, self.loop()
        assert reports is not None
        early = self._woken_at + INTERVAL_S_MIN - loop.time()
        if early > 0:
            # A process that appends records one by one does not wake followers for
            # each of them.
            self._stop_reading()
            self._resting = loop.call_later(early, self._rested)
            return
        self._woken_at = loop.time()
        changes = reports.take()
        numbers = set(self._by_number)
        if changes is not None:
            numbers = {number for number, _ in changes}
        places: set[WatchedPlace] = set()
        for number in numbers:
            watching = self._by_number.get(number)
            if watching:
                places.update(watching)
            elif watching is not None:
                del self._by_number[number]
                reports.remove(number)
        for place in places:
            place.changed()
