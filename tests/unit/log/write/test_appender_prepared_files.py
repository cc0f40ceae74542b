"""Steps of C call the methods of a subclass of `Files`, which may raise, append, close
the store or fork."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.errors import (
    DiskFullError,
    ReentrantCallError,
    StorageError,
    SyncFailedError,
)
from logstore.io.files import Files, replaced_calls
from logstore.log.write.segment_writer import SegmentWriter
from logstore.store.opening import open_store
from support.damage import FaultyFiles
from support.values import new_partition, values

T = 1_700_000_000_000
NEVER = 1 << 60
CALLS = ("lock", "monotonic", "now_ms", "sync", "write")


class Acting(Files):
    """Acts before or after one call of a method.

    Attributes:
        calls: names of the methods of `CALLS`, in order.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._method = ""
        self._before: Callable[[], object] | None = None
        self._behind: Callable[[], object] | None = None

    def act(
        self,
        method: str,
        before: Callable[[], object] | None = None,
        behind: Callable[[], object] | None = None,
    ) -> None:
        """Act at the next call of a method, once."""
        self._method, self._before, self._behind = method, before, behind

    def call(self, method: str, *args: Any) -> Any:
        self.calls.append(method)
        before = behind = None
        if method == self._method:
            before, behind = self._before, self._behind
            self._method = ""
        if before is not None:
            before()
        result = getattr(Files, method)(self, *args)
        if behind is not None:
            behind()
        return result


def _acting(method: str) -> Callable[..., Any]:
    return lambda self, *args: self.call(method, *args)


for _method in CALLS:
    setattr(Acting, _method, _acting(_method))


@pytest.fixture
def files() -> Acting:
    return Acting()


def partition_in(store: logstore.Store, magic: int = 2, **settings: Any) -> Any:
    """A partition whose next append is one step."""
    defaults = {"flush_messages": NEVER, "flush_ms": NEVER}
    partition = new_partition(store, magic, **(defaults | settings))
    partition.append(b"first")
    return partition


# More than one batch, but no more than one step takes.
MANY = [b"%05d" % number * 10 for number in range(2800)]


def reserve(partition: Any) -> None:
    """Have the disk reserve room for two steps of `MANY`."""
    active = partition._writer.appends._log.active
    while not active.writer.has_reserved(500_000):
        partition.append_many(MANY)


def step(partition: Any, value: bytes = b"step") -> int:
    """Append in one step only: -1 if it was not taken."""
    offset: int = partition._append_prepared(value, b"key", None)
    return offset


