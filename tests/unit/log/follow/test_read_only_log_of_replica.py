"""A reader of a log that a replica truncates and continues."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from pathlib import Path

import pytest

import logstore
from logstore import CorruptRecordError
from logstore.store.opening import open_store
from support.broker import (
    foreign,
)
from support.broker_logs import TICK_S, WAYS, two_logs
from support.damage import FaultyFiles, Unsynced, frames, logs_in
from support.levels import Steps
from support.read_ways import SIZE
from support.values import config_of


def test_replica_truncates_its_log_and_grows_again(tmp_path: Path) -> None:
    """The change comes between two looks, and during a read."""
    data = []
    for value in (b"old", b"newer"):
        with open_store(tmp_path / value.decode(), _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for _ in range(40):
                partition.append_many([value * 20] * 5)
        (log,) = logs_in(foreign(tmp_path / value.decode()))
        data.append((log.read_bytes(), frames(log)))
    (old, old_frames), (new, new_frames) = data
    path = tmp_path / "old"
    (path / "recovery-point-offset-checkpoint").unlink()
    (log,) = logs_in(path / "orders-0")
    log.write_bytes(old[: old_frames[20].pos])
    time.sleep(TICK_S)
    with open_store(path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        records = reader.read()
        assert next(records).offset == 0
        assert reader.end_offset == 100
        with log.open("r+b") as file:
            file.truncate(old_frames[10].pos)
            file.seek(0, os.SEEK_END)
            file.write(new[new_frames[10].pos :])
        for _ in range(2):
            assert reader.end_offset == 200
            found = [record.value[:5] for record in reader.read() if record.value]
            assert found == [b"oldol"] * 50 + [b"newer"] * 150
        assert [record.offset for record in records] == list(range(1, 100))


@pytest.mark.parametrize("opens", [True, False], ids=["opens", "looks"])
def test_replica_truncates_its_log_at_any_call_of_a_look(
    tmp_path: Path, opens: bool
) -> None:
    """The replica truncates in place, and grows past the old size: the present bytes
    are read."""
    data = []
    for path, size in ((tmp_path / "old", 3), (tmp_path / "new", 5)):
        with open_store(path, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for number in range(40):
                values = [random.Random(number).randbytes(40)]
                values *= 3 if number < 10 else size
                partition.append_many(values, timestamps_ms=[number] * len(values))
        (log,) = logs_in(foreign(path))
        data.append((log.read_bytes(), frames(log)))
    (old, old_frames), (new, new_frames) = data
    assert old[: old_frames[10].pos] == new[: new_frames[10].pos]
    steps = Steps()
    for nth in steps:
        path, files = tmp_path / str(nth), FaultyFiles()
        shutil.copytree(tmp_path / "old", path)
        (path / "recovery-point-offset-checkpoint").unlink()
        (log,) = logs_in(path / "orders-0")
        log.write_bytes(old[: old_frames[20].pos])
        for each in (path / "orders-0", log):
            os.utime(each, (time.time() - 100,) * 2)

        def truncate_and_grow(log: Path = log) -> None:
            with log.open("r+b") as file:
                file.truncate(old_frames[10].pos)
                file.seek(0)
                file.write(new)

        with open_store(path, read_only=True, _files=files) as reading:
            if opens:
                files.at_call(nth, truncate_and_grow)
            reader = reading.topic("orders")[0]
            if not opens:
                assert reader.end_offset == 60
                log.write_bytes(old[: old_frames[21].pos])
                files.forget()
                files.at_call(nth, truncate_and_grow)
            with contextlib.suppress(CorruptRecordError):
                assert 30 <= reader.end_offset <= 180
            files.before = None
            steps.total = len(files.calls)
            log.write_bytes(new)
            time.sleep(TICK_S)  # so young a file may still be in the middle of a write
            for _ in range(2):
                assert list(WAYS["read"](reader)) == list(range(180))
        shutil.rmtree(path)
    assert steps.total >= 10


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


@pytest.mark.parametrize("has_rolled", [True, False], ids=["rolls", "stays"])
def test_replica_that_truncates_at_any_call_of_a_look_writes_down_its_epochs(
    tmp_path: Path, has_rolled: bool
) -> None:
    """The replica grows past its old end during the look, which has read bytes of both:
    the next one sees by the leader epochs that it was cut, whatever end the look
    found."""
    data = []
    for value, count in ((b"old", 3), (b"new", 2)):
        path = tmp_path / value.decode()
        with open_store(path, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for number in range(40):
                is_new = number >= 10
                values = [value if is_new else b"same"] * (count if is_new else 3)
                partition.append_many(values, timestamps_ms=[number] * len(values))
        (log,) = logs_in(foreign(path))
        data.append((log.read_bytes(), frames(log)))
    (old, old_frames), (new, new_frames) = data
    rolls_at = new_frames[20].pos if has_rolled else len(new)
    steps = Steps()
    for nth in steps:
        path, files = tmp_path / str(nth), FaultyFiles()
        shutil.copytree(tmp_path / "old", path)
        (path / "recovery-point-offset-checkpoint").unlink()
        (log,) = logs_in(path / "orders-0")
        epochs = path / "orders-0" / "leader-epoch-checkpoint"
        epochs.write_text("0\n1\n1 0\n")
        log.write_bytes(old[: old_frames[20].pos])

        def truncate_and_grow(log: Path = log, epochs: Path = epochs) -> None:
            os.truncate(log, old_frames[10].pos)
            other = epochs.with_suffix(".tmp")
            other.write_text("0\n2\n1 0\n2 30\n")
            other.rename(epochs)
            with log.open("r+b") as file:
                file.write(new[:rolls_at])
            if has_rolled:
                log.with_name(f"{50:020d}.log").write_bytes(new[rolls_at:])

        with open_store(path, read_only=True, _files=files) as reading:
            reader = reading.topic("orders")[0]
            assert reader.end_offset == 60
            log.write_bytes(old[: old_frames[21].pos])
            files.forget()
            files.at_call(nth, truncate_and_grow)
            with contextlib.suppress(CorruptRecordError):
                assert 50 <= reader.end_offset <= 90
            files.before = None
            steps.total = len(files.calls)
            if steps.total >= nth:
                found = [(r.offset, r.value) for r in reader.read()]
                values = [b"same"] * 30 + [b"new"] * 60
                assert found == list(enumerate(values))
        shutil.rmtree(path)
    assert steps.total >= 10


def test_last_segment_that_is_replaced_by_as_many_bytes_is_noticed(
    tmp_path: Path,
) -> None:
    """A replica truncates, and gets other batches of the same sizes."""
    data = []
    for first in (1_000, 9_000):
        path = tmp_path / str(first)
        with open_store(path, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for number in range(20):
                partition.append(b"x" * 10, timestamp_ms=first + number)
        data.append(logs_in(foreign(path))[0].read_bytes())
    time.sleep(TICK_S)
    with open_store(tmp_path / "1000", read_only=True) as reading:
        reader = reading.topic("orders")[0]
        assert reader.offset_for_time(5_000) is None
        logs_in(tmp_path / "1000" / "orders-0")[0].write_bytes(data[1])
        assert reader.offset_for_time(5_000) == 0


@pytest.mark.parametrize("way", ["read", "batches", "arrow"])
def test_replica_that_truncates_under_a_read_gives_no_mixture(
    tmp_path: Path, way: str
) -> None:
    """New batches replace old ones exactly, so that nothing looks like damage."""
    log, old, new, _ = two_logs(tmp_path, 3000, 500)
    assert len(old) == len(new)
    log.write_bytes(old)
    time.sleep(TICK_S)
    with open_store(tmp_path / "one", read_only=True) as reading:
        reader = reading.topic("orders")[0]
        records = WAYS[way](reader)
        found = [next(records) for _ in range(1000)]
        with log.open("r+b") as file:
            file.truncate(len(old) // 4)
            file.seek(0)
            file.write(new)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            found += records
        assert found == list(range(len(found)))
        assert [r.value for r in reader.read(500, 501)] == [b"new".ljust(SIZE, b".")]


@pytest.mark.parametrize("stands", [True, False])
def test_follower_of_a_replica_is_told_of_a_cut_below_it(
    tmp_path: Path, stands: bool
) -> None:
    """It continues if the part of the log that it has seen still stands."""
    log, old, new, begins = two_logs(tmp_path, 100, 50)
    seen = 50 if stands else 80
    log.write_bytes(old[: begins[seen]])
    time.sleep(TICK_S)
    with open_store(tmp_path / "one", read_only=True) as reading:
        reader = reading.topic("orders")[0]
        follower = reader.follow(timeout=0.3)
        found = [next(follower) for _ in range(seen)]
        if stands:
            log.write_bytes(old[: begins[70]])
            assert reader.end_offset == 70
        log.write_bytes(new)
        if stands:
            found += follower
            assert [r.offset for r in found] == list(range(100))
            assert {(r.value or b"")[:3] for r in found[50:]} == {b"new"}
        else:
            with pytest.raises(logstore.OffsetOutOfRangeError):
                next(follower)


def write_epochs(partition: Path, *epochs: tuple[int, int]) -> None:
    """Write Kafka's leader epochs: (epoch, its first offset)."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {first}" for epoch, first in epochs)]
    new = partition / "leader-epoch-checkpoint.tmp"
    new.write_text("\n".join(lines) + "\n")
    new.rename(partition / "leader-epoch-checkpoint")


