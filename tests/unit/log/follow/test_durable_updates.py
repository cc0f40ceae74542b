"""Other processes know the durable offset after the sync, before the state file is
written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import logstore
from logstore import Partition, Store, StoreConfig, TopicConfig
from logstore import _native as native
from logstore.io import layout
from logstore.io.checkpoint import durable_page
from logstore.io.checkpoint.durable_page import PageKey, pack_page, unpack_page
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.log.follow.durable_updates import DurableUpdates
from logstore.log.write.durable_page import DurablePage
from support.damage import append_garbage, cut, flip_bit, zero

NEVER = 1 << 60
# The state file is written only at rolls and at the close, so in between only the file
# of durable offsets reports them.
CONFIG = StoreConfig(flush_checkpoint_ms=NEVER)
TOPIC = TopicConfig(flush_ms=NEVER, flush_messages=NEVER, file_delete_delay_ms=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with logstore.open(path, config=CONFIG) as opened:
        opened.create_topic("a", 2, TOPIC)
        yield opened


@pytest.fixture
def log(store: Store) -> Partition:
    partition = store.topic("a")[0]
    # The first sync writes the state.
    partition.append(b"first", durable=True)
    return partition


@pytest.fixture
def reader(path: Path, log: Partition) -> Iterator[Partition]:
    with logstore.open(path, read_only=True) as opened:
        found = opened.topic("a")[0]
        assert found.durable_offset <= 1
        yield found


def page_of(log: Partition) -> Path:
    return Path(log.path, layout.DURABLE)


def many(log: Partition) -> None:
    log.append_many([b"x"] * 5, durable=True)


WAYS: list[Callable[[Partition], None]] = [
    lambda log: log.append(b"x", durable=True) and None,
    lambda log: [log.append(b"x", durable=True) for _ in range(20)] and None,
    many,
    lambda log: (log.append(b"x"), log.flush())[1],
    lambda log: (log.append(b"x"), log.roll())[1] and None,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=["one", "twenty", "many", "flush", "roll"])
def test_reader_knows_what_is_durable_after_each_sync(
    log: Partition, reader: Partition, way: Any
) -> None:
    """The sync may be made in C or in Python; readers never see more."""
    for _ in range(3):
        way(log)
        assert reader.durable_offset == log.durable_offset == log.end_offset
        log.append(b"not durable")
        assert (reader.durable_offset, reader.end_offset) == (
            log.durable_offset, log.end_offset,
        )  # fmt: skip
        found = [r.offset for r in reader.read(durable_only=True)]
        assert found == list(range(log.durable_offset))


def test_sync_in_c_tells_by_itself(
    log: Partition, reader: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the file is open, no call of Python is made for it."""
    for _ in range(3):
        log.append(b"x", durable=True)
    calls: list[int] = []
    monkeypatch.setattr(DurablePage, "tell", lambda self, *given: calls.append(1))
    for _ in range(10):
        log.append(b"x", durable=True)
    assert calls == []
    assert reader.durable_offset == log.end_offset == 14


def test_follower_of_durable_records_is_woken(
    log: Partition, reader: Partition
) -> None:
    """The sync wakes it: no record is appended after it."""
    seen: list[int] = []
    is_begun, is_done = threading.Event(), threading.Event()

    def follow() -> None:
        for record in reader.follow(0, durable_only=True, timeout=120):
            seen.append(record.offset)
            is_begun.set()
            if record.offset == 3:
                is_done.set()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    assert is_begun.wait(120)
    for _ in range(3):
        log.append(b"x")
    assert not is_done.wait(0.05)
    log.flush()
    assert is_done.wait(120)
    thread.join()
    assert seen == [0, 1, 2, 3]


def test_cut_log_is_not_taken_for_the_one_before(
    log: Partition, reader: Partition
) -> None:
    """The log has its former length again, and none of the new records is durable."""
    log.append_many([b"x"] * 20, durable=True)
    assert reader.durable_offset == 21
    log.truncate_to(5)
    log.append_many([b"y"] * 50)
    assert log.durable_offset == 5
    assert reader.durable_offset == 5
    log.flush()
    assert reader.durable_offset == 55


