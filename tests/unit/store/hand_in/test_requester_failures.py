"""Hand-in with failing system calls, on either side: nothing is lost or done twice, and
each error has a name."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import DiskFullError, LogStoreError, StorageError, Store
from logstore import _native as native
from logstore.io import layout
from logstore.io.checkpoint.process_requests import ProcessFile, ServedProcess
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import NETWORK
from logstore.io.wakeups import Wakeups
from logstore.log.write.calls import Submission
from logstore.store.publication.publisher import Publisher
from support import handing_in
from support.handing_in import (
    SERVING,
    Later,
    hold_back,
    processes_in,
    staged_by,
    submit,
    until,
    waiting_in,
)
from support.staging import stage
from support.values import config_of

# Fixtures.
path, owner, reader = handing_in.path, handing_in.owner, handing_in.reader


class Failing(Files):
    """Fails configured calls on files with a name."""

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
    opened = logstore.store.opening.open_store(path, read_only=True, _files=files)
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
    """The request is removed, and the staged records are kept for the next try."""
    with failing_reader(path) as (reader, files):
        staged = staged_by(reader)
        files.failures[call, layout.PROCESS_PREFIX] = number
        with pytest.raises(kind, match=r"cannot hand in to .*handed in") as got:
            submit(reader, staged)
        assert got.value.errno == number
        assert processes_in(path) == []
        files.failures.clear()
        assert submit(reader, staged).is_new


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_free_lock_that_cannot_be_taken_is_a_named_error(
    path: str, number: int
) -> None:
    """The file system may be mounted read-only."""
    with failing_reader(path) as (reader, files):
        staged = staged_by(reader)
        files.failures["open for writing", layout.LOCK] = number
        with pytest.raises(StorageError, match="lock"):
            submit(reader, staged)
        assert waiting_in(path) == []


def test_lock_that_cannot_be_looked_at_is_a_named_error(path: str) -> None:
    """The request is withdrawn: with a descriptor again, it is published once."""
    with failing_reader(path) as (reader, files):
        staged = staged_by(reader)
        for name in (layout.LOCK, layout.LOCK_RECORD):
            files.failures["open", name] = errno.EMFILE
        with pytest.raises(StorageError, match="wait for an answer") as caught:
            submit(reader, staged)
        assert caught.value.errno == errno.EMFILE
        assert waiting_in(path) == []
        files.failures.clear()
        assert submit(reader, staged).is_new
        assert reader.published("x") == 1


@pytest.mark.parametrize("side", ["owner", "requester"])
@pytest.mark.parametrize("call", ["new_watch", "watch"])
def test_changes_that_are_not_reported_are_found(
    path: str, side: str, call: str
) -> None:
    """If there are no watches left, they are found more slowly."""
    files = {"owner": Failing(), "requester": Failing()}
    files[side].failures[call, ""] = errno.EMFILE
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, _files=files["owner"]) as owner,
        open_store(path, read_only=True, _files=files["requester"]) as reader,
    ):
        for sequence in (1, 2, 3):
            assert submit(reader, staged_by(reader, 1, sequence), sequence).is_new
        assert owner.published("x") == 3


def test_names_that_the_system_has_dropped_are_listed(
    path: str, owner: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more renames than a watch keeps."""
    monkeypatch.setattr(Files, "reports", lambda self, fd: None)
    within = Files.reports_within

    def lost(self: Files, *arguments: Any) -> None:
        within(self, *arguments)

    monkeypatch.setattr(Files, "reports_within", lost)
    assert submit(reader, staged_by(reader)).is_new
    assert owner.published("x") == 1


