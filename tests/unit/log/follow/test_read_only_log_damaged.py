"""A reader of a foreign log with real damage: it is reported, skipped on request, and
costs no more than it has to."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from logstore import CorruptRecordError
from logstore.store.opening import open_store
from support.broker import foreign, with_epoch
from support.broker_logs import TICK_S, WAYS, fetched, small_log, two_logs
from support.damage import FaultyFiles, Unsynced, flip_bit, frames, logs_in
from support.values import config_of, fill


@pytest.mark.parametrize("own", [True, False], ids=["own", "foreign"])
@pytest.mark.parametrize("way", ["read", "batches", "fetch"])
def test_skipping_much_damage_in_many_segments_costs_little_for_each(
    tmp_path: Path, way: str, own: bool
) -> None:
    costs = []
    for count in (30, 120):
        path, files = tmp_path / str(count), FaultyFiles()
        with open_store(path, _files=Unsynced()) as store:
            config = config_of(2, segment_bytes=400)
            partition = store.create_topic("orders", config=config)[0]
            for _ in range(3 * count):
                partition.append(b"x" * 60)
        if not own:
            foreign(path)
        logs = logs_in(path / "orders-0")
        for log in logs[:-1]:
            flip_bit(log, log.stat().st_size * 8 - 9)
        time.sleep(TICK_S)
        with open_store(path, read_only=True, _files=files) as reading:
            reader = reading.topic("orders")[0]
            files.forget()
            found = list(WAYS[way](reader, on_corruption="skip"))
            assert len(found) == 3 * count - len(logs) + 1
            costs.append(len(files.calls) / len(logs))
    assert costs[1] < costs[0] * 1.5


@pytest.mark.parametrize("way", ["read", "batches", "fetch"])
def test_skipping_from_within_a_lost_segment(tmp_path: Path, way: str) -> None:
    """Its index may still be there."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(1, segment_bytes=700, index_interval_bytes=100)
        partition = store.create_topic("orders", config=config)[0]
        fill(partition, 60)
        first, second = (segment.base_offset for segment in partition.segments[1:3])
    (tmp_path / "orders-0" / f"{first:020d}.log").unlink()
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        if way == "fetch":
            found = [r.offset for r in reader.fetch(second - 1, on_corruption="skip")]
            assert found[0] == second
        else:
            found = list(WAYS[way](reader, start=second - 1, on_corruption="skip"))
            assert found == list(range(second, 60))


@pytest.mark.parametrize("way", ["read", "batches", "fetch", "arrow"])
def test_damage_is_told_at_once_whatever_the_clock_says(
    tmp_path: Path, way: str
) -> None:
    """The directory may have changed just now, or in the future."""
    directory = small_log(tmp_path, 2, "none")
    log = logs_in(directory)[1]
    flip_bit(log, log.stat().st_size * 8 - 9)
    for when in (time.time(), time.time() + 1000, time.time() - 1000):
        files = FaultyFiles()
        with open_store(tmp_path, read_only=True, _files=files) as reading:
            reader = reading.topic("orders")[0]
            os.utime(directory, (when, when))
            with pytest.raises(CorruptRecordError):
                list(WAYS[way](reader))
            assert len(files.calls) < 2000
            stay = list(WAYS[way](reader, on_corruption="skip"))
            assert 60 <= len(stay) < 72