def raise_it(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_replaced_calls_are_those_of_a_subclass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test may replace them in a class, in an object, and in `Files` itself."""

    class Synced(Files):
        def sync(self, fd: int) -> None:
            """Do nothing."""

    def names(files: Files) -> list[str]:
        found = zip(sorted(CALLS), replaced_calls(files), strict=True)
        return [name for name, method in found if method == getattr(files, name)]

    assert replaced_calls(Files()) == (None,) * len(CALLS)
    assert names(Acting()) == sorted(CALLS)
    assert names(Synced()) == ["sync"]
    patched = Files()
    monkeypatch.setattr(patched, "write", lambda *_: None)
    assert names(patched) == ["write"]
    monkeypatch.setattr(Files, "now_ms", lambda _: T)
    assert names(Files()) == ["now_ms"]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_each_call_of_a_step_is_a_method(
    tmp_path: Path, files: Acting, magic: int
) -> None:
    with open_store(tmp_path, _files=files) as store:
        # The buffers of the indexes do not grow during this.
        partition = partition_in(store, magic, index_interval_bytes=1 << 30)
        files.calls.clear()
        assert step(partition) == 1
        assert files.calls == ["now_ms", "write"]
        reserve(partition)
        files.calls.clear()
        # Two batches: the frame of the first one is written last.
        end = partition._prepared.append_many(MANY, None, None).stop
        assert files.calls == ["now_ms", "write", "write"]
        partition.flush()
        files.calls.clear()
        assert partition._writer.syncs.shared.append(b"v", None, None) == end
        # The thread of the store asks for the time, too.
        calls = [name for name in files.calls if name != "monotonic"]
        assert calls == ["now_ms", "write", "lock", "sync", "write"]
        assert partition.durable_offset == end + 1


@pytest.mark.parametrize("magic", [1, 2])
def test_bytes_are_those_of_the_system(
    tmp_path: Path, files: Acting, magic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number, one in enumerate((Files(), files)):
        monkeypatch.setattr(Files, "now_ms", lambda _: T)
        path = tmp_path / str(number)
        with open_store(path, _files=one) as store:
            partition = partition_in(store, magic, index_interval_bytes=200)
            reserve(partition)
            for count in (1, 5, 100, len(MANY)):
                assert partition._prepared.append_many(MANY[:count], None, None)
                assert step(partition) > 0
        found.append(
            {
                file.name: file.read_bytes()
                for file in sorted(path.glob("*-0/*.*"))
                if file.suffix in (".log", ".index", ".timeindex")
            }
        )
    assert found[0] == found[1]
    assert len(found[0]) == 3


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("short", [-1, 0, 20])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, StorageError), (errno.ENOSPC, DiskFullError)]
)
def test_write_that_fails_is_undone(
    tmp_path: Path, code: int, kind: type[Exception], short: int
) -> None:
    """The step raises the error; it is not tried again."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        files.fail("write", code, times=1, name=".log", short=short)
        with pytest.raises(kind, match=r"The log is as it was\.") as caught:
            step(partition)
        cause = caught.value.__cause__
        assert isinstance(cause, OSError)
        assert cause.errno == code
        health = partition._writer.health
        assert not health.is_blocked
        assert not health.is_torn
        assert partition.append(b"second") == 1
        assert values(partition) == [b"first", b"second"]


def test_write_that_fails_with_its_undo_ends_the_log(tmp_path: Path) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        files.fail("write", name=".log", short=20)
        files.fail("truncate")
        with pytest.raises(SyncFailedError, match="cannot be undone"):
            step(partition)
        files.heal()
        with pytest.raises(SyncFailedError):
            partition.append(b"second")
        assert values(partition) == [b"first"]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("x")])
def test_what_a_write_raises_is_raised(
    tmp_path: Path, files: Acting, error: BaseException, is_done: bool
) -> None:
    """The same object, even if the bytes are in the file already."""
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        where = "behind" if is_done else "before"
        files.act("write", **{where: raise_it(error)})
        with pytest.raises(type(error)) as caught:
            step(partition)
        assert caught.value is error
        assert not partition._writer.health.is_torn
        assert values(partition) == [b"first"]
        assert partition.append(b"second") == 1
    with logstore.open(tmp_path) as store:
        assert values(store.topic("orders")[0]) == [b"first", b"second"]


