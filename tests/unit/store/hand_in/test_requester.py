"""Hand-in: a process without the store's lock has its records published by who has it,
or takes the lock; once, and with its own error if it is refused."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    CorruptCheckpointError,
    CorruptRecordError,
    PublicationConflictError,
    PublicationTimeoutError,
    StorageError,
    Store,
    StoreClosedError,
    StoreConfig,
    TopicNotFoundError,
)
from logstore.io import layout
from logstore.io.checkpoint.answers import Answer
from logstore.io.checkpoint.process_requests import ProcessFile, ServedProcess
from logstore.log.write.calls import Submission, answer_in
from logstore.log.write.staged_files import Staged
from logstore.store.hand_in import owner as owner_module
from logstore.store.hand_in import requester
from logstore.store.publication.publisher import Publisher
from support import handing_in
from support.damage import flip_bit
from support.handing_in import (
    DEAF,
    LONG_MS,
    SERVING,
    Later,
    hold_back,
    left_by_ended,
    making,
    processes_in,
    staged_by,
    submit,
    until,
    waiting_in,
)
from support.staging import stage, staged_files
from support.values import config_of

# Fixtures.
path, owner, reader = handing_in.path, handing_in.owner, handing_in.reader
elsewhere = handing_in.elsewhere


def asked_by(store: Store, sequence: int, identity: str = "x") -> bytes:
    """The content of a request to publish a record."""
    return Submission(staged_by(store, 1, sequence).logs, identity, sequence).packed()


# ---------------------------------------------------------------- who publishes


def test_store_that_is_open_for_writing_publishes_itself(owner: Store) -> None:
    done = submit(owner, staged_by(owner), note="n", metadata=b"m", pinned=True)
    assert (done.is_new, done.offsets) == (True, {("a", 0): range(2)})
    assert (done.note, done.metadata, done.pinned) == ("n", b"m", True)


def test_free_lock_is_taken_and_released(path: str, reader: Store) -> None:
    """The next writer may open at once, and finds a store that was closed cleanly."""
    for sequence in (1, 2):
        done = submit(reader, staged_by(reader, 2, sequence), sequence)
        begin = 2 * (sequence - 1)
        assert done.offsets == {("a", 0): range(begin, begin + 2)}
        with logstore.open(path) as store:
            assert not store.recovery_report
            assert store.published("x") == sequence
            assert store.topic("a")[0].durable_offset == 2 * sequence
    assert waiting_in(path) == staged_files(Path(path)) == []
    assert not logstore.verify(path, deep=True).problems


def test_owner_publishes_what_is_handed_in(
    path: str, owner: Store, reader: Store
) -> None:
    """With all that `publish` takes and returns; nothing is left of the request."""
    done = submit(
        reader, staged_by(reader, 3), 7, note="\u2603", metadata=b"\0m", pinned=True
    )
    assert (done.identity, done.sequence, done.records) == ("x", 7, 3)
    assert (done.is_new, done.offsets) == (True, {("a", 0): range(3)})
    assert (done.note, done.metadata, done.pinned) == ("\u2603", b"\0m", True)
    last = owner.last_publication("x")
    assert last is not None
    assert (last.sequence, last.metadata, last.pinned) == (7, b"\0m", True)
    assert owner.topic("a")[0].durable_offset == 3
    again = submit(reader, staged_by(reader, 3, 7), 7)
    assert (again.is_new, again.records, again.offsets) == (False, 3, {})
    until(lambda: not waiting_in(path))
    until(lambda: not staged_files(Path(path)))


def test_metadata_alone_is_handed_in(owner: Store, reader: Store) -> None:
    done = reader.submit(
        [], identity="g", sequence=3, metadata=b"positions", timeout_ms=LONG_MS
    )
    assert (done.is_new, done.records) == (True, 0)
    assert owner.published("g") == 3


def test_requests_that_wait_are_committed_together(
    path: str, owner: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of one identity, in the order in which they were handed in; one that
    is refused does not stop the others."""
    sizes: list[int] = []
    real = Publisher.publish_all

    def publish_all(self: Publisher, asked: Any) -> Any:
        sizes.append(len(asked))
        return real(self, asked)

    monkeypatch.setattr(Publisher, "publish_all", publish_all)
    with owner._publishing.publisher.lock:
        calls = []
        for identity, sequence in (
            *((f"i{n}", 1) for n in range(6)), ("j", 9), ("j", 10), ("j", 100),
        ):  # fmt: skip
            staged = staged_by(reader, 1, sequence)
            calls.append(
                Later(
                    lambda i=identity, s=sequence, g=staged: submit(
                        reader, g, s, identity=i
                    )
                )
            )
            until(lambda: len(waiting_in(path)) == len(calls))
    done = [call.get() for call in calls]
    assert all(one.is_new for one in done)
    assert sorted(one.offsets["a", 0].start for one in done) == list(range(9))
    assert max(sizes) > 1
    assert owner.published("j") == 100


