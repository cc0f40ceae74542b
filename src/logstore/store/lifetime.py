"""The lifetime of a store, from opening to closing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from logstore import _native as native
from logstore._native.locks import RANK_CLOSE, logger
from logstore.errors import (
    DiskFullError,
    LogStoreError,
    StoreClosedError,
    again,
    storage_errors,
)
from logstore.io.lock_record import RECOVERING, Purpose
from logstore.store.context import StoreContext
from logstore.store.copy.copies import adopt_copy, mark_unknown, settle_copy
from logstore.store.copy.snapshot_requests import SnapshotServer
from logstore.store.hand_in.sharing import Sharing
from logstore.store.partition.partitions import RecoveryProgress
from logstore.store.publishing import Publishing
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["Lifetime"]


class Lifetime:
    """Opens and closes the parts of one store. Any thread may close it.

    Attributes:
        is_finished: whether closing is complete.

    Invariant: the files are changed only between the end of opening and that of
    closing, with the lock. The rest of an opening or a closing that was interrupted
    does not touch them: they may be another writer's by then.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        publishing: Publishing,
        sharing: Sharing | None,
        *,
        is_shared: bool,
    ) -> None:
        self._context = context
        # For a store without its lock.
        self._sharing, self._is_shared = sharing, is_shared
        self._topics = topics
        self._publishing = publishing
        self._snapshots = SnapshotServer(context, topics, publishing.publisher)
        self._lock = native.Mutex(
            RANK_CLOSE, f"the close of store {context.path}", context.lock_group
        )
        self._may_write = False
        # The first error of closing so far: closing may be interrupted, and continue.
        self._failure: LogStoreError | None = None
        self.is_finished = False

    # ------------------------------------------------------------ opening

    def open(
        self,
        purpose: Purpose,
        on_progress: Callable[[RecoveryProgress], None] | None,
        *,
        examines_all: bool,
    ) -> None:
        """Take the lock, find the topics, begin the work in the background.

        Args:
            purpose: why the lock is taken.
            on_progress: called while partitions are examined.
            examines_all: examine all of them now, unless the store is read-only.

        Raises:
            LogStoreError: the store is closed again.
        """
        context, topics = self._context, self._topics
        try:
            if context.read_only:
                self._load()
                return
            context.take_lock(purpose)
            self._load()
            if examines_all:
                context.tell_others(RECOVERING)
                topics.writers.recover(on_progress)
                context.tell_others(purpose.doing)
            adopt_copy(context, topics, self._publishing.publisher)
            topics.begin_rounds()
            self._snapshots.start()
            if context.store_config.publish_for_others:
                self._publishing.hand_in.start()
            self._may_write = True
        except BaseException:
            context.is_closed = True
            self._stop()
            self._let_go()
            raise

    def _load(self) -> None:
        context, topics = self._context, self._topics
        with storage_errors("read", context.path):
            for action in topics.load(context.state.ownership.read):
                topics.writers.record(action)
            if not context.read_only:
                publishing = self._publishing
                topics.catalog.deleted.finish(context.root.names())
                ends = publishing.publications.durable_ends(context.state.ownership)
                topics.writers.published |= ends
                mark_unknown(context, topics, publishing.publications)
                publishing.publisher.finish()

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """See `Store.close`."""
        context = self._context
        if context.is_forked:
            context.is_closed = True
            # A finalizer may run before the fork is taken note of.
            self.after_fork()
            self._let_go()
            return
        with self._lock:
            if self.is_finished:
                return
            context.is_closed = True
            # Not under the lock: a task that is running now may wait for it.
            self._stop()
            if self._may_write:
                with context.lock:
                    self._failure = self._close_writable()
                self._may_write = False
            self._let_go()
            failure = self._failure
        if failure is not None:
            raise again(failure)

    def _stop(self) -> None:
        """End the work in the background, each after its current step."""
        if self._sharing is not None:
            self._sharing.close()
        self._snapshots.stop()
        self._publishing.hand_in.stop()
        self._topics.stop_rounds(self._closed_error())
        self._context.scheduler.stop()

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"store {self._context.path} is closed")

    def _close_writable(self) -> LogStoreError | None:
        """Close the partitions and leave the clean-shutdown markers, if it is one.

        Returns the error, if any. A store that was neither changed nor in need of a
        recovery is left unchanged.
        """
        failure = self._failure
        context, writers = self._context, self._topics.writers
        ownership = context.state.ownership
        if ownership.is_writing:
            # A deletion may have made room. If not, a warning says so.
            writers.record_damage()
        if not ownership.is_clean or (ownership.is_copied and ownership.is_writing):
            # Partitions that were not used may be torn as well: a closed store is
            # clean. In a copy each needs a state with its cut.
            writers.recover()
            if writers.loaded and not ownership.is_writing:
                # This only makes the next opening quick: its errors are ignored.
                with contextlib.suppress(LogStoreError):
                    context.state.begin_writing()
        closed = self._closed_error()
        for writer in list(writers.loaded.values()):
            try:
                writer.close(closed, record_end=ownership.is_writing)
            except LogStoreError as error:
                failure = self._failure = self._failure or error
        if failure is None:
            try:
                with storage_errors("close", context.path):
                    self._publishing.publisher.end()
                    if ownership.is_writing:
                        settle_copy(context, self._topics)
                        writers.leave_marks()
            except LogStoreError as error:
                failure = error
        if isinstance(failure, DiskFullError):
            # All records are durable; the next opening examines the logs again.
            logger.warning(
                "%s is durable, but not marked as closed: %s", context.path, failure
            )
            return None
        return failure

    def _let_go(self) -> None:
        """Close all descriptors and, with the last, the lock."""
        self._context.let_go()
        self.is_finished = True

    def after_fork(self) -> None:
        """Give up the threads, and the lock, which are the parent's. Called in the
        child of a fork. A shared store stays usable, with requests of the child."""
        if self._sharing is not None:
            self._sharing.after_fork()
        if self._is_shared:
            self._context.use_in_child()
            return
        self._snapshots.abandon()
        self._publishing.hand_in.abandon()
        self._topics.abandon_rounds()
        self._context.after_fork()
