"""The owner's side of hand-in: it publishes what it is asked for itself, and what other
processes ask for, in one commit.

    requester                               owner (publish_for_others)
    renames a request into the root, or     sees the name, or the change, and reads it
    changes the file of its process
    waits for an answer                     publishes it, with all others that wait
                                            answers
    returns, or raises the answer

The store remembers identities, and so decides whether something was published: a
request that is handed in again, or served by two owners one after the other, is
published once. If the owner ends, the requester sees its lock fall, and becomes the
publisher. So nothing depends on one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    LogStoreError,
    StorageError,
    StoreClosedError,
)
from logstore.io import layout
from logstore.io.checkpoint.requests import (
    Answer,
    OpenRequest,
    is_request,
)
from logstore.io.directory import Directory
from logstore.io.wakeups import ServiceThread, Watch
from logstore.log.write.calls import Creation, OutdatedChoiceError
from logstore.log.write.staged_files import Staged, StagedLog, logs_of
from logstore.store.hand_in.served_processes import Call, ServedProcesses
from logstore.store.publication.publication import (
    Outcome,
    PublicationRequest,
    request_of,
)
from logstore.store.publication.publisher import Publisher

__all__ = ["HandIn"]

# The pause of the owner's thread after an error.
_PAUSE_S: Final = 0.05
# So many are open at once, and published in one commit.
_REQUESTS_MAX: Final = 64


class _Waiting:
    """A request that waits in the root.

    Attributes:
        name: of its file.
        file: is open.
        request: what it asks for; None: it is refused.
        error: why it is refused.
    """

    __slots__ = ("answer", "error", "file", "name", "remove", "request")

    def __init__(self, root: Directory, name: str) -> None:
        self.name = name
        self.request: PublicationRequest | None = None
        self.error: LogStoreError | None = None
        self.file = OpenRequest(root, name)
        self.answer, self.remove = self.file.answer, self.file.remove
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


def _put_aside(root: Directory, name: str, error: CorruptCheckpointError) -> None:
    refused = layout.REFUSED_PREFIX + name.removeprefix(layout.REQUEST_PREFIX)
    try:
        root.rename(name, refused)
        logger.warning("%s; it is kept as %s", error, refused)
    except OSError as failure:
        logger.warning("%s; it cannot be renamed: %s", error, failure)


def _answer_of(outcome: Outcome) -> Answer:
    if isinstance(outcome, OutdatedChoiceError):
        return Answer(None, is_outdated=True)
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


def _answer(one: _Waiting | Call, answer: Answer) -> None:
    """Answer a request. It was decided: without an answer, the requester asks again,
    when the request is gone, and is told what was published."""
    try:
        one.answer(answer)
    except OSError as error:
        logger.warning("cannot answer a request in %s: %s", one.name, error)


def _remove(one: _Waiting | Call) -> None:
    try:
        one.remove()
    except OSError as error:
        logger.warning("cannot remove the request %s: %s", one.name, error)


def _log_error(error: BaseException) -> None:
    logger.exception("requests cannot be served", error=error)


class HandIn:
    """Publishes for the owner of a store, and for those that hand in to it. Any thread
    may call it.

    Its thread, if there is one, holds no reference to it while it waits.

    Attributes:
        served: how many requests of others it has answered.
    """

    def __init__(
        self,
        root: Directory,
        publisher: Publisher,
        create: Callable[[Creation], object],
    ) -> None:
        self._root = root
        self._publisher = publisher
        self._create = create
        self._thread = ServiceThread(root, "requests", self.serve, _log_error, _PAUSE_S)
        # Requests that may wait; names are taken out with the lock of publications.
        self._names: set[str] = set()
        self._processes = ServedProcesses(
            root, lambda: self._thread.wakeups, publisher.process_ended
        )
        # Requests for topics, which are made without that lock.
        self._creations: deque[Call] = deque()
        self._is_listed = False
        # The store was closed meanwhile.
        self._has_ended = False
        # How many requests it has answered.
        self.served = 0

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
        with self._publisher.lock:
            self._processes.close()

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there."""
        self._thread.abandon()
        self._processes.abandon()

    def publish(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """Publish one's own requests, and in the same commit those that wait, unless
        the owner does not publish for others."""
        is_done = False
        with self._publisher.lock:
            try:
                outcomes = self._publish(own, self._waiting())
                is_done = not (self._names or self._creations)
                is_done = is_done and self._processes.is_idle
                return outcomes
            finally:
                if not is_done:
                    # This call has taken the reports of further requests; and an
                    # interrupt of this thread must not delay them.
                    self._thread.wake()

    def serve(self) -> None:
        """Publish what waits, until nothing does."""
        # Without a lock as long as nothing waits: others may hold it, and must not find
        # it held from inside a call of theirs.
        # A topic may be asked for by a request that a call of the owner has taken.
        while not self._has_ended and (self._look() or self._creations):
            with self._publisher.lock:
                waiting = self._waiting()
                if waiting:
                    self._publish([], waiting)
            if self._creations:
                self._create_topics()

    def _create_topics(self) -> None:
        """Create the topics that other processes have asked for."""
        while self._creations:
            call = self._creations.popleft()
            assert call.creation is not None
            try:
                self._create(call.creation)
                answer = Answer(None, is_new=True)
            except LogStoreError as error:
                answer = Answer(error)
            except TypeError as error:
                answer = Answer(ConfigError(f"{error}; nothing was created"))
            _answer(call, answer)
            self.served += 1

    def publish_as_last(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """As `publish`, by an owner that is about to end: also for those that wait, who
        would have to take the lock one after the other."""
        root, most = self._root, _REQUESTS_MAX
        with self._publisher.lock:
            names = sorted(filter(is_request, self._names_in()))
            outcomes = self._publish(own, waiting_requests(root, names[:most]))
            for at in range(most, len(names), most):
                self._publish([], waiting_requests(root, names[at : at + most]))
            return outcomes

    def _publish(
        self, own: Sequence[PublicationRequest], waiting: Sequence[_Waiting | Call]
    ) -> list[Outcome]:
        asked = [(one, one.request) for one in waiting if one.request is not None]
        requests = [*own, *(request for _, request in asked)]
        outcomes = self._publisher.publish_all(requests) if requests else []
        answered: list[_Waiting | Call] = []
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
        self.served += len(answered)
        # After the answers: no process waits for this.
        for one in answered:
            _remove(one)
        self._publisher.discard_used()
        self._names.difference_update([one.name for one in waiting])
        return outcomes[: len(own)]

    def _waiting(self) -> list[_Waiting | Call]:
        """Requests that wait now, for an owner that publishes for others; empty only
        if none waits."""
        if not self._look():
            return []
        processes = self._processes
        waiting: list[_Waiting | Call] = []
        while self._names and not waiting:
            chosen = sorted(self._names)[:_REQUESTS_MAX]
            waiting += waiting_requests(self._root, chosen)
            if len(waiting) < len(chosen):
                self._names.difference_update(chosen)
                self._names.update([one.name for one in waiting])
        for call in processes.take(_REQUESTS_MAX - len(waiting)):
            if call.creation is not None:
                call.keep()
                self._creations.append(call)
            else:
                waiting.append(call)
        return waiting

    def _look(self) -> bool:
        """Note what the system has reported. Returns whether a request may wait."""
        wakeups = self._thread.wakeups
        if wakeups is None:
            return False
        processes = self._processes
        # An interrupt loses the reports: then the next call lists the names.
        is_listed, self._is_listed = self._is_listed, False
        reports = wakeups.take()
        if reports is None or not is_listed:
            # For names from before the watch, or not reported.
            names = self._names_in()
            processes.look_at_all()
        else:
            names = [name for _, name in reports]
            for number, _ in reports:
                processes.reported(number)
        self._names.update(filter(is_request, names))
        processes.note(names)
        self._is_listed = wakeups.is_reporting
        return bool(self._names) or not processes.is_idle

    def _names_in(self) -> list[str]:
        """The names in the root; none if they cannot be read, which must not stop the
        owner."""
        try:
            return self._root.names()
        except OSError as error:
            logger.warning("cannot look for requests in %s: %s", self._root.path, error)
            return []
