"""Stores that are open for sharing: any process appends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Store, StoreConfig, TopicConfig
from logstore.io import layout
from logstore.io.checkpoint.process_requests import ServedProcess, process_of
from logstore.store.hand_in import owner
from logstore.store.hand_in.owner import HandIn
from logstore.store.publication.group_commit import GroupCommit
from support.handing_in import Later, making, until, waiting_in
from support.values import config_of

SERVING = StoreConfig(publish_for_others=True)
DEAF = StoreConfig(publish_for_others=False)

APPENDER = """
import sys
import logstore
path, name, count = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
with logstore.open(path, shared=True) as store:
    print("open", flush=True)
    sys.stdin.readline()
    for number in range(count):
        store.topic("a").append(b"%s %d" % (name, number), partition=0)
"""
OWNER = """
import sys
import logstore
config = logstore.StoreConfig(publish_for_others=sys.argv[2] == "serves")
with logstore.open(sys.argv[1], config=config):
    print("open", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def running(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed a line."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture(params=[1, 2])
def magic(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    with logstore.open(tmp_path / "store") as store:
        store.create_topic("a", 2, config_of(2))
    return str(tmp_path / "store")


@pytest.fixture(params=["owner", "nobody"])
def shared(path: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Stores with an owner in the same process, and without one."""
    with contextlib.ExitStack() as stack:
        if request.param == "owner":
            stack.enter_context(logstore.open(path, config=SERVING))
        yield stack.enter_context(logstore.open(path, shared=True))


def values(store: Store, number: int = 0) -> list[bytes | None]:
    return [record.value for record in store.topic("a")[number].read()]


def process_files(path: str) -> list[str]:
    return [name for name in os.listdir(path) if process_of(name)]


def test_append_returns_what_the_log_has(shared: Store) -> None:
    """Each way to append returns the offsets, and the next read of the store has the
    records."""
    topic = shared.topic("a")
    assert topic[0].append(b"0") == 0
    assert topic[0].append(b"1", b"k", timestamp_ms=5, headers=[("h", b"x")]) == 1
    assert topic[0].append_many([b"2", None], [b"", None]) == range(2, 4)
    assert topic[0].append_many([]) == range(0)
    found = topic.append(b"4", partition=0, durable=True)
    assert (found.topic, found.partition, found.offset) == ("a", 0, 4)
    assert topic.append_many([b"5"], partition=0) == ((0, range(5, 6)),)
    topic[0].flush()
    assert values(shared) == [b"0", b"1", b"2", None, b"4", b"5"]
    record = topic[0].get(1)
    assert (record.key, record.timestamp_ms, record.headers) == (
        b"k",
        5,
        (("h", b"x"),),
    )
    assert topic[0].durable_offset == 6
    assert topic[0].get(4).timestamp_ms == found.timestamp_ms


def test_records_of_a_call_are_in_all_partitions(shared: Store) -> None:
    """The partitioner of the appending store chooses them."""
    done = shared.topic("a").append_many([b"v"] * 20, [b"%d" % n for n in range(20)])
    assert [number for number, _ in done] == [0, 1]
    assert sum(len(span) for _, span in done) == 20
    keys = [record.key for record in shared.topic("a").read()]
    assert sorted(keys, key=int) == [b"%d" % n for n in range(20)]  # type: ignore[arg-type]


def test_topic_is_made(shared: Store) -> None:
    """It has its settings; a refusal raises the error of the owner."""
    topic = shared.create_topic("new", 3, TopicConfig(retention_ms=7))
    assert (len(topic), topic.config.retention_ms) == (3, 7)
    with pytest.raises(logstore.TopicExistsError, match="new"):
        shared.create_topic("new")
    assert shared.create_topic("new", 3, exist_ok=True).name == "new"
    with pytest.raises(logstore.ConfigError):
        shared.create_topic("..")
    with pytest.raises(logstore.ConfigError):
        shared.create_topic("x", "three")  # type: ignore[arg-type]
    assert topic.append(b"v").offset == 0


def test_topic_whose_owner_ends_before_it_answers_is_made_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner knows it by its id. A topic that existed before is refused."""
    answered: list[object] = []
    with logstore.open(path, shared=True) as shared:
        with logstore.open(path, config=SERVING):
            monkeypatch.setattr(owner, "_answer", lambda *call: answered.append(call))
            new = Later(lambda: shared.create_topic("new", 3))
            old = Later(lambda: shared.create_topic("a"))
            until(lambda: len(answered) == 2)
        # The owner has not answered.
        monkeypatch.undo()
        assert len(new.get()) == 3
        with pytest.raises(logstore.TopicExistsError, match="topic a is"):
            old.get()


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.delete_topic("a"),
        lambda store: store.topic("a").configure(TopicConfig()),
        lambda store: store.topic("a").add_partitions(1),
        lambda store: store.topic("a")[0].truncate_to(0),
        lambda store: store.topic("a")[0].delete_before(0),
        lambda store: store.topic("a")[0].roll(),
        lambda store: store.topic("a")[0].compact(),
        lambda store: store.topic("a")[0].apply_retention(),
        lambda store: store.recover(),
        lambda store: store.producer("p"),
    ],
)
def test_other_changes_are_refused(
    shared: Store, change: Callable[[Any], None]
) -> None:
    with pytest.raises((logstore.errors.ReadOnlyError, logstore.ConfigError)):
        change(shared)
    assert shared.topic("a").append(b"v", partition=0).offset == 0


def test_expected_offset_is_asked_when_it_is_written(shared: Store) -> None:
    partition = shared.topic("a")[0]
    assert partition.append(b"0", expected_offset=0) == 0
    with pytest.raises(logstore.errors.OffsetConflictError) as caught:
        partition.append(b"x", expected_offset=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert partition.append_many([b"1"], expected_offset=1) == range(1, 2)
    assert values(shared) == [b"0", b"1"]


def test_large_append_is_whole(shared: Store) -> None:
    """It uses a separate file, which is removed afterwards."""
    big = [os.urandom(500_000) for _ in range(5)]
    assert shared.topic("a")[0].append_many(big) == range(5)
    assert values(shared) == big
    assert not [n for n in os.listdir(shared.path) if n.startswith(".logstore-staged")]


@pytest.mark.parametrize("size", [2_000_000])
def test_record_that_is_too_large_is_refused(shared: Store, size: int) -> None:
    with pytest.raises(logstore.errors.RecordTooLargeError):
        shared.topic("a")[0].append(bytes(size))
    assert shared.topic("a")[0].append(b"v") == 0


def test_batches_are_appended(shared: Store, tmp_path: Path, magic: int) -> None:
    """They are unchanged, without a producer."""
    with logstore.open(tmp_path / "other") as other:
        source = other.create_topic("b", 1, config_of(magic))[0]
        source.append_many([b"x", b"y"])
        chunk = source.fetch(0)
        assert shared.topic("a")[0].append_batches(chunk.buffer) == range(2)
        assert shared.topic("a")[0].append_batches(chunk.buffer) == range(2, 4)
    assert values(shared) == [b"x", b"y"] * 2


def test_arrow_is_appended(shared: Store) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"value": [b"1", b"2"], "key": [b"k", None]})
    assert shared.topic("a")[0].append_arrow(table) == range(2)
    done = shared.topic("a").append_arrow(table)
    assert sum(len(span) for _, span in done) == 2


def test_threads_share_the_file_of_their_process(shared: Store) -> None:
    """The records of each thread are in its order."""
    topic = shared.topic("a")

    def append(name: int) -> None:
        for number in range(20):
            topic[0].append(b"%d %d" % (name, number))

    threads = [threading.Thread(target=append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    assert len(process_files(shared.path)) <= 1
    for thread in threads:
        thread.join()
    found = values(shared)
    for name in range(8):
        mine = [v for v in found if v and v.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, number) for number in range(20)]
    assert len(found) == 160


@pytest.mark.parametrize("has_owner", [True, False])
def test_processes_append_to_one_partition(path: str, has_owner: bool) -> None:
    """Each record is there once, and the records of a process are in its order."""
    with contextlib.ExitStack() as stack:
        if has_owner:
            stack.enter_context(running(OWNER, path, "serves"))
        appenders = [
            stack.enter_context(running(APPENDER, path, f"p{n}", "30"))
            for n in range(3)
        ]
        for appender in appenders:
            told(appender)
        for appender in appenders:
            assert appender.wait(60) == 0
    with logstore.open(path) as store:
        assert not process_files(path)
        found = values(store)
    for name in (b"p0", b"p1", b"p2"):
        mine = [v for v in found if v and v.startswith(name)]
        assert mine == [b"%s %d" % (name, number) for number in range(30)]
    assert len(found) == 90


def test_owner_that_opens_has_the_lock_soon(path: str) -> None:
    """The process that kept the lock gives it back, and hands in to the owner."""
    with logstore.open(path, shared=True) as shared:
        shared.topic("a")[0].append(b"0")
        begun = time.monotonic()
        with logstore.open(path, config=SERVING) as owner:
            assert time.monotonic() - begun < 2
            owner.topic("a")[0].append(b"1")
            assert shared.topic("a")[0].append(b"2") == 2
        assert shared.topic("a")[0].append(b"3") == 3
        assert values(shared) == [b"0", b"1", b"2", b"3"]


def test_lock_is_given_back_when_nothing_is_to_be_done(path: str) -> None:
    """The store is closed then."""
    with logstore.open(path, shared=True) as shared:
        shared.topic("a")[0].append(b"0")
        assert not os.path.exists(f"{path}/.kafka_cleanshutdown")
        deadline = time.monotonic() + 30
        while not os.path.exists(f"{path}/.kafka_cleanshutdown"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert shared.topic("a")[0].append(b"1") == 1


def test_owner_that_does_not_publish_for_others_is_named(path: str) -> None:
    """After the timeout nothing was written, and nothing will be."""
    with running(OWNER, path, "is deaf") as owner:
        with logstore.open(path, shared=True, hand_in_timeout_ms=300) as shared:
            with pytest.raises(logstore.PublicationTimeoutError) as caught:
                shared.topic("a")[0].append(b"v")
        assert caught.value.outcome == "not written"
        assert caught.value.holder is not None
        assert caught.value.holder.pid == owner.pid
    with logstore.open(path, config=SERVING) as store:
        assert values(store) == []


def test_own_process_that_does_not_publish_for_others_is_an_error(path: str) -> None:
    """The process does not wait for itself."""
    with (
        logstore.open(path, config=DEAF),
        logstore.open(path, shared=True) as shared,
        pytest.raises(logstore.ConfigError, match="wait for itself"),
    ):
        shared.topic("a")[0].append(b"v")


def test_owner_that_is_stopped_delays_no_longer_than_the_time(path: str) -> None:
    """Requests that it has not taken are not written when it continues."""
    with running(OWNER, path, "serves") as owner:
        with logstore.open(path, shared=True, hand_in_timeout_ms=500) as shared:
            shared.topic("a")[0].append(b"0")
            owner.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
            begun = time.monotonic()
            with pytest.raises(logstore.PublicationTimeoutError) as caught:
                shared.topic("a")[0].append(b"lost")
            assert 0.5 <= time.monotonic() - begun < 5
            assert caught.value.outcome == "not written"
            owner.send_signal(signal.SIGCONT)
            assert shared.topic("a")[0].append(b"1") == 1
            assert values(shared) == [b"0", b"1"]


def test_broker_is_told_at_once(path: str) -> None:
    """A broker takes no requests."""
    with (
        open(f"{path}/.lock", "r+b") as file,
        logstore.open(path, shared=True) as shared,
    ):
        pid = os.fork()
        if not pid:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.read(file.fileno(), 1)
            time.sleep(60)
            os._exit(0)
        try:
            while Files_holder(path) is None:
                time.sleep(0.01)
            with pytest.raises(logstore.StoreLockedError, match="broker") as caught:
                shared.topic("a")[0].append(b"v")
            assert caught.value.holder_pid == pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def Files_holder(path: str) -> int | None:
    from logstore.io.directory import Directory
    from logstore.io.files import Files
    from logstore.io.lock import holder_of

    return holder_of(Directory.open_root(Files(), path))


def test_requests_of_a_killed_process_are_dropped(path: str) -> None:
    """They are dropped silently. Its files are removed."""
    with running(OWNER, path, "is deaf"):
        with running(APPENDER, path, "p", "1") as appender:
            told(appender)
            while not process_files(path):
                time.sleep(0.01)
            time.sleep(0.2)
            appender.kill()
            appender.wait()
        assert len(process_files(path)) == 1
    with logstore.open(path, config=SERVING) as store:
        while process_files(path):
            time.sleep(0.01)
        assert values(store) == []


def test_answer_that_cannot_be_written_is_found(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store remembers that the request was carried out."""
    with (
        logstore.open(path, config=SERVING),
        logstore.open(path, shared=True, hand_in_timeout_ms=300) as shared,
    ):
        shared.topic("a")[0].append(b"0")
        monkeypatch.setattr(ServedProcess, "answer", refuse)
        assert shared.topic("a")[0].append(b"1") == 1
        assert values(shared) == [b"0", b"1"]


def refuse(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_next_owner_does_not_carry_out_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was carried out but not answered: the next owner answers with the
    offsets."""
    done: list[int] = []
    with logstore.open(path, shared=True) as shared:
        with logstore.open(path, config=SERVING), monkeypatch.context() as patched:
            patched.setattr(ServedProcess, "answer", refuse)
            thread = threading.Thread(
                target=lambda: done.append(shared.topic("a")[0].append(b"v"))
            )
            thread.start()
            while not values(shared):
                time.sleep(0.01)
            assert not done
        with logstore.open(path, config=SERVING) as owner:
            thread.join()
            assert done == [0]
            assert values(owner) == [b"v"]


def test_processes_that_have_ended_are_forgotten(path: str) -> None:
    """The entries of their requests are dropped, with the next commit."""
    with logstore.open(path, config=SERVING) as owner:
        journal = owner._publishing.publisher
        with logstore.open(path, shared=True) as shared:
            shared.topic("a")[0].append(b"0")
            with journal.lock:
                (identity,) = journal.remembered()
        assert identity.startswith("process:")
        while process_files(path):
            time.sleep(0.01)
        with logstore.open(path, shared=True) as shared:
            while True:
                shared.topic("a")[0].append(b"1")
                with journal.lock:
                    if identity not in journal.remembered():
                        break
    with logstore.open(path) as store, store._publishing.publisher.lock:
        assert store._publishing.publisher.remembered() == {}


def test_request_of_a_process_that_ends_before_it_counts_is_dropped(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner may be stopped in between. The others in the same commit are carried
    out, once."""
    real = GroupCommit._append
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
        making(owner) as ending,
    ):

        def append(self: GroupCommit, *arguments: Any) -> None:
            real(self, *arguments)
            monkeypatch.undo()
            ending.close()

        topic = shared.topic("a")
        topic[0].append(b"before")
        with owner._publishing.publisher.lock:
            call = Later(lambda: topic[0].append(b"other"))
            until(lambda: waiting_in(path))
            (living,) = set(process_files(path)) - {layout.PROCESS_PREFIX + ending.id}
            served = ServedProcess(owner._context.root, process_of(living) or "")
            (one,) = served.waiting()
            content = served._content(one)
            served.abandon()
            assert content is not None
            ending.put(content)
            monkeypatch.setattr(GroupCommit, "_append", append)
        assert call.get() == 1
        assert values(owner) == [b"before", b"other"]
        until(lambda: len(process_files(path)) == 1)


@pytest.mark.parametrize(
    "call", [lambda s: s.publish([], identity="process:x", sequence=1)]
)
def test_identities_of_processes_are_reserved(
    path: str, call: Callable[[Store], object]
) -> None:
    with (
        logstore.open(path) as store,
        pytest.raises(logstore.ConfigError, match="is reserved"),
    ):
        call(store)


def test_topic_that_a_call_of_the_owner_has_taken_is_made(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the owner makes it, though no further request waits."""
    monkeypatch.setattr(HandIn, "serve", lambda self: None)
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True, hand_in_timeout_ms=20_000) as shared,
    ):
        hand_in = owner._publishing.hand_in
        thread = threading.Thread(target=shared.create_topic, args=("new",))
        thread.start()
        while not hand_in._creations:
            owner.publish([], identity="x", sequence=1, metadata=b"m")
        monkeypatch.undo()
        hand_in.serve()
        assert "new" in owner
        thread.join()


def test_child_of_a_fork_appends(path: str) -> None:
    """It has separate requests; the parent continues."""
    with logstore.open(path, shared=True) as shared:
        shared.topic("a")[0].append(b"0")
        pid = os.fork()
        if not pid:
            status = 1
            try:
                shared.topic("a")[0].append(b"child")
                shared.close()
                status = 0
            finally:
                os._exit(status)
        shared.topic("a")[0].append(b"parent")
        assert os.waitpid(pid, 0)[1] == 0
        assert sorted(filter(None, values(shared))) == [b"0", b"child", b"parent"]


def test_partitions_that_were_added_are_chosen_from(path: str) -> None:
    """A key's records go to the new partition, though the appending store has not seen
    it."""
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        topic = shared.topic("a")
        numbers = topic.numbers
        owner.topic("a").add_partitions(5)
        mine = {topic.append(b"v", b"%d" % n).partition for n in range(30)}
        theirs = {owner.topic("a").append(b"v", b"%d" % n).partition for n in range(30)}
        assert mine == theirs
        assert mine - set(numbers)


def test_choice_among_too_few_partitions_is_made_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner requires it: the appending store has not checked."""
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        topic, rescan, looks = shared.topic("a"), shared._topics.rescan, list[None]()

        def look_once_more() -> None:
            looks.append(None)
            if len(looks) > 2:
                rescan()

        owner.topic("a").add_partitions(5)
        key = next(k for k in map(b"%d".__mod__, range(99)) if place(owner, k) > 1)
        monkeypatch.setattr(shared._topics, "rescan", look_once_more)
        assert topic.append(b"v", key).partition == place(owner, key)
        assert len(looks) > 2


def place(store: Store, key: bytes) -> int:
    """The partition of a key."""
    return store.topic("a").append(b"v", key).partition


def test_topic_that_was_made_again_gets_nothing(path: str) -> None:
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True) as shared,
    ):
        partition = shared.topic("a")[0]
        partition.append(b"v")
        owner.delete_topic("a")
        owner.create_topic("a", 2)
        with pytest.raises(logstore.TopicNotFoundError):
            partition.append(b"w")
        assert values(owner) == []


def test_store_is_made(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "new", shared=True) as shared:
        assert shared.topics() == []
        assert shared.create_topic("t").append(b"v").offset == 0
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.open(tmp_path / "none", shared=True, create=False)
    with pytest.raises(logstore.ConfigError, match="shared"):
        logstore.open(tmp_path / "new", shared=True, read_only=True)


def test_interrupted_append_takes_its_request_back(path: str) -> None:
    """It does so if possible; the error has the names for a query."""
    with (
        running(OWNER, path, "is deaf"),
        logstore.open(path, shared=True) as shared,
    ):
        timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            shared.topic("a")[0].append(b"v")
        timer.join()
        facts = vars(caught.value)
        assert facts["identity"].startswith("process:")
        assert (facts["sequence"], facts["outcome"]) == (1, "not written")
    with logstore.open(path, config=SERVING) as store:
        time.sleep(0.1)
        assert values(store) == []


def test_closed_store_hands_in_nothing(path: str) -> None:
    """A waiting call ends, and its request is withdrawn."""
    with running(OWNER, path, "is deaf"):
        shared = logstore.open(path, shared=True)
        errors: list[Exception] = []

        def append() -> None:
            try:
                shared.topic("a")[0].append(b"v")
            except logstore.errors.StoreClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=append)
        thread.start()
        while not process_files(path):
            time.sleep(0.01)
        time.sleep(0.1)
        shared.close()
        thread.join()
        assert len(errors) == 1
        assert not process_files(path)
        with pytest.raises(logstore.errors.StoreClosedError):
            shared.topic("a")
