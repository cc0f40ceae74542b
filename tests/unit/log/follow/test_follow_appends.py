"""The quick look of a follower: what it takes in, and what makes it look at everything.

Each test waits until a change alters the times of the files: before, no look is quick.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.io.files
from logstore import OffsetOutOfRangeError, _native
from logstore.errors import PartitionNotFoundError
from logstore.log.follow import follow_appends
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced, append_garbage, crash, logs_in
from support.levels import stride
from support.values import (
    append_records,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)

SETTLED_S = 0.03


class Watched:
    """A reader of a log that another store writes, and how it has looked.

    Attributes:
        whole: how often it has looked at everything.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = FaultyFiles()
        self.store = open_store(path, read_only=True, _files=self.files)
        self.partition: Any = self.store.topic("orders")[0]
        self.whole = 0
        look = ReadOnlyLog._look

        def counted(log: ReadOnlyLog) -> None:
            self.whole += 1
            look(log)

        monkeypatch.setattr(ReadOnlyLog, "_look", counted)

    @property
    def quick(self) -> Any:
        return self.partition._log._appends

    def settle(self) -> None:
        """Look at everything, after some time in which nothing has changed."""
        _ = self.partition.end_offset  # the first look is for readers that read once
        time.sleep(SETTLED_S)
        self.quick.forget()
        _ = self.partition.end_offset
        assert self.quick.guards is not None
        self.whole = 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def writer(path: Path) -> Iterator[logstore.Store]:
    with open_store(path, _files=Unsynced()) as store:
        yield store