def test_deleted_head_changes_nothing(log: Partition, reader: Partition) -> None:
    log.append_many([b"x"] * 20, durable=True)
    log.roll()
    log.append_many([b"x"] * 20, durable=True)
    log.delete_before(21)
    log.append(b"y", durable=True)
    assert (reader.start_offset, reader.durable_offset) == (21, 42)


def test_publication_under_way_is_durable_for_nobody(
    path: Path, store: Store, log: Partition, reader: Partition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its logs are synced before it is sealed."""
    with store.stage() as stage:
        stage.append_many(log, [b"p"] * 4)
        staged = stage.finish()
    real, seen = native.Steps.make, []

    def make(self: native.Steps, end: int, begin: int = 0) -> tuple[int, int]:
        for number in range(begin, end):
            if self[number].kind == native.STEP_SYNC and self[number].size:
                done = real(self, number + 1, begin)
                seen.append((done, reader.durable_offset, reader.end_offset))
                begin = number + 1
        return real(self, end, begin)

    monkeypatch.setattr(native.Steps, "make", make)
    store.publish([staged])
    assert seen == [((3, 0), 1, 1)]
    assert (reader.durable_offset, reader.end_offset) == (5, 5)


# ---------------------------------------------------------------- what does not count


def copied(path: Path, to: Path) -> Partition:
    """A copy of the store, as a backup makes one."""
    shutil.copytree(path, to)
    return logstore.open(to, read_only=True).topic("a")[0]


def test_copy_of_the_file_says_nothing_of_a_copied_log(
    path: Path, tmp_path: Path, log: Partition, reader: Partition
) -> None:
    """The copy's owner file is another file with the same content."""
    log.append_many([b"x"] * 20, durable=True)
    assert reader.durable_offset == 21
    copy = copied(path, tmp_path / "copy")
    assert copy.end_offset == 21
    assert copy.durable_offset <= 1


@pytest.mark.parametrize("is_opened", [False, True])
def test_next_owner_tells_what_one_that_was_killed_had_synced(
    path: Path, *, is_opened: bool
) -> None:
    """The next owner reports a log to which it appends nothing, too, opened or not: a
    consumer elsewhere would wait for it forever."""
    with logstore.open(path, config=CONFIG) as store:
        store.create_topic("a", 2, TOPIC)
    child = os.fork()
    if child == 0:
        try:
            store = logstore.open(path, config=CONFIG)
            store.topic("a")[1].append(b"durable", durable=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with logstore.open(path, read_only=True) as beside:
        quiet = beside.topic("a")[1]
        assert quiet.durable_offset == 1
        with logstore.open(path, config=CONFIG) as store:
            if is_opened:
                assert store.topic("a")[1].end_offset == 1
            store.topic("a")[0].append(b"of the next owner", durable=True)
            deadline = time.monotonic() + 60
            while quiet.durable_offset < 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert quiet.durable_offset == 1


def test_file_of_an_owner_that_was_killed_says_what_it_has_synced(
    path: Path,
) -> None:
    """The file is still correct; the next owner has another file."""
    child = os.fork()
    if child == 0:
        try:
            store = logstore.open(path, config=CONFIG)
            log = store.create_topic("a", 1, TOPIC)[0]
            log.append(b"first", durable=True)
            log.append_many([b"x"] * 20, durable=True)
            log.append(b"y")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (path / "a-0" / layout.DURABLE).exists()
    with logstore.open(path, read_only=True) as reading:
        log = reading.topic("a")[0]
        assert (log.end_offset, log.durable_offset) == (22, 21)
        with logstore.open(path, config=CONFIG) as store:
            assert log.durable_offset == 21
            assert store.topic("a")[0].append(b"y") == 22
            assert log.durable_offset == store.topic("a")[0].durable_offset == 22


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_was_synced_before_a_backup_was_put_back_does_not_count(
    path: Path, tmp_path: Path, is_closed: bool
) -> None:
    """The log has its former id and cuts again, and grows past the old durable end."""
    saved = tmp_path / "saved"
    with logstore.open(path, config=CONFIG) as store:
        log = store.create_topic("a", 1, TOPIC)[0]
        log.append_many([b"first"] * 5, durable=True)
    shutil.copytree(path, saved)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(logstore.open(path, config=CONFIG))
        reading = stack.enter_context(logstore.open(path, read_only=True))
        reader = reading.topic("a")[0]
        store.topic("a")[0].append_many([b"x"] * 20, durable=True)
        store.topic("a")[0].append_many([b"not yet"] * 5)
        assert (reader.durable_offset, reader.end_offset) == (25, 30)
        if is_closed:
            store.close()
        else:
            put_back(saved, path)
            with contextlib.suppress(logstore.LogStoreError):
                store.close()
        put_back(saved, path)
        store = stack.enter_context(logstore.open(path, config=CONFIG))
        log = store.topic("a")[0]
        log.append_many([b"another"] * 30)
        assert log.durable_offset == 5
        assert (reader.durable_offset, reader.end_offset) == (5, 35)
        log.flush()
        assert reader.durable_offset == 35


def put_back(saved: Path, path: Path) -> None:
    """Restore the contents of a directory, under its own inode."""
    for entry in saved.rglob("*"):
        if entry.is_file() and entry.name != ".lock":
            shutil.copy2(entry, path / entry.relative_to(saved))


@pytest.mark.parametrize(
    "other", ["boot", "owner", "log", "cuts"],
)  # fmt: skip
def test_file_of_something_else_does_not_count(
    store: Store, log: Partition, reader: Partition, other: str
) -> None:
    """The file is of an earlier boot, of another owner, or of another log."""
    log.append_many([b"x"] * 20)
    files, context = store._context.files, log._writer.context
    owner = store._context.state.ownership.writer()
    assert owner is not None
    key = PageKey(files.boot_id(), owner, context.log_id, log._writer.cuts.serial)
    page = page_of(log)
    page.write_bytes(pack_page(key.head(), 15))
    assert reader.durable_offset == 15
    changes: dict[str, PageKey] = {
        "boot": key._replace(boot_id=bytes(16)),
        "owner": key._replace(owner=(owner[0], 0, owner[2] + 1, 0)),
        "log": key._replace(log_id="0" * 32),
        "cuts": key._replace(cuts=key.cuts + 1),
    }
    page.write_bytes(pack_page(changes[other].head(), 18))
    with logstore.open(store.path, read_only=True) as again:
        assert again.topic("a")[0].durable_offset <= 1


@pytest.mark.parametrize("bit", range(0, 640, 13))
def test_changed_bit_makes_it_not_count(store: Store, log: Partition, bit: int) -> None:
    log.append(b"x", durable=True)
    log.append_many([b"x"] * 20)
    flip_bit(page_of(log), bit)
    with logstore.open(store.path, read_only=True) as again:
        assert again.topic("a")[0].durable_offset <= 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda page: cut(page, 0), lambda page: cut(page, 79),
        lambda page: zero(page, 0, 80), lambda page: zero(page, 64, 80),
        lambda page: page.unlink(), lambda page: (page.unlink(), page.mkdir()),
        lambda page: (page.unlink(), page.symlink_to("../.lock")),
        lambda page: (page.unlink(), os.mkfifo(page)),
    ],
    ids=["empty", "short", "zeros", "zero tail", "gone", "directory", "link", "fifo"],
)  # fmt: skip
def test_damaged_file_is_as_none(store: Store, log: Partition, damage: Any) -> None:
    """Readers use the durable offset of the state, and the writer continues."""
    log.append(b"x", durable=True)
    damage(page_of(log))
    with logstore.open(store.path, read_only=True) as again:
        assert again.topic("a")[0].durable_offset <= 2
    assert log.append(b"y", durable=True) == 2
    with logstore.open(store.path, read_only=True) as again:
        assert again.topic("a")[0].durable_offset <= 3
    store.close()
    with logstore.open(store.path) as again:
        assert again.topic("a")[0].durable_offset == 3


