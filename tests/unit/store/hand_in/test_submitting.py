"""Hand-in: a process without the store's lock has its records published by who has it,
or takes the lock; once, and with its own error if it is refused."""

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
    CorruptCheckpointError,
    CorruptRecordError,
    PublicationConflictError,
    PublicationTimeoutError,
    StorageError,
    Store,
    StoreClosedError,
    StoreConfig,
    StoreLockedError,
    TopicNotFoundError,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, requests
from logstore.io.directory import Directory
from logstore.log.write.staged_files import Staged
from logstore.store.hand_in import owner as owner_module
from logstore.store.hand_in import submitting
from logstore.store.publication.publisher import Publisher
from support import handing_in
from support.damage import flip_bit
from support.handing_in import (
    DEAF,
    LONG_MS,
    SERVING,
    Later,
    hold_back,
    requests_in,
    staged_by,
    submit,
    until,
    waiting_in,
)
from support.staging import staged_files
from support.values import config_of

# Fixtures.
path, owner, reader = handing_in.path, handing_in.owner, handing_in.reader
elsewhere = handing_in.elsewhere


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
    assert requests_in(path) == staged_files(Path(path)) == []
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
    until(lambda: not requests_in(path))
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
    """Also those of one identity, in the order of their sequences; one that is refused
    does not stop the others."""
    sizes: list[int] = []
    real = Publisher.publish_all

    def publish_all(self: Publisher, asked: Any) -> Any:
        sizes.append(len(asked))
        return real(self, asked)

    monkeypatch.setattr(Publisher, "publish_all", publish_all)
    with owner._publishing.publisher.lock:
        calls = {
            (identity, sequence): Later(
                lambda i=identity, s=sequence: submit(
                    reader, staged_by(reader, 1, s), s, identity=i
                )
            )
            for identity, sequence in (
                *((f"i{n}", 1) for n in range(6)), ("j", 9), ("j", 10), ("j", 100),
            )
        }  # fmt: skip
        until(lambda: len(waiting_in(path)) == len(calls))
    done = [call.get() for call in calls.values()]
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
        assert mine.offsets == {("a", 0): range(2)}
        assert call.get().offsets == {("a", 0): range(2, 5)}


def test_requests_of_before_the_opening_are_served(
    path: str, reader: Store, elsewhere: None
) -> None:
    """Of a process that has ended meanwhile: its request is done."""
    with (
        logstore.open(path, config=DEAF) as busy,
        pytest.raises(PublicationTimeoutError) as caught,
    ):
        assert busy
        submit(reader, staged_by(reader, 4), 5, timeout_ms=0)
    error = caught.value
    assert (error.identity, error.sequence, error.timeout_ms) == ("x", 5, 0)
    assert isinstance(error, TimeoutError)
    assert "published" in str(error)
    assert reader.published("x") is None
    assert len(requests_in(path)) == 1
    with logstore.open(path, config=SERVING) as owner:
        until(lambda: not requests_in(path))
        assert owner.published("x") == 5
        assert owner.topic("a")[0].end_offset == 4


def test_owner_that_does_not_publish_for_others_lets_them_wait(
    path: str, reader: Store, elsewhere: None
) -> None:
    """Until it ends: then the one who waits publishes."""
    busy = logstore.open(path, config=DEAF)
    call = Later(lambda: submit(reader, staged_by(reader, 2)))
    until(lambda: waiting_in(path))
    busy.publish([staged_by(busy, 1)], identity="own", sequence=1)
    assert len(requests_in(path)) == 1
    assert reader.published("x") is None
    busy.close()
    assert call.get().offsets == {("a", 0): range(1, 3)}
    assert requests_in(path) == []


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
    until(lambda: not requests_in(path))
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
    until(lambda: not requests_in(path))


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
        ({"logs": [["a"]]}, "no staged log"),
        ({"logs": [["a", 0, 2, 1, "../x", True, 0, [[0, 1]], ""]]}, "staged"),
        ({"logs": [["a", -1, 2, 1, ".logstore-staged-a", True, 0, [[0, 1]], ""]]},
         "partition"),
        ({"note": "x" * 1001}, "note"),
    ],
    ids=["columns", "name", "partition", "note"],
)  # fmt: skip
def test_request_that_no_store_writes_is_refused(
    path: str, owner: Store, change: Any, match: str
) -> None:
    """It has a valid checksum; the one who waits for it is told."""
    value = {
        "logs": [], "identity": "x", "sequence": 1, "note": "", "metadata": "",
        "pinned": None, **change,
    }  # fmt: skip
    root = owner._context.root
    name = requests.request_name("x", 1, "1-" + "0" * 16)
    file = requests.RequestFile(root, name, checkpoints.pack_state(value))
    until(lambda: not file.is_there)
    answer = file.answer()
    file.close()
    assert answer is not None
    assert isinstance(answer.error, (ConfigError, StorageError))
    assert match in str(answer.error)
    assert owner.published("x") is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100, b"garbage", b"xxh64 0000000000000000\n{}\n"],
    ids=["empty", "zeros", "garbage", "checksum"],
)
def test_damaged_request_is_put_aside_and_told(
    path: str, owner: Store, reader: Store, data: bytes, caplog: Any
) -> None:
    """As after a power failure; the others are served."""
    name = requests.request_name("y", 1, "1-" + "0" * 16)
    temporary = Path(path, name + ".tmp")
    temporary.write_bytes(data)
    temporary.rename(Path(path, name))
    assert submit(reader, staged_by(reader)).is_new
    aside = name.replace(layout.REQUEST_PREFIX, layout.REFUSED_PREFIX)
    until(lambda: Path(path, aside).exists())
    assert Path(path, aside).read_bytes() == data
    until(lambda: any("it is kept as" in r.getMessage() for r in caplog.records))
    until(lambda: not requests_in(path))


