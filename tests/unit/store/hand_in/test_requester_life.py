"""Hand-in: arguments, forks, closing, calls from inside of a call, many requests."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    PublicationTimeoutError,
    StorageError,
    Store,
    StoreConfig,
)
from logstore.errors import StoreClosedError
from logstore.io.checkpoint.process_requests import ProcessFile, ServedProcess
from logstore.log.write.staged_files import Staged
from logstore.store.hand_in import owner as owner_module
from logstore.store.hand_in import requester
from logstore.store.hand_in.served_processes import ServedProcesses
from support import handing_in
from support.handing_in import (
    DEAF,
    SERVING,
    Later,
    asked_by,
    hold_back,
    left_by_ended,
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
elsewhere = handing_in.elsewhere


@pytest.mark.parametrize(
    "arguments",
    [
        {"identity": ""}, {"identity": "x" * 1001}, {"identity": 5}, {"sequence": -1},
        {"timeout_ms": -1}, {"timeout_ms": 1.5}, {"timeout_ms": True},
        {"timeout_ms": 1 << 63}, {"metadata": b"x" * 4097}, {"pinned": 1}, {"note": 1},
    ],
    ids=str,
)  # fmt: skip
def test_argument_that_cannot_be_is_refused(
    owner: Store, reader: Store, arguments: Any
) -> None:
    for store in (reader, owner):
        with pytest.raises(ConfigError):
            store.submit([], **{"identity": "x", "sequence": 1, **arguments})
    assert owner.published("x") is None


def test_setting_that_is_no_truth_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="publish_for_others"):
        StoreConfig(publish_for_others=1)  # type: ignore[arg-type]


def test_closed_store_hands_nothing_in(path: str) -> None:
    store = logstore.open(path, read_only=True)
    staged = staged_by(store)
    store.close()
    with pytest.raises(StoreClosedError):
        submit(store, staged)
    assert processes_in(path) == []


def test_nothing_is_handed_in_for_nothing(owner: Store, reader: Store) -> None:
    """Like `publish`, it does not remember a publication of nothing."""
    done = submit(reader, Staged(()))
    assert (done.records, done.offsets) == (0, {})
    assert owner.published("x") is None


def threads(path: str) -> list[str]:
    """Threads that serve requests, without threads of stores that other tests have
    left."""
    name = f"requests in {path}"
    return [t.name for t in threading.enumerate() if t.name.startswith(name)]


def test_thread_ends_with_the_store(path: str) -> None:
    """The store is closed, or forgotten."""
    store = logstore.open(path, config=SERVING)
    assert len(threads(path)) == 1
    store.close()
    assert threads(path) == []
    forgotten = [logstore.open(path, config=SERVING)]
    alive = weakref.ref(forgotten[0])

    def collect() -> None:
        """Collect garbage; the thread may be in its first check, and use the store."""
        forgotten.clear()
        until(lambda: gc.collect() * 0 or alive() is None)

    with pytest.warns(ResourceWarning):
        collect()
    until(lambda: not threads(path))
    logstore.open(path, config=DEAF).close()


def test_fork_hands_nothing_in_and_serves_nothing(owner: Store, reader: Store) -> None:
    """The child has neither the thread nor the lock; the parent continues."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with contextlib.suppress(logstore.errors.ForkedError):
                submit(reader, Staged(()))
                os._exit(2)
            if not threads(owner.path):
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert submit(reader, staged_by(reader)).is_new
    assert owner.published("x") == 1


def test_lock_is_not_held_after_a_refused_request(path: str, reader: Store) -> None:
    """The process that took it for the request releases it."""
    staged = staged_by(reader)
    Path(path, staged.files[0]).unlink()
    with pytest.raises(StorageError):
        submit(reader, staged)
    logstore.open(path).close()


