"""The requests of one process that has not the lock of the store: they are made, waited
for, and taken back (the side of the owner: `serving`).

Any number of threads make requests at once. Each has a number, in the order in which
they stand in the file of the process; the owner carries them out in that order. One of
the threads that wait reads what the system reports, and wakes the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    ForkedError,
    LogStoreError,
    PublicationTimeoutError,
    StoreClosedError,
    StoreLockedError,
    storage_errors,
)
from logstore.io.checkpoint.process_requests import ProcessFile, Slot
from logstore.io.checkpoint.publications import Outcome
from logstore.io.checkpoint.requests import Answer
from logstore.io.directory import Directory
from logstore.io.layout import LOCK
from logstore.io.lock import description, holder_of
from logstore.io.lock_record import OWNER, program, state_of
from logstore.io.wakeups import Wakeups, Watch
from logstore.log.write.calls import Append, Creation, answer_in, identity_of
from logstore.store.hand_in.own_owner import waits_for_itself

__all__ = ["Requester"]

# How often a waiter looks by itself whether there is an owner, and an answer.
_LOOK_S: Final = 0.1
_UNREPORTED_S: Final = 0.01
# After the end of the time an owner that has taken a request may still answer it.
_GRACE_S: Final = 0.2
# Calls that wait when the store is closed have so long to take their requests back.
_CLOSE_S: Final = 5.0
# A longer wait is logged, once.
_TOLD_S: Final = 1.0


class _Pending:
    """A request that waits for its answer."""

    __slots__ = ("answer", "file", "is_woken", "slot")

    def __init__(self, file: ProcessFile, slot: Slot) -> None:
        self.file, self.slot = file, slot
        self.answer: bytes | None = None
        self.is_woken = threading.Event()


class Requester:
    """Makes requests of the owner of a store. Any thread may call it.

    Args:
        become_owner: begins to take the lock of the store, if it is free, to carry out
            what waits.
        outcome_of: what the store remembers of a request of an identity.
    """

    def __init__(
        self,
        root: Directory,
        become_owner: Callable[[], None],
        outcome_of: Callable[[str, int], Outcome],
    ) -> None:
        self._root = root
        self._outcome_of = outcome_of
        self._become_owner = become_owner
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._reading = threading.Lock()
        self._file: ProcessFile | None = None
        self._wakeups: Wakeups | None = None
        self._lock_watch: int | None = None
        self._pending: dict[int, _Pending] = {}
        self._pid = -1
        self._is_closed = False

    # ------------------------------------------------------------ making one

    def begin(self, asked: Append | Creation, timeout_ms: int) -> Callable[[], Answer]:
        """Make a request. Returns a function that waits for its answer, and is called
        once, by the same thread.

        Raises:
            PublicationTimeoutError: there was no answer in time.
            StoreLockedError: another program than logstore has the store.
            LogStoreError: the answer.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        content = asked.packed()
        with storage_errors("hand in to", self._root.path, "Nothing was handed in."):
            pending = self._made(content, deadline, timeout_ms)
        return lambda: self._finish(pending, deadline, timeout_ms)

    def _finish(self, pending: _Pending, deadline: float, timeout_ms: int) -> Answer:
        is_over = False
        try:
            answer = self._waited(pending, deadline, timeout_ms)
            is_over = True
        except BaseException as error:
            if not is_over:
                self._interrupted(pending, error)
            raise
        finally:
            self._end(pending)
        if answer.error is not None:
            raise answer.error
        if answer.records and not answer.offsets:
            # They were too many for the answer.
            return self._remembered(pending) or answer
        return answer

    def _remembered(self, pending: _Pending) -> Answer | None:
        """The answer to a request that was carried out, from what is remembered."""
        identity, number = identity_of(pending.file.id), pending.slot.number
        with storage_errors("read", self._root.path):
            spans = self._outcome_of(identity, number).spans
        if spans is None:
            return None
        records = sum(map(len, spans.values()))
        return Answer(None, records, tuple(spans.items()), is_new=True)

    def _may_be_done(self, pending: _Pending) -> bool:
        identity, number = identity_of(pending.file.id), pending.slot.number
        try:
            found = self._outcome_of(identity, number)
        except (LogStoreError, OSError):
            return True
        return found.spans is not None or not found.is_known

    def _made(self, content: bytes, deadline: float, timeout_ms: int) -> _Pending:
        with self._has_room:
            while True:
                file = self._opened()
                slot = file.put(content)
                if slot is not None:
                    pending = self._pending[slot.number] = _Pending(file, slot)
                    return pending
                rest = deadline - time.monotonic()
                if rest <= 0:
                    raise PublicationTimeoutError(
                        identity_of(file.id),
                        0,
                        timeout_ms=timeout_ms,
                        outcome="not written",
                        holder=state_of(self._root).holder,
                    )
                if not self._pending:
                    self._has_room.wait(min(rest, _LOOK_S))
                    continue
                # Its answer makes room, which this thread may have to read.
                oldest = self._pending[min(self._pending)]
                self._lock.release()
                try:
                    self._step(oldest, min(rest, _LOOK_S))
                finally:
                    self._lock.acquire()

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
        if file is None or not file.is_there:
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
            self._file, self._wakeups, self._pid = file, wakeups, pid
        return file

    # ------------------------------------------------------------ waiting

    def _waited(self, pending: _Pending, deadline: float, timeout_ms: int) -> Answer:
        """The answer to a request."""
        path, begun, is_told = self._root.path, time.monotonic(), False
        look_at_owner = True
        while True:
            content = pending.answer or self._answer_of(pending)
            if content is not None:
                return answer_in(path, content)
            now = time.monotonic()
            if self._is_closed:
                raise StoreClosedError(f"store {path} is closed")
            if now >= deadline:
                return self._too_late(pending, timeout_ms)
            if look_at_owner:
                look_at_owner = False
                self._check_owner(pending)
            if now - begun >= _TOLD_S and not is_told:
                is_told = True
                self._tell(timeout_ms)
            look_at_owner = self._step(pending, min(deadline - now, _LOOK_S))

    def _step(self, pending: _Pending, seconds: float) -> bool:
        """Wait until something may have changed. Returns whether the owner may have
        ended."""
        may_have_ended = False
        if self._reading.acquire(blocking=False):
            try:
                may_have_ended = self._read(pending, seconds)
            finally:
                self._reading.release()
            self._hand_on()
        elif not pending.is_woken.wait(seconds):
            may_have_ended = True
        pending.is_woken.clear()
        return may_have_ended

    def _answer_of(self, pending: _Pending) -> bytes | None:
        content = pending.file.answer(pending.slot)
        if content is not None and pending.answer is None:
            pending.answer = content
            self._end(pending)
        return content

    def _read(self, mine: _Pending, seconds: float) -> bool:
        """Wait for reports, and wake the threads whose answers are there. Returns
        whether the owner may have ended."""
        wakeups = self._wakeups
        assert wakeups is not None
        if self._answer_of(mine) is not None:
            return False
        if not wakeups.is_reporting:
            seconds = min(seconds, _UNREPORTED_S)
        is_reported = wakeups.wait(seconds)
        reports = wakeups.take() if is_reported else ()
        for pending in list(self._pending.values()):
            if pending is not mine and self._answer_of(pending) is not None:
                pending.is_woken.set()
        return not reports or any(number == self._lock_watch for number, _ in reports)

    def _hand_on(self) -> None:
        """Let another thread that waits read the reports."""
        for pending in list(self._pending.values()):
            if pending.answer is None and not pending.is_woken.is_set():
                pending.is_woken.set()
                return

    def _check_owner(self, pending: _Pending) -> None:
        """Become the owner if there is none.

        Raises:
            StoreLockedError: another program has the store, and the request is
                withdrawn.
        """
        state = state_of(self._root)
        if state.holder is not None:
            error = waits_for_itself(self._root, state.holder)
            if error is not None:
                raise error
            return
        if state.is_changing:
            return
        holder = self._holder()
        if holder is None:
            self._become_owner()
            return
        again = state_of(self._root)
        is_known = again.holder is not None or again.is_changing
        if not is_known and self._holder() == holder and self._withdraw(pending):
            raise StoreLockedError(
                f"store {self._root.path} is open for writing in process {holder} of "
                f"another program than logstore, such as a Kafka broker, which takes "
                f"no requests; nothing was written",
                path=self._root.path,
                holder_pid=holder or None,
            )

    def _holder(self) -> int | None:
        try:
            return holder_of(self._root)
        except FileNotFoundError:
            return None

    def _tell(self, timeout_ms: int) -> None:
        holder = state_of(self._root).holder
        if holder is None:
            whom = "an owner"
        else:
            whom = f"process {holder.pid}{description(holder)}"
            if holder.doing == OWNER and not holder.publishes_for_others:
                whom += ", which does not publish for others,"
        logger.warning(
            "a request to %s waits for %s, for %g s at most",
            self._root.path,
            whom,
            timeout_ms / 1000,
        )

    # ------------------------------------------------------------ the end

    def _withdraw(self, pending: _Pending) -> bool:
        """Whether a request will never be carried out."""
        with self._lock, contextlib.suppress(OSError):
            return pending.file.withdraw(
                pending.slot, lambda: self._may_be_done(pending)
            )
        return False

    def _too_late(self, pending: _Pending, timeout_ms: int) -> Answer:
        identity, number = identity_of(pending.file.id), pending.slot.number
        holder = state_of(self._root).holder
        if self._withdraw(pending):
            raise PublicationTimeoutError(
                identity, number, timeout_ms=timeout_ms, outcome="not written",
                holder=holder,
            )  # fmt: skip
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            content = self._answer_of(pending)
            if content is not None:
                return answer_in(self._root.path, content)
            time.sleep(0.001)
        answer = self._remembered(pending)
        if answer is not None:
            return answer
        raise PublicationTimeoutError(
            identity, number, timeout_ms=timeout_ms, holder=holder
        )

    def _interrupted(self, pending: _Pending, error: BaseException) -> None:
        """A call that ends without an answer takes the request back. An interrupt
        has the names by which its outcome can be asked for."""
        outcome = "not written" if self._withdraw(pending) else "unknown"
        if isinstance(error, LogStoreError):
            return
        facts = vars(error)
        facts["identity"] = identity_of(pending.file.id)
        facts["sequence"] = pending.slot.number
        facts["outcome"] = outcome

    def _end(self, pending: _Pending) -> None:
        with self._has_room:
            if self._pending.pop(pending.slot.number, None) is not None:
                pending.file.free(pending.slot)
                self._has_room.notify_all()

    def close(self) -> None:
        """Make no more requests, and remove the file. Calls of other threads that wait
        take their requests back."""
        with self._has_room:
            self._is_closed = True
            for pending in self._pending.values():
                pending.is_woken.set()
            deadline = time.monotonic() + _CLOSE_S
            while self._pending and time.monotonic() < deadline:
                self._has_room.wait(_LOOK_S)
            file, self._file = self._file, None
            wakeups, self._wakeups = self._wakeups, None
        if file is not None:
            if self._pid == os.getpid():
                file.close()
            else:
                file.abandon()
        if wakeups is not None:
            wakeups.close()

    def after_fork(self) -> None:
        """In the child of a fork: the file is the parent's."""
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._reading = threading.Lock()
        self._pending = {}
        file, self._file, self._wakeups = self._file, None, None
        if file is not None:
            file.abandon()
