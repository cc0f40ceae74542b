"""Hand-in where calls of the system fail, on either side: nothing is lost or done
twice, and each error has a name."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import DiskFullError, StorageError, Store
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, requests
from logstore.io.files import Files
from logstore.io.filesystem import NETWORK
from logstore.io.wakeups import Wakeups
from logstore.store.publication.publisher import Publisher
from support import handing_in
from support.handing_in import (
    SERVING,
    Later,
    hold_back,
    requests_in,
    staged_by,
    submit,
    until,
    waiting_in,
)

# Fixtures.
path, owner, reader = handing_in.path, handing_in.owner, handing_in.reader


class Failing(Files):
    """Fails calls, on files with a name, if told so."""

    def __init__(self) -> None:
        self.failures: dict[tuple[str, str], int] = {}
        self.opened: dict[int, str] = {}

    def _check(self, call: str, name: str) -> None:
        for (method, part), number in self.failures.items():
            if method == call and part in name:
                raise OSError(number, os.strerror(number))

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        self._check("create", name)
        fd = super().create(dir_fd, name, exclusive=exclusive)
        self.opened[fd] = name
        return fd

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        self._check("open for writing" if write else "open", name)
        fd = super().open(dir_fd, name, write=write)
        self.opened[fd] = name
        return fd

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        self._check("write", self.opened.get(fd, ""))
        super().write(fd, data, pos)

    def rename(self, dir_fd: int, old: str, new: str) -> None:
        self._check("rename", old)
        super().rename(dir_fd, old, new)

    def unlink(self, dir_fd: int, name: str) -> None:
        self._check("unlink", name)
        super().unlink(dir_fd, name)

    def list(self, dir_fd: int, *, directories: bool = False) -> Any:
        self._check("list", "")
        return super().list(dir_fd, directories=directories)

    def new_watch(self) -> int:
        self._check("new_watch", "")
        return super().new_watch()

    def watch(self, fd: int, at: int, *more: Any) -> int:
        self._check("watch", "")
        return super().watch(fd, at, *more)

    def new_event(self) -> int:
        self._check("new_event", "")
        return super().new_event()


@contextlib.contextmanager
def failing_reader(path: str) -> Iterator[tuple[Store, Failing]]:
    files = Failing()
    with logstore.open(path, read_only=True) as store:
        staged_by(store)
    opened = logstore.store.opening.open_store(path, read_only=True, files=files)
    with opened:
        yield opened, files


@pytest.mark.parametrize("call", ["create", "write", "rename"])
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFullError), (errno.EROFS, StorageError),
        (errno.EACCES, StorageError), (errno.EMFILE, StorageError),
    ],
    ids=["full", "read-only", "not allowed", "descriptors"],
)  # fmt: skip
def test_request_that_cannot_be_written_is_a_named_error(
    path: str, owner: Store, call: str, number: int, kind: type[StorageError]
) -> None:
    """Nothing of it is left, and what was staged is there for the next try."""
    with failing_reader(path) as (reader, files):
        staged = staged_by(reader)
        files.failures[call, layout.REQUEST_PREFIX] = number
        with pytest.raises(kind, match=r"cannot write the request .*handed in") as got:
            submit(reader, staged)
        assert got.value.errno == number
        assert requests_in(path) == []
        files.failures.clear()
        assert submit(reader, staged).is_new


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_free_lock_that_cannot_be_taken_is_a_named_error(
    path: str, number: int
) -> None:
    """As on a file system that is mounted read-only."""
    with failing_reader(path) as (reader, files):
        staged = staged_by(reader)
        files.failures["open for writing", layout.LOCK] = number
        with pytest.raises(StorageError, match="lock"):
            submit(reader, staged)
        assert requests_in(path) == []


@pytest.mark.parametrize("side", ["owner", "requester"])
@pytest.mark.parametrize("call", ["new_watch", "watch"])
def test_changes_that_are_not_reported_are_found(
    path: str, side: str, call: str
) -> None:
    """Where there are no more watches: more slowly."""
    files = {"owner": Failing(), "requester": Failing()}
    files[side].failures[call, ""] = errno.EMFILE
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, files=files["owner"]) as owner,
        open_store(path, read_only=True, files=files["requester"]) as reader,
    ):
        for sequence in (1, 2, 3):
            assert submit(reader, staged_by(reader, 1, sequence), sequence).is_new
        assert owner.published("x") == 3


def test_names_that_the_system_has_dropped_are_listed(
    path: str, owner: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More renames than a watch keeps."""
    monkeypatch.setattr(Files, "reports", lambda self, fd: None)
    assert submit(reader, staged_by(reader)).is_new
    assert owner.published("x") == 1


