"""The requests of one process without the store's lock: makes them, waits for them, and
takes them back (the side of the owner: `owner`).

Any number of threads make requests at once. Each has a number, in the order in which
they stand in the file of the process; the owner carries them out in that order. One of
the threads that wait reads what the system reports, and wakes the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore._native.locks import RANK_APPEND, RANK_LEAF, logger, new_group
from logstore.errors import (
    ConfigError,
    ForkedError,
    LogStoreError,
    PublicationTimeoutError,
    ReentrantCallError,
    StoreClosedError,
    StoreLockedError,
    storage_errors,
)
from logstore.io.checkpoint.answers import Answer
from logstore.io.checkpoint.process_requests import (
    REQUEST_BYTES_MAX,
    FilesGoneError,
    ProcessFile,
    Slot,
)
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.layout import LOCK
from logstore.io.lock import description, writer_of
from logstore.io.lock_record import OWNER, program, state_of
from logstore.io.wakeups import Wakeups, Watch
from logstore.log.write.calls import Asked, Submission, answer_in, identity_of
from logstore.store.hand_in.own_owner import waits_for_itself

__all__ = ["Requester"]

# How often a waiter looks by itself whether there is an owner, and an answer. The first
# look comes as late if an owner was seen, whose end is reported.
_LOOK_S: Final = 0.1
_UNREPORTED_S: Final = 0.01
# How often a call looks for free room, if no call waits for an answer.
_ROOM_LOOK_S: Final = 0.005
# How long the end of a killed owner may take.
_DYING_S: Final = 0.5
_DYING_LOOK_S: Final = 0.005
# After the end of the time an owner that has taken a request may still answer it.
_GRACE_S: Final = 0.2
# Calls that wait when the store is closed must take their requests back in this time.
_CLOSE_S: Final = 5.0
# A longer wait is logged, once; and the remembered entries are looked up, again each
# time the wait has doubled: the owner may not have been able to answer.
_TOLD_S: Final = 1.0


class _Pending:
    """A request that waits for its answer.

    Attributes:
        takes: how many times reports had been taken before it was made.
    """

    __slots__ = (
        "_named",
        "_woken",
        "answer",
        "file",
        "slot",
        "takes",
    )

    def __init__(self, asked: Asked, file: ProcessFile, slot: Slot, takes: int) -> None:
        self.file, self.slot, self.takes = file, slot, takes
        self._named = asked if isinstance(asked, Submission) else None
        self.answer: bytes | None = None
        # Held while it is not woken: an Event has a lock for each waiter, and two more.
        self._woken = threading.Lock()
        self._woken.acquire()

    @property
    def is_named(self) -> bool:
        """Whether its identity is the caller's."""
        return self._named is not None

    @property
    def name(self) -> tuple[str, int]:
        """(identity, sequence) by which the store remembers it."""
        return _name_of(self._named, self.file, self.slot.number)

    @property
    def is_woken(self) -> bool:
        """Whether its thread is to look again."""
        return not self._woken.locked()

    def wake(self) -> None:
        """Let its thread look again."""
        if not self.is_woken:
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._woken.release()

    def wait(self, seconds: float) -> bool:
        """Whether it is woken within this time, or was before."""
        return self._woken.acquire(timeout=seconds)


def _name_of(asked: Asked | None, file: ProcessFile, number: int) -> tuple[str, int]:
    """(identity, sequence) by which the store remembers a request."""
    if isinstance(asked, Submission):
        return asked.identity, asked.sequence
    return identity_of(file.id), number


def _tell_interrupt(
    error: BaseException, name: tuple[str, int], is_withdrawn: bool
) -> None:
    """Give an interrupt the names by which the outcome of its call can be asked for."""
    facts = vars(error)
    facts["identity"], facts["sequence"] = name
    facts["outcome"] = "not written" if is_withdrawn else "unknown"


