"""A store for tasks of asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

from logstore.aio.blocking import same
from logstore.aio.commits import Commits
from logstore.aio.loops import Binding
from logstore.aio.partition import Partition, Services
from logstore.aio.producer import Producer
from logstore.aio.topic import Topic
from logstore.aio.wakes import Wakes
from logstore.config import StoreConfig, TopicConfig, check_kind
from logstore.errors import StoreClosedError
from logstore.io.checkpoint.recovery_report import RecoveryAction, RecoveryReport
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.io.lock import caller, opener
from logstore.io.lock_record import LOCK_TIMEOUT_MS
from logstore.log.compact.compactor import CompactionProgress, CompactionReport
from logstore.log.write.staged_files import Staged
from logstore.record.partitioner import Partitioner
from logstore.store.copy.snapshot import SnapshotProgress, SnapshotReport
from logstore.store.opening import HAND_IN_TIMEOUT_MS
from logstore.store.opening import open_store as open_blocking
from logstore.store.package_access import recover_unclean
from logstore.store.partition.partition import Partition as BlockingPartition
from logstore.store.partition.partitions import RecoveryProgress
from logstore.store.publication.publication import Publication
from logstore.store.store import Store as BlockingStore

__all__ = ["Opening", "Store", "open_store"]


class Opening(Coroutine[Any, Any, "Store"]):
    """Result of `open`: awaited, it gives the store; ``async with`` also closes it.

    It is a coroutine, so that a task can be made of it.
    """

    __slots__ = ("_opening", "_store")

    def __init__(self, opening: Coroutine[Any, Any, Store]) -> None:
        self._opening = opening
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, Any, Store]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        return self._opening.throw(*error)

    def close(self) -> None:
        self._opening.close()

    async def __aenter__(self) -> Store:
        self._store = await self._opening
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._store is not None  # entered
        await self._store.close()


def open_store(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    shared: bool = False,
    create: bool = True,
    config: StoreConfig | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    hand_in_timeout_ms: int = HAND_IN_TIMEOUT_MS,
    on_recovery: Callable[[RecoveryAction], None] | None = None,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    _files: Files | None = None,
) -> Opening:
    """Open a store, in another thread, for tasks of the running event loop.

        store = await logstore.aio.open("data")
        async with logstore.aio.open("data") as store: ...

    If the store was not closed cleanly, all partitions are recovered before this
    returns, so that no later call blocks the loop with it. If the task is cancelled,
    the store is closed again by that thread.

    Args: as `logstore.open`; the callbacks are called in another thread.

    Raises: as `logstore.open`.
    """
    return Opening(
        _opened(
            partial(
                open_blocking,
                path,
                read_only=read_only,
                shared=shared,
                create=create,
                config=config,
                lock_timeout_ms=lock_timeout_ms,
                hand_in_timeout_ms=hand_in_timeout_ms,
                on_recovery=on_recovery,
                on_progress=on_progress,
                _files=_files,
            ),
            caller(),
        )
    )


async def _opened(open_now: Callable[[], BlockingStore], where: str) -> Store:
    # The one that takes it decides: the thread, that the store is the task's; or the
    # task, that it is no longer wanted.
    decision: deque[None] = deque([None])

    def opened() -> BlockingStore | None:
        store = open_now()
        try:
            recover_unclean(store)
            if _is_taken(decision):
                return store
        except BaseException:
            store.close()
            raise
        store.close()
        return None

    context = contextvars.copy_context()
    context.run(opener.set, where)
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(None, partial(context.run, opened))
    try:
        store = await asyncio.shield(future)
    except asyncio.CancelledError:
        if not _is_taken(decision):
            # The store is open, or will be in the next instruction of the thread.
            future.add_done_callback(_close_opened)
        raise
    assert store is not None  # this task has not decided
    return Store(store)


def _is_taken(decision: deque[None]) -> bool:
    """Take the decision, unless it was taken before."""
    try:
        decision.pop()
    except IndexError:
        return False
    return True


def _close_opened(future: asyncio.Future[BlockingStore | None]) -> None:
    store = None if future.cancelled() or future.exception() else future.result()
    if store is not None:
        threading.Thread(target=store.close).start()


class _Guard:
    """Raises unless a call may begin.

    Attributes:
        is_closed: whether closing has begun.
    """

    __slots__ = ("_blocking", "is_closed")

    def __init__(self, blocking: BlockingStore) -> None:
        self._blocking = blocking
        self.is_closed = False

    def __call__(self) -> None:
        self._blocking._context.check_open()
        if self.is_closed:
            raise StoreClosedError(f"store {self._blocking.path} is closed")


class Store:
    """An open store, for tasks of one event loop; an asynchronous context manager.

    `logstore.aio.open` makes one. ``Store(store)`` makes one of an open
    `logstore.Store`, which needs no event loop: several of them, each for another loop,
    may share it. The store, and the topics, partitions and followers that come from it,
    belong to the loop in which one of them is awaited first; in another one they raise
    `EventLoopError`. In the child of a fork they raise `ForkedError`.

    Calls that wait are awaited; calls that only read are plain methods, as in
    `logstore.Store`.

    Attributes:
        blocking: the `logstore.Store`, whose methods block the thread.
    """

    def __init__(self, blocking: BlockingStore) -> None:
        check_kind("blocking", blocking, BlockingStore)
        self.blocking = blocking
        self._binding = Binding(f"store {blocking.path}")
        self._commits = Commits(self._binding, blocking.path)
        self._wakes = Wakes(self._binding, blocking._context.files)
        self._guard = _Guard(blocking)
        self._services = Services(
            self._binding, self._commits, self._wakes, self._guard
        )
        self._partitions: weakref.WeakValueDictionary[BlockingPartition, Partition]
        self._partitions = weakref.WeakValueDictionary()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return repr(self.blocking).replace("logstore.", "logstore.aio.", 1)

    async def __aenter__(self) -> Store:
        self._binding.loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def path(self) -> str:
        """Absolute path of its directory."""
        return self.blocking.path

    @property
    def read_only(self) -> bool:
        """Whether it was opened with ``read_only``, or with ``shared``."""
        return self.blocking.read_only

    @property
    def config(self) -> StoreConfig:
        """The settings with which it was opened."""
        return self.blocking.config

    # ------------------------------------------------------------ topics

    topics = same(BlockingStore.topics)
    metrics = same(BlockingStore.metrics)
    _repr_html_ = same(BlockingStore._repr_html_)
    to_dataset = same(BlockingStore.to_dataset)
    stage = same(BlockingStore.stage)
    published = same(BlockingStore.published)
    last_publication = same(BlockingStore.last_publication)
    __contains__ = same(BlockingStore.__contains__)

    def topic(self, name: str, *, partitioner: Partitioner | None = None) -> Topic:
        """An existing topic.

        Raises:
            TopicNotFoundError: no topic has this name.
        """
        return self._topic_of(self.blocking.topic(name, partitioner=partitioner))

    def __getitem__(self, name: str) -> Topic:
        """See `topic`."""
        return self.topic(name)

    def __iter__(self) -> Iterator[Topic]:
        """The topics, sorted by name."""
        return map(self._topic_of, self.blocking)

    def _topic_of(self, topic: Any) -> Topic:
        return Topic(self._services, topic, self._partition_of)

    def _partition_of(self, blocking: BlockingPartition) -> Partition:
        partition = self._partitions.get(blocking)
        if partition is None:
            partition = Partition(self._services, blocking)
            self._partitions[blocking] = partition
        return partition

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | None = None,
        *,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic, durably; as `logstore.Store.create_topic`."""
        create = self.blocking.create_topic
        topic = await self._services.run(
            lambda: create(name, partitions, config, exist_ok=exist_ok)
        )
        return self._topic_of(topic)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, durably; as
        `logstore.Store.delete_topic`."""
        await self._services.run(self.blocking.delete_topic, name)

    async def producer(self, name: str) -> Producer:
        """Take over the producer of a name, durably, for appends that may be repeated;
        as `logstore.Store.producer`."""
        producer = await self._services.run(self.blocking.producer, name)
        return Producer(self._services, producer, self._partition_named)

    def _partition_named(self, key: tuple[str, int]) -> Partition:
        topic, number = key
        return self.topic(topic)[number]

    async def recover(
        self, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> RecoveryReport:
        """Examine all partitions now, and repair them if needed; as
        `logstore.Store.recover`. `on_progress` is called in another thread."""
        return await self._services.run(self.blocking.recover, on_progress)

    async def compact(
        self,
        *,
        force: bool = False,
        max_memory: int = 64 << 20,
        max_bytes_per_s: int | None = None,
        now_ms: int | None = None,
        dry_run: bool = False,
        on_progress: Callable[[CompactionProgress], None] | None = None,
    ) -> dict[TopicPartition, CompactionReport]:
        """Compact the partitions of all topics whose ``cleanup_policy`` has "compact";
        as `logstore.Store.compact`. `on_progress` is called in another thread."""
        return await self._services.run(
            partial(
                self.blocking.compact,
                force=force,
                max_memory=max_memory,
                max_bytes_per_s=max_bytes_per_s,
                now_ms=now_ms,
                dry_run=dry_run,
                on_progress=on_progress,
            )
        )

    # ------------------------------------------------------------ publishing

    async def publish(
        self,
        staged: Staged | Iterable[Staged],
        *,
        identity: str = "",
        sequence: int = 0,
        note: str = "",
        metadata: bytes = b"",
        pinned: bool | None = None,
    ) -> Publication:
        """Append staged records durably: all of them or none; as
        `logstore.Store.publish`.

        If the task is cancelled, the publication is completed: `published` says
        whether it is done, and publishing again with the same identity and sequence
        does nothing if it is.
        """
        staged_list, publish = _listed(staged), self.blocking.publish
        return await self._services.run(
            lambda: publish(
                staged_list,
                identity=identity,
                sequence=sequence,
                note=note,
                metadata=metadata,
                pinned=pinned,
            )
        )

    async def submit(
        self,
        staged: Staged | Iterable[Staged],
        *,
        identity: str,
        sequence: int,
        note: str = "",
        metadata: bytes = b"",
        pinned: bool | None = None,
        timeout_ms: int | None = None,
    ) -> Publication:
        """Publish from any process, also if another one has the store open for writing;
        as `logstore.Store.submit`.

        If the task is cancelled, the request stays, as it does after its time.
        """
        staged_list, submit = _listed(staged), self.blocking.submit
        return await self._services.run(
            lambda: submit(
                staged_list,
                identity=identity,
                sequence=sequence,
                note=note,
                metadata=metadata,
                pinned=pinned,
                timeout_ms=timeout_ms,
            )
        )

    async def snapshot(
        self,
        path: str | os.PathLike[str],
        *,
        links: bool = True,
        on_progress: Callable[[SnapshotProgress], None] | None = None,
    ) -> SnapshotReport:
        """Make a copy of the store at one moment, in a new directory; as
        `logstore.Store.snapshot`. `on_progress` is called in another thread."""
        make = self.blocking.snapshot
        return await self._services.run(
            lambda: make(path, links=links, on_progress=on_progress)
        )

    async def discard_staged(
        self,
        staged: Staged | Iterable[Staged] = (),
        *,
        identity: str = "",
        before: int = 0,
        older_than_ms: int | None = None,
    ) -> None:
        """Remove staged files that will not be published; as
        `logstore.Store.discard_staged`."""
        staged_list, discard = _listed(staged), self.blocking.discard_staged
        await self._services.run(
            lambda: discard(
                staged_list,
                identity=identity,
                before=before,
                older_than_ms=older_than_ms,
            )
        )

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """Close the store: calls begun before are finished, and calls begun later raise
        `StoreClosedError`. Followers raise it, too.

        May be called again, also after it failed. If the task is cancelled, closing
        is completed.

        Raises: as `logstore.Store.close`; `EventLoopError`.
        """
        loop = self._binding.loop()
        if self._closing is None or _has_failed(self._closing):
            self._guard.is_closed = True
            self._closing = loop.create_task(self._close())
            self._closing.add_done_callback(self._closed)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._commits.finish()
        await asyncio.get_running_loop().run_in_executor(None, self.blocking.close)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        """Complete the close: the end of a loop cancels all tasks, even before their
        first step."""
        try:
            if closing.cancelled():
                self.blocking.close()
        finally:
            self._commits.end()
            self._wakes.close()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _listed(staged: Staged | Iterable[Staged]) -> list[Staged]:
    """Now: the caller may change a list while it waits."""
    return [staged] if isinstance(staged, Staged) else list(staged)
