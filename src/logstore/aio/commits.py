"""The group commit of a store: one thread appends what cannot be appended at once, and
syncs for all that wait.

    the loop    collects requests while its tasks run, then hands all of them over
    the thread  makes the calls in their order, then one sync of each partition
    the loop    resolves the futures, in one callback; the tasks that go on may request
                more, which is collected before the next hand-over

So any number of tasks that append durably cost one sync. Only the loop's thread uses
`Commits`; a request that was handed over belongs to the other thread until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from logstore.aio.loops import Binding
from logstore.errors import LogStoreError, StorageError
from logstore.store.partition import Partition

__all__ = ["Commits", "Ends"]

_Result = TypeVar("_Result")

# Partitions, and the offsets up to which they are to be durable.
Ends: TypeAlias = Iterable[tuple[Partition, int]]


class _Request:
    """One waiting call.

    Attributes:
        future: of the task that waits; only the loop uses it.
        call: what the thread is to call; None: nothing.
        ends: of the result of the call, what is to be durable after it.
        result, error: of the call, and of the sync after it.
    """

    __slots__ = ("call", "ends", "error", "future", "result")

    def __init__(
        self,
        future: asyncio.Future[Any],
        call: Callable[[], Any] | None,
        ends: Callable[[Any], Ends],
    ) -> None:
        self.future = future
        self.call = call
        self.ends = ends
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        """Tell the task, if it still waits."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


_Batch: TypeAlias = "list[_Request]"
_Post: TypeAlias = "Callable[[_Batch, bool], None]"
# What the thread gets: a batch, and where to post what is done of it. None: end.
_Inbox: TypeAlias = "queue.SimpleQueue[tuple[_Batch, _Post] | None]"


class Commits:
    """The requests of one store.

    Invariant: if `_is_begun`, a call of `_begin` is scheduled, or the thread has a
    batch; else nothing waits.
    """

    def __init__(self, binding: Binding, name: str) -> None:
        self._binding = binding
        self._name = name
        self._waiting: _Batch = []
        self._is_begun = False
        self._idle: asyncio.Future[None] | None = None
        self._inbox: _Inbox | None = None
        self._end_thread: Callable[[], object] = _do_nothing

    def call(
        self, call: Callable[[], _Result], ends: Callable[[_Result], Ends]
    ) -> asyncio.Future[_Result]:
        """Let the thread make a call; the result is for the task when what `ends`
        returns is durable. Calls are made in the order of these.

        A future that is cancelled before the hand-over is not called.
        """
        return self._add(call, ends)

    def sync(self, ends: Ends) -> asyncio.Future[None]:
        """Let the thread sync."""
        return self._add(None, lambda _: ends)

    async def finish(self) -> None:
        """Return when nothing waits any more."""
        while self._is_begun:
            if self._idle is None:
                self._idle = self._binding.loop().create_future()
            # Several may wait for it; one of them may be cancelled.
            await asyncio.shield(self._idle)

    def end(self) -> None:
        """End the thread, after `finish`. A later call starts another one."""
        self._end_thread()
        self._inbox = None

    def _add(
        self, call: Callable[[], Any] | None, ends: Callable[[Any], Ends]
    ) -> asyncio.Future[Any]:
        loop = self._binding.loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Request(future, call, ends))
        if not self._is_begun:
            # After the tasks that can go on now: they may have requests, too.
            loop.call_soon(self._begin)
            self._is_begun = True
        return future

    def _begin(self) -> None:
        """Hand over what waits."""
        batch = [each for each in self._waiting if not each.future.done()]
        self._waiting = []
        if not batch:
            self._end_turn()
            return
        loop = self._binding.loop()

        def post(done: _Batch, is_last: bool) -> None:
            # A loop that is closed has no tasks that wait.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._take_back, done, is_last)

        try:
            self._thread().put((batch, post))
        except StorageError as error:
            for request in batch:
                request.error = error
            self._take_back(batch, is_last=True)

    def _take_back(self, done: _Batch, is_last: bool) -> None:
        """The thread is done with some requests of its batch, or with the last ones."""
        for request in done:
            request.resolve()
        if is_last:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._waiting:
            # After the tasks that were resolved.
            self._binding.loop().call_soon(self._begin)
            return
        self._is_begun = False
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _thread(self) -> _Inbox:
        """The inbox of the thread, which is started if there is none.

        Raises:
            StorageError: no thread can be started; nothing was handed over.
        """
        if self._inbox is not None:
            return self._inbox
        inbox: _Inbox = queue.SimpleQueue()
        # It refers to nothing of the store, which it does not keep open.
        thread = threading.Thread(
            target=_run, args=(inbox,), name=f"logstore.aio {self._name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise StorageError(
                f"no thread for the appends of {self._name}: {error}; nothing was "
                f"written. See the limits of the process for threads and memory",
                path=self._name,
                action="start a thread for",
            ) from error
        self._end_thread = weakref.finalize(self, inbox.put, None)
        self._inbox = inbox
        return inbox


def _do_nothing() -> None:
    """There is no thread to end."""


def _run(inbox: _Inbox) -> None:
    """The thread."""
    while (item := inbox.get()) is not None:
        _work(*item)
        del item  # it would keep the results until the next batch


def _work(batch: _Batch, post: _Post) -> None:
    """Make the calls of a batch, and the syncs after them."""
    syncs: dict[Partition, _Sync] = {}
    done: _Batch = []
    left: _Batch = []
    for request in batch:
        try:
            if request.call is not None:
                request.result = request.call()
            ends = list(request.ends(request.result))
        except BaseException as error:  # it belongs to the task
            request.error = error
            ends = []
        for partition, end in ends:
            syncs.setdefault(partition, _Sync()).add(request, end)
        (left if ends else done).append(request)
    if done and left:
        post(done, False)  # these do not wait for a sync
        done = []
    for partition, sync in syncs.items():
        sync.run(partition)
    post(done + left, True)


class _Sync:
    """The requests that wait for one partition."""

    def __init__(self) -> None:
        self._requests: _Batch = []
        self._end = 0

    def add(self, request: _Request, end: int) -> None:
        self._requests.append(request)
        self._end = max(self._end, end)

    def run(self, partition: Partition) -> None:
        try:
            partition.sync_upto(self._end)
        except BaseException as error:
            for request in self._requests:
                if request.error is None:
                    request.error = _copy_of(error)


def _copy_of(error: BaseException) -> BaseException:
    """An error for one of many tasks: each adds its own traceback to it."""
    if not isinstance(error, LogStoreError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
