"""Decides which call uses a consumer next: one in its thread, or a task that gets
records from the loop.

The thread makes the calls in the order in which the tasks have asked for them. Records
are read ahead by the thread, for all tasks that wait for some at a time, and a task
takes them when it has the turn: as long as it has it, nothing is done that was asked
for later. A task that was cancelled gives its turn back, and so has taken nothing. The
effect of a cancelled call is undone before any later request, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, TypeVar

from logstore.aio.loops import Binding
from logstore.errors import StorageError, StoreClosedError

__all__ = ["Turns"]

_Result = TypeVar("_Result")

# How long another call has to wait for its turn, at most.
_TURN_S: Final = 0.1


class _Call(Generic[_Result]):
    """A call that a task waits for.

    Attributes:
        future: of the task; it is cancelled with it.
        work: what the thread is to call.
        undo: takes a result back that the task does not get; None: it counts anyway.
        is_kept: it is made although its task was cancelled.
        is_made: it was called, and has returned.
    """

    __slots__ = ("future", "is_kept", "is_made", "undo", "work")

    def __init__(
        self,
        future: asyncio.Future[_Result],
        work: Callable[[], _Result],
        undo: Callable[[], object] | None,
        is_kept: bool,
    ) -> None:
        self.future = future
        self.work = work
        self.undo = undo
        self.is_kept = is_kept
        self.is_made = False

    @property
    def is_dropped(self) -> bool:
        return self.future.cancelled() and not self.is_kept

    def make(self) -> _Result | None:
        """In the thread."""
        if self.is_dropped:
            return None
        result = self.work()
        self.is_made = True
        return result

    def take_back(self) -> None:
        """In the thread, after `make`: the task does not get the result."""
        if self.undo is not None and self.is_made:
            self.undo()


class _Waiter:
    """A task that waits for records.

    Attributes:
        future: gives it the turn: whether the records were read just now. None: the
            time is over.
        end: until when it waits, by the clock of the loop.
        limit: how many records it takes at most; None: as many as the consumer says.
    """

    __slots__ = ("end", "future", "limit")

    def __init__(
        self, future: asyncio.Future[bool | None], end: float, limit: int | None
    ) -> None:
        self.future = future
        self.end = end
        self.limit = limit


class Turns:
    """The turns of one consumer. Only the loop's thread uses it.

    Invariant: if tasks wait for records, either `_is_queued`, or one of them is the
    `_holder`.

    Args:
        read: called in the thread with a number of records and of seconds: reads at
            most as many records ahead, in that time; returns whether there are any.

    Attributes:
        is_ended: `end` was called.
    """

    def __init__(
        self, name: str, binding: Binding, read: Callable[[int | None, float], bool]
    ) -> None:
        self._name = name
        self._binding = binding
        self._read = read
        self._executor: ThreadPoolExecutor | None = None
        # Set with the thread. A task that is thrown away runs in no loop.
        self._loop: asyncio.AbstractEventLoop
        self.is_ended = False
        # The calls that wait, in order; None: the tasks that wait for records.
        self._queue: deque[_Call[Any] | None] = deque()
        self._is_queued = False
        self._waiters: dict[_Waiter, None] = {}
        # The calls that the thread has.
        self._running = 0
        # Nothing is begun before this one has given its turn back.
        self._holder: _Call[Any] | _Waiter | None = None
        self._is_reading = False
        self._has_ahead = False

    @property
    def is_free(self) -> bool:
        """Whether no call and no task uses the consumer, or waits for its turn."""
        return not self._running and not self._queue and self._holder is None

    def check_open(self) -> None:
        """Raise `StoreClosedError` after `end`."""
        if self.is_ended:
            raise StoreClosedError(f"{self._name} is stopped")

    # ------------------------------------------------------------ calls

    async def call(
        self,
        work: Callable[[], _Result],
        undo: Callable[[], object] | None = None,
        *,
        is_kept: bool = False,
    ) -> _Result:
        """Result of `work`, which the thread calls when it has its turn.

        Args:
            undo: called by the thread, before anything that was asked for later, if
                the task is cancelled and `work` was done.
            is_kept: `work` is done although the task is cancelled.
        """
        self.check_open()
        future: asyncio.Future[_Result] = self._binding.loop().create_future()
        call = _Call(future, work, undo, is_kept)
        self._queue.append(call)
        self._go()
        try:
            return await future
        except (asyncio.CancelledError, GeneratorExit):
            future.cancel()  # also if the result is there: it could not continue
            if self._holder is call:
                self._take_back(call)
            raise
        finally:
            # With the task, and in no callback of the loop: a loop that is being closed
            # cancels all tasks, and runs nothing after them.
            if self._holder is call:
                self._give_back()

    def end(self, close: Callable[[], object]) -> asyncio.Future[None] | None:
        """Let the thread make the calls that wait, each when it has its turn, then
        `close`, and end it; tasks that wait for records raise `StoreClosedError`. None:
        there is no thread."""
        loop = self._binding.loop()
        self.is_ended = True
        if self._executor is None:
            return None
        for waiter in self._waiters:
            if not waiter.future.done():
                error = StoreClosedError(f"{self._name} is stopped")
                waiter.future.set_exception(error)
        self._waiters.clear()
        ended: asyncio.Future[None] = loop.create_future()
        calls = [call for call in self._queue if call is not None]
        self._queue = deque([*calls, _Call(ended, close, None, is_kept=True)])
        self._is_queued = False
        if isinstance(self._holder, _Waiter):
            self._holder = None  # it takes nothing any more
        self._go()
        return ended

    def _give_back(self) -> None:
        self._holder = None
        self._go()

    def _go(self) -> None:
        """Begin what has its turn now."""
        while self._queue and self._holder is None:
            call = self._queue[0]
            if call is not None:
                del self._queue[0]
                if not call.is_dropped:
                    self._begin(call)
            elif not self._running:
                del self._queue[0]
                self._is_queued = False
                self._serve()
            else:
                return  # the thread may not read now
        if self.is_ended and not self._queue and self._executor is not None:
            self._executor.shutdown(wait=False)

    def _begin(self, call: _Call[Any]) -> None:
        try:
            self._submit(call.make, partial(self._end_call, call))
        except StorageError as error:
            _resolve(call.future, None, error)
            return
        if call.undo is not None:
            self._holder = call

    def _end_call(self, call: _Call[Any], done: Future[Any]) -> None:
        error = done.exception()
        _resolve(call.future, None if error is not None else done.result(), error)

    def _take_back(self, call: _Call[Any]) -> None:
        """Undo a call. While it is the holder, the thread has been given nothing after
        it."""
        with contextlib.suppress(StorageError):
            self._submit(call.take_back, _do_nothing)

    def _submit(
        self, work: Callable[[], Any], end: Callable[[Future[Any]], None]
    ) -> None:
        """Give the thread a call; `end` is called by the loop.

        Raises:
            StorageError: there is no thread; nothing is done.
        """
        if self._executor is None:
            self._loop = self._binding.loop()
            self._executor = ThreadPoolExecutor(1, "logstore.aio consumer")
        refused: list[None] = []

        def make() -> Any:
            # A call that the executor has refused may run with a later one.
            return None if refused else work()

        def ended(done: Future[Any]) -> None:
            self._running -= 1
            try:
                end(done)
            finally:
                self._go()

        def post(done: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(ended, done)

        try:
            future = self._executor.submit(make)
        except RuntimeError as error:
            refused.append(None)
            raise StorageError(
                f"no thread for {self._name}: {error}",
                path=self._name,
                action="start a thread for",
            ) from error
        self._running += 1
        future.add_done_callback(post)

    # ------------------------------------------------------------ records

    async def records(
        self, take: Callable[[bool], _Result | None], end: float, limit: int | None
    ) -> _Result | None:
        """Result of `take` when there are records; None: the time is over.

        Args:
            take: called by the loop; what it returns is the task's. True: only if it
                is not time to look at the group. None or nothing: no records yet.
            end, limit: see `_Waiter`.
        """
        self.check_open()
        loop = self._binding.loop()
        waiter = _Waiter(loop.create_future(), end, limit)
        self._waiters[waiter] = None
        if not isinstance(self._holder, _Waiter):
            self._again()
            self._go()
        try:
            while True:
                is_fresh = await waiter.future
                if is_fresh is None:
                    return None
                self.check_open()
                # From here to the return nothing is awaited.
                result = take(not is_fresh)
                if result:
                    return result
                # It is time to look at the group, or what was read is gone.
                self._has_ahead = False
                waiter.future = loop.create_future()
                self._again()
                self._give_back()
        finally:
            self._waiters.pop(waiter, None)
            if self._holder is waiter and not self._is_reading:
                self._again()
                self._give_back()

    def _again(self) -> None:
        """Let the tasks that wait for records wait for their turn: it comes at once if
        there are some in memory."""
        if self._waiters and not self._is_queued and not self.is_ended:
            self._is_queued = True
            if self._has_ahead:
                self._queue.appendleft(None)
            else:
                self._queue.append(None)

    def _first(self) -> _Waiter | None:
        """The first task that waits, and was not cancelled just now."""
        for waiter in self._waiters:
            if not waiter.future.done():
                return waiter
        return None

    def _serve(self) -> None:
        """Give a task that waits for records its turn, or let the thread read."""
        first = self._first()
        if first is None:
            return
        if self._has_ahead:
            self._holder = first
            first.future.set_result(False)
            return
        asked = list(self._waiters)
        left = min(waiter.end for waiter in asked) - self._binding.loop().time()
        seconds = min(max(left, 0.0), _TURN_S)
        try:
            self._submit(
                partial(self._read, first.limit, seconds),
                partial(self._end_reading, asked),
            )
        except StorageError as error:
            self._fail(asked, error)
            return
        self._holder, self._is_reading = first, True

    def _end_reading(self, asked: list[_Waiter], done: Future[bool]) -> None:
        if self.is_ended:
            return
        self._holder, self._is_reading = None, False
        error = done.exception()
        if error is not None:
            self._fail(asked, error)
            return
        self._has_ahead = done.result()
        if not self._has_ahead:
            now = self._binding.loop().time()
            for waiter in asked:
                if waiter.end <= now and waiter in self._waiters:
                    del self._waiters[waiter]
                    _resolve(waiter.future, None, None)
        first = self._first()
        if self._has_ahead and first is not None:
            self._holder = first
            first.future.set_result(True)
        else:
            self._again()

    def _fail(self, asked: list[_Waiter], error: BaseException) -> None:
        """Handle a failed read: the first task that has asked for it gets the error.
        The others try it again."""
        for waiter in asked:
            if waiter in self._waiters and not waiter.future.done():
                del self._waiters[waiter]
                _resolve(waiter.future, None, error)
                break
        self._again()


def _resolve(
    future: asyncio.Future[Any], result: object, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # which no future takes
        text = f"a callback has raised {error!r:.200}"
        stopped = RuntimeError(text)
        stopped.__cause__ = error
        future.set_exception(stopped)
    else:
        future.set_exception(error)


def _do_nothing(done: Future[Any]) -> None:
    """Its result is of no interest."""