def test_log_is_torn_until_a_failed_write_is_undone(
    tmp_path: Path, files: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt comes before the undo: the next reader makes it first."""
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        health = partition._writer.health
        seen = []

        def interrupt(*_: object) -> None:
            seen.append((health.is_torn, health.is_blocked))
            raise KeyboardInterrupt

        monkeypatch.setattr(SegmentWriter, "undo_failed", interrupt)
        files.act("write", behind=raise_it(OSError(errno.EIO, "behind")))
        with pytest.raises(KeyboardInterrupt):
            step(partition)
        assert seen == [(True, True)]
        log = next(tmp_path.glob("orders-0/*.log"))
        end = partition._writer.appends._log.active.writer.state.size
        assert log.read_bytes()[end : end + 8] != bytes(8)
        assert values(partition) == [b"first"]
        assert log.read_bytes()[end : end + 8] in (b"", bytes(8))
        assert not health.is_torn


@pytest.mark.parametrize("method", ["now_ms", "lock", "monotonic"])
def test_interrupt_in_another_call_is_raised(
    tmp_path: Path, files: Acting, method: str
) -> None:
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        files.act(method, raise_it(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            partition.append(b"second", durable=True)
        end = partition.append(b"third", durable=True)
        assert end == (1 if method == "now_ms" else 2)
        assert partition.durable_offset == end + 1


def test_sync_that_fails_ends_the_log_with_its_error(
    tmp_path: Path, files: Acting
) -> None:
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        error = OSError(errno.EIO, "the disk")
        files.act("sync", raise_it(error))
        with pytest.raises(SyncFailedError, match="the disk") as caught:
            partition.append(b"second", durable=True)
        assert caught.value.__cause__ is error
        with pytest.raises(SyncFailedError):
            partition.append(b"third")


@pytest.mark.parametrize("where", ["before", "behind"])
def test_interrupt_in_a_sync_is_raised(
    tmp_path: Path, files: Acting, where: str
) -> None:
    """The interrupt shows nothing about the disk: the next sync is made."""
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        files.act("sync", **{where: raise_it(KeyboardInterrupt())})
        with pytest.raises(KeyboardInterrupt):
            partition.append(b"second", durable=True)
        assert partition.durable_offset == 0
        assert partition.append(b"third", durable=True) == 2
        assert partition.durable_offset == 3


def test_write_that_tells_what_is_durable_may_fail(
    tmp_path: Path, files: Acting
) -> None:
    """No caller waits for that; an interrupt in it is raised."""
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        partition.flush()

        def fail_next_write(error: BaseException) -> Callable[[], None]:
            return lambda: files.act("write", raise_it(error))

        files.act("sync", behind=fail_next_write(OSError(errno.EIO, "the page")))
        assert partition.append(b"second", durable=True) == 1
        files.act("sync", behind=fail_next_write(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            partition.append(b"third", durable=True)
        assert partition.durable_offset == 3
        assert partition.append(b"fourth", durable=True) == 3


# ------------------------------------------------------------------ calls in calls


def at_once(act: Callable[[], None]) -> None:
    act()


def by_a_signal_handler(act: Callable[[], None]) -> None:
    has_run = threading.Event()

    def handle(*_: object) -> None:
        act()
        has_run.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert has_run.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, before)


def by_a_finalizer(act: Callable[[], None]) -> None:
    garbage = type("Garbage", (), {"__del__": lambda _: act()})()
    garbage.me = garbage
    del garbage
    gc.collect()


@pytest.mark.parametrize("make", [at_once, by_a_signal_handler, by_a_finalizer])
@pytest.mark.parametrize("method", ["write", "now_ms", "lock", "monotonic", "sync"])
def test_append_from_inside_a_call(
    tmp_path: Path,
    files: Acting,
    method: str,
    make: Callable[[Callable[[], None]], None],
) -> None:
    """Inside a write it is refused; elsewhere it comes first, or after the other
    one."""
    found: list[object] = []
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)

        def append() -> None:
            try:
                found.append(partition.append(b"inside"))
            except ReentrantCallError as error:
                found.append(error)

        files.act(method, lambda: make(append))
        offset = partition.append(b"outside", durable=True)
        if method == "write":
            assert isinstance(found[0], ReentrantCallError)
        else:
            assert found == [1 if method == "now_ms" else 2]
        expected = [b"first", b"outside"]
        if method != "write":
            expected.insert(1 if method == "now_ms" else 2, b"inside")
        assert values(partition) == expected
        assert expected[offset] == b"outside"
        assert partition.durable_offset > offset


def test_append_to_another_partition_from_inside_a_write(
    tmp_path: Path, files: Acting
) -> None:
    """The inner append uses the memory of steps in between."""
    with open_store(tmp_path, _files=files) as store:
        config = logstore.TopicConfig(message_format=2, flush_ms=NEVER)
        first, second = store.create_topic("t", partitions=2, config=config)
        for partition in (first, second):
            partition.append(b"first")
            reserve(partition)
        before = values(first), values(second)

        def append() -> None:
            assert second._prepared.append_many([b"in"] * 3000, None, None)

        files.act("write", append)
        assert first._prepared.append_many(MANY, None, None)
        # Between the two writes.
        files.act("write", behind=append)
        assert first._prepared.append_many(MANY, None, None)
        assert values(first) == before[0] + MANY * 2
        assert values(second) == before[1] + [b"in"] * 6000


@pytest.mark.parametrize("method", CALLS)
def test_close_from_inside_a_call(tmp_path: Path, files: Acting, method: str) -> None:
    """It is refused while the log is in use; else the append finds a closed store."""
    found: list[BaseException | None] = []
    store = open_store(tmp_path, _files=files)
    partition = partition_in(store)

    def close() -> None:
        try:
            store.close()
            found.append(None)
        except ReentrantCallError as error:
            found.append(error)

    files.act(method, close)
    if method == "now_ms":
        with pytest.raises(logstore.errors.StoreClosedError):
            partition.append(b"second", durable=True)
        assert found == [None]
    else:
        assert partition.append(b"second", durable=True) == 1
        assert isinstance(found[0], ReentrantCallError)
    store.close()
    with logstore.open(tmp_path) as again:
        expected = [b"first"] if method == "now_ms" else [b"first", b"second"]
        assert values(again.topic("orders")[0]) == expected


@pytest.mark.parametrize("method", CALLS)
def test_close_by_another_thread_during_a_call(
    tmp_path: Path, files: Acting, method: str
) -> None:
    """The close waits, or the append finds a closed store; no released memory is
    read."""
    store = open_store(tmp_path, _files=files)
    partition = partition_in(store)
    closing, has_begun = threading.Thread(target=store.close), threading.Event()

    def close() -> None:  # by any thread of the store that makes the call first
        closing.start()
        has_begun.set()
        closing.join(0.2)

    files.act(method, close)
    try:
        is_in = partition.append(b"second", durable=True) == 1
    except (logstore.errors.StoreClosedError, logstore.LogStoreError):
        is_in = False
    assert has_begun.wait(20)
    closing.join(20)
    assert not closing.is_alive()
    with logstore.open(tmp_path) as again:
        found = values(again.topic("orders")[0])
        assert found[:2] == [b"first", b"second"][: len(found)]
        assert len(found) == 2 or not is_in


def test_append_by_another_thread_during_a_write(tmp_path: Path, files: Acting) -> None:
    """The other thread waits for the step."""
    offsets = []
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        other = threading.Thread(
            target=lambda: offsets.append(partition.append(b"other"))
        )

        def append() -> None:
            other.start()
            other.join(0.1)

        files.act("write", append)
        assert step(partition) == 1
        other.join(20)
        assert offsets == [2]
        assert values(partition) == [b"first", b"step", b"other"]


@pytest.mark.parametrize("method", CALLS)
def test_fork_in_a_call(tmp_path: Path, files: Acting, method: str) -> None:
    """The child appends nothing."""
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        children: list[int] = []

        def fork() -> None:
            children.append(os.fork())

        files.act(method, fork)
        status = 0
        try:
            partition.append(b"second", durable=True)
        except logstore.errors.ForkedError:
            pass
        except BaseException:
            status = 1
        if children == [0]:
            os._exit(status)
        assert os.waitpid(children[0], 0)[1] == 0
        assert partition.durable_offset == 2
        assert values(partition) == [b"first", b"second"]
        assert partition.append(b"third") == 2


def test_collection_during_a_call(tmp_path: Path, files: Acting) -> None:
    with open_store(tmp_path, _files=files) as store:
        partition = partition_in(store)
        for method in CALLS:
            files.act(method, gc.collect, gc.collect)
            partition.append(b"x", durable=True)
        assert partition.durable_offset == 6
