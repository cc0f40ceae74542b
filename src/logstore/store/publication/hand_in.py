"""Hand-in: a process that has not the store's lock has its records published.

    requester                               owner (publish_for_others)
    takes the lock if it is free, and publishes; else
    renames a request into the root         sees the name, and reads the request
    waits for an answer in it               publishes it, with all others that wait
                                            appends the answer, unlinks the request
    returns, or raises the answer

What decides whether something was published is what the store remembers of identities:
a request that is handed in again, or served by two owners one after the other, is
published once. If the owner ends, the requester sees its lock fall, and becomes the
publisher. So nothing depends on one process.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    CorruptCheckpointError,
    LogStoreError,
    PublicationTimeoutError,
    StorageError,
    StoreClosedError,
    StoreLockedError,
    storage_errors,
)
from logstore.io import layout
from logstore.io.checkpoint.requests import (
    Answer,
    OpenRequest,
    RequestFile,
    is_request,
    pack_request,
    request_name,
    unique_part,
)
from logstore.io.directory import Directory
from logstore.io.lock import holder_of
from logstore.io.wakeups import ServiceThread, Wakeups, Watch
from logstore.log.write.staged_files import Staged, StagedLog, logs_of
from logstore.store.publication.publication import (
    Outcome,
    Publication,
    PublicationRequest,
    request_of,
)
from logstore.store.publication.publisher import Publisher

__all__ = ["HandIn", "OwnerWatch", "hand_in"]

# How often a requester looks by itself whether the lock is free, and whether there is
# an answer, in case a report was missed.
_LOOK_S: Final = 0.1
# The same for an answer where changes of files are not reported at all.
_UNREPORTED_S: Final = 0.01
# The pause of the owner's thread after an error.
_PAUSE_S: Final = 0.05
# The lock falls a moment after its file was closed.
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.001
# So many are open at once, and published in one commit.
_REQUESTS_MAX: Final = 64
# Somebody may remove requests before they have their name (`Store.discard_staged`).
_REQUEST_TRIES: Final = 3


# ------------------------------------------------------------------ of the owner


class _Waiting:
    """A request that waits in the root.

    Attributes:
        file: is open.
        request: what it asks for; None: it is refused.
        error: why it is refused.
    """

    __slots__ = ("error", "file", "request")

    def __init__(self, root: Directory, name: str) -> None:
        self.request: PublicationRequest | None = None
        self.error: LogStoreError | None = None
        self.file = OpenRequest(root, name)
        found = self.file.request
        try:
            logs = logs_of([Staged(tuple(StagedLog(*row) for row in found.logs))])
            self.request = request_of(
                logs,
                found.identity,
                found.sequence,
                found.note,
                found.metadata,
                found.pinned,
            )
        except TypeError as error:
            self.error = StorageError(f"a row of {name} is no staged log: {error}")
        except LogStoreError as error:
            self.error = error


def waiting_requests(root: Directory, names: Iterable[str]) -> list[_Waiting]:
    """The requests of some names, in their order.

    One that is gone was answered. A damaged one is put aside: nobody knows what it asks
    for, and its staged records stay.
    """
    found: list[_Waiting] = []
    for name in names:
        try:
            one = _Waiting(root, name)
            if one.file.request.is_answered:
                # It could not be removed then. A second answer would be in the place
                # of the first one for a requester that is slow to read it.
                _remove(one)
            else:
                found.append(one)
        except FileNotFoundError:
            continue
        except CorruptCheckpointError as error:
            _put_aside(root, name, error)
        except (LogStoreError, OSError) as error:
            # As one of a later version: somebody else may read it.
            logger.warning("cannot read the request %s: %s", name, error)
    return found


def _names_in(root: Directory) -> list[str]:
    """The names of requests; none if they cannot be read, which must not stop the
    owner."""
    try:
        return [name for name in root.names() if is_request(name)]
    except OSError as error:
        logger.warning("cannot look for requests in %s: %s", root.path, error)
        return []


def _put_aside(root: Directory, name: str, error: CorruptCheckpointError) -> None:
    refused = layout.REFUSED_PREFIX + name.removeprefix(layout.REQUEST_PREFIX)
    try:
        root.rename(name, refused)
        logger.warning("%s; it is kept as %s", error, refused)
    except OSError as failure:
        logger.warning("%s; it cannot be renamed: %s", error, failure)


def _answer_of(outcome: Outcome) -> Answer:
    if isinstance(outcome, LogStoreError):
        return Answer(outcome)
    return Answer(
        None,
        outcome.records,
        tuple(outcome.offsets.items()),
        outcome.is_new,
        outcome.note,
        outcome.metadata,
        outcome.pinned,
    )


def _answer(one: _Waiting, answer: Answer) -> None:
    """Answer a request. It was decided: without an answer, the requester asks again,
    when the request is gone, and is told what was published."""
    try:
        one.file.answer(answer)
    except OSError as error:
        logger.warning("cannot answer the request %s: %s", one.file.name, error)


def _remove(one: _Waiting) -> None:
    try:
        one.file.remove()
    except OSError as error:
        logger.warning("cannot remove the request %s: %s", one.file.name, error)


def _log_error(error: BaseException) -> None:
    logger.exception("requests cannot be served", error=error)


class HandIn:
    """Publishes for the owner of a store, and for those that hand in to it. Any thread
    may call it.

    Its thread, if there is one, holds no reference to it while it waits.
    """

    def __init__(self, root: Directory, publisher: Publisher) -> None:
        self._root = root
        self._publisher = publisher
        self._thread = ServiceThread(root, "requests", self.serve, _log_error, _PAUSE_S)
        # Requests that may wait; the lock of publications guards them.
        self._names: set[str] = set()
        self._is_listed = False
        # The store was closed meanwhile.
        self._has_ended = False

    def start(self) -> None:
        """Publish for others from now on, in a thread.

        Raises:
            StorageError: no thread can be started.
        """
        self._thread.start(Watch(self._root, native.WATCH_RENAMES))

    def stop(self) -> None:
        """End the thread, after the publication that it may be at. May be called
        again."""
        self._thread.stop()

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there."""
        self._thread.abandon()

    def publish(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """Publish one's own requests, and in the same commit those that wait, unless
        the owner does not publish for others."""
        is_done = False
        with self._publisher.lock:
            try:
                outcomes = self._publish(own, self._waiting())
                is_done = not self._names
                return outcomes
            finally:
                if not is_done:
                    # This call has taken the reports of further requests; and an
                    # interrupt of this thread must not delay them.
                    self._thread.wake()

    def serve(self) -> None:
        """Publish what waits, until nothing does."""
        while not self._has_ended:
            with self._publisher.lock:
                waiting = self._waiting()
                if not waiting:
                    return
                self._publish([], waiting)

    def publish_as_last(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """As `publish`, by an owner that is about to end: also for those that wait, who
        would have to take the lock one after the other."""
        root, most = self._root, _REQUESTS_MAX
        with self._publisher.lock:
            names = sorted(_names_in(root))
            outcomes = self._publish(own, waiting_requests(root, names[:most]))
            for at in range(most, len(names), most):
                self._publish([], waiting_requests(root, names[at : at + most]))
            return outcomes

    def _publish(
        self, own: Sequence[PublicationRequest], waiting: Sequence[_Waiting]
    ) -> list[Outcome]:
        asked = [(one, one.request) for one in waiting if one.request is not None]
        requests = [*own, *(request for _, request in asked)]
        outcomes = self._publisher.publish_all(requests) if requests else []
        answered: list[_Waiting] = []
        for (one, _), outcome in zip(asked, outcomes[len(own) :], strict=True):
            if isinstance(outcome, StoreClosedError):
                # It is no answer: the next one who has the lock decides.
                self._has_ended = True
            else:
                _answer(one, _answer_of(outcome))
                answered.append(one)
        for one in waiting:
            if one.error is not None:
                _answer(one, Answer(one.error))
                answered.append(one)
        # Behind the answers: nobody waits for this.
        for one in answered:
            _remove(one)
        self._publisher.discard_used()
        self._names.difference_update([one.file.name for one in waiting])
        return outcomes[: len(own)]

    def _waiting(self) -> list[_Waiting]:
        """Requests that wait now, for an owner that publishes for others; empty only
        if none waits."""
        wakeups = self._thread.wakeups
        if wakeups is None:
            return []
        # An interrupt loses the reports: then the next call lists the names.
        is_listed, self._is_listed = self._is_listed, False
        reports = wakeups.take()
        if reports is None or not is_listed:
            # For names from before the watch, or not reported.
            names = _names_in(self._root)
        else:
            names = [name for _, name in reports]
        self._names.update(filter(is_request, names))
        self._is_listed = wakeups.is_reporting
        waiting: list[_Waiting] = []
        while self._names and not waiting:
            chosen = sorted(self._names)[:_REQUESTS_MAX]
            waiting = waiting_requests(self._root, chosen)
            if len(waiting) < len(chosen):
                self._names.difference_update(chosen)
                self._names.update([one.file.name for one in waiting])
        return waiting


# ------------------------------------------------------------------ of the requester


class OwnerWatch:
    """Wakes a requester by what the owner does: it answers a request, or its lock may
    have fallen. For one call after the other: the system takes long to end a watch
    (20 ms), and little to begin another one in it.

    The lock falls when its file is closed, also by the death of its holder; closing it
    is what is reported, a moment before.

    Attributes:
        is_held: the lock was held when a requester last looked, which sets it, and
            there was no report of its file since. Never where nothing is reported.
    """

    def __init__(self, root: Directory) -> None:
        self._wakeups = Wakeups(root.files)
        self._lock = self._wakeups.add(Watch(root, native.WATCH_CLOSES, layout.LOCK))
        self.is_held = False
        if self._lock is None:
            self._wakeups.close()

    def take(self) -> None:
        """Forget what was reported before, except that the lock may have fallen: the
        end of a file is reported, too, when it is closed."""
        reports = self._wakeups.take()
        if reports is None or any(number == self._lock for number, _ in reports):
            self.is_held = False

    def begin(self, fd: int) -> None:
        """Wait for changes of an open request, too, as long as it has a name."""
        self._wakeups.restart_pauses()
        if self._wakeups.add(Watch(fd, native.WATCH_FILE)) is None:
            self._wakeups.close()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`. Whether something may have changed; a report may be
        of an earlier request."""
        if not self._wakeups.is_reporting:
            seconds = min(seconds, _UNREPORTED_S)
        is_woken = self._wakeups.wait(seconds)
        if is_woken:
            self.take()
        return is_woken


def hand_in(
    root: Directory,
    request: PublicationRequest,
    timeout_ms: int | None,
    publish_as_owner: Callable[[PublicationRequest], Publication],
    watches: deque[OwnerWatch],
) -> Publication:
    """Have a request published by the process with the lock; see `Store.submit`.

    Args:
        watches: those that no call uses now.
        publish_as_owner: takes the lock and publishes, or raises `StoreLockedError`.
    """
    begun = time.monotonic()
    try:
        watch = watches.pop()
    except IndexError:
        watch = OwnerWatch(root)
    # If the lock falls behind this, `wait` tells.
    watch.take()
    if not watch.is_held:
        if _holder(root) is None:
            with contextlib.suppress(StoreLockedError):
                found = publish_as_owner(request)
                watches.append(watch)
                return found
        else:
            watch.is_held = True
    requester = _Requester(root, request, begun, timeout_ms, publish_as_owner, watch)
    found = requester.run()
    watches.append(watch)
    return found


def _holder(root: Directory) -> int | None:
    """The pid of the owner (0: unknown); None if there is none, or never was."""
    try:
        return holder_of(root)
    except FileNotFoundError:
        return None


class _Requester:
    """One call that waits for another process."""

    def __init__(
        self,
        root: Directory,
        request: PublicationRequest,
        begun: float,
        timeout_ms: int | None,
        publish_as_owner: Callable[[PublicationRequest], Publication],
        watch: OwnerWatch,
    ) -> None:
        self._root = root
        self._watch = watch
        self._request = request
        self._timeout_ms = timeout_ms
        self._deadline = None if timeout_ms is None else begun + timeout_ms / 1000
        self._publish_as_owner = publish_as_owner

    def run(self) -> Publication:
        """Hand the request in, again if it is lost, until it is answered."""
        note, pause_s = "Nothing was handed in.", _LOCK_PAUSE_S
        while True:
            file = self._handed_in(note)
            try:
                found = self._wait(file)
            finally:
                file.close()
            if found is not None:
                return found
            note = (
                "It was handed in before, and may have been published: submit the "
                "same again, and it is published once."
            )
            # Longer each time: others that hand in the same take the name in turn.
            time.sleep(min(self._rest(), pause_s))
            pause_s = min(2 * pause_s, _LOOK_S)

    def _handed_in(self, note: str) -> RequestFile:
        request = self._request
        unique = unique_part(request.logs[0].file if request.logs else "")
        data = pack_request([list(log) for log in request.logs], *request[1:])
        name = request_name(request.identity, request.sequence, unique)
        with storage_errors("write the request", self._root.path_of(name), note):
            for _ in range(_REQUEST_TRIES - 1):
                with contextlib.suppress(FileNotFoundError):
                    return RequestFile(self._root, name, data)
            return RequestFile(self._root, name, data)

    def _wait(self, file: RequestFile) -> Publication | None:
        """What came of the request; None: it is gone, without an answer."""
        self._watch.begin(file.fd)
        with storage_errors("read", self._root.path_of(file.name)):
            answer = file.answer()
            while answer is None:
                # What came before the watch but an answer is found a look later.
                is_reported = self._watch.wait(self._rest())
                answer = file.answer()
                if answer is not None:
                    break
                if not file.is_there:
                    # In this order: it is answered before it is unlinked.
                    answer = file.answer()
                    if answer is not None:
                        break
                    self._check_lost(file)
                    return None
                if is_reported and self._watch.is_held:
                    continue  # perhaps of the file before, which the owner closes late
                if _holder(self._root) is None:
                    found = self._take_over()
                    if found is not None:
                        file.remove()
                        return found
        return self._accept(answer)

    def _rest(self) -> float:
        """How long to wait for the next report, in seconds."""
        if self._deadline is None:
            return _LOOK_S
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise PublicationTimeoutError(
                self._request.identity,
                self._request.sequence,
                timeout_ms=self._timeout_ms or 0,
            )
        return min(rest, _LOOK_S)

    def _accept(self, answer: Answer) -> Publication:
        if answer.error is not None:
            raise answer.error
        return Publication(
            self._request.identity,
            self._request.sequence,
            answer.records,
            dict(answer.offsets),
            answer.is_new,
            answer.note,
            answer.metadata,
            answer.pinned,
        )

    def _check_lost(self, file: RequestFile) -> None:
        """Raise unless it was unlinked because the answer could not be written."""
        refused = layout.REFUSED_PREFIX + file.name.removeprefix(layout.REQUEST_PREFIX)
        if self._root.exists(refused):
            path = self._root.path_of(refused)
            raise CorruptCheckpointError(
                f"the request was found damaged, and is kept as {path}; nothing was "
                f"published, and the staged records are still there. Hand them in "
                f"again",
                path=path,
                reason="its checksum differs",
            )

    def _take_over(self) -> Publication | None:
        """Become the publisher; None: another process has."""
        for _ in range(_LOCK_TRIES):
            try:
                return self._publish_as_owner(self._request)
            except StoreLockedError:
                if _holder(self._root) is not None:
                    return None
            time.sleep(_LOCK_PAUSE_S)
        return None
