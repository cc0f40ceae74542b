"""A program of `cancellations`: tasks of one event loop whose calls are cancelled."""

from __future__ import annotations

import asyncio
import enum
import inspect
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import logstore.aio
from logstore.aio.consumer import AsyncTransaction
from logstore.aio.store import Opening

__all__ = ["EACH", "Cut", "Program", "named", "public_calls"]

# Approximate number of cancellations of a case.
EACH = 40
# Only other classes of `logstore.aio` call these; the last one awaits nothing.
_LEFT_OUT = {
    "Partition.append_shared",
    "Partition.append_stamped",
    "Partition.in_turn",
    "Store.__aenter__",
}


def public_calls() -> set[str]:
    """The names of all public coroutines of `logstore.aio`: ``Class.method``; `open`
    is ``Opening.__await__``."""
    classes = [getattr(logstore.aio, name) for name in logstore.aio.__all__]
    found = {
        f"{kind.__name__}.{name}"
        for kind in (*filter(inspect.isclass, classes), AsyncTransaction, Opening)
        for name, member in vars(kind).items()
        if inspect.iscoroutinefunction(member)
        and (not name.startswith("_") or name.endswith("__"))
    }
    return found - _LEFT_OUT | {"Opening.__await__"}


def named(**calls: str) -> frozenset[str]:
    """Names of coroutines in the form of `public_calls`, from class names and method
    names, separated by spaces."""
    return frozenset(
        f"{kind}.{name}" for kind, names in calls.items() for name in names.split()
    )


class Cut(enum.Enum):
    """Progress of a call when its task was cancelled."""

    NEVER = "the task had not begun"
    BEGUN = "the call had begun; it may be done"


class Program:
    """One case.

    Attributes:
        CALLS: the public coroutines that it cancels, as `public_calls` names them.
        wrong: problems found.
        cancelled: number of cancelled tasks.
        notes: other counts.
    """

    CALLS: ClassVar[frozenset[str]]

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.wrong: list[str] = []
        self.cancelled = 0
        self.notes: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._threads: list[ThreadPoolExecutor] = []

    async def run(self) -> None:
        """Run the case."""
        self._new_threads()
        await self.main()

    async def main(self) -> None:
        """Begin the tasks; when no more tasks are cancelled, read the rest."""
        raise NotImplementedError

    def look(self) -> None:
        """Check the files on the disk."""

    def under_way(self) -> str:
        """The names of the calls that have not returned."""
        return ", ".join(+self._under_way)

    def expect(self, is_so: bool, what: str) -> None:
        """Note a problem if a condition is false."""
        if not is_so:
            self.wrong.append(what)

    async def call(
        self,
        function: Callable[..., Awaitable[Any]],
        *args: Any,
        given: Callable[[], tuple[Any, ...]] = tuple,
        then: Callable[[Any], object] | None = None,
        often: float = 0.7,
        **options: Any,
    ) -> Any:
        """Make a call in a task, and perhaps cancel the task; a `Cut` if cancelled.

        Args:
            given: returns more arguments, in the first step of the task.
            then: called with the result in the step of the loop in which the task gets
                it.
            often: the probability that the task is cancelled, unless it is done.
        """
        rng, name = self.rng, self._name_of(function)
        has_begun = False

        async def made() -> Any:
            nonlocal has_begun
            has_begun = True
            result = await function(*args, *given(), **options)
            if then is not None:
                then(result)
            return result

        self._under_way[name] += 1
        task = asyncio.ensure_future(made())
        try:
            for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 9))):
                await asyncio.sleep(0)
            if rng.random() < 0.25:
                await asyncio.sleep(rng.random() * 0.003)
            if rng.random() < 0.3:
                # The thread continues, the loop does not.
                time.sleep(rng.random() * 0.003)
            if rng.random() < often and task.cancel():
                self.cancelled += 1
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()  # the task that makes the call is cancelled itself
            raise
        finally:
            self._under_way[name] -= 1
        if task.cancelled():
            self.notes[f"in {name}"] += 1
            return Cut.BEGUN if has_begun else Cut.NEVER
        return task.result()

    def _name_of(self, function: Callable[..., Any]) -> str:
        """Name of the function in `public_calls`, without underscores."""
        owner, name = getattr(function, "__self__", None), function.__name__
        if function is logstore.aio.open:
            name = "Opening.__await__"
        elif owner is not self:
            name = f"{type(owner).__name__}.{name}"
        is_own = owner is self
        assert is_own or name in self.CALLS, f"{name} is not in CALLS"
        return name.replace("__", "")

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Let each of the tasks do its work, until enough were cancelled."""

        async def some(work: Callable[[], Awaitable[None]]) -> None:
            while self.cancelled < EACH and not self.wrong:
                await work()

        await asyncio.gather(*map(some, works))

    def several(
        self, work: Callable[[], Awaitable[None]]
    ) -> Sequence[Callable[[], Awaitable[None]]]:
        """The same work for some tasks."""
        return [work] * self.rng.randrange(2, 6)

    # ------------------------------------------------------------ threads

    def _new_threads(self) -> None:
        """Few threads make calls wait for one, and then their tasks are cancelled."""
        threads = ThreadPoolExecutor(self.rng.choice((1, 1, 2, 8)))
        asyncio.get_running_loop().set_default_executor(threads)
        self._threads.append(threads)

    async def settle(self) -> None:
        """Return when the threads of the loop have finished all calls."""
        before = self._threads[:]
        self._new_threads()
        with ThreadPoolExecutor(1) as one:
            loop = asyncio.get_running_loop()
            for threads in before:
                await loop.run_in_executor(one, threads.shutdown)
        self._threads = [one for one in self._threads if one not in before]