@pytest.mark.parametrize("way", ["read", "batches", "fetch", "arrow"])
def test_damage_is_told_though_a_broker_appends_all_the_time(
    tmp_path: Path, way: str
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        for _ in range(50):
            partition.append_many([b"x" * 50] * 2)
    (log,) = logs_in(foreign(tmp_path))
    batch = log.read_bytes()[: frames(log)[1].pos]
    flip_bit(log, log.stat().st_size * 8 // 2)
    files, end = FaultyFiles(), 100

    def append(method: str, name: str) -> None:
        nonlocal end
        if method == "stat_name" and name.endswith(".log"):
            with log.open("ab") as file:
                file.write(with_epoch(batch, end, 0))
            end += 2

    with open_store(tmp_path, read_only=True, _files=files) as reading:
        reader = reading.topic("orders")[0]
        files.before = append
        with pytest.raises(CorruptRecordError):
            list(WAYS[way](reader))
        assert len(files.calls) < 2000


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "no-index"])
@pytest.mark.parametrize("read_only", [True, False], ids=["reads", "writes"])
def test_fetch_that_skips_damage_leaves_out_nothing_else(
    tmp_path: Path, magic: int, indexed: bool, read_only: bool
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(magic))[0]
        for _ in range(500):
            partition.append_many([b"v" * 100] * 4)
        partition.roll()
        partition.append(b"x")
    log = logs_in(tmp_path / "orders-0")[0]
    bad = frames(log)[125]
    flip_bit(log, (bad.pos + bad.size - 5) * 8)
    if not indexed:
        log.with_suffix(".index").unlink()
    with open_store(tmp_path, read_only=read_only) as store:
        reader = store.topic("orders")[0]
        stay = list(WAYS["read"](reader, on_corruption="skip"))
        assert len(stay) == (2000 if magic == 1 else 1997)
        assert list(fetched(reader, 20_000, on_corruption="skip")) == stay