def test_longer_file_counts_by_its_first_bytes(
    log: Partition, reader: Partition
) -> None:
    """Later versions may write more."""
    log.append_many([b"x"] * 20, durable=True)
    append_garbage(page_of(log))
    log.append(b"x", durable=True)
    assert reader.durable_offset == 22


def test_page_without_what_it_needs_is_none() -> None:
    """The system has no boot id, or the log no id."""
    key = PageKey(b"b" * 16, (1, 2, 3, 4), "ab" * 16, 7)
    assert unpack_page(pack_page(key.head(), 9), key.head()) == 9
    for bad in (
        key._replace(boot_id=b""), key._replace(log_id=""),
        key._replace(log_id="xyz"), key._replace(log_id="ab"),
    ):  # fmt: skip
        assert bad.head() == b""
        assert unpack_page(pack_page(key.head(), 9), bad.head()) == -1
    assert durable_page.digest_of(b"") != 0


# ---------------------------------------------------------------- failing calls, limits


@pytest.mark.parametrize("call", ["open", "create", "write", "owner_stamp"])
def test_failing_call_fails_no_sync(
    path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Other processes learn of it from the state, as before; the failure is logged
    once."""

    class Failing(Files):
        names: dict[int, str] = {}

        def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
            if name == layout.DURABLE and call == "create":
                raise OSError(errno.ENOSPC, "full")
            fd = super().create(dir_fd, name, exclusive=exclusive)
            self.names[fd] = name
            return fd

        def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
            if name == layout.DURABLE and call == "open":
                raise OSError(errno.EMFILE, "too many")
            return super().open(dir_fd, name, write=write)

        def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
            if self.names.get(fd) == layout.DURABLE and call == "write":
                raise OSError(errno.EIO, "broken")
            super().write(fd, data, pos)

    store = logstore.store.opening.open_store(
        str(path), config=CONFIG, _files=Failing()
    )
    log = store.create_topic("a", 1, TOPIC)[0]
    if call == "owner_stamp":

        def owner_stamp() -> Any:
            raise OSError(errno.EIO, "broken")

        store._context.state.ownership.writer = owner_stamp  # type: ignore[method-assign]
    for number in range(5):
        assert log.append(b"x", durable=True) == number
    told = [r for r in caplog.records if "durable offset of" in r.getMessage()]
    assert len(told) == 1
    store.close()
    with logstore.open(path, read_only=True) as reading:
        assert reading.topic("a")[0].durable_offset == 5


def test_files_of_many_partitions_stay_within_the_limit(path: Path) -> None:
    """Files of durable offsets count like segment files, and are closed with them."""
    config = StoreConfig(flush_checkpoint_ms=NEVER, max_open_files=8)
    with logstore.open(path, config=config) as store:
        topic = store.create_topic("a", 20, TOPIC)
        with logstore.open(path, read_only=True) as reading:
            for _ in range(2):
                for partition in topic:
                    partition.append(b"x", durable=True)
                    assert len(store._context.descriptors) <= 8
            for partition in reading.topic("a"):
                assert partition.durable_offset == 2
    assert not [
        name
        for number in os.listdir("/proc/self/fd")
        if (name := os.path.realpath(f"/proc/self/fd/{number}")).startswith(str(path))
    ]


@pytest.mark.parametrize("change", ["cut", "another log"])
def test_what_is_known_of_one_log_says_nothing_of_the_next(
    tmp_path: Path, change: str
) -> None:
    """The next log has no durable offset until its writer reports one."""
    owner = (5, 6, 7, 8)
    directory = Directory.open_root(Files(), str(tmp_path))
    boot_id = directory.files.boot_id()
    if not boot_id:
        pytest.skip("this machine does not tell when it was started")
    ids = {"cut": ("0a" * 16, 2), "another log": ("0b" * 16, 1)}
    ownership = SimpleNamespace(writer=lambda: owner)
    news = DurableUpdates(directory, cast(Any, ownership))

    def hear(log_id: str, cuts: int, durable: int, end: int = 100) -> int:
        serial = SimpleNamespace(serial=cuts)
        loaded = SimpleNamespace(log_id=log_id, cuts=serial, durable_offset=durable)
        news.update(cast(Any, loaded), end)
        return news.offset

    def tell(log_id: str, cuts: int, durable: int) -> None:
        head = PageKey(boot_id, owner, log_id, cuts).head()
        (tmp_path / layout.DURABLE).write_bytes(pack_page(head, durable))

    tell("0a" * 16, 1, 40)
    # Offsets above the end that was read may belong to another log by then.
    assert hear("0a" * 16, 1, 3, 25) == 25
    assert hear("0a" * 16, 1, 3) == 40
    tell("0a" * 16, 1, 30)  # an older copy of the file
    assert hear("0a" * 16, 1, 3) == 40
    assert hear(*ids[change], 3) == -1
    tell(*ids[change], 20)
    assert hear(*ids[change], 3) == 20
    news.forget(15)
    assert news.offset == 15
    directory.close()
