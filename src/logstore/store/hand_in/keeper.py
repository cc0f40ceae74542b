"""The lock of a store without an owner, for a process that hands in: it takes the lock,
carries out waiting requests, and keeps the lock for a moment.

So a process that appends now and then does not open and close the store for each of its
appends. It gives the lock back when another process waits for it, and when no request
came for two seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from logstore import _native as native
from logstore._native.locks import logger, wait_for_end
from logstore.errors import (
    LogStoreError,
    PublicationTimeoutError,
    StoreClosedError,
    StoreLockedError,
)
from logstore.io.directory import Directory
from logstore.io.layout import LOCK_RECORD
from logstore.io.lock_record import state_of
from logstore.io.wakeups import Wakeups, Watch
from logstore.store.publication.publication import Publication, PublicationRequest

__all__ = ["Keeper", "KeptStore"]

# How long the lock is kept without work.
_IDLE_S: Final = 2.0
# A call that waits asks within this time why the lock was not taken.
_FAILURE_S: Final = 0.3
_OPENING_LOOK_S: Final = 0.0005
# A commit of another thread is short: a call waits for it, however short its own time.
_COMMIT_S: Final = 0.25
# How often it looks whether another process waits, if that is not reported.
_LOOK_S: Final = 0.1


class KeptStore(NamedTuple):
    """A store that is open for writing, and carries out handed-in requests.

    Attributes:
        served: returns how many requests it has carried out.
        has_failed: returns whether it carries out nothing more until it is opened
            again.
        publish: publishes to it, as `Store.publish`.
        publish_at_once: the same; returns None if another thread publishes now.
        close: closes it.
    """

    served: Callable[[], int]
    has_failed: Callable[[], bool]
    publish: Callable[[PublicationRequest], Publication]
    publish_at_once: Callable[[PublicationRequest], Publication | None]
    close: Callable[[], None]


class Keeper:
    """Takes the lock of a store when it is free. Any thread may call it.

    Args:
        open_store: opens the store for writing, to carry out handed-in requests.
    """

    def __init__(self, root: Directory, open_store: Callable[[], KeptStore]) -> None:
        self._root = root
        self._open_store = open_store
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakeups: Wakeups | None = None
        self._is_stopped = False
        # When the last attempt has failed, and why.
        self._failure: tuple[float, LogStoreError] | None = None
        self._kept: KeptStore | None = None

    def publish(
        self, request: PublicationRequest, timeout_ms: int | None
    ) -> Publication | None:
        """Publish with the lock that this process keeps; None: it keeps none, and
        nothing was done.

        Args:
            timeout_ms: how long to wait for another thread that publishes, 250 ms at
                least; None: no limit.

        Raises:
            PublicationTimeoutError: that thread has not ended; nothing was written.
            others: as `Store.publish`.
        """
        kept = self._kept
        if kept is not None and not kept.has_failed():
            with contextlib.suppress(StoreClosedError):
                if timeout_ms is None:
                    return kept.publish(request)
                return self._published_within(kept, request, timeout_ms)
        return None

    def _published_within(
        self, kept: KeptStore, request: PublicationRequest, timeout_ms: int
    ) -> Publication:
        deadline = time.monotonic() + max(timeout_ms / 1000, _COMMIT_S)
        while True:
            published = kept.publish_at_once(request)
            if published is not None:
                return published
            if time.monotonic() >= deadline:
                raise PublicationTimeoutError(
                    request.identity,
                    request.sequence,
                    timeout_ms=timeout_ms,
                    outcome="not written",
                    holder=state_of(self._root).holder,
                )
            time.sleep(_OPENING_LOOK_S)

    def take(self) -> None:
        """Take the lock, and return when this process has it, or another one.

        Raises:
            LogStoreError: this process may not open the store for writing.
        """
        self.begin()
        thread = self._thread
        while thread is not None and thread.is_alive() and self._kept is None:
            time.sleep(_OPENING_LOOK_S)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure[1]

    def begin(self) -> None:
        """Take the lock, in a thread, unless that is under way.

        Raises:
            LogStoreError: this process may not open the store for writing.
        """
        with self._lock:
            failure, self._failure = self._failure, None
            # An older one belongs to a call that has not waited for it.
            if failure is not None and time.monotonic() - failure[0] < _FAILURE_S:
                raise failure[1]
            thread = self._thread
            if self._is_stopped or (thread is not None and thread.is_alive()):
                return
            name = f"the keeper of {self._root.path}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            store = self._open_store()
        except StoreLockedError:
            return  # another process has been faster
        except LogStoreError as error:
            self._failure = time.monotonic(), error
            return
        try:
            self._kept = store
            self._keep(store)
        finally:
            self._kept = None
            try:
                store.close()
            except LogStoreError as error:
                logger.warning(
                    "store %s was not closed cleanly: %s", self._root.path, error
                )

    def _keep(self, store: KeptStore) -> None:
        """Return when it is time to give the lock back."""
        watch = Watch(self._root, native.WATCH_WRITES, LOCK_RECORD)
        self._wakeups = wakeups = Wakeups(
            self._root.files, watches=[watch], is_wakeable=True
        )
        count, since = store.served(), time.monotonic()
        try:
            while not (self._is_stopped or state_of(self._root).is_awaited):
                now = time.monotonic()
                if store.served() != count:
                    count, since = store.served(), now
                elif now - since >= _IDLE_S or store.has_failed():
                    return
                if wakeups.wait(_LOOK_S):
                    wakeups.take()
        finally:
            self._wakeups = None
            wakeups.close()

    def stop(self) -> None:
        """Give the lock back, and take it no more."""
        with self._lock:
            self._is_stopped = True
            thread, wakeups = self._thread, self._wakeups
        if wakeups is not None:
            wakeups.wake()
        if thread is not None and thread is not threading.current_thread():
            wait_for_end(thread)

    def after_fork(self) -> None:
        """In the child of a fork: the lock is the parent's."""
        self._lock = threading.Lock()
        self._thread = self._wakeups = self._kept = self._failure = None