def test_publish_commits_what_waits_with_its_own(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_back(monkeypatch)
    with logstore.open(path, config=SERVING) as owner:
        call = Later(lambda: submit(reader, staged_by(reader, 3)))
        until(lambda: waiting_in(path))
        mine = owner.publish([staged_by(owner, 2)], identity="own", sequence=1)
        assert mine.offsets == {("a", 0): range(3, 5)}
        assert call.get().offsets == {("a", 0): range(3)}


def test_requests_of_before_the_opening_are_served(path: str, reader: Store) -> None:
    """Of a process that has ended meanwhile: its request is done, before those of one
    that continues with the same identity."""
    with making(reader) as later:
        later.put(asked_by(reader, 6))
        left_by_ended(reader, asked_by(reader, 5))
        with logstore.open(path, config=SERVING) as owner:
            until(lambda: owner.published("x") == 6)
            assert owner.topic("a")[0].end_offset == 2
            until(lambda: len(processes_in(path)) == 1)


def test_request_whose_time_is_over_is_taken_back(
    path: str, reader: Store, elsewhere: None
) -> None:
    """However often: nothing is published later, and the file does not fill."""
    staged = staged_by(reader, 4)
    with logstore.open(path, config=DEAF) as busy:
        for _ in range(100):
            with pytest.raises(PublicationTimeoutError) as caught:
                submit(reader, staged, 5, timeout_ms=0)
        error = caught.value
        assert (error.identity, error.sequence, error.timeout_ms) == ("x", 5, 0)
        assert error.outcome == "not written"
        assert error.holder is not None
        assert error.holder.pid == os.getpid()
        assert isinstance(error, TimeoutError)
        assert not waiting_in(path)
        assert busy.published("x") is None
    with logstore.open(path, config=SERVING) as owner:
        submit(reader, staged_by(reader), 1, identity="other")
        assert owner.published("x") is None
    assert submit(reader, staged, 5).is_new


def test_owner_that_does_not_publish_for_others_lets_them_wait(
    path: str, reader: Store, elsewhere: None
) -> None:
    """Until it ends: then the one who waits publishes."""
    busy = logstore.open(path, config=DEAF)
    call = Later(lambda: submit(reader, staged_by(reader, 2)))
    until(lambda: waiting_in(path))
    busy.publish([staged_by(busy, 1)], identity="own", sequence=1)
    assert len(waiting_in(path)) == 1
    assert reader.published("x") is None
    busy.close()
    assert call.get().offsets == {("a", 0): range(1, 3)}
    assert waiting_in(path) == []


def test_several_that_wait_for_the_lock_are_all_published_once(
    path: str, reader: Store, elsewhere: None
) -> None:
    """The first who has it publishes for the others, too."""
    busy = logstore.open(path, config=DEAF)
    calls = [
        Later(lambda n=n: submit(reader, staged_by(reader, 2), 1, identity=f"i{n}"))
        for n in range(5)
    ]
    until(lambda: len(waiting_in(path)) == 5)
    busy.close()
    for call in calls:
        assert call.get().records == 2
    until(lambda: not waiting_in(path))
    with logstore.open(path) as store:
        assert store.topic("a")[0].end_offset == 10
        assert [store.published(f"i{n}") for n in range(5)] == [1] * 5


# ---------------------------------------------------------------- refused


def test_refused_request_raises_its_own_error(
    path: str, owner: Store, reader: Store
) -> None:
    """With the facts of the error; what was staged is still there, and the next one is
    published."""
    submit(reader, staged_by(reader), 5)
    late = staged_by(reader, 1, 4)
    with pytest.raises(PublicationConflictError) as conflict:
        submit(reader, late, 4)
    error = conflict.value
    assert (error.identity, error.sequence, error.last) == ("x", 4, 5)
    damaged = staged_by(reader, 1, 6)
    flip_bit(Path(path, damaged.files[0]), 8 * 40)
    with pytest.raises(CorruptRecordError) as corrupt:
        submit(reader, damaged, 6)
    assert corrupt.value.path == str(Path(path, damaged.files[0]))
    gone = staged_by(reader, 1, 7)
    Path(path, gone.files[0]).unlink()
    with pytest.raises(StorageError) as missing:
        submit(reader, gone, 7)
    assert missing.value.errno == errno.ENOENT
    assert set(staged_files(Path(path))) == {*late.files, *damaged.files}
    assert submit(reader, staged_by(reader, 1, 8), 8).is_new
    assert owner.topic("a")[0].end_offset == 3
    until(lambda: not waiting_in(path))


def test_request_for_a_topic_that_was_made_again_is_refused(
    path: str, owner: Store, reader: Store
) -> None:
    """It carries the id of the topic that it was staged for."""
    staged = staged_by(reader)
    owner.delete_topic("a")
    owner.create_topic("a", 1, config_of(2))
    with pytest.raises(TopicNotFoundError) as caught:
        submit(reader, staged)
    assert caught.value.topic == "a"
    assert owner.topic("a")[0].end_offset == 0
    assert staged_files(Path(path)) == list(staged.files)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"logs": [["a"]]}, "argument"),
        ({"logs": [["a", 0, 2, 1, "../x", True, 0, [[0, 1]], ""]]}, "staged"),
        ({"logs": [["a", -1, 2, 1, ".logstore-staged-a", True, 0, [[0, 1]], ""]]},
         "partition"),
        ({"note": "x" * 1001}, "note"),
        ({"identity": "process:0"}, "not for callers"),
        ({"identity": ""}, "not for callers"),
    ],
    ids=["columns", "name", "partition", "note", "process", "nobody"],
)  # fmt: skip
def test_request_that_no_store_writes_is_refused(
    path: str, owner: Store, change: Any, match: str
) -> None:
    """It has a valid checksum; the one who waits for it is told."""
    value = {
        "version": 1, "kind": "publish", "logs": [], "identity": "x", "sequence": 1,
        "note": "", "metadata": "", "pinned": None, **change,
    }  # fmt: skip
    answer = answered(owner, json.dumps(value).encode() + b"\n")
    kinds = (ConfigError, StorageError, CorruptCheckpointError)
    assert isinstance(answer.error, kinds)
    assert match in str(answer.error)
    assert owner.published("x") is None


