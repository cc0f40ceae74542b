"""Findings of the fault programme as plain tests: offsets without a checksum, remains
of an operation after a power cut, errors without a name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash

import logstore
from logstore import OffsetOutOfRangeError
from logstore import _native as native
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    crash,
    frames,
    logs_in,
    overwrite,
    restart_machine,
)
from support.values import (
    append_records,
    expected,
    fill,
    new_partition,
    read_all,
    write_store,
)

COUNT = 24
SETTINGS = {"segment_bytes": 400, "index_interval_bytes": 100}
LOUD = logstore.CorruptRecordError


def as_kafka_leaves_it(store: Path) -> None:
    """Remove logstore's own state; the marks of a clean stop stay."""
    for path in store.rglob(".logstore-*"):
        path.unlink()


def move_batch(log: Path, slot: int, offset: int) -> None:
    """Give a batch another offset, which no checksum covers."""
    overwrite(log, frames(log)[slot].pos, offset.to_bytes(8, "big"))


@pytest.mark.parametrize(("magic", "codec"), [(0, "gzip"), (1, "lz4"), (2, "none")])
def test_offset_flipped_upwards_in_a_sealed_segment_hides_nothing(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A batch that ends after its segment is damage, also without own state."""
    log = logs_in(write_store(tmp_path, COUNT, magic, codec, call=3, **SETTINGS))[0]
    as_kafka_leaves_it(tmp_path)
    bad = frames(log)[1]
    move_batch(log, 1, bad.offset + (1 << 40))
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        found = []
        with pytest.raises(LOUD):
            found.extend(partition.read())
        with pytest.raises(LOUD):
            for batch in partition.read_batches():
                list(batch)
        with pytest.raises(LOUD):
            list(partition.fetch(3, 4096))
            list(partition.fetch(4, 4096))


FORMATS = [(0, "none"), (0, "gzip"), (1, "none"), (1, "lz4"), (2, "none"), (2, "zstd")]
FLUSHED = logstore.StoreConfig(flush_checkpoint_ms=0)


def durable_store(path: Path, magic: int, codec: str, *, is_killed: bool) -> Path:
    """A store of three durable batches of 3 records; returns its one log. If its writer
    was killed, a batch follows that was not durable."""
    with logstore.open(path, config=FLUSHED) as store:
        partition = new_partition(store, magic, codec)
        for _ in range(3):
            partition.append_many([b"a", b"b", b"c"], durable=True)
        if is_killed:
            partition.append_many([b"d"])
            crash(path, path.with_name("killed"))
    (log,) = logs_in((path.with_name("killed") if is_killed else path) / "orders-0")
    return log


@pytest.mark.parametrize("by", [-1, 1, 1000, 1 << 40])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_altered_offset_of_the_last_durable_batch_is_damage_before_an_append(
    tmp_path: Path, magic: int, codec: str, is_killed: bool, by: int
) -> None:
    """Nothing is appended after it or cut, each read ends with an error, and `verify`
    names it, and not the batch after it; with the right offset the log is as before."""
    log = durable_store(tmp_path / "s", magic, codec, is_killed=is_killed)
    path, bad = log.parents[1], frames(log)[-2 if is_killed else -1]
    move_batch(log, -2 if is_killed else -1, bad.offset + by)
    if is_killed:
        restart_machine(path)  # so that only the state contradicts it
    data = log.read_bytes()
    for _ in range(2):
        with logstore.open(path) as store:
            assert [a.label for a in store.recovery_report.actions] == ["corrupt"]
            assert store.recovery_report.actions[0].position == bad.pos
            with pytest.raises(LOUD):
                store.topic("orders")[0].append(b"x")
        assert log.read_bytes() == data
        with logstore.open(path, read_only=True) as store:
            found: list[int] = []
            with pytest.raises(LOUD):
                found.extend(record.offset for record in store["orders"][0].read())
            assert found == list(range(8 if frames(log)[1].offset == 1 else 6))
        problems = logstore.verify(path).problems
        assert {p.position for p in problems if p.path == str(log)} == {bad.pos}
    overwrite(log, bad.pos, bad.offset.to_bytes(8, "big"))
    with logstore.open(path) as store:
        assert [a.label for a in store.recovery_report.actions] == ["damage-gone"]
        assert store["orders"][0].append(b"x") == (10 if is_killed else 9)
    assert logstore.verify(path).ok


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_opening_of_a_closed_log_reads_one_head_and_no_batch(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The state names the last batch: the log of a clean opening stays unread."""
    log = durable_store(tmp_path / "s", magic, codec, is_killed=False)
    files = FaultyFiles()
    read: list[int] = []
    take = files.read

    def counted(fd: int, buffer: Any, pos: int) -> int:
        if os.path.samestat(os.fstat(fd), log.stat()):
            read.append(len(buffer))
        return take(fd, buffer, pos)

    files.read = counted  # type: ignore[method-assign]
    with open_store(tmp_path / "s", _files=files) as store:
        assert store.topic("orders")[0].end_offset == 9
    assert sum(read) <= 64


def test_altered_offset_before_gaps_of_another_program_is_damage(
    tmp_path: Path,
) -> None:
    """Readers of a log that may have gaps cannot see it: the log ends before it."""
    log = durable_store(tmp_path / "s", 2, "none", is_killed=False)
    as_kafka_leaves_it(tmp_path)
    bad = frames(log)[-1]
    move_batch(log, -1, bad.offset + 5)
    points = tmp_path / "s" / "recovery-point-offset-checkpoint"
    points.write_text("0\n1\norders 0 14\n")
    with logstore.open(tmp_path / "s") as store:
        assert store.topic("orders")[0].append(b"x") == 14
    move_batch(log, -1, 13)
    with logstore.open(tmp_path / "s") as store:
        with pytest.raises(LOUD):
            store.topic("orders")[0].append(b"x")
        found: list[int] = []
        with pytest.raises(LOUD):
            found.extend(record.offset for record in store["orders"][0].read())
    # One of the last two batches has a wrong offset: perhaps the one after the gap.
    assert found == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_writer", [False, True])
@pytest.mark.parametrize(
    ("magic", "codec"), [(0, "gzip"), (1, "none"), (1, "lz4"), (2, "none"), (2, "lz4")]
)
def test_offset_flipped_upwards_in_the_last_durable_batch_hides_nothing(
    tmp_path: Path, magic: int, codec: str, is_writer: bool
) -> None:
    """After a kill, no batch after it contradicts it. The index does, so all of the log
    is read: it ends at the end of its state, and after the offset is restored all
    records are there."""
    store = tmp_path / "store"
    config = logstore.StoreConfig(flush_checkpoint_ms=0)
    with logstore.open(store, config=config) as opened:
        partition = new_partition(opened, magic, codec, index_interval_bytes=30)
        for _ in range(5):
            partition.append_many([b"x" * 40] * 3, durable=True)
        crash(store, tmp_path / "killed")
    (log,) = logs_in(tmp_path / "killed" / "orders-0")
    last = frames(log)[-1]
    move_batch(log, -1, last.offset + 16)
    with logstore.open(tmp_path / "killed", read_only=not is_writer) as opened:
        partition = opened.topic("orders")[0]
        assert partition.end_offset == 15
        found: list[int] = []
        with pytest.raises(LOUD):
            found.extend(record.offset for record in partition.read())
        assert found == list(range(14 if (magic, codec) == (1, "none") else 12))
        with pytest.raises(OffsetOutOfRangeError):
            list(partition.read(last.offset + 16))
        if is_writer:
            with pytest.raises(logstore.LogStoreError):
                partition.append(b"x")
    move_batch(log, -1, last.offset)
    with logstore.open(tmp_path / "killed") as opened:
        partition = opened.topic("orders")[0]
        assert [record.offset for record in partition.read()] == list(range(15))
        assert partition.append(b"x") == 15


@pytest.mark.parametrize(("magic", "codec"), [(1, "none"), (1, "snappy"), (2, "lz4")])
def test_fetch_of_a_misplaced_batch_is_an_error_not_an_empty_chunk(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """An empty chunk means only the end of the log."""
    log = logs_in(write_store(tmp_path, COUNT, magic, codec, call=3, **SETTINGS))[-1]
    first = int(log.name[:20])
    move_batch(log, 0, 1 << 40)
    with logstore.open(tmp_path, read_only=True) as store:
        with pytest.raises(LOUD):
            list(store.topic("orders")[0].fetch(first))


def test_fetch_of_swapped_batches_is_an_error(tmp_path: Path) -> None:
    """Both are one damage, whichever was requested; later records are delivered."""
    log = logs_in(write_store(tmp_path, COUNT, 1, "snappy", call=3, **SETTINGS))[0]
    data = log.read_bytes()
    one, two = frames(log)[:2]
    end = two.pos + two.size
    log.write_bytes(data[two.pos : end] + data[: one.size] + data[end:])
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        for offset in (0, 1, 3, 5):
            for read in (partition.fetch, partition.read):
                with pytest.raises(LOUD) as caught:
                    list(read(offset))
                assert (caught.value.offset, caught.value.next_offset) == (0, 6)
        assert next(iter(partition.fetch(6))).offset == 6


def test_wrapper_flipped_downwards_is_not_left_out_of_the_batches(
    tmp_path: Path,
) -> None:
    """In magic 0 its messages have separate offsets; only its end is wrong."""
    directory = write_store(tmp_path, COUNT, 0, "snappy", call=3, **SETTINGS)
    log = logs_in(directory)[0]
    bad = frames(log)[-1]
    move_batch(log, -1, bad.offset - 1)
    with logstore.open(tmp_path, read_only=True) as store:
        with pytest.raises(LOUD):
            list(store.topic("orders")[0].read_batches(bad.offset))


def test_time_lookup_in_a_lost_segment_is_an_error(tmp_path: Path) -> None:
    """None means that there is no such record, not that it is gone."""
    with logstore.open(tmp_path / "a") as store:
        fill(new_partition(store), 5)
        crash(tmp_path / "a", tmp_path / "b")
    logs_in(tmp_path / "b" / "orders-0")[0].unlink()
    with logstore.open(tmp_path / "b", read_only=True) as store:
        with pytest.raises(LOUD):
            store.topic("orders")[0].offset_for_time(0)


@pytest.mark.parametrize("magic", [0, 1])
def test_log_that_was_closed_cleanly_has_no_torn_tail(
    tmp_path: Path, magic: int
) -> None:
    """This is so even if a damaged batch states an offset past the recovery point:
    Kafka's clean marker is there."""
    directory = write_store(tmp_path, COUNT, magic, "none", call=3, **SETTINGS)
    as_kafka_leaves_it(tmp_path)
    log = logs_in(directory)[-1]
    move_batch(log, -2, COUNT + 100)
    data = log.read_bytes()
    with logstore.open(tmp_path) as store:
        assert [a.label for a in store.recovery_report.actions] == ["corrupt"]
        with pytest.raises(LOUD):
            list(store.topic("orders")[0].read())
    assert log.read_bytes() == data


def test_last_segment_emptied_after_a_clean_stop_is_lost_not_short(
    tmp_path: Path,
) -> None:
    """Kafka's recovery point holds the end of a log that was closed cleanly."""
    directory = write_store(tmp_path, COUNT, 1, call=3, **SETTINGS)
    as_kafka_leaves_it(tmp_path)
    logs_in(directory)[-1].write_bytes(b"")
    with logstore.open(tmp_path, read_only=True) as store:
        with pytest.raises(LOUD):
            list(store.topic("orders")[0].read())


def test_stale_wrapper_past_the_durable_point_is_a_torn_tail(tmp_path: Path) -> None:
    """A wrapper's first offset is known only when it is decompressed."""
    with logstore.open(tmp_path / "a") as store:
        partition = new_partition(store, 1, "snappy")
        append_records(partition, 3)
        partition.flush()
        append_records(partition, 3)
        crash(tmp_path / "a", tmp_path / "b")
    log = logs_in(tmp_path / "b" / "orders-0")[0]
    move_batch(log, 1, 1000)
    assert read_all(tmp_path / "b") == expected(1, 0, 3)
    with logstore.open(tmp_path / "b") as store:
        assert [a.label for a in store.recovery_report.actions] == ["torn-tail"]
        assert store.topic("orders")[0].end_offset == 3


def test_segment_of_an_undone_roll_is_put_aside(tmp_path: Path) -> None:
    """Its name may come back with a power cut: the log before it does not end there."""
    with logstore.open(tmp_path / "a") as store:
        append_records(new_partition(store), 3)
        crash(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "orders-0" / f"{7:020d}.log").write_bytes(b"")
    assert read_all(tmp_path / "b") == expected(1, 0, 3)
    with logstore.open(tmp_path / "b") as store:
        assert [a.label for a in store.recovery_report.actions] == ["torn-tail"]
        fill(store.topic("orders")[0], 3)
    assert read_all(tmp_path / "b") == expected(1, 0, 6)


def test_segment_of_another_log_does_not_take_the_next_one_with_it(
    tmp_path: Path,
) -> None:
    """It comes after the segments of the state, and the one after it follows the one
    before: no roll was undone there."""
    with logstore.open(tmp_path / "a") as store:
        partition = new_partition(store)
        fill(partition, 3)
        crash(tmp_path / "a", tmp_path / "before")
        partition.roll()
        fill(partition, 3)
        crash(tmp_path / "a", tmp_path / "b")
    directory = tmp_path / "b" / "orders-0"
    state = tmp_path / "before" / "orders-0" / ".logstore-state"
    shutil.copy(state, directory)
    other = directory / f"{1:020d}.log"
    shutil.copy(directory / f"{0:020d}.log", other)
    assert read_all(tmp_path / "b") == expected(1, 0, 6)
    with logstore.open(tmp_path / "b") as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == 6
        with pytest.raises(LOUD, match="of another log"):
            partition.append(b"x")
    assert other.exists()
    assert not list(directory.glob(".logstore-torn-*"))
    assert read_all(tmp_path / "b") == expected(1, 0, 6)


def test_segment_whose_deletion_was_committed_does_not_come_back(
    tmp_path: Path,
) -> None:
    """A power cut may undo a rename to `.deleted`; the state file is the commit."""
    with logstore.open(tmp_path / "a") as store:
        partition = new_partition(store, **SETTINGS)
        fill(partition, COUNT)
        start = partition.segments[1].base_offset
        partition.delete_before(start)
        crash(tmp_path / "a", tmp_path / "b")
    directory = tmp_path / "b" / "orders-0"
    (gone,) = directory.glob("*.log.deleted")
    gone.rename(gone.with_suffix(""))
    assert read_all(tmp_path / "b") == expected(1, start, COUNT)
    with logstore.open(tmp_path / "b") as store:
        assert store.topic("orders")[0].segments[0].base_offset == start
    assert not gone.with_suffix("").exists()


def test_reader_beside_an_interrupted_truncation_ends_where_the_owner_will(
    tmp_path: Path,
) -> None:
    """After the commit, a reader gets no record that is about to be cut."""
    write_store(tmp_path, 5, call=1)
    path = tmp_path / "orders-0" / ".logstore-state"
    state = json.loads(path.read_bytes().partition(b"\n")[2])
    last = frames(logs_in(tmp_path / "orders-0")[0])[-1]
    state["active"] |= {"size": last.pos, "last_offset": 3}
    state["is_truncating"] = True
    body = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    digest = f"xxh64 {xxhash.xxh64_intdigest(body):016x}\n".encode()
    path.write_bytes(digest + body + b"\n")
    assert read_all(tmp_path) == expected(1, 0, 4)
    with logstore.open(tmp_path) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 4)


def test_reader_sees_no_part_of_a_topic_that_is_being_created(tmp_path: Path) -> None:
    """Until all directories exist, the ones from the first one on are a topic."""
    files = FaultyFiles()
    with open_store(tmp_path / "a", _files=files) as store:
        files.fail("make_directory", name="orders-1", times=1)
        with pytest.raises(logstore.StorageError):
            store.create_topic("orders", 3)
        crash(tmp_path / "a", tmp_path / "b")
    directory = tmp_path / "b"
    (directory / "orders-0").rename(directory / "orders-1")
    with logstore.open(directory, read_only=True) as store:
        assert store.topics() == []
    with logstore.open(directory) as store:
        assert len(store.topic("orders")) == 3


def test_failed_background_sync_is_raised_by_close_if_nobody_was_told(
    tmp_path: Path,
) -> None:
    """The caller of close expects that everything is durable."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(store)
    append_records(partition, 3)
    files.fail("sync", name=".log")
    partition._log.syncs.flush_due()
    with pytest.raises(logstore.errors.SyncFailedError):
        store.close()


def test_topic_whose_deletion_failed_is_a_named_error(tmp_path: Path) -> None:
    """Half of it is gone; opening again finishes it."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        topic = store.create_topic("orders")
        files.fail("rename", name="orders-0", times=1)
        with pytest.raises(logstore.StorageError):
            store.delete_topic("orders")
        with pytest.raises(logstore.TopicNotFoundError):
            topic[0]
    with logstore.open(tmp_path) as store:
        assert store.topics() == []


def test_leader_epoch_that_cannot_be_noted_is_a_storage_error(tmp_path: Path) -> None:
    """Nothing is appended, and the next append notes it."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, 2)
        files.fail("create", errno.EMFILE, name="leader-epoch-checkpoint.tmp", times=1)
        with pytest.raises(logstore.StorageError):
            append_records(partition, 3)
        assert partition.end_offset == 0
        append_records(partition, 3)
        assert (tmp_path / "orders-0" / "leader-epoch-checkpoint").exists()


def test_retention_that_cannot_ask_for_space_is_a_storage_error(tmp_path: Path) -> None:
    """The error has a name, like all errors of the system."""

    class NoSpaceKnown(FaultyFiles):
        def free_bytes(self, fd: int) -> int:
            raise OSError(errno.EIO, "not now")

    with open_store(tmp_path, _files=NoSpaceKnown()) as store:
        partition = new_partition(store)
        with pytest.raises(logstore.StorageError):
            partition.apply_retention()


def test_close_of_a_descriptor_that_fails_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged data was synced before; the descriptor is gone in any case."""
    close = native.close

    def failing(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "on close")

    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
        monkeypatch.setattr(native, "close", failing)
    monkeypatch.undo()
    assert read_all(tmp_path) == expected(1, 0, 5)


def test_reader_looks_again_where_a_deletion_came_between(tmp_path: Path) -> None:
    """Two looks at a directory may differ: files may be gone at the second."""
    with logstore.open(tmp_path) as writing:
        partition = new_partition(writing, **SETTINGS)
        fill(partition, COUNT)
        files = FaultyFiles()
        with open_store(tmp_path, read_only=True, _files=files) as store:
            reading = store.topic("orders")[0]
            assert list(reading.read()) == expected(1, 0, COUNT)
            fill(partition, 2)
            files.fail("open", errno.ENOENT, name=".log", times=1)
            files.fail("stat_name", errno.ENOENT, name=".log", times=1)
            assert list(reading.read()) == expected(1, 0, COUNT + 2)


def test_reader_goes_on_where_a_deletion_comes_at_any_of_its_calls(
    tmp_path: Path,
) -> None:
    """The writer removes all segments of the log, even the last, while a reader is
    busy."""
    with logstore.open(tmp_path) as writing:
        partition = new_partition(writing, **SETTINGS)
        nth = calls = 0
        while nth <= calls:
            start = partition.end_offset
            fill(partition, 5)
            files = FaultyFiles()
            files.at_call(nth, lambda: partition.delete_before(partition.end_offset))
            with open_store(tmp_path, read_only=True, _files=files) as store:
                reading = store.topic("orders")[0]
                assert reading.start_offset in (start, start + 5)
                assert reading.end_offset == start + 5
                with contextlib.suppress(OffsetOutOfRangeError):
                    got = list(reading.read(start))
                    assert got == expected(1, start, start + 5)
                calls = len(files.calls)
            partition.delete_before(partition.end_offset)
            nth += 1
    assert nth > 20


def test_copy_of_a_segment_among_the_sealed_ones_is_no_part_of_the_log(
    tmp_path: Path,
) -> None:
    """It is reported, and stays; all records are read, and none is appended before it
    is removed."""
    store = tmp_path / "store"
    first, second = logs_in(write_store(store, COUNT, **SETTINGS))[:2]
    name = f"{int(second.stem) + 1:020}.log"
    copy = first.with_name(name)
    copy.write_bytes(first.read_bytes())
    with logstore.open(store) as opened:
        partition = opened.topic("orders")[0]
        actions = opened.recovery_report.actions
        assert [(action.label, action.path) for action in actions] == [
            ("corrupt", str(copy))
        ]
        assert list(partition.read()) == expected(1, 0, COUNT)
        with pytest.raises(LOUD, match="of another log"):
            partition.append(b"x")
    with logstore.open(store, read_only=True) as reader:
        assert list(reader.topic("orders")[0].read()) == expected(1, 0, COUNT)
    assert copy.read_bytes() == first.read_bytes()
    logstore.repair(store, mode="skip")
    with logstore.open(store) as mended:
        partition = mended.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        assert partition.append(b"x") == COUNT
