"""Hand-in: a process without the store's lock has its records published by the owner,
or takes the lock; once, and with its own error if it is refused."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    CorruptRecordError,
    PublicationTimeoutError,
    StorageError,
    Store,
    TopicNotFoundError,
)
from logstore.errors import CorruptCheckpointError, PublicationConflictError
from logstore.io import layout
from logstore.io.checkpoint.answers import Answer
from logstore.log.write.calls import answer_in
from logstore.store.publication.publisher import Publisher
from support import handing_in
from support.damage import flip_bit
from support.handing_in import (
    DEAF,
    LONG_MS,
    SERVING,
    Later,
    asked_by,
    hold_back,
    left_by_ended,
    making,
    processes_in,
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


# ---------------------------------------------------------------- publisher


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
    """All arguments and results of `publish` are supported; the request is removed."""
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
    """This includes requests of one identity, in the order in which they were handed
    in; a refused one does not stop the others."""
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
    """The process has ended meanwhile: its request is carried out before requests of
    one that continues with the same identity."""
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
    """This may be repeated: nothing is published later, and the file does not fill."""
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
    """They wait until it ends: then the requester publishes."""
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
    """The first process with the lock publishes for the others, too."""
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
    """The error has its facts; the staged records are still there, and the next request
    is published."""
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
    """It has the id of the topic for which it was staged."""
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
        ({"identity": "process:0"}, "is reserved"),
        ({"identity": ""}, "is reserved"),
    ],
    ids=["columns", "name", "partition", "note", "process", "nobody"],
)  # fmt: skip
def test_request_that_no_store_writes_is_refused(
    path: str, owner: Store, change: Any, match: str
) -> None:
    """It has a valid checksum; the requester gets the error."""
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
    assert isinstance(answer.error, logstore.errors.UnsupportedError)


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
    """A power failure may leave such a file; it is not changed."""
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
    """Nothing is published, and the staged records are still there."""
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