def test_request_whose_records_were_discarded_is_refused(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of an identity are discarded up to a sequence."""
    hold_back(monkeypatch)
    with logstore.open(path, config=SERVING) as owner:
        calls = []
        for n in (3, 4):
            calls.append(Later(lambda n=n: submit(reader, staged_by(reader, 1, n), n)))
            until(lambda: len(waiting_in(path)) == len(calls))
        owner.discard_staged(identity="other", before=9)
        owner.discard_staged(identity="test", before=4)
        owner._publishing.hand_in.serve()
        with pytest.raises(StorageError) as caught:
            calls[0].get()
        assert caught.value.errno == errno.ENOENT
        assert calls[1].get().is_new


def test_owner_that_is_closing_refuses_nobody(path: str, reader: Store) -> None:
    """Its thread handles a request when it is closed: the next one decides."""
    owner = logstore.open(path, config=SERVING)
    with owner._publishing.publisher.lock:
        call = Later(lambda: submit(reader, staged_by(reader)))
        until(lambda: waiting_in(path))
        closing = Later(owner.close)
        until(lambda: owner._context.is_closed)
    closing.get()
    assert call.get().is_new
    with logstore.open(path) as store:
        assert store.topic("a")[0].end_offset == 2


def test_owner_of_busy_processes_ends_when_it_is_closed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each commit, another request is waiting."""
    looks: list[object] = []
    monkeypatch.setattr(
        owner_module.HandIn, "_look", lambda self: not looks.append(self)
    )
    monkeypatch.setattr(ServedProcesses, "is_idle", property(lambda self: False))
    owner = logstore.open(path, config=SERVING)
    until(lambda: len(looks) > 3)
    Later(owner.close).get()


def test_more_requests_than_one_commit_takes_are_all_published(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner does it, or a process that becomes the owner."""
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    for begin, config in ((1, SERVING), (11, None)):
        for number in range(begin, begin + 8):
            left_by_ended(reader, asked_by(reader, 1, f"i{number}"))
        if config is not None:
            with logstore.open(path, config=config):
                until(lambda: not processes_in(path))
        else:
            assert submit(reader, staged_by(reader, 1, begin), begin).is_new
            until(lambda: not processes_in(path))
        found = [reader.published(f"i{n}") for n in range(begin, begin + 8)]
        assert found == [1] * 8


@pytest.mark.parametrize("answers", [3, 4, 7])
def test_requests_that_wait_behind_answered_ones_are_published(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """An owner was killed. The next one must not wait for a report before it reaches
    the requests after the answered ones."""
    hold_back(monkeypatch)
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    asked = [asked_by(reader, 1, f"i{n}") for n in range(answers + 1)]
    unique = left_by_ended(reader, *asked)
    before = ServedProcess(reader._context.root, unique)
    for one in before.take(answers, 1 << 20):
        before.answer(one.slot, b"{}")
    before.close()
    with logstore.open(path, config=SERVING) as owner:
        owner._publishing.hand_in.serve()
        assert reader.published(f"i{answers}") == 1
        assert owner.topic("a")[0].end_offset == 1
    assert processes_in(path) == []


def test_requests_that_one_commit_has_no_room_for_wake_the_thread(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication of the owner itself has taken their reports."""
    hold_back(monkeypatch)
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    with logstore.open(path, config=SERVING) as owner:
        wakeups = owner._publishing.hand_in._thread.wakeups
        assert wakeups is not None
        left_by_ended(reader, *[asked_by(reader, 1, f"i{n}") for n in range(4)])
        owner._publishing.hand_in.publish([])
        assert wakeups.wait(0)
        assert len(waiting_in(path)) == 1


def test_answer_that_is_long_is_whole(tmp_path: Path) -> None:
    """The offsets are in more partitions than an answer usually has room for."""
    with logstore.open(tmp_path, config=SERVING) as owner:
        topic = owner.create_topic("a", 300, config_of(2))
        with logstore.open(tmp_path, read_only=True) as reader:
            staged = stage(reader, dict.fromkeys(topic.partitions, 2), 1)
            done = submit(reader, staged)
    assert done.offsets == {("a", number): range(2) for number in range(300)}


def test_request_that_is_too_large_is_refused(
    reader: Store, owner: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requester, "REQUEST_BYTES_MAX", 100)
    staged = staged_by(reader)
    with pytest.raises(ConfigError, match="Hand in fewer"):
        submit(reader, staged)
    monkeypatch.undo()
    assert submit(reader, staged).is_new


def test_process_publishes_with_the_lock_that_it_keeps(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is made; another one that wants the lock gets it."""
    assert submit(reader, staged_by(reader), 1).is_new
    with monkeypatch.context() as during:
        during.setattr(type(reader._sharing._requester), "begin", None)  # type: ignore
        for sequence in range(2, 5):
            done = submit(reader, staged_by(reader, 1, sequence), sequence)
            assert done.offsets == {("a", 0): range(sequence, sequence + 1)}
    with logstore.open(path) as owner:
        assert not owner.recovery_report
        assert submit(reader, staged_by(reader, 1, 5), 5).is_new


def test_child_of_a_fork_does_not_publish_with_the_lock_of_its_parent(
    path: str,
) -> None:
    """The parent keeps it, and hands in for the child."""
    with logstore.open(path, shared=True) as shared:
        assert submit(shared, staged_by(shared), identity="parent").is_new
        child = os.fork()
        if not child:
            status = 1
            try:
                done = submit(shared, staged_by(shared), identity="child")
                status = 0 if done.offsets == {("a", 0): range(2, 4)} else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        done = submit(shared, staged_by(shared, 1, 2), 2, identity="parent")
        assert done.offsets == {("a", 0): range(4, 5)}
    assert not logstore.verify(path, deep=True).problems


def test_call_from_inside_of_a_call_is_refused(
    path: str, owner: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler or a finalizer may make the call."""
    real, errors = ProcessFile.put, list[BaseException]()
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]

        def put(self: ProcessFile, content: bytes) -> Any:
            if not errors:
                errors.append(logstore.LogStoreError())
                with pytest.raises(logstore.errors.ReentrantCallError) as caught:
                    partition.append(b"inside")
                errors.append(caught.value)
            return real(self, content)

        monkeypatch.setattr(ProcessFile, "put", put)
        assert partition.append(b"outside") == 0
        assert len(errors) == 2
        assert partition.append(b"after") == 1
    assert owner.topic("a")[0].end_offset == 2


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_store_that_is_closed_tells_what_came_of_its_requests(
    path: str,
    elsewhere: None,
    monkeypatch: pytest.MonkeyPatch,
    is_withdrawn: bool,
) -> None:
    """The owner may have begun with one: then its outcome is unknown."""
    if not is_withdrawn:
        monkeypatch.setattr(requester.Requester, "_withdraw", lambda *_: False)
    with logstore.open(path, config=DEAF):
        reader = logstore.open(path, read_only=True)
        call = Later(lambda: submit(reader, staged_by(reader), timeout_ms=None))
        until(lambda: waiting_in(path))
        reader.close()
        if is_withdrawn:
            with pytest.raises(StoreClosedError):
                call.get()
            return
        with pytest.raises(PublicationTimeoutError) as caught:
            call.get()
    error = caught.value
    assert (error.outcome, error.identity, error.sequence) == ("unknown", "x", 1)
    assert isinstance(error.__cause__, StoreClosedError)