@pytest.mark.parametrize("magic", [0, 2])
def test_damaged_segment_without_an_index_can_be_read_by_its_writer(
    tmp_path: Path, magic: int
) -> None:
    """The index cannot be built again: this is reported, and has no other effect."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(magic, segment_bytes=9000)
        fill(store.create_topic("orders", config=config)[0], 400)
    log = logs_in(tmp_path / "orders-0")[0]
    bad = frames(log)[-1]
    flip_bit(log, (bad.pos + bad.size - 1) * 8)
    log.with_suffix(".index").unlink()
    with open_store(tmp_path) as store:
        partition = store.topic("orders")[0]
        (action,) = store.recovery_report.actions
        assert (action.label, action.position) == ("corrupt", bad.pos)
        with pytest.raises(CorruptRecordError):
            partition.append(b"refused")
        found = []
        with contextlib.suppress(CorruptRecordError):
            found += WAYS["read"](partition)
        assert 0 < len(found) < 400
        stay = list(WAYS["read"](partition, on_corruption="skip"))
        assert len(found) < len(stay) < 400
        assert stay[-1] == 399


def test_first_segment_that_is_lost_under_a_reader_is_no_deletion(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(1, segment_bytes=700)
        fill(store.create_topic("orders", config=config)[0], 60)
    time.sleep(TICK_S)
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        assert len(list(reader.read())) == 60
        reading._context.descriptors._evict(0)
        under_way = reader.read()
        logs_in(tmp_path / "orders-0")[0].unlink()
        for records in (under_way, reader.read(), WAYS["batches"](reader)):
            with pytest.raises(CorruptRecordError, match="is gone"):
                list(records)
        assert reader.start_offset == 0
        with pytest.raises(CorruptRecordError, match="is gone"):
            reader.fetch(0)
        assert len(list(reader.read(on_corruption="skip"))) > 40


def test_damage_is_not_loaded_anew_while_a_broker_appends_behind_it(
    tmp_path: Path,
) -> None:
    """It is read again only when its bytes change."""
    log, old, _, begins = two_logs(tmp_path, 3000, 3000)
    log.write_bytes(old[: begins[2000]])
    flip_bit(log, 8 * (begins[1500] + 100))
    damaged = log.read_bytes()
    read = 0

    class Counting(FaultyFiles):
        def read(self, fd: int, buffer: Any, pos: int) -> int:
            nonlocal read
            n = super().read(fd, buffer, pos)
            read += n
            return n

    with open_store(tmp_path / "one", read_only=True, _files=Counting()) as reading:
        reader = reading.topic("orders")[0]
        time.sleep(TICK_S)
        end = reader.end_offset
        read = 0
        for batch in range(2000, 2050):
            with log.open("ab") as file:
                file.write(old[begins[batch] : begins[batch + 1]])
            assert reader.end_offset == end
        assert read < len(damaged) * 10
        log.write_bytes(old)
        time.sleep(TICK_S)
        assert reader.end_offset == 3000
        assert len(list(reader.read())) == 3000


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("is_copy", [False, True])
def test_reads_go_on_when_a_lost_segment_is_put_back(
    tmp_path: Path, which: int, *, is_copy: bool
) -> None:
    """This holds for a reader that has read before, and for one opened in between."""
    with open_store(tmp_path / "store", _files=Unsynced()) as store:
        config = config_of(2, segment_bytes=700)
        fill(store.create_topic("orders", config=config)[0], 60)
    lost, aside = logs_in(tmp_path / "store/orders-0")[which], tmp_path / "aside"
    with contextlib.ExitStack() as stack:

        def opened() -> Any:
            store = open_store(tmp_path / "store", read_only=True)
            return stack.enter_context(store).topic("orders")[0]

        partition = opened()
        records = partition.follow(timeout=0.01)
        found = [next(records).offset for _ in range(40)]
        lost.rename(aside)
        other = opened()
        others = other.follow(start=55, timeout=0.01)
        for beside in partition, other:
            with pytest.raises(CorruptRecordError):
                list(beside.read())
        if is_copy:
            shutil.copy2(aside, lost)
        else:
            aside.rename(lost)
        found += [record.offset for record in records]
        assert found == list(range(60))
        assert [record.offset for record in others] == list(range(55, 60))
        assert len(list(other.read())) == 60


def test_batch_that_is_whole_by_now_is_no_damage(tmp_path: Path) -> None:
    """The log grows between the look at its size and its first read. It has no recovery
    point: so an intact batch at its end, or after that, would show damage."""
    log, old, _, _ = two_logs(tmp_path, 40, 20)
    cut = frames(log)[30].pos + 20
    log.write_bytes(old[:cut])
    time.sleep(TICK_S)
    files = FaultyFiles()

    def grow(method: str, name: str) -> None:
        if method == "read" and name == log.name and log.stat().st_size == cut:
            log.write_bytes(old)

    with open_store(tmp_path / "one", read_only=True, _files=files) as reading:
        files.before = grow
        reader = reading.topic("orders")[0]
        assert log.read_bytes() == old
        files.before = None
        time.sleep(TICK_S)
        assert list(WAYS["read"](reader)) == list(range(reader.end_offset))
        assert reader._log.loaded.damage is None


def test_damage_is_found_while_the_log_grows_behind_it(tmp_path: Path) -> None:
    """Each read checks it: a second load finds it again, and that is enough."""
    log, data, _, _ = two_logs(tmp_path, 40, 20)
    batches = frames(log)
    damaged = bytearray(data)
    damaged[batches[30].pos + 70] ^= 1
    log.write_bytes(damaged[: batches[35].pos])
    time.sleep(TICK_S)
    files, sizes = FaultyFiles(), iter(range(batches[35].pos, len(data), 10))

    def grow(method: str, name: str) -> None:
        if method == "read" and name == log.name:
            log.write_bytes(damaged[: next(sizes, len(data))])

    with open_store(tmp_path / "one", read_only=True, _files=files) as reading:
        files.before = grow
        reader = reading.topic("orders")[0]
        files.before = None
        assert files.count("list", "orders-0") <= 2 * 2
        with pytest.raises(CorruptRecordError) as caught:
            list(reader.read())
        assert caught.value.position == batches[30].pos


@pytest.mark.parametrize("read_only", [True, False], ids=["other", "same"])
def test_skipping_read_that_has_begun_goes_on_in_deleted_segments(
    tmp_path: Path, read_only: bool
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(1, segment_bytes=700, index_interval_bytes=100)
        partition = store.create_topic("orders", config=config)[0]
        fill(partition, 60)
        log = logs_in(tmp_path / "orders-0")[1]
        bad = frames(log)[2]
        flip_bit(log, (bad.pos + bad.size - 1) * 8)
        with open_store(tmp_path, read_only=True) as reading:
            reader = reading.topic("orders")[0] if read_only else partition
            records = reader.read(on_corruption="skip")
            found = [next(records).offset]
            partition.delete_before(50)
            found += [record.offset for record in records]
            assert found == [o for o in range(60) if o != bad.offset]
