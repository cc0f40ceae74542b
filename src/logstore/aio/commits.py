"""The group commit of a store: one thread makes appends that have to wait, and syncs
for all waiting tasks.

    the loop    collects requests while its tasks run, then hands all of them over
    the thread  makes the calls in their order, then one sync of each partition
    the loop    resolves the futures, in one callback; the tasks that continue may
                request more, which is collected before the next hand-over

So any number of tasks that append durably cost one sync. Only the loop's thread uses
`Commits`; a request that was handed over belongs to the other thread until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from logstore.aio.loops import Binding
from logstore.errors import LogStoreError, StorageError, again
from logstore.store.partition.partition import Partition, appends_of

__all__ = ["Commits", "Ends", "Line"]

_Result = TypeVar("_Result")

# Partitions, and the offsets up to which they must be durable.
Ends: TypeAlias = Iterable[tuple[Partition, int]]


class Line:
    """The calls that come one after the other.

    Attributes:
        count: how many of them the thread has not finished.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class _Call:
    """A call that waits.

    Attributes:
        future: of the task that waits; only the loop uses it.
        call: the function that the thread calls.
        ends: gets its result, and returns what must be durable before the task
            continues.
        is_begun: the call begins something, and returns a function that waits for the
            result.
        line: the line that it is in, if any.
        result, error: of the call, and of the sync after it.
    """

    __slots__ = ("call", "ends", "error", "future", "is_begun", "line", "result")

    def __init__(
        self,
        future: asyncio.Future[Any],
        call: Callable[[], Any],
        ends: Callable[[Any], Ends],
        line: Line | None,
        is_begun: bool = False,
    ) -> None:
        self.line = line
        self.is_begun = is_begun
        if line is not None:
            line.count += 1
        self.future = future
        self.call = call
        self.ends = ends
        self.result: Any = None
        self.error: BaseException | None = None

    def leave(self) -> None:
        """Remove it from its line."""
        if self.line is not None:
            self.line.count -= 1
            self.line = None


class _Sync:
    """The tasks and calls that wait for one partition to be durable.

    Attributes:
        end: up to this offset.
        futures: of tasks that wait for nothing else; only the loop uses them.
        calls: calls of the batch that wait for it; only the thread uses them.
        error: why it has failed.
    """

    __slots__ = ("calls", "end", "error", "futures")

    def __init__(self) -> None:
        self.end = 0
        self.futures: list[asyncio.Future[None]] = []
        self.calls: list[_Call] = []
        self.error: BaseException | None = None

    def run(self, partition: Partition) -> None:
        try:
            appends_of(partition).sync_upto(self.end)
        except BaseException as error:  # it belongs to the tasks
            self.error = error
            for call in self.calls:
                call.error = call.error or _copy_of(error)


class _Batch(NamedTuple):
    """The requests of one hand-over, or the part of them that is done."""

    calls: list[_Call]
    syncs: dict[Partition, _Sync]

    def resolve(self) -> None:
        """Let the tasks continue that still wait."""
        # All, before the first one: it may append at once then.
        for call in self.calls:
            call.leave()
        for call in self.calls:
            _resolve(call.future, call.result, call.error)
        for sync in self.syncs.values():
            for future in sync.futures:
                _resolve(future, None, sync.error and _copy_of(sync.error))