def test_request_of_a_later_version_is_refused(owner: Store) -> None:
    answer = answered(owner, b'{"version":9}\n')
    assert isinstance(answer.error, logstore.UnsupportedError)


def answered(owner: Store, content: bytes) -> Answer:
    """The answer to a request with some content."""
    with making(owner) as file:
        slot = file.put(content)
        assert slot is not None
        until(lambda: file.answer(slot))
        found = file.answer(slot)
    assert found is not None
    return answer_in("", found)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100, b"garbage", b"xxh64 0000000000000000\n{}\n"],
    ids=["empty", "zeros", "garbage", "checksum"],
)
def test_damaged_file_of_a_process_stops_nobody(
    path: str, owner: Store, reader: Store, data: bytes, caplog: Any
) -> None:
    """As after a power failure; it stays as it is."""
    name = layout.PROCESS_PREFIX + "0" * 32
    Path(path, name.replace("process", "answers")).write_bytes(b"")
    Path(path, name + ".tmp").write_bytes(data)
    Path(path, name + ".tmp").rename(Path(path, name))
    assert submit(reader, staged_by(reader)).is_new
    until(lambda: any("cannot read the requests" in r.msg for r in caplog.records))
    assert Path(path, name).read_bytes() == data


def test_request_that_is_damaged_while_it_waits_raises_that(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published, and the staged records are there."""
    hold_back(monkeypatch)
    with logstore.open(path, config=SERVING) as owner:
        staged = staged_by(reader)
        call = Later(lambda: submit(reader, staged))
        until(lambda: waiting_in(path))
        (process,) = processes_in(path)
        flip_bit(Path(path, layout.PROCESS_PREFIX + process), 8 * (8192 + 40))
        owner._publishing.hand_in.serve()
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            call.get()
        assert owner.published("x") is None
    assert staged_files(Path(path)) == list(staged.files)
    monkeypatch.undo()
    assert submit(reader, staged).is_new


def test_special_file_with_the_name_of_a_process_stops_nobody(
    path: str, owner: Store, reader: Store
) -> None:
    """A FIFO, a directory, a link."""
    outside = Path(path).parent / "outside"
    outside.write_bytes(b"")
    names = [layout.PROCESS_PREFIX + f"{n:032x}" for n in range(3)]
    os.mkfifo(Path(path, names[0] + ".x"))
    Path(path, names[1] + ".x").mkdir()
    Path(path, names[2] + ".x").symlink_to(outside)
    for name in names:
        Path(path, name + ".x").rename(Path(path, name))
    assert submit(reader, staged_by(reader)).is_new
    assert outside.read_bytes() == b""


# ---------------------------------------------------------------- arguments, life


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
    """As `publish`: it is not remembered."""
    done = submit(reader, Staged(()))
    assert (done.records, done.offsets) == (0, {})
    assert owner.published("x") is None


def threads(path: str) -> list[str]:
    """Those that serve requests; not of stores that other tests have left."""
    name = f"requests in {path}"
    return [t.name for t in threading.enumerate() if t.name.startswith(name)]


def test_thread_ends_with_the_store(path: str) -> None:
    """Closed, or forgotten."""
    store = logstore.open(path, config=SERVING)
    assert len(threads(path)) == 1
    store.close()
    assert threads(path) == []
    forgotten = [logstore.open(path, config=SERVING)]
    alive = weakref.ref(forgotten[0])

    def collect() -> None:
        """The thread may be at its first look, and use the store."""
        forgotten.clear()
        until(lambda: gc.collect() * 0 or alive() is None)

    with pytest.warns(ResourceWarning):
        collect()
    until(lambda: not threads(path))
    logstore.open(path, config=DEAF).close()


def test_fork_hands_nothing_in_and_serves_nothing(owner: Store, reader: Store) -> None:
    """The child has neither the thread nor the lock; the parent goes on."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with contextlib.suppress(logstore.ForkedError):
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
    """The one who took the lock for it releases it."""
    staged = staged_by(reader)
    Path(path, staged.files[0]).unlink()
    with pytest.raises(StorageError):
        submit(reader, staged)
    logstore.open(path).close()


def test_request_whose_records_were_discarded_is_refused(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an identity, up to a sequence."""
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
    """Its thread is at a request when it is closed: the next one decides."""
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


def test_more_requests_than_one_commit_takes_are_all_published(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the owner, and by a process that becomes one."""
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    for begin, config in ((1, SERVING), (11, None)):
        for number in range(begin, begin + 8):
            left_by_ended(reader, asked_by(reader, 1, f"i{number}"))
        if config is not None:
            with logstore.open(path, config=config):
                until(lambda: not processes_in(path))
        else:
            assert submit(reader, staged_by(reader, 1, begin), begin).is_new
            until(lambda: len(processes_in(path)) == 1)
        found = [reader.published(f"i{n}") for n in range(begin, begin + 8)]
        assert found == [1] * 8


@pytest.mark.parametrize("answers", [3, 4, 7])
def test_requests_that_wait_behind_answered_ones_are_published(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """An owner was killed. The next one must not wait for a report before it comes to
    the requests behind those that were answered."""
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
    """A publication of the owner's own has taken their reports."""
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
    """The offsets in more partitions than an answer usually has room for."""
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
    with pytest.raises(ConfigError, match="Hand in fewer partitions"):
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
    """As from a signal handler, or a finalizer."""
    real, errors = ProcessFile.put, list[BaseException]()
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]

        def put(self: ProcessFile, content: bytes) -> Any:
            if not errors:
                errors.append(logstore.LogStoreError())
                with pytest.raises(logstore.ReentrantCallError) as caught:
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
    """The owner may have begun with one: then it is unknown."""
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