class Requester:
    """Makes requests of the owner of a store. Any thread may call it.

    Args:
        become_owner: begins to take the lock of the store, if it is free, to carry out
            waiting requests.
        publications: the entries that the store remembers.
    """

    def __init__(
        self,
        root: Directory,
        become_owner: Callable[[], None],
        publications: Publications,
    ) -> None:
        self._root = root
        self._publications = publications
        self._become_owner = become_owner
        self._make_locks()
        self._file: ProcessFile | None = None
        self._wakeups: Wakeups | None = None
        self._lock_watch: int | None = None
        self._pending: dict[int, _Pending] = {}
        # `_era` changes with each report that an owner may have ended, and if reports
        # may be lost. `_seen` is its value from before an owner was seen. While they
        # are the same, there is an owner.
        self._era = object()
        self._seen: object = None
        # How many times reports have been taken.
        self._takes = 0
        self._pid = -1
        self._is_closed = False

    def _make_locks(self) -> None:
        # A signal handler or a finalizer may call while its thread holds them: then an
        # error says so, and an interrupt leaves none of them locked.
        group = new_group()
        name = f"what this process hands in to {self._root.path}"
        self._lock = native.Mutex(RANK_LEAF, name, group)
        self._reading = native.Mutex(RANK_APPEND, f"the answers to {name}", group)

    # ------------------------------------------------------------ making one

    def ask(self, asked: Asked, timeout_ms: int | None) -> Answer:
        """Make a request, and wait for its answer. An interrupt has the names by which
        its outcome can be asked for. Raises: as `begin`, and the function it returns.
        """
        made: list[tuple[ProcessFile, int]] = []
        try:
            return self._begun(asked, timeout_ms, time.monotonic(), made)()
        except Exception:
            raise
        except BaseException as error:
            if made and "outcome" not in vars(error):
                self._interrupted_beside(asked, *made[-1], error)
            raise

    def begin(
        self, asked: Asked, timeout_ms: int | None, since: float
    ) -> Callable[[], Answer]:
        """Make a request. Returns a function that waits for its answer, and is called
        once, by the same thread.

        Args:
            timeout_ms: how long to wait for the owner, in milliseconds; None: no limit.
            since: the time from which on that counts, by `time.monotonic`.

        Raises:
            ConfigError: it is too large.
            PublicationTimeoutError: there was no answer in time.
            StoreLockedError: another program than logstore has the store.
            LogStoreError: the answer.
        """
        return self._begun(asked, timeout_ms, since, [])

    def _begun(
        self,
        asked: Asked,
        timeout_ms: int | None,
        since: float,
        made: list[tuple[ProcessFile, int]],
    ) -> Callable[[], Answer]:
        """The same; `made` gets the file and the number of the request, before there is
        one."""
        wait_s = math.inf if timeout_ms is None else timeout_ms / 1000
        deadline = since + wait_s
        content = asked.packed()
        if len(content) > REQUEST_BYTES_MAX:
            raise ConfigError(
                f"a request has {len(content)} bytes, more than "
                f"{REQUEST_BYTES_MAX}; nothing was handed in. Hand in fewer "
                "records at once",
                name="staged",
            )
        with storage_errors("hand in to", self._root.path, "Nothing was handed in."):
            pending = self._made(asked, content, deadline, timeout_ms or 0, made)
        return lambda: self._finish(pending, deadline, timeout_ms or 0)

    def _finish(self, pending: _Pending, deadline: float, timeout_ms: int) -> Answer:
        is_over = False
        try:
            with storage_errors("wait for an answer in", self._root.path):
                answer = self._waited(pending, deadline, timeout_ms)
            is_over = True
        except BaseException as error:
            if not is_over:
                self._interrupted(pending, error, timeout_ms)
            raise
        finally:
            self._end(pending)
        if answer.error is not None:
            raise answer.error
        if answer.is_short:
            remembered_answer = self._remembered(pending)
            return (
                answer
                if remembered_answer is None
                else remembered_answer._replace(is_new=answer.is_new)
            )
        return answer

    def _remembered(self, pending: _Pending) -> Answer | None:
        """The answer to a request that was carried out, from the remembered entry."""
        with storage_errors("read", self._root.path):
            outcome = self._publications.outcome(*pending.name)
        entry = outcome.entry
        if entry is None:
            return None
        if pending.is_named:
            return Answer(
                None, entry.records, (), False, entry.note, entry.metadata,
                entry.is_pinned,
            )  # fmt: skip
        spans = entry.call(pending.slot.number) or {}
        records = sum(map(len, spans.values()))
        return Answer(None, records, tuple(spans.items()), is_new=True)

    def _may_be_done(self, name: tuple[str, int]) -> bool:
        try:
            outcome = self._publications.outcome(*name)
        except (LogStoreError, OSError):
            return True
        return outcome.entry is not None or not outcome.is_known

    def _made(
        self,
        asked: Asked,
        content: bytes,
        deadline: float,
        timeout_ms: int,
        made: list[tuple[ProcessFile, int]],
    ) -> _Pending:
        while True:
            with self._lock:
                file = self._opened()
                takes = self._takes
                made.append((file, file.next_number))
                try:
                    slot = file.put(content)
                except FilesGoneError:
                    self._file = None
                    continue
                if slot is not None:
                    pending = _Pending(asked, file, slot, takes)
                    self._pending[slot.number] = pending
                    return pending
                file.free_others(self._pending)
                # Its answer makes room, which this thread may have to read.
                oldest = self._pending.get(min(self._pending, default=0))
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise PublicationTimeoutError(
                    *_name_of(asked, file, 0),
                    timeout_ms=timeout_ms,
                    outcome="not written",
                    holder=state_of(self._root).holder,
                )
            if oldest is None:
                time.sleep(min(rest, _ROOM_LOOK_S))
            else:
                self._step(oldest, min(rest, _LOOK_S))
                oldest.wake()  # for its own thread, and others that wait for its place

    def _opened(self) -> ProcessFile:
        """The file of this process; made by its first request."""
        if self._is_closed:
            raise StoreClosedError(f"store {self._root.path} is closed")
        pid = os.getpid()
        file = self._file
        if file is not None and self._pid != pid:
            raise ForkedError(
                f"store {self._root.path} was opened before a fork; open it in the "
                f"child"
            )
        if file is None:
            files = self._root.files
            process = files.process_id()
            about = {
                "pid": process.pid,
                "start": process.start,
                "boot": process.boot.hex(),
                "host": files.host(),
                "program": program(),
            }
            file = ProcessFile(self._root, os.urandom(16).hex(), about)
            wakeups = Wakeups(
                files, watches=[Watch(file.answers_fd, native.WATCH_WRITES)]
            )
            self._lock_watch = wakeups.add(Watch(self._root, native.WATCH_CLOSES, LOCK))
            self._era = object()
            self._file, self._wakeups, self._pid = file, wakeups, pid
        return file

    def has_owner(self) -> bool:
        """Whether an owner was seen, and has not ended since, as far as is reported."""
        wakeups = self._wakeups
        if wakeups is None or self._seen is not self._era:
            return False
        with self._reading.attempt() as is_free:
            # Else another thread waits for the reports.
            if is_free:
                self._take(wakeups, 0.0)
                self._wake_answered()
        return self._seen is self._era

    # ------------------------------------------------------------ waiting

    def _waited(self, pending: _Pending, deadline: float, timeout_ms: int) -> Answer:
        """The answer to a request."""
        path, begun, look_s = self._root.path, time.monotonic(), _TOLD_S
        now, look_at_owner = begun, self._seen is not self._era
        while pending.answer is None:
            if self._is_closed:
                raise StoreClosedError(f"store {path} is closed")
            if now >= deadline:
                return self._too_late(pending, deadline, timeout_ms)
            if look_at_owner:
                self._check_owner(pending)
            if now - begun >= look_s:
                if look_s == _TOLD_S:
                    self._tell(deadline, timeout_ms)
                look_s *= 2
                remembered = self._remembered(pending)
                if remembered is not None:
                    return remembered
            look_at_owner = self._step(pending, min(deadline - now, _LOOK_S))
            now = time.monotonic()
        return answer_in(path, pending.answer)

    def _step(self, pending: _Pending, seconds: float) -> bool:
        """Wait until something may have changed. Returns whether the owner may have
        ended."""
        may_have_ended = False
        with self._reading.attempt() as is_free:
            if is_free:
                may_have_ended = self._read(pending, seconds)
        if is_free:
            pending.wait(0)
            if self._pending:
                self._hand_on()
        elif not pending.wait(seconds):
            may_have_ended = True
            self._answer_of(pending)
        return may_have_ended

    def _answer_of(self, pending: _Pending) -> bytes | None:
        if pending.answer is None:
            content = pending.file.answer(pending.slot)
            # First the answer, then its place, which another request may take.
            if content is not None and pending.answer is None:
                pending.answer = content
                self._end(pending)
        return pending.answer

    def _read(self, mine: _Pending, seconds: float) -> bool:
        """Wait for reports, and wake the threads whose answers are there. Returns
        whether the owner may have ended."""
        wakeups = self._wakeups
        assert wakeups is not None
        is_reporting = wakeups.is_reporting
        # Another thread may have taken the report of its answer.
        may_be_there = mine.takes != self._takes or not is_reporting
        if may_be_there and self._answer_of(mine) is not None:
            return False
        if not is_reporting:
            seconds = min(seconds, _UNREPORTED_S)
        may_have_ended = self._take(wakeups, seconds)
        self._answer_of(mine)
        mine.takes = self._takes
        self._wake_answered()
        return may_have_ended

    def _wake_answered(self) -> None:
        """Reports were taken: wake the threads whose answers are there."""
        for pending in list(self._pending.values()):
            self._answer_of(pending)

    def _take(self, wakeups: Wakeups, seconds: float) -> bool:
        """Wait for reports, and take them. Returns whether the owner may have ended."""
        is_seen = False
        try:
            # First: a thread whose answer was reported finds it.
            self._takes += 1
            reports = wakeups.taken_within(seconds)
            numbers = None if reports is None else [number for number, _ in reports]
            is_seen = numbers is not None and self._lock_watch not in numbers
            return not (is_seen and numbers)
        finally:
            # Also after an interrupt, which may have lost reports.
            if not is_seen:
                self._era = object()

    def _hand_on(self) -> None:
        """Let another thread that waits read the reports."""
        for pending in list(self._pending.values()):
            if pending.answer is None and not pending.is_woken:
                pending.wake()
                return

    def _check_owner(self, pending: _Pending) -> None:
        """Become the owner if no process is.

        Raises:
            StoreLockedError: another program has the store, and the request is
                withdrawn.
        """
        era, state = self._era, state_of(self._root)
        if state.holder is not None:
            error = waits_for_itself(self._root, state.holder)
            if error is not None:
                raise error
            if self._lock_watch is not None:
                self._seen = era
            return
        self._seen = None
        if state.is_changing:
            return
        holder = writer_of(self._root)
        if holder is None:
            self._become_owner()
            return
        if self._is_foreign(holder) and self._withdraw(
            pending.file, pending.slot, pending.name
        ):
            raise StoreLockedError(
                f"store {self._root.path} is open for writing in process {holder} of "
                f"another program than logstore, such as a Kafka broker, which takes "
                f"no requests; nothing was written",
                path=self._root.path,
                holder_pid=holder or None,
            )

    def _is_foreign(self, holder: int) -> bool:
        """Whether a holder that does not describe itself is another program. One that
        was killed may have lost its record a moment before its lock."""
        deadline = time.monotonic() + _DYING_S
        while writer_of(self._root) == holder:
            state = state_of(self._root)
            if state.holder is not None or state.is_changing:
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(_DYING_LOOK_S)
        return False

    def _tell(self, deadline: float, timeout_ms: int) -> None:
        holder = state_of(self._root).holder
        if holder is None:
            whom = "an owner"
        elif holder.pid == os.getpid():
            whom = "this process itself, which is taking the store over"
        else:
            whom = f"process {holder.pid}{description(holder)}"
            if holder.doing == OWNER and not holder.publishes_for_others:
                whom += ", which does not publish for others"
        long = "" if deadline == math.inf else f", for {timeout_ms / 1000:g} s at most"
        logger.warning("a request to %s waits for %s%s", self._root.path, whom, long)

    # ------------------------------------------------------------ the end

    def _withdraw(self, file: ProcessFile, slot: Slot, name: tuple[str, int]) -> bool:
        """Whether a request will never be carried out."""
        with self._lock, contextlib.suppress(OSError):
            return file.withdraw(slot, lambda: self._may_be_done(name))
        return False

    def _too_late(self, pending: _Pending, deadline: float, timeout_ms: int) -> Answer:
        identity, sequence = pending.name
        holder = state_of(self._root).holder
        if self._withdraw(pending.file, pending.slot, pending.name):
            raise PublicationTimeoutError(
                identity, sequence, timeout_ms=timeout_ms, outcome="not written",
                holder=holder,
            )  # fmt: skip
        while (content := self._answer_of(pending)) is None:
            if time.monotonic() >= deadline + _GRACE_S:
                break
            time.sleep(0.001)
        else:
            return answer_in(self._root.path, content)
        answer = self._remembered(pending)
        if answer is not None:
            return answer
        raise PublicationTimeoutError(
            identity, sequence, timeout_ms=timeout_ms, holder=holder
        )

    def _interrupted(
        self, pending: _Pending, error: BaseException, timeout_ms: int
    ) -> None:
        """A call that ends without an answer takes the request back. An interrupt
        has the names by which its outcome can be asked for.

        Raises:
            PublicationTimeoutError: in place of another error, which would say that
                nothing was written: the owner has begun with it.
        """
        if isinstance(error, PublicationTimeoutError):
            return  # it says itself what came of it
        is_withdrawn = self._withdraw(pending.file, pending.slot, pending.name)
        if not isinstance(error, LogStoreError):
            _tell_interrupt(error, pending.name, is_withdrawn)
        elif not is_withdrawn and not isinstance(error, StoreLockedError):
            raise PublicationTimeoutError(
                *pending.name, timeout_ms=timeout_ms
            ) from error

    def _interrupted_beside(
        self, asked: Asked, file: ProcessFile, number: int, error: BaseException
    ) -> None:
        """The same for an interrupt that came before or after the wait."""
        name, slot = _name_of(asked, file, number), file.waiting(number)
        is_safe = slot is None and number >= file.next_number
        if slot is not None:
            is_safe = self._withdraw(file, slot, name)
            pending = self._pending.get(number)
            if pending is not None and pending.file is file:
                self._end(pending)
            elif is_safe:
                file.free(slot)
        _tell_interrupt(error, name, is_safe)

    def _end(self, pending: _Pending) -> None:
        # Without the lock: the two steps need none, and this may be called from inside
        # of a call that holds it.
        number = pending.slot.number
        # A request in other files may have its number.
        if self._pending.get(number) is pending:
            self._pending.pop(number, None)
        pending.file.free(pending.slot)
        # Its own thread, and one that waits for its place.
        pending.wake()

    def close(self) -> None:
        """Make no more requests, and remove the file. Calls of other threads that wait
        take their requests back."""
        self._is_closed = True
        deadline = time.monotonic() + _CLOSE_S
        while self._pending and time.monotonic() < deadline:
            for pending in list(self._pending.values()):
                pending.wake()
            time.sleep(_ROOM_LOOK_S)
        file, wakeups = self._taken_out()
        if file is not None:
            if self._pid == os.getpid():
                file.close()
            else:
                file.abandon()
        if wakeups is not None:
            wakeups.close()

    def _taken_out(self) -> tuple[ProcessFile | None, Wakeups | None]:
        """Take out the files, which are used no more. The caller may hold a lock of the
        store, and so must not block on this lock; its holders wait for no other lock.

        Raises:
            ReentrantCallError: this thread itself holds it.
        """
        while True:
            if self._lock.is_mine:
                raise ReentrantCallError(
                    f"store {self._root.path} was closed from inside an append of this "
                    f"thread"
                )
            with self._lock.attempt() as is_mine:
                if is_mine:
                    file, self._file = self._file, None
                    wakeups, self._wakeups = self._wakeups, None
                    return file, wakeups
            time.sleep(_ROOM_LOOK_S)

    def after_fork(self) -> None:
        """In the child of a fork: the file is the parent's."""
        self._make_locks()
        self._pending = {}
        file, self._file, self._wakeups = self._file, None, None
        if file is not None:
            file.abandon()
