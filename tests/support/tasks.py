"""Event loops for tests of `logstore.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest

import logstore.aio

_Result = TypeVar("_Result")

_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None

# The kinds of loops under which a test runs.
every_loop = pytest.mark.parametrize(
    "loop_kind",
    [
        "asyncio",
        pytest.param(
            "uvloop",
            marks=pytest.mark.skipif(
                not _HAS_UVLOOP,
                reason="uvloop is not installed: pip install 'pylogstore[test]'",
            ),
        ),
    ],
)


def run(main: Coroutine[Any, Any, _Result], loop_kind: str = "asyncio") -> _Result:
    """Like `asyncio.run`, with a kind of loop."""
    if loop_kind == "uvloop":
        import uvloop

        return uvloop.run(main)  # type: ignore[no-any-return]
    return asyncio.run(main)


@contextlib.asynccontextmanager
async def new_partition(
    path: Any, topic: Any = None, **options: Any
) -> AsyncIterator[logstore.aio.Partition]:
    """The only partition of a new store, which is closed at the end."""
    async with logstore.aio.open(path, **options) as store:
        yield (await store.create_topic("orders", config=topic))[0]


async def until(is_so: Callable[[], object]) -> None:
    """Return when a condition holds; else the test's time limit ends it."""
    while not is_so():
        await asyncio.sleep(0.001)


def values_of(partition: Any) -> list[bytes | None]:
    """The values of all records."""
    return [record.value for record in partition.read()]


class Held:
    """The lock of a partition's log, held by another thread until `release`."""

    def __init__(self, partition: logstore.aio.Partition) -> None:
        lock = partition.blocking._writer.lock  # type: ignore[union-attr]
        held = threading.Event()
        self._end = threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                self._end.wait()

        self._thread = threading.Thread(target=hold)
        self._thread.start()
        held.wait()

    def release(self) -> None:
        self._end.set()
        self._thread.join()