def three_segments(path: Path, same: int) -> tuple[list[Path], list[bytes]]:
    """Files of a foreign log of 150 records, and contents of the files of another log:
    the same records below an offset, and others of the same sizes from there on."""
    found = []
    for name, value in (("one", b"old"), ("two", b"new")):
        with open_store(path / name, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for number in range(150):
                if number in (50, 100):
                    partition.roll()
                mine = b"old" if number < same else value
                partition.append(mine.ljust(300, b"."), timestamp_ms=number)
        found.append(logs_in(foreign(path / name)))
    (path / "one" / "recovery-point-offset-checkpoint").unlink()
    return found[0], [log.read_bytes() for log in found[1]]


@pytest.mark.parametrize("way", ["read", "batches", "arrow"])
@pytest.mark.parametrize(("cut", "told"), [(120, 100), (20, 20)])
def test_cut_that_nobody_tells_of_is_as_low_as_its_files_and_epochs_say(
    tmp_path: Path, way: str, cut: int, told: int
) -> None:
    """If only the last file was replaced, all before it still stands. If more was cut,
    the other files may have their names, numbers and sizes again: the epoch of the new
    leader begins at the first different record."""
    logs, new = three_segments(tmp_path, cut)
    time.sleep(TICK_S)
    with open_store(tmp_path / "one", read_only=True) as reading:
        reader = reading.topic("orders")[0]
        records = WAYS[way](reader)
        found = [next(records) for _ in range(60)]
        if cut < 100:
            write_epochs(logs[0].parent, (0, 0), (1, cut))
        for log, data in zip(logs, new, strict=True):
            if log.read_bytes() != data:
                log.write_bytes(data)
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            for offset in records:
                found.append(offset)
        assert caught.value.cut_to == told
        # Records that were decoded before are delivered.
        assert found == list(range(100))
        values = {(record.value or b"")[:3] for record in reader.read(cut)}
        assert values == {b"new"}


@pytest.mark.parametrize("cut", [110, 130])
def test_cut_is_as_low_as_the_first_epoch_begun_since(tmp_path: Path, cut: int) -> None:
    """Leaders may have changed several times between two looks at the epochs, and the
    log may have been cut each time: even if the same bytes are there again, since
    nothing shows that they stayed."""
    log, old, new, begins = two_logs(tmp_path, 150, cut)
    log.write_bytes(old[: begins[100]])
    time.sleep(TICK_S)
    with open_store(tmp_path / "one", read_only=True) as reading:
        reader = reading.topic("orders")[0]
        follower = reader.follow(timeout=0.3)
        for _ in range(100):
            next(follower)
        log.write_bytes(old[: begins[120]])
        for _ in range(20):
            next(follower)
        log.write_bytes(old[: begins[140]])
        assert reader.end_offset == 140
        write_epochs(log.parent, (0, 0), (1, 110), (2, 130))
        log.write_bytes(new)
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            next(follower)
        assert caught.value.cut_to == 110