def _resolve(
    future: asyncio.Future[Any], result: object, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_Post: TypeAlias = "Callable[[_Batch, bool], None]"
# For the thread: a batch, and where to post what is done of it. None: end.
_Inbox: TypeAlias = "queue.SimpleQueue[tuple[_Batch, _Post] | None]"


class Commits:
    """The requests of one store.

    Invariant: if `_is_begun`, a call of `_begin` is scheduled, or the thread has a
    batch; else nothing waits.
    """

    def __init__(self, binding: Binding, name: str) -> None:
        self._binding = binding
        self._name = name
        self._calls: list[_Call] = []
        self._syncs: dict[Partition, _Sync] = {}
        self._is_begun = False
        self._idle: asyncio.Future[None] | None = None
        self._inbox: _Inbox | None = None
        self._end_thread: Callable[[], object] = _do_nothing

    def call(
        self,
        call: Callable[[], _Result],
        ends: Callable[[_Result], Ends],
        line: Line | None = None,
    ) -> asyncio.Future[_Result]:
        """Let the thread make a call; the result is for the task when what `ends`
        returns is durable. Calls are made in the order of these.

        A future that is cancelled before the hand-over is not called.
        """
        future: asyncio.Future[_Result] = self._binding.loop().create_future()
        self._calls.append(_Call(future, call, ends, line))
        self._schedule()
        return future

    def begin(
        self, call: Callable[[], Callable[[], _Result]], line: Line | None = None
    ) -> asyncio.Future[_Result]:
        """Same as `call`, for a call that returns a function to wait with: all such
        calls are made before the first one is waited for."""
        future: asyncio.Future[_Result] = self._binding.loop().create_future()
        self._calls.append(_Call(future, call, _no_ends, line, is_begun=True))
        self._schedule()
        return future

    def sync(self, partition: Partition, end: int) -> asyncio.Future[None]:
        """Let the thread make the records below an offset durable."""
        future: asyncio.Future[None] = self._binding.loop().create_future()
        sync = self._syncs.get(partition)
        if sync is None:
            sync = self._syncs[partition] = _Sync()
        sync.futures.append(future)
        if end > sync.end:
            sync.end = end
        if not self._is_begun:
            self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._is_begun:
            # After the tasks that can continue now: they may have requests, too.
            self._binding.loop().call_soon(self._begin)
            self._is_begun = True

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

    def _begin(self) -> None:
        """Hand over the waiting calls and syncs, except cancelled ones."""
        calls, syncs = [], {}
        for call in self._calls:
            if call.future.done():
                call.leave()
            else:
                calls.append(call)
        for partition, sync in self._syncs.items():
            if not all(future.done() for future in sync.futures):
                syncs[partition] = sync
        self._calls, self._syncs = [], {}
        if not calls and not syncs:
            self._end_turn()
            return
        batch, loop = _Batch(calls, syncs), self._binding.loop()

        def post(done: _Batch, is_last: bool) -> None:
            # A loop that is closed has no tasks that wait.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._take_back, done, is_last)

        try:
            self._thread().put((batch, post))
        except StorageError as error:
            for call in calls:
                call.error = _copy_of(error)
            for sync in syncs.values():
                sync.error = error
            self._take_back(batch, is_last=True)

    def _take_back(self, done: _Batch, is_last: bool) -> None:
        """A part of a batch is done, or the last part."""
        done.resolve()
        if is_last:
            self._end_turn()

    def _end_turn(self) -> None:
        self._is_begun = False
        if self._calls or self._syncs:
            self._schedule()  # after the tasks that were resolved
        elif self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _thread(self) -> _Inbox:
        """The inbox of the thread, which is started if it does not run.

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


def _no_ends(result: object) -> Ends:
    """Nothing to sync."""
    return ()


def _do_nothing() -> None:
    """Do nothing: there is no thread to end."""


def _run(inbox: _Inbox) -> None:
    """The thread."""
    while (item := inbox.get()) is not None:
        _work(*item)
        del item  # it would keep the results until the next batch


def _work(batch: _Batch, post: _Post) -> None:
    """Make the calls of a batch, and the syncs after them."""
    done: list[_Call] = []
    left: list[_Call] = []
    for call in batch.calls:
        try:
            call.result = call.call()
            ends = list(call.ends(call.result))
        except BaseException as error:  # it belongs to the task
            call.error = error
            ends = []
        for partition, end in ends:
            sync = batch.syncs.setdefault(partition, _Sync())
            sync.calls.append(call)
            sync.end = max(sync.end, end)
        (left if ends or call.is_begun else done).append(call)
    if done and batch.syncs:
        post(_Batch(done, {}), False)  # these do not wait for a sync
        done = []
    for partition, sync in batch.syncs.items():
        sync.run(partition)
    for call in left:
        if call.is_begun and call.error is None:
            try:
                call.result = call.result()
            except BaseException as error:  # it belongs to the task
                call.error = error
    post(_Batch(done + left, batch.syncs), True)


def _copy_of(error: BaseException) -> BaseException:
    """An error for one of many tasks: each adds its own traceback to it."""
    return again(error) if isinstance(error, LogStoreError) else error