def test_names_that_an_interrupt_has_lost_are_listed(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the owner's own call has taken the reports."""
    hold_back(monkeypatch)
    with logstore.open(path, config=SERVING) as owner:
        owner.publish([], identity="y", sequence=1)
        call = Later(lambda: submit(reader, staged_by(reader)))
        until(lambda: waiting_in(path))
        take = Wakeups.take

        def interrupted(self: Wakeups) -> None:
            take(self)
            raise KeyboardInterrupt

        with monkeypatch.context() as during:
            during.setattr(Wakeups, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                owner.publish([], identity="y", sequence=2)
        owner.publish([], identity="y", sequence=2)
        assert call.get().is_new


class OtherHost(Files):
    """A network file system, with changes by other hosts only."""

    def file_system(self, fd: int) -> int:
        return next(iter(NETWORK))

    def reports(self, fd: int) -> Any:
        return []

    def wait_for_any(self, fds: Any, seconds: float | None) -> Any:
        assert seconds is not None  # nothing would end it
        time.sleep(min(seconds, 0.01))
        return []


def test_owner_on_a_network_file_system_looks_for_requests(path: str) -> None:
    """Renames by other hosts are not reported to it."""
    config = dataclasses.replace(SERVING, allow_network_filesystem=True)
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=config, files=OtherHost()) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        assert submit(reader, staged_by(reader)).is_new
        assert owner.published("x") == 1


def test_thread_that_cannot_be_started_fails_the_opening(path: str) -> None:
    """The lock is free again."""
    files = Failing()
    files.failures["new_event", ""] = errno.EMFILE
    with pytest.raises(StorageError, match="no thread"):
        logstore.store.opening.open_store(path, config=SERVING, files=files)
    with logstore.open(path, config=SERVING) as store:
        assert store.topics() == ["a"]


@pytest.mark.parametrize("call", ["write", "open for writing"])
def test_answer_that_cannot_be_written_is_asked_for_again(path: str, call: str) -> None:
    """It was published: the requester is told so, and it is not done twice."""
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, files=files) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        files.failures[call, layout.REQUEST_PREFIX] = errno.ENOSPC
        call_ = Later(lambda: submit(reader, staged_by(reader)))
        until(lambda: owner.published("x") == 1)
        files.failures.clear()
        assert call_.get().records == 2
        assert owner.topic("a")[0].end_offset == 2


