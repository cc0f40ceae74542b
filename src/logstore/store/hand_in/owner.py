"""The owner's side of hand-in: publishes its own requests, and requests of other
processes, in one commit.

    requester                               owner (publish_for_others)
    makes a request in the file of its      sees the change, and takes it
    process
    waits for an answer                     carries it out, with all others that wait
                                            answers
    returns, or raises the answer

The store remembers identities, and so decides whether something was published: a
request that is handed in again, or served by two owners one after the other, is
published once. If the owner ends, a requester sees that its lock is released, and
becomes the owner. So nothing depends on one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    ConfigError,
    LogStoreError,
    StoreClosedError,
    SyncFailedError,
)
from logstore.io.checkpoint.answers import Answer
from logstore.io.directory import Directory
from logstore.io.wakeups import ServiceThread, Watch
from logstore.log.write.calls import (
    CallerEndedError,
    Creation,
    OutdatedChoiceError,
)
from logstore.store.hand_in.served_processes import Call, ServedProcesses
from logstore.store.publication.publication import Outcome, PublicationRequest
from logstore.store.publication.publisher import Publisher

__all__ = ["HandIn"]

# The pause of the owner's thread after an error.
_PAUSE_S: Final = 0.05
# Requests published in one commit, at most.
_REQUESTS_MAX: Final = 64


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


def _answer(call: Call, answer: Answer) -> None:
    """Answer a request. It was decided: without an answer, the requester looks up the
    outcome when its time is over."""
    try:
        call.answer(answer)
    except OSError as error:
        logger.warning("cannot answer a request in %s: %s", call.name, error)


def _log_error(error: BaseException) -> None:
    logger.exception("requests cannot be served", error=error)


class HandIn:
    """Publishes for the owner of a store, and for processes that hand in to it. Any
    thread may call it.

    Its thread, if there is one, holds no reference to it while it waits.

    Attributes:
        served: how many requests it has carried out, with its own.
        has_failed: it carries out nothing more until the store is opened again.
        ends_when_failed: after a failure, leave requests to the next owner.
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
        self._processes = ServedProcesses(
            root, lambda: self._thread.wakeups, publisher.process_ended
        )
        # Requests for topics, which are made without that lock.
        self._creations: deque[Call] = deque()
        # Calls that may have lost requests that they took: they are under way, or were
        # interrupted. Lost reports make the next look list the names.
        self._unsure: set[object] = {object()}
        # The last look has found a request.
        self._has_taken = False
        # Whether the failure to list the names was logged.
        self._is_told = False
        # The store is closed.
        self._has_ended = False
        self.served = 0
        self.has_failed = self.ends_when_failed = False

    def start(self) -> None:
        """Publish for others from now on, in a thread.

        Raises:
            StorageError: no thread can be started.
        """
        self._thread.start(Watch(self._root, native.WATCH_RENAMES))

    def stop(self) -> None:
        """End the thread, after a publication in progress. May be called again."""
        # Busy processes always have a request: they leave no pause in which to end.
        self._has_ended = True
        self._thread.stop()
        with self._publisher.lock:
            self._processes.close()

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there."""
        self._thread.abandon()
        self._processes.abandon()

    def publish(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """Publish the owner's requests, and in the same commit all waiting requests,
        unless the owner does not publish for others."""
        with self._publisher.lock:
            return self._publish_held(own)

    def publish_at_once(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """Same as `publish`; empty, and nothing was done, if another thread publishes
        now."""
        if self._publisher.lock.is_mine:
            return self.publish(own)  # it says what is wrong
        with self._publisher.lock.attempt() as is_free:
            return self._publish_held(own) if is_free else []

    def _publish_held(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        is_done = False
        try:
            # An owner that does not publish for others sees none.
            self._look()
            outcomes = self._publish_with(own)
            is_done = self._processes.is_idle and not self._creations
            return outcomes
        finally:
            if not is_done:
                # This call has taken the reports of further requests; and an interrupt
                # of this thread must not delay them.
                self._thread.wake()

    def serve(self) -> bool:
        """Publish waiting requests until none is left. Returns whether to do it again
        after a pause."""
        self._processes.look_again()
        # Without a lock as long as nothing waits: others may hold it, and must not find
        # it held from inside a call of theirs.
        # A topic may be asked for by a request that a call of the owner has taken.
        while not self._has_ended and (self._look() or self._creations):
            with self._publisher.lock:
                self._publish_with([])
            if self._creations:
                self._create_topics()
            elif self._processes.is_idle and not self._has_taken:
                break  # without reports of changes, each look finds all files
        return self._processes.needs_another_look and not self._has_ended

    def _create_topics(self) -> None:
        """Create the topics that other processes have asked for."""
        while self._creations:
            call = self._creations.popleft()
            assert call.creation is not None
            if not call.is_wanted:
                call.drop()
                continue
            try:
                self._create(call.creation)
                answer = Answer(None, is_new=True)
            except StoreClosedError:
                # Not an answer: the next process that has the lock decides.
                self._has_ended = True
                with self._publisher.lock:
                    call.give_back()
                return
            except LogStoreError as error:
                answer = Answer(error)
            except TypeError as error:
                answer = Answer(ConfigError(f"{error}; nothing was created"))
            with self._publisher.lock:
                _answer(call, answer)
            self.served += answer.error is None

    def _publish_with(self, own: Sequence[PublicationRequest]) -> list[Outcome]:
        """Publish the owner's requests, and the requests known to wait."""
        # If this is interrupted, it is unknown which requests were taken.
        token = object()
        self._unsure.add(token)
        waiting = self._taken()
        self._has_taken = bool(waiting)
        outcomes = self._publish(own, waiting) if own or waiting else []
        self._unsure.discard(token)
        return outcomes

    def _publish(
        self, own: Sequence[PublicationRequest], waiting: Sequence[Call]
    ) -> list[Outcome]:
        # Waiting requests come first: one of them may be an earlier call of this
        # process under the same identity.
        asked = [(call, call.request) for call in waiting if call.request is not None]
        requests = [*(request for _, request in asked), *own]
        outcomes = self._publisher.publish_all(requests) if requests else []
        for (call, _), outcome in zip(asked, outcomes, strict=False):
            if isinstance(outcome, StoreClosedError):
                # Not an answer: the next process that has the lock decides.
                self._has_ended = True
                call.give_back()
            else:
                _answer(call, _answer_of(outcome))
            if isinstance(outcome, CallerEndedError):
                self._processes.note([call.name])
        for call in waiting:
            if call.error is not None:
                _answer(call, Answer(call.error))
        failed = [result for result in outcomes if isinstance(result, LogStoreError)]
        self.served += len(outcomes) - len(failed)
        if any(isinstance(error, SyncFailedError) for error in failed):
            self.has_failed = True
        self.has_failed = self.has_failed or self._publisher.has_stuck()
        if self.has_failed and self.ends_when_failed:
            self._has_ended = True
        # After the answers: no process waits for this.
        self._publisher.discard_used()
        return outcomes[len(asked) :]

    def _taken(self) -> list[Call]:
        """Requests that wait now."""
        waiting: list[Call] = []
        for call in self._processes.take(_REQUESTS_MAX):
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
        before, token = self._unsure.copy(), object()
        self._unsure.add(token)
        reports = wakeups.take()
        if reports is None or before:
            # For names from before the watch, or not reported.
            names = self._names_in()
            processes.clean(names)
            processes.look_at_all()
        else:
            names = [name for _, name in reports]
            for number, _ in reports:
                processes.reported(number)
        processes.note(names)
        if wakeups.is_reporting:
            self._unsure -= before
        self._unsure.discard(token)
        return not processes.is_idle

    def _names_in(self) -> list[str]:
        """The names in the root; none if they cannot be read, which must not stop the
        owner, or if the store is closed from inside the call, as the collector may."""
        try:
            names = self._root.names()
        except StoreClosedError:
            self._has_ended = True
            return []
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                path = self._root.path
                logger.warning("cannot look for requests in %s: %s", path, error)
            return []
        self._is_told = False
        return names