def watched(path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A reader whose next look is a quick one."""
    reader = Watched(path, monkeypatch)
    reader.settle()
    return reader


# ---------------------------------------------------------------- what is appended


@every_magic
def test_append_is_found_by_quick_looks(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    """One record, many, or a batch of several KiB: each way to ask sees it without
    another whole look, and reads return the appended records."""
    p = new_partition(writer, magic)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    q, end = reader.partition, 5
    records = q.follow(timeout=0)
    assert [next(records).offset for _ in range(5)] == list(range(5))
    for count in (1, 1, 3, 200, 1, 1_000, 1):
        append_records(p, count)
        found = list(itertools.islice(records, count))
        assert found == expected(magic, end, end + count)
        end += count
        assert q.end_offset == end
    assert list(q.read()) == expected(magic, 0, end)
    assert q.get(end - 1) == expected(magic, end - 1, end)[0]
    assert reader.whole == 0


def test_follower_reads_what_was_appended_once(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records come from the memory of the look: there is one read of the file for
    each look."""
    p = new_partition(writer)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    records = reader.partition.follow(5)
    for end in range(5, 25):
        append_records(p, 1)
        reader.files.forget()
        assert next(records) == expected(1, end, end + 1)[0]
        assert reader.files.count("read") == 1
        assert reader.files.count("list") == 0
    assert reader.whole == 0


def test_index_entries_of_quick_looks_are_those_of_a_whole_one(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups by offset and by time go through the index that the looks have made."""
    p = new_partition(writer, index_interval_bytes=300)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    for _ in range(60):
        append_records(p, 2)
        assert reader.partition.end_offset == p.end_offset
    assert reader.whole == 0
    ours, other = reader.partition._log, Watched(path, monkeypatch).partition._log
    for name in ("index", "times"):
        mine, its = getattr(ours.loaded, name), getattr(other.loaded, name)
        assert mine.count > 3
        assert mine.data() == its.data()
    states = [log.loaded.active_state for log in (ours, other)]
    for field in ("size", "last_offset", "max_timestamp", "max_timestamp_offset"):
        assert getattr(states[0], field) == getattr(states[1], field)


@pytest.mark.parametrize(
    "options",
    [{"durable_only": True}, {"isolation": "read_committed"}, {"limit": 3}],
    ids=["durable", "committed", "limit"],
)
def test_follower_with_options_gets_what_they_allow(
    path: Path,
    writer: logstore.Store,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    p = new_partition(writer)
    append_records(p, 2)
    p.roll()  # which writes the state
    reader = watched(path, monkeypatch)
    records = reader.partition.follow(timeout=0, **options)
    found = list(itertools.islice(records, 2))
    append_records(p, 4)
    found += list(records)
    assert reader.whole == 0
    count = {"durable_only": 2, "isolation": 6, "limit": 3}[next(iter(options))]
    assert found == expected(1, 0, count)


def test_followers_of_one_log_all_get_what_one_of_them_has_found(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others look when it is already in memory, or was read two looks ago."""
    p = new_partition(writer)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    followers = [reader.partition.follow(5) for _ in range(3)]
    for end in range(5, 15):
        append_records(p, 1)
        if end % 3 == 0:
            assert reader.partition.end_offset == end + 1
        for records in followers[end % 2 :]:
            assert next(records) == expected(1, end, end + 1)[0]
        if end % 2:
            assert next(followers[0]) == expected(1, end, end + 1)[0]
    assert reader.whole == 0


# ---------------------------------------------------------------- what else may change


def _restored(path: Path, writer: logstore.Store) -> None:
    """A copy of the partition in its place: the same bytes in new files."""
    directory = path / "orders-0"
    shutil.copytree(directory, path / "copy")
    directory.rename(path / "old")
    (path / "copy").rename(directory)


def _other_inode(path: Path, writer: logstore.Store) -> None:
    [log] = logs_in(path / "orders-0")
    mtime = log.parent.stat().st_mtime_ns
    shutil.copy2(log, path / "copy")
    (path / "copy").rename(log)
    os.utime(log.parent, ns=(mtime, mtime))


def _overwritten(path: Path, writer: logstore.Store) -> None:
    """Other bytes before the end, and more after it, in the same file: no guard shows
    it."""
    [log] = logs_in(path / "orders-0")
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.truncate(len(data) - 20)
        file.seek(0, os.SEEK_END)
        file.write(bytes(20))
        file.write(data[: len(data) // 2])  # bytes that cannot follow


def _next_segment(path: Path, writer: logstore.Store) -> None:
    """A roll that the time of the directory does not show."""
    directory = path / "orders-0"
    mtime = directory.stat().st_mtime_ns
    (directory / f"{5:020d}.log").touch()
    os.utime(directory, ns=(mtime, mtime))


def _published(path: Path, writer: logstore.Store) -> None:
    with writer.stage() as stage:
        stage.append_many(writer.topic("orders")[0], [b"x"])
        writer.publish([stage.finish()])


CHANGES: dict[str, Callable[[Path, Any], object]] = {
    "state": lambda path, writer: os.utime(path / "orders-0" / ".logstore-state"),
    "mark of the writer": lambda path, writer: os.utime(path / ".logstore-owner"),
    "no mark": lambda path, writer: (path / ".logstore-owner").unlink(),
    "no state": lambda path, writer: (path / "orders-0" / ".logstore-state").unlink(),
    "publication": _published,
    "name": lambda path, writer: (path / "orders-0" / "name").touch(),
    "roll": lambda path, writer: writer.topic("orders")[0].roll(),
    "next segment": _next_segment,
    "truncation": lambda path, writer: writer.topic("orders")[0].truncate_to(3),
    "deletion": lambda path, writer: writer.topic("orders")[0].delete_before(2),
    "torn append": lambda path, writer: append_garbage(
        logs_in(path / "orders-0")[0], b"torn" * 3
    ),
    "shorter file": lambda path, writer: os.truncate(logs_in(path / "orders-0")[0], 80),
    "other inode": _other_inode,
    "restored": _restored,
    "overwritten": _overwritten,
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_other_change_makes_it_look_at_everything(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Records may have been appended, too; then the result is that of a new reader."""
    p = new_partition(writer)
    append_records(p, 5)
    p.flush()
    reader = watched(path, monkeypatch)
    append_records(p, 1)
    CHANGES[change](path, writer)

    def seen(q: Any) -> Any:
        try:
            return q.start_offset, q.end_offset, [*q.read()]
        except logstore.LogStoreError as error:
            return str(error)

    found = seen(reader.partition)
    assert reader.whole > 0
    with logstore.open(path, read_only=True) as other:
        assert found == seen(other.topic("orders")[0])


@pytest.mark.parametrize("is_hidden", [False, True])
def test_empty_segment_that_was_just_begun_is_not_looked_at_quickly(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    """The whole look finds its name after the files that it has looked at: the next one
    can be quick. `is_hidden`: the time of the directory does not show the roll."""
    p = new_partition(writer)
    append_records(p, 5)
    p.flush()
    reader = watched(path, monkeypatch)
    if is_hidden:
        _next_segment(path, writer)
    else:
        (path / "orders-0" / f"{5:020d}.log").touch()
    time.sleep(SETTLED_S)
    for _ in range(3):
        assert reader.partition.end_offset == 5
    assert reader.whole == 2
    assert [*reader.partition.read()] == expected(1, 0, 5)
    p.roll()
    append_records(p, 4)
    assert [*reader.partition.read()] == expected(1, 0, 9)


def test_deleted_topic_is_noticed(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that was created again is another one."""
    append_records(new_partition(writer), 5)
    reader = watched(path, monkeypatch)
    records = reader.partition.follow(5)
    writer.delete_topic("orders")
    with pytest.raises(PartitionNotFoundError):
        _ = reader.partition.end_offset
    append_records(new_partition(writer), 9)
    with pytest.raises(PartitionNotFoundError):
        next(records)


def test_log_that_was_cut_and_has_grown_again_is_noticed(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same size again: a follower above the cut gets an error."""
    p = new_partition(writer)
    append_records(p, 9)
    reader = watched(path, monkeypatch)
    records = reader.partition.follow(0)
    assert [next(records).offset for _ in range(9)] == list(range(9))
    p.truncate_to(5)
    append_records(p, 8, seed=1)
    with pytest.raises(OffsetOutOfRangeError):
        next(records)
    assert [*reader.partition.read(5)] == expected(1, 5, 13, seed=1)


def test_new_writer_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another store object writes the log: the mark in the root is another one."""
    with open_store(path, _files=Unsynced()) as store:
        append_records(new_partition(store), 5)
        reader = watched(path, monkeypatch)
    with open_store(path, _files=Unsynced()) as store:
        append_records(store.topic("orders")[0], 5)
        assert [*reader.partition.read()] == expected(1, 0, 10)
        assert reader.whole > 0


def test_log_of_another_program_is_never_looked_at_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may replace any file, and its cuts are in other files."""
    with open_store(tmp_path / "made", _files=Unsynced()) as store:
        fill(new_partition(store), 20)
    shutil.copytree(tmp_path / "made" / "orders-0", tmp_path / "store" / "orders-0")
    (tmp_path / "store" / "orders-0" / ".logstore-state").unlink()
    reader = Watched(tmp_path / "store", monkeypatch)
    time.sleep(SETTLED_S)
    _ = reader.partition.end_offset
    assert reader.quick.guards is None
    assert [*reader.partition.read()] == expected(1, 0, 20)


def test_look_right_after_a_change_is_whole(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change might leave the times unchanged."""
    p = new_partition(writer)
    reader = Watched(path, monkeypatch)
    append_records(p, 5)
    p.flush()
    os.utime(path / "orders-0" / ".logstore-state")
    _ = reader.partition.end_offset
    assert reader.quick.guards is None
    reader.settle()


def test_batch_larger_than_a_buffer_is_read_by_a_whole_look(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of some KiB is not kept in memory after it was delivered."""
    p = new_partition(writer, 2)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    records = reader.partition.follow(5)
    value = os.urandom(50_000)
    p.append(value)
    assert next(records).value == value
    assert reader.quick.tail is not None
    assert reader.whole == 0
    assert reader.partition.end_offset == 6
    assert reader.quick.tail is None
    value = os.urandom(300_000)
    p.append(value)
    assert next(records).value == value
    assert reader.whole == 1


# ---------------------------------------------------------------- between its steps


def _cut_and_grown(path: Path, writer: logstore.Store) -> None:
    p = writer.topic("orders")[0]
    p.truncate_to(3)
    append_records(p, 4, seed=1)


def _anew(path: Path, writer: logstore.Store) -> None:
    writer.delete_topic("orders")
    append_records(new_partition(writer), 7, seed=1)


def _rolled(path: Path, writer: logstore.Store) -> None:
    p = writer.topic("orders")[0]
    append_records(p, 2)
    p.roll()
    append_records(p, 2)


BETWEEN: dict[str, Callable[[Path, Any], object]] = {
    "cut and grown": _cut_and_grown,
    "anew": _anew,
    "rolled": _rolled,
    "published": _published,
    "restored": _restored,
    "overwritten": _overwritten,
}


@pytest.mark.parametrize("change", BETWEEN)
def test_change_at_any_call_of_a_quick_look_gives_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A follower gets the log before the change, up to there, or the one after it; the
    next look sees the state of that time."""
    for at in itertools.count(1, stride(2)):
        path, did = tmp_path / str(at), list[int]()
        with open_store(path, _files=Unsynced()) as writer:
            p = new_partition(writer)
            append_records(p, 5)
            p.flush()
            reader = watched(path, monkeypatch)
            records = reader.partition.follow(0, timeout=0)
            found = list(itertools.islice(records, 5))
            append_records(p, 1)
            before = expected(1, 0, 6)

            def act(path: Path, writer: logstore.Store, did: list[int]) -> None:
                did.append(1)
                BETWEEN[change](path, writer)

            reader.files.at_call(at, lambda: act(path, writer, did))  # noqa: B023
            with contextlib.suppress(logstore.LogStoreError):
                for record in records:
                    found.append(record)
            reader.files.before = None
            if not did:
                break
            with contextlib.suppress(logstore.LogStoreError):
                _ = reader.partition.end_offset
            after = []
            with contextlib.suppress(logstore.LogStoreError):
                other = Watched(path, monkeypatch).partition
                after = [*other.read(on_corruption="skip")]
            assert [record.offset for record in found] == list(range(len(found)))
            assert found in (before[: len(found)], after[: len(found)]), at
            if change not in ("anew", "overwritten"):
                assert [*reader.partition.read()] == after
    assert at > 10


def test_interrupt_in_a_quick_look_leads_to_a_whole_one(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted look may have left half of its work."""
    p = new_partition(writer)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    append_records(p, 1)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_native, "last_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = reader.partition.end_offset
    assert reader.quick.guards is None
    assert reader.partition.end_offset == 6
    assert reader.whole > 0
    append_records(p, 1)
    assert [*reader.partition.read()] == expected(1, 0, 7) == read_all(path)


def test_error_of_the_system_leads_to_a_whole_look(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole look reports the error, or finds that it is over."""
    p = new_partition(writer)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    for method in ("open_directory", "stat_name", "read"):
        append_records(p, 1)
        reader.settle()
        append_records(p, 1)
        reader.files.fail(method, times=1)
        assert reader.partition.end_offset == p.end_offset
        reader.files.heal()
        assert reader.whole == 1
    assert [*reader.partition.read()] == expected(1, 0, 11)


def test_batch_that_no_segment_can_have_is_left_to_a_whole_look(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts of the quick look are undone."""
    p = new_partition(writer)
    append_records(p, 5)
    reader = watched(path, monkeypatch)
    log = reader.partition._log
    before = log.loaded.active_state.last_offset, log.loaded.index.count
    append_records(p, 3)

    def refused(*arguments: object) -> tuple[int, int]:
        log.loaded.active_state.raw.last_offset += 1
        raise _native.NativeError(_native.E_OFFSET)

    with monkeypatch.context() as patch:
        patch.setattr(follow_appends, "take_batches", refused)
        assert not log._look_quickly()
    assert before == (log.loaded.active_state.last_offset, log.loaded.index.count)
    assert reader.partition.end_offset == 8


def test_looks_stay_quick_after_a_kill_within_an_append(
    path: Path,
    writer: logstore.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The torn batch was examined, and stays until a writer opens the store."""
    append_records(new_partition(writer), 5)
    killed = crash(path, tmp_path / "killed")
    append_garbage(logs_in(killed / "orders-0")[0])
    time.sleep(SETTLED_S)
    reader = watched(killed, monkeypatch)
    for _ in range(3):
        assert reader.partition.end_offset == 5
    assert reader.whole == 0