def test_request_that_cannot_be_removed_keeps_its_answer(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a requester that is slow to read it, when the owner sees the name again;
    the next owner removes it."""
    read = requests.RequestFile.answer

    def answer_later(self: requests.RequestFile) -> requests.Answer | None:
        if read(self) is not None:
            with owner._publishing.publisher.lock:
                owner._publishing.hand_in._names.add(self.name)
            owner._publishing.hand_in.serve()
        return read(self)

    monkeypatch.setattr(requests.RequestFile, "answer", answer_later)
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, files=files) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        files.failures["unlink", layout.REQUEST_PREFIX] = errno.EIO
        assert submit(reader, staged_by(reader)).is_new
    assert len(requests_in(path)) == 1
    with logstore.open(path, config=SERVING) as owner:
        until(lambda: not requests_in(path))
        assert owner.topic("a")[0].end_offset == 2


def test_interrupted_publication_leaves_the_requests(
    path: str, owner: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are served at the next try."""
    real, fails = Publisher.publish_all, [MemoryError(), KeyboardInterrupt()]

    def publish_all(self: Publisher, asked: Any) -> Any:
        if fails:
            raise fails.pop()
        return real(self, asked)

    monkeypatch.setattr(Publisher, "publish_all", publish_all)
    assert submit(reader, staged_by(reader)).is_new
    assert not fails


def test_closed_partition_is_the_error_of_the_requester(
    path: str, owner: Store, reader: Store
) -> None:
    """What the owner's disk refuses, is told."""
    partition = owner.topic("a")[0]
    partition.append(b"x")
    writer = owner._topics.writers.loaded["a", 0]
    writer.fail(StorageError("broken", path="p", action="sync"))
    with pytest.raises(logstore.SyncFailedError, match="broken"):
        submit(reader, staged_by(reader))


def test_owner_that_cannot_list_its_directory_publishes_its_own(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits is served when it can again."""
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, files=files) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        until(lambda: owner._publishing.hand_in._is_listed)
        partition = owner.topic("a")[0]
        assert partition.end_offset == 0
        owner._publishing.hand_in._is_listed = False
        files.failures["list", ""] = errno.EIO
        assert owner.publish([staged_by(owner)], identity="own", sequence=1).is_new
        assert any("cannot look for requests" in r.msg for r in caplog.records)
        files.failures.clear()
        owner._publishing.hand_in._is_listed = False
        assert submit(reader, staged_by(reader)).is_new


class Before(Files):
    """Does something before each request gets its name."""

    def __init__(self, does: Callable[[int, str], None]) -> None:
        self._does = does

    def rename(self, dir_fd: int, old: str, new: str) -> None:
        if old.startswith(layout.REQUEST_PREFIX):
            self._does(dir_fd, old)
        super().rename(dir_fd, old, new)


def test_same_records_are_handed_in_by_two_at_the_same_time(
    path: str, owner: Store, reader: Store
) -> None:
    """Each writes a file of its own: neither takes that of the other one."""
    staged = staged_by(reader)
    found: list[logstore.Publication] = []

    def meanwhile(_fd: int, _name: str) -> None:
        if not found:
            found.append(submit(reader, staged))

    files = Before(meanwhile)
    with logstore.store.opening.open_store(path, read_only=True, files=files) as other:
        found.append(submit(other, staged))
    assert [done.is_new for done in found] == [True, False]
    until(lambda: not requests_in(path))
    assert not list(Path(path).glob(f"{layout.REFUSED_PREFIX}*"))
    assert owner.topic("a")[0].end_offset == 2


@pytest.mark.parametrize("times", [1, 1000])
def test_request_that_is_discarded_before_it_has_its_name(
    path: str, owner: Store, times: int
) -> None:
    """It is written again, a few times."""
    left = [times]

    def discard(dir_fd: int, name: str) -> None:
        if left[0]:
            left[0] -= 1
            os.unlink(name, dir_fd=dir_fd)

    files = Before(discard)
    with logstore.store.opening.open_store(path, read_only=True, files=files) as reader:
        staged = staged_by(reader)
        if times > 1:
            with pytest.raises(StorageError, match=r"Nothing was handed in\."):
                submit(reader, staged)
            left[0] = 0
        assert submit(reader, staged).is_new


def test_request_of_a_killed_process_is_removed_with_the_others(path: str) -> None:
    """It was killed before its request had its name."""
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        logstore.open(path) as busy,
        open_store(path, read_only=True, files=files) as reader,
    ):
        staged = staged_by(reader)
        for call in ("rename", "unlink"):
            files.failures[call, layout.REQUEST_PREFIX] = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            submit(reader, staged)
        (left,) = requests_in(path)
        assert left.endswith(".tmp")
        busy.discard_staged(identity="x", before=2)
        assert requests_in(path) == []


def test_second_writing_of_a_request_that_fails_tells_of_the_first(path: str) -> None:
    """The first one was published, and its answer could not be written."""
    files, mine = Failing(), Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, files=files) as owner,
        open_store(path, read_only=True, files=mine) as reader,
    ):
        files.failures["write", layout.REQUEST_PREFIX] = errno.EIO
        staged = staged_by(reader)
        real = Publisher.publish_all

        def publish_all(self: Publisher, asked: Any) -> Any:
            mine.failures["create", layout.REQUEST_PREFIX] = errno.ENOSPC
            return real(self, asked)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Publisher, "publish_all", publish_all)
            with pytest.raises(DiskFullError, match="may have been published") as got:
                submit(reader, staged)
        assert "Nothing was" not in str(got.value)
        assert owner.published("x") == 1
        mine.failures.clear()
        files.failures.clear()
        assert not submit(reader, staged).is_new


def test_answer_is_not_written_to_another_file_of_that_name(owner: Store) -> None:
    """It was handed in anew between."""
    root = owner._context.root
    name = requests.request_name("y", 1, "1-" + "0" * 16)
    data = requests.pack_request([], "y", 1, "", b"", None)
    with owner._publishing.publisher.lock:
        files = [requests.RequestFile(root, name, data)]
        read = requests.OpenRequest(root, name)
        files.append(requests.RequestFile(root, name, data))
        read.answer(requests.Answer(None, 7))
        read.remove()
        assert checkpoints.state_bytes(root, name) == data
        answers = [file.answer() for file in files]
        for file in files:
            file.close()
    assert answers == [requests.Answer(None, 7), None]