def test_names_that_an_interrupt_has_lost_are_listed(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes after the owner's own call has taken the reports."""
    hold_back(monkeypatch)
    with logstore.open(path, config=SERVING) as owner:
        owner.publish([], identity="y", sequence=1)
        call = Later(lambda: submit(reader, staged_by(reader)))
        until(lambda: waiting_in(path))
        take, owners = Wakeups.take, owner._publishing.hand_in._thread.wakeups

        def interrupted(self: Wakeups) -> Any:
            found = take(self)
            if self is owners:
                raise KeyboardInterrupt
            return found

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
        open_store(path, config=config, _files=OtherHost()) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        assert submit(reader, staged_by(reader)).is_new
        assert owner.published("x") == 1


def test_thread_that_cannot_be_started_fails_the_opening(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free afterwards."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageError, match="no thread"):
            logstore.open(path, config=SERVING)
    with logstore.open(path, config=SERVING) as store:
        assert store.topics() == ["a"]


def test_answer_that_cannot_be_written_is_found(path: str) -> None:
    """It was published: the requester gets that result, and it is not done twice. Also
    without a time limit."""
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, _files=files) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        files.failures["write", layout.ANSWERS_PREFIX] = errno.EIO
        done = submit(reader, staged_by(reader), timeout_ms=None)
        assert (done.records, done.note) == (2, "")
        files.failures.clear()
        assert submit(reader, staged_by(reader, 1, 2), 2).is_new
        assert owner.topic("a")[0].end_offset == 3


def test_long_answer_that_does_not_fit_on_the_disk_is_short(tmp_path: Path) -> None:
    """Remembered publications have no offsets."""

    class Full(Failing):
        def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
            if layout.ANSWERS_PREFIX in self.opened.get(fd, "") and pos >= 1 << 17:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data, pos)

    open_store = logstore.store.opening.open_store
    with open_store(tmp_path, config=SERVING, _files=Full()) as owner:
        topic = owner.create_topic("a" * 200, 20, config_of(2))
        with logstore.open(tmp_path, read_only=True) as reader:
            staged = stage(reader, dict.fromkeys(topic.partitions, 1), 1)
            done = submit(reader, staged, note="n", metadata=b"m")
    assert (done.is_new, done.records, done.offsets) == (True, 20, {})
    assert (done.note, done.metadata) == ("n", b"m")


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
    """Errors of the owner's disk are passed on."""
    partition = owner.topic("a")[0]
    partition.append(b"x")
    writer = owner._topics.writers.loaded["a", 0]
    writer.fail(StorageError("broken", path="p", action="sync"))
    with pytest.raises(logstore.errors.SyncFailedError, match="broken"):
        submit(reader, staged_by(reader))


def test_owner_that_cannot_list_its_directory_publishes_its_own(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting requests are served when it can list it again."""
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, _files=files) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        until(lambda: not owner._publishing.hand_in._unsure)
        partition = owner.topic("a")[0]
        assert partition.end_offset == 0
        owner._publishing.hand_in._unsure.add(object())
        files.failures["list", ""] = errno.EIO
        assert owner.publish([staged_by(owner)], identity="own", sequence=1).is_new
        assert any("cannot look for requests" in r.msg for r in caplog.records)
        files.failures.clear()
        owner._publishing.hand_in._unsure.add(object())
        assert submit(reader, staged_by(reader)).is_new


def test_store_that_is_closed_from_inside_serving_ends_it(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The collector may find a forgotten store in the thread that serves for it."""
    owner = logstore.open(path, config=SERVING)
    hand_in = owner._publishing.hand_in
    until(lambda: not hand_in._unsure)
    list_names = Directory.names

    def names(directory: Directory) -> list[str]:
        if threading.current_thread() is hand_in._thread._thread:
            owner.close()
        return list_names(directory)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Directory, "names", names)
        hand_in._unsure.add(object())
        hand_in._thread.wake()
        until(lambda: owner._lifetime.is_finished and hand_in._has_ended)
    assert not caplog.records


