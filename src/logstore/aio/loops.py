"""The event loop that a store of asyncio belongs to."""

from __future__ import annotations

import asyncio

from logstore.errors import EventLoopError

__all__ = ["Binding"]


class Binding:
    """The event loop of one `Store`, its topics, partitions and followers: the one in
    which one of them is used first. Making them needs none."""

    __slots__ = ("_loops", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        # At most one. `setdefault` is one step, also to other threads.
        self._loops: dict[None, asyncio.AbstractEventLoop] = {}

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which is the running one.

        Raises:
            EventLoopError: it is another one than before.
            RuntimeError: none is running.
        """
        running = asyncio.get_running_loop()
        bound = self._loops.setdefault(None, running)
        if bound is not running:
            state = "is closed" if bound.is_closed() else "is another one"
            raise EventLoopError(
                f"{self._name} is used in an event loop, but belongs to one that "
                f"{state}. Make another logstore.aio.Store of the same "
                "logstore.Store (its attribute `blocking`) for this loop"
            )
        return running