def test_request_that_is_damaged_while_it_waits_raises_that(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published, and the staged records are there."""
    hold_back(monkeypatch)
    with logstore.open(path, config=SERVING) as owner:
        staged = staged_by(reader)
        call = Later(lambda: submit(reader, staged))
        until(lambda: waiting_in(path))
        flip_bit(Path(path, waiting_in(path)[0]), 8 * 40)
        owner._publishing.hand_in.serve()
        with pytest.raises(CorruptCheckpointError, match="damaged"):
            call.get()
        assert owner.published("x") is None
    assert staged_files(Path(path)) == list(staged.files)
    assert submit(reader, staged).is_new


def test_special_file_with_the_name_of_a_request_stops_nobody(
    path: str, owner: Store, reader: Store
) -> None:
    """A FIFO, a directory, a link."""
    outside = Path(path).parent / "outside"
    outside.write_bytes(b"")
    names = [requests.request_name("y", n, "1-" + "0" * 16) for n in range(3)]
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
    assert requests_in(path) == []


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


def test_same_records_have_the_same_request(
    path: str, reader: Store, elsewhere: None
) -> None:
    """However often they are handed in: the directory does not fill."""
    staged = staged_by(reader)
    with logstore.open(path, config=DEAF):
        for _ in range(3):
            with pytest.raises(PublicationTimeoutError):
                submit(reader, staged, timeout_ms=1)
        assert len(requests_in(path)) == 1
    assert submit(reader, staged).is_new


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


def test_lock_that_another_one_takes_first_is_waited_for(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch, elsewhere: None
) -> None:
    """It seemed to be free."""
    busy = logstore.open(path, config=DEAF)
    answers: list[int | None] = [None]
    real = submitting._holder
    monkeypatch.setattr(
        submitting, "_holder", lambda root: answers.pop() if answers else real(root)
    )
    call = Later(lambda: submit(reader, staged_by(reader)))
    until(lambda: waiting_in(path))
    with pytest.raises(StoreLockedError):
        logstore.open(path)
    busy.close()
    assert call.get().is_new


def test_requests_that_nobody_wants_any_more_are_removed(
    path: str, reader: Store, elsewhere: None
) -> None:
    """Of an identity, up to a sequence; and old ones, also what was put aside."""
    with logstore.open(path, config=DEAF) as busy:
        for sequence in (3, 4):
            with pytest.raises(PublicationTimeoutError):
                submit(reader, staged_by(reader, 1, sequence), sequence, timeout_ms=0)
        busy.discard_staged(identity="other", before=9)
        assert len(requests_in(path)) == 2
        busy.discard_staged(identity="x", before=4)
        assert len(requests_in(path)) == 1
        aside = Path(path, layout.REFUSED_PREFIX + "0")
        aside.write_bytes(b"")
        busy.discard_staged(older_than_ms=3_600_000)
        assert len(requests_in(path)) == 1
        assert aside.exists()
        for file in Path(path).glob(".logstore-re*"):
            os.utime(file, (1, 1))
        busy.discard_staged(older_than_ms=3_600_000)
        assert not aside.exists()
        assert requests_in(path) == []


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


def test_request_of_a_later_version_stops_nobody(
    path: str, owner: Store, reader: Store, caplog: Any
) -> None:
    """It is left to whoever can read it."""
    root = owner._context.root
    name = requests.request_name("y", 1, "1-" + "0" * 16)
    data = checkpoints.pack_state({"version": 9})
    requests.RequestFile(root, name, data).close()
    assert submit(reader, staged_by(reader)).is_new
    until(lambda: any("cannot read the request" in r.msg for r in caplog.records))
    until(lambda: waiting_in(path) == [name])


def test_request_that_was_handed_in_anew_is_answered_for_itself(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a first call that has given up, with another note, while it was served."""
    hold_back(monkeypatch)
    real = Publisher.publish_all
    calls: list[Later] = []
    with logstore.open(path, config=SERVING) as owner:
        staged = staged_by(reader)
        with pytest.raises(PublicationTimeoutError):
            submit(reader, staged, timeout_ms=0, note="first")
        (name,) = waiting_in(path)
        before = os.stat(Path(path, name)).st_ino

        def publish_all(self: Publisher, asked: Any) -> Any:
            found = real(self, asked)
            if not calls:
                calls.append(Later(lambda: submit(reader, staged, note="other note")))
                until(lambda: os.stat(Path(path, name)).st_ino != before)
            return found

        monkeypatch.setattr(Publisher, "publish_all", publish_all)
        owner._publishing.hand_in.serve()
        done = calls[0].get()
        assert (done.is_new, done.records, done.note) == (False, 2, "other note")
        assert owner.topic("a")[0].end_offset == 2
    assert requests_in(path) == []


def test_lock_is_looked_at_once_as_long_as_nobody_has_closed_it(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its holder has ended, the next call takes it, without a wait."""
    looks: list[int | None] = []
    real = submitting._holder

    def holder(root: Directory) -> int | None:
        looks.append(real(root))
        return looks[-1]

    monkeypatch.setattr(submitting, "_holder", holder)
    # A busy machine makes a call wait for longer than the time of a look.
    monkeypatch.setattr(submitting, "_LOOK_S", 3600)
    for begin in (1, 5):
        with logstore.open(path, config=SERVING):
            for sequence in range(begin, begin + 3):
                assert submit(reader, staged_by(reader, 1, sequence), sequence).is_new
        assert len(looks) == 1
        assert looks.pop() is not None
        assert submit(reader, staged_by(reader, 1, begin + 3), begin + 3).is_new
        assert looks[0] is None
        looks.clear()


def hand_in_of(reader: Store, number: int, *, is_answered: bool = False) -> None:
    """A request of the identity ``i<number>``, which may have its answer already."""
    (log,) = staged_by(reader, 1, 1).logs
    identity = f"i{number}"
    data = requests.pack_request([list(log)], identity, 1, "", b"", None)
    name = requests.request_name(identity, 1, requests.unique_part(log.file))
    requests.RequestFile(reader._context.root, name, data).close()
    if is_answered:
        request = requests.OpenRequest(reader._context.root, name)
        request.answer(requests.Answer(None, 0, (), True, "", b"", False))


def test_more_requests_than_are_open_at_once_are_all_published(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the owner, and by one that is about to end."""
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    for begin, config in ((1, SERVING), (11, StoreConfig())):
        for number in range(begin, begin + 8):
            hand_in_of(reader, number)
        if config is SERVING:
            with logstore.open(path, config=config):
                until(lambda: not requests_in(path))
        else:
            assert submit(reader, staged_by(reader, 1, begin), begin).is_new
            assert not requests_in(path)
        found = [reader.published(f"i{n}") for n in range(begin, begin + 8)]
        assert found == [1] * 8


@pytest.mark.parametrize("answered", [3, 4, 7])
def test_requests_that_wait_behind_answered_ones_are_published(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """An owner was killed between its answers and the removals. The next one must not
    wait for a report before it comes to the requests behind them."""
    hold_back(monkeypatch)
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    names = sorted(
        (requests.request_name(f"i{n}", 1, "0"), n) for n in range(answered + 1)
    )
    for _, number in names[:-1]:
        hand_in_of(reader, number, is_answered=True)
    last = names[-1][1]
    hand_in_of(reader, last)
    with logstore.open(path, config=SERVING) as owner:
        owner._publishing.hand_in.serve()
        assert reader.published(f"i{last}") == 1
    assert requests_in(path) == []


def test_requests_that_one_commit_has_no_room_for_wake_the_thread(
    path: str, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication of the owner's own has taken their reports."""
    hold_back(monkeypatch)
    monkeypatch.setattr(owner_module, "_REQUESTS_MAX", 3)
    with logstore.open(path, config=SERVING) as owner:
        wakeups = owner._publishing.hand_in._thread.wakeups
        assert wakeups is not None
        for count, is_woken in ((3, False), (4, True)):
            for number in range(count):
                hand_in_of(reader, 10 * count + number)
            owner._publishing.hand_in.publish([])
            wakeups.take()  # the removals of the answered requests
            assert wakeups.wait(0) == is_woken
        assert len(requests_in(path)) == 1