def test_same_records_are_handed_in_by_two_at_the_same_time(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are published once."""
    hold_back(monkeypatch)
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, read_only=True) as other,
    ):
        staged = staged_by(reader)
        calls = [Later(lambda s=s: submit(s, staged)) for s in (reader, other)]
        until(lambda: len(waiting_in(path)) == 2)
        owner._publishing.hand_in.serve()
        found = [call.get() for call in calls]
        assert sorted(done.is_new for done in found) == [False, True]
        assert owner.topic("a")[0].end_offset == 2


def test_process_that_cannot_be_opened_is_served_later(path: str) -> None:
    """The owner has no descriptor for a while; later there is no report about it."""
    files = Failing()
    open_store = logstore.store.opening.open_store
    with (
        open_store(path, config=SERVING, _files=files) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        files.failures["open for writing", layout.PROCESS_PREFIX] = errno.EMFILE
        call = Later(lambda: submit(reader, staged_by(reader), timeout_ms=None))
        until(lambda: waiting_in(path))
        time.sleep(0.2)
        files.failures.clear()
        assert call.get().is_new
        assert owner.published("x") == 1


def test_process_whose_file_cannot_be_watched_is_served(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is watched: one watch is missing."""
    real = Files.watch

    def watch(self: Files, fd: int, at: int, what: int, name: str) -> int:
        if what == native.WATCH_WRITES and not name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, fd, at, what, name)

    monkeypatch.setattr(Files, "watch", watch)
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, read_only=True) as reader,
    ):
        for sequence in (1, 2, 3):
            staged = staged_by(reader, 1, sequence)
            assert submit(reader, staged, sequence, timeout_ms=None).is_new
        assert owner.published("x") == 3


def test_look_beside_an_interrupted_publication_loses_nothing(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's thread checks while a call of another thread has the request."""
    hold_back(monkeypatch)
    real = Publisher.publish_all
    with logstore.open(path, config=SERVING) as owner:
        hand_in = owner._publishing.hand_in
        hand_in.serve()
        call = Later(lambda: submit(reader, staged_by(reader), timeout_ms=None))
        until(lambda: waiting_in(path))

        def publish_all(self: Publisher, asked: Any) -> Any:
            Later(hand_in._look).get()
            raise KeyboardInterrupt

        monkeypatch.setattr(Publisher, "publish_all", publish_all)
        with pytest.raises(KeyboardInterrupt):
            owner.publish([], identity="y", sequence=1)
        monkeypatch.setattr(Publisher, "publish_all", real)
        hand_in.serve()
        assert call.get().is_new


def test_refusal_whose_answer_is_interrupted_is_answered_again(
    path: str, owner: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is not remembered."""
    submit(reader, staged_by(reader, 1, 5), 5)
    real, interrupts = ServedProcess.answer, [KeyboardInterrupt()]

    def answer(self: ServedProcess, *arguments: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        real(self, *arguments)

    monkeypatch.setattr(ServedProcess, "answer", answer)
    with pytest.raises(logstore.errors.PublicationConflictError):
        submit(reader, staged_by(reader, 1, 4), 4, timeout_ms=None)
    assert not interrupts


def test_failed_sync_ends_what_a_process_keeps(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the store again recovers it."""
    assert submit(reader, staged_by(reader)).is_new
    real, errors = native.Steps.make, [errno.EIO]

    def make(self: native.Steps, end: int, begin: int = 0) -> tuple[int, int]:
        for number in range(begin, end) if errors else ():
            if self[number].kind == native.STEP_SYNC and self[number].size:

                def failing(fd: int) -> None:
                    raise OSError(errors[0], os.strerror(errors[0]))

                real(self, number, begin)
                self.sync_one_by_one(failing)
                return number, errors.pop()
        return real(self, end, begin)

    monkeypatch.setattr(native.Steps, "make", make)
    with pytest.raises(LogStoreError):
        submit(reader, staged_by(reader, 1, 2), 2)
    assert not errors
    assert submit(reader, staged_by(reader, 1, 3), 3).sequence == 3


def test_request_of_before_a_restart_of_the_machine_is_dropped(
    path: str, reader: Store
) -> None:
    """Its data may have been withdrawn since."""
    staged = staged_by(reader)
    files = reader._context.files
    about = {"host": files.host(), "boot": "0" * 32}
    file = ProcessFile(reader._context.root, "b" * 32, about)
    assert file.put(Submission(staged.logs, "y", 1).packed())
    file.close()
    with logstore.open(path, config=SERVING) as owner:
        until(lambda: not processes_in(path))
        assert owner.published("y") is None
        assert owner.topic("a")[0].end_offset == 0
