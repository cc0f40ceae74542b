"""A reader of a log that a broker compacts, truncates or takes over meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import CorruptRecordError
from logstore.store.store import open_store
from support.broker import (
    MARKER,
    bases,
    compaction,
    foreign,
    with_epoch,
    with_transactions,
)
from support.damage import FaultyFiles, Unsynced, flip_bit, frames, logs_in
from support.levels import Steps
from support.values import config_of, fill

FEW = logstore.StoreConfig(max_open_files=16)
# Longer than a tick of any clock that file systems have.
TICK_S = 0.03


def fetched(
    partition: logstore.Partition, max_bytes: int = 600, **options: Any
) -> Iterator[int]:
    offset = partition.start_offset
    while True:
        chunk = partition.fetch(offset, max_bytes, **options)
        yield from (record.offset for record in chunk if record.offset >= offset)
        if chunk.next_offset <= offset:
            return
        offset = chunk.next_offset


def in_batches(partition: logstore.Partition, **options: Any) -> Iterator[int]:
    for batch in partition.read_batches(**options):
        yield from (record.offset for record in batch)


def in_arrow(partition: logstore.Partition, **options: Any) -> Iterator[int]:
    for batch in partition.read_arrow(batch_records=7, **options):
        yield from batch.column("offset").to_pylist()


WAYS: dict[str, Callable[..., Iterator[int]]] = {
    "read": lambda p, **options: (record.offset for record in p.read(**options)),
    "batches": in_batches,
    "arrow": in_arrow,
    "fetch": fetched,
    "follow": lambda p, **options: (
        record.offset for record in p.follow(timeout=0, **options)
    ),
}


def fresh(path: Path, way: str = "read", **options: Any) -> list[int]:
    """What a reader that comes now finds."""
    with open_store(path, read_only=True) as store:
        return list(WAYS[way](store.topic("orders")[0], **options))


def small_log(path: Path, magic: int, codec: str) -> Path:
    """Several small segments of a broker's."""
    config = config_of(magic, codec, segment_bytes=1200, index_interval_bytes=200)
    with open_store(path, files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(24):
            partition.append_many([random.Random(1).randbytes(60)] * 3)
    return foreign(path)


# ---------------------------------------------------------------- compaction


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", WAYS)
def test_compaction_at_any_call_of_a_read(tmp_path: Path, way: str, seed: int) -> None:
    """Some of its steps come before one call of the reader, the others before a later
    one; another look may come between. What stays is read, once and in order."""
    rng = random.Random(f"{way} {seed}")
    original = {
        (magic, codec): small_log(tmp_path / f"{magic}{codec}", magic, codec).parent
        for magic, codec in ((0, "none"), (1, "gzip"), (2, "none"), (2, "zstd"))
    }
    for turn in range(25):
        source = original[rng.choice(list(original))]
        path = tmp_path / f"turn{turn}"
        shutil.copytree(source, path)
        partition = path / "orders-0"
        os.utime(partition, (time.time() - 100,) * 2)
        sealed = bases(partition)[:-1]
        count = rng.randint(1, min(3, len(sealed)))
        begin = rng.randrange(len(sealed) - count + 1)
        steps = compaction(
            partition,
            sealed[begin : begin + count],
            lambda number: number % 3 != 0,
            is_late=rng.random() < 0.5,
        )
        _read_beside(path, way, steps, rng)
        shutil.rmtree(path)


def _read_beside(
    path: Path, way: str, steps: list[Callable[[], None]], rng: random.Random
) -> None:
    first, second = rng.randrange(1, 60), rng.randrange(1, 30)
    split, looks = rng.randrange(len(steps) + 1), rng.random() < 0.5
    options = {"on_corruption": rng.choice(["raise", "skip"])}
    options["isolation"] = rng.choice(["read_uncommitted", "read_committed"])
    files, calls = FaultyFiles(), 0
    with open_store(path, read_only=True, files=files, config=FEW) as reading:
        partition = reading.topic("orders")[0]
        if rng.random() < 0.5:
            assert list(partition.read())
            reading._context.descriptors._evict(0)

        def before(method: str, name: str) -> None:
            nonlocal calls
            calls += 1
            if calls in (first, first + second):
                done = steps[:split] if calls == first else steps[split:]
                for step in done:
                    step()

        files.before = before
        found = []
        for offset in WAYS[way](partition, **options):
            found.append(offset)
            if looks and calls >= first:
                looks = False
                assert partition.end_offset == 72
        files.before = None
        for step in steps[0 if calls < first else split :]:
            if calls < first + second:
                step()
        stay = fresh(path)
        assert found == sorted(set(found))
        assert set(stay) <= set(found)
        assert list(WAYS[way](partition)) == stay


@pytest.mark.parametrize("way", ["read", "batches", "fetch"])
def test_committed_records_are_read_on_where_segments_ahead_are_compacted(
    tmp_path: Path, way: str
) -> None:
    with open_store(tmp_path, files=Unsynced()) as store:
        config = config_of(2, segment_bytes=20_000)
        partition = store.create_topic("orders", config=config)[0]
        for offset in range(1500):
            key, value = MARKER if offset % 5 == 4 else (None, b"x" * 200)
            partition.append(value, key)
    directory = foreign(tmp_path)
    with_transactions(directory, 5)
    with open_store(tmp_path, read_only=True, config=FEW) as reading:
        reader = reading.topic("orders")[0]
        assert len(list(reader.read(isolation="read_committed"))) == 1200
        reading._context.descriptors._evict(0)
        found = WAYS[way](reader, isolation="read_committed")
        first = next(found)
        for base in bases(directory)[1:-1]:
            kept = {offset for offset in range(1500) if offset % 5 in (1, 4)}
            numbers = {
                number
                for number, frame in enumerate(frames(directory / f"{base:020d}.log"))
                if frame.offset in kept
            }
            for step in compaction(directory, [base], numbers.__contains__):
                step()
        assert set(fresh(tmp_path, isolation="read_committed")) <= {first, *found}
        assert reader.last_stable_offset() == 1500


@pytest.mark.parametrize("has_read", [True, False], ids=["read", "looked"])
def test_last_segment_that_grew_was_rolled_and_compacted_between_two_looks(
    tmp_path: Path, has_read: bool
) -> None:
    with open_store(tmp_path, files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        for _ in range(300):
            partition.append_many([b"x" * 100] * 5)
    directory = foreign(tmp_path)
    (log,) = logs_in(directory)
    data, found = log.read_bytes(), frames(log)
    log.write_bytes(data[: found[100].pos])
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    time.sleep(TICK_S)
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        assert reader.end_offset == 500
        if has_read:
            assert len(list(reader.read())) == 500
        log.write_bytes(data[: found[200].pos])
        (directory / f"{1000:020d}.log").write_bytes(data[found[200].pos :])
        for step in compaction(directory, [0], lambda number: number % 3 == 1):
            step()
        for _ in range(2):
            assert list(WAYS["read"](reader)) == fresh(tmp_path)


@pytest.mark.parametrize("has_read", [True, False], ids=["read", "looked"])
def test_two_compactions_between_two_looks(tmp_path: Path, has_read: bool) -> None:
    """The file system gives the number of a removed file to the next."""
    directory = small_log(tmp_path, 2, "none")
    with open_store(tmp_path, read_only=True, config=FEW) as reading:
        reader = reading.topic("orders")[0]
        assert reader.end_offset == 72
        if has_read:
            assert len(list(reader.read())) == 72
            reading._context.descriptors._evict(0)
        for _ in range(2):
            for step in compaction(directory, [0], is_late=False):
                step()
        for _ in range(2):
            assert list(WAYS["read"](reader)) == fresh(tmp_path)


@pytest.mark.parametrize("options", [{}, {"isolation": "read_committed"}], ids=str)
@pytest.mark.parametrize("way", ["read", "read_batches", "read_arrow"])
def test_segment_that_was_compacted_and_deleted_is_a_deletion_for_who_has_to_read_it(
    tmp_path: Path, way: str, options: dict[str, Any]
) -> None:
    """Under its new name lies a file that is not the one of before."""
    directory = small_log(tmp_path, 2, "none")
    with open_store(tmp_path, read_only=True, config=FEW) as reading:
        reader = reading.topic("orders")[0]
        found = iter(getattr(reader, way)(**options))
        for step in compaction(directory, [0]):
            step()
        (directory / f"{0:020d}.log").rename(directory / f"{0:020d}.log.deleted")
        with pytest.raises(logstore.OffsetOutOfRangeError) as at:
            list(found)
        assert at.value.requested == 0


def test_segments_that_were_deleted_and_put_back_are_seen_again(
    tmp_path: Path,
) -> None:
    directory = small_log(tmp_path, 2, "none")
    first, *kept = bases(directory)
    log = directory / f"{first:020d}.log"
    with open_store(tmp_path, read_only=True, config=FEW) as reading:
        reader = reading.topic("orders")[0]
        for _ in range(2):
            assert list(WAYS["read"](reader)) == list(range(72))
            log.rename(tmp_path / log.name)
            assert list(WAYS["read"](reader)) == list(range(kept[0], 72))
            (tmp_path / log.name).rename(log)
        assert list(WAYS["read"](reader)) == list(range(72))


@pytest.mark.parametrize("way", ["fetch", "time", "batches"])
def test_another_thread_looks_behind_a_compaction(tmp_path: Path, way: str) -> None:
    """Its look changes nothing under a read that is at any of its calls."""
    with open_store(tmp_path / "was", files=Unsynced()) as store:
        config = config_of(2, segment_bytes=300_000)
        partition = store.create_topic("orders", config=config)[0]
        for number in range(500):
            partition.append_many([b"x" * 100] * 5, timestamps_ms=[number] * 5)
    foreign(tmp_path / "was")
    rounds = Steps()
    for nth in rounds:
        path, files = tmp_path / str(nth), FaultyFiles()
        shutil.copytree(tmp_path / "was", path)
        os.utime(path / "orders-0", (time.time() - 100,) * 2)
        steps = compaction(path / "orders-0", [0])
        with open_store(path, read_only=True, files=files) as reading:
            reader = reading.topic("orders")[0]
            assert reader.fetch(600).next_offset > 600
            left = nth

            def look(reader: logstore.Partition = reader) -> None:
                assert reader.end_offset == 2500

            def before(
                method: str, name: str, steps: list[Callable[[], None]] = steps
            ) -> None:
                nonlocal left
                left -= method == "read" and name.endswith(".log")
                if left == 0:
                    left = -1
                    for step in steps:
                        step()
                    thread = threading.Thread(target=look)
                    thread.start()
                    thread.join(10)

            files.forget()
            files.before = before
            got = None
            if way == "time":
                got = reader.offset_for_time(200)
            elif way == "fetch":
                got = [record.offset for record in reader.fetch(600, 30_000)]
            else:
                got = list(in_batches(reader))
            files.before = None
            rounds.total = files.count("read", ".log")
            with open_store(path, read_only=True) as store:
                now = store.topic("orders")[0]
                if way == "time":
                    assert got in (1000, now.offset_for_time(200))
                else:
                    assert isinstance(got, list)
                    stay = set(WAYS["read"](now))
                    low, high = got[0], got[-1]
                    assert {o for o in stay if low <= o <= high} <= set(got)
                    assert low <= 600
        shutil.rmtree(path)
    assert rounds.total >= 2


@pytest.mark.parametrize("count", [1, 2])
def test_segment_that_was_rolled_and_compacted_between_two_looks_is_no_cut(
    tmp_path: Path, count: int
) -> None:
    """What was the last segment at the first look is one of compaction at the next,
    alone or together with the one before."""
    partition = small_log(tmp_path, 2, "none")
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    last = logs_in(partition)[-1]
    data = last.read_bytes()
    last.unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        end = reader.end_offset
        assert end == int(last.name[:20])
        records = reader.follow(timeout=5)
        assert [next(records).offset for _ in range(end)] == list(range(end))
        last.write_bytes(data)
        chosen = bases(partition)[-1 - count : -1]
        for step in compaction(partition, chosen, lambda number: number % 3 != 0):
            step()
        assert next(records).offset == end
        assert list(WAYS["read"](reader)) == fresh(tmp_path)


# ------------------------------------------------- other things that brokers do


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("epochs", [True, False], ids=["epochs", "log-only"])
def test_broker_takes_a_closed_store_over(
    tmp_path: Path, epochs: bool, codec: str
) -> None:
    """Its batches have a leader epoch; the reader goes on in them, across a roll."""
    with open_store(tmp_path, files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(2, codec))[0]
        for _ in range(20):
            partition.append_many([b"x" * 50] * 5)
    directory = tmp_path / "orders-0"
    (log,) = logs_in(directory)
    batch = log.read_bytes()[: frames(log)[1].pos]
    time.sleep(TICK_S)
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        assert reader.end_offset == 100
        (tmp_path / ".kafka_cleanshutdown").unlink()
        if epochs:
            new = directory / "leader-epoch-checkpoint.tmp"
            new.write_text("0\n2\n0 0\n5 100\n")
            new.rename(directory / "leader-epoch-checkpoint")
        with log.open("ab") as file:
            for offset in range(100, 200, 5):
                file.write(with_epoch(batch, offset, 5))
        assert list(WAYS["read"](reader)) == list(range(200))
        (directory / f"{200:020d}.log").write_bytes(with_epoch(batch, 200, 5))
        assert list(WAYS["read"](reader)) == list(range(205))


def test_replica_truncates_its_log_and_grows_again(tmp_path: Path) -> None:
    """Between two looks, and under a read."""
    data = []
    for value in (b"old", b"newer"):
        with open_store(tmp_path / value.decode(), files=Unsynced()) as store:
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
    """In place, and grows past its old size: what is there then is read."""
    data = []
    for path, size in ((tmp_path / "old", 3), (tmp_path / "new", 5)):
        with open_store(path, files=Unsynced()) as store:
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

        with open_store(path, read_only=True, files=files) as reading:
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
            time.sleep(TICK_S)  # what is this young may still be being written
            for _ in range(2):
                assert list(WAYS["read"](reader)) == list(range(180))
        shutil.rmtree(path)
    assert steps.total >= 10


@pytest.mark.parametrize("has_rolled", [True, False], ids=["rolls", "stays"])
def test_replica_that_truncates_at_any_call_of_a_look_writes_down_its_epochs(
    tmp_path: Path, has_rolled: bool
) -> None:
    """It grows past its old end under the look, which has read of both: the next one
    sees by the leader epochs that it was cut, whatever the look took for its end."""
    data = []
    for value, count in ((b"old", 3), (b"new", 2)):
        path = tmp_path / value.decode()
        with open_store(path, files=Unsynced()) as store:
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

        with open_store(path, read_only=True, files=files) as reading:
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
        with open_store(path, files=Unsynced()) as store:
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


# ---------------------------------------------------------------- real damage


@pytest.mark.parametrize("own", [True, False], ids=["own", "foreign"])
@pytest.mark.parametrize("way", ["read", "batches", "fetch"])
def test_skipping_much_damage_in_many_segments_costs_little_for_each(
    tmp_path: Path, way: str, own: bool
) -> None:
    costs = []
    for count in (30, 120):
        path, files = tmp_path / str(count), FaultyFiles()
        with open_store(path, files=Unsynced()) as store:
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
        with open_store(path, read_only=True, files=files) as reading:
            reader = reading.topic("orders")[0]
            files.forget()
            found = list(WAYS[way](reader, on_corruption="skip"))
            assert len(found) == 3 * count - len(logs) + 1
            costs.append(len(files.calls) / len(logs))
    assert costs[1] < costs[0] * 1.5


@pytest.mark.parametrize("way", ["read", "batches", "fetch"])
def test_skipping_from_within_a_lost_segment(tmp_path: Path, way: str) -> None:
    """Also where its index is still there."""
    with open_store(tmp_path, files=Unsynced()) as store:
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
    """Also where the directory was changed right now, or in the future."""
    directory = small_log(tmp_path, 2, "none")
    log = logs_in(directory)[1]
    flip_bit(log, log.stat().st_size * 8 - 9)
    for when in (time.time(), time.time() + 1000, time.time() - 1000):
        files = FaultyFiles()
        with open_store(tmp_path, read_only=True, files=files) as reading:
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
    with open_store(tmp_path, files=Unsynced()) as store:
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

    with open_store(tmp_path, read_only=True, files=files) as reading:
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
    with open_store(tmp_path, files=Unsynced()) as store:
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
    """The index cannot be built again: that is told, and costs nothing else."""
    with open_store(tmp_path, files=Unsynced()) as store:
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
    with open_store(tmp_path, files=Unsynced()) as store:
        config = config_of(1, segment_bytes=700)
        fill(store.create_topic("orders", config=config)[0], 60)
    time.sleep(TICK_S)
    with open_store(tmp_path, read_only=True) as reading:
        reader = reading.topic("orders")[0]
        assert len(list(reader.read())) == 60
        reading._context.descriptors._evict(0)
        under_way = reader.read()
        logs_in(tmp_path / "orders-0")[0].unlink()
        for records in (under_way, reader.read(), in_batches(reader)):
            with pytest.raises(CorruptRecordError, match="is gone"):
                list(records)
        assert reader.start_offset == 0
        with pytest.raises(CorruptRecordError, match="is gone"):
            reader.fetch(0)
        assert len(list(reader.read(on_corruption="skip"))) > 40


def two_logs(path: Path, count: int, same: int) -> tuple[Path, bytes, bytes, list[int]]:
    """A foreign log, its bytes, those of another with the same first batches and
    batches of the same sizes behind them, and where each batch begins."""
    data = []
    for name, value in (("one", b"old"), ("two", b"new")):
        with open_store(path / name, files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for number in range(count):
                mine = b"old" if number < same else value
                partition.append(mine.ljust(300, b"."), timestamp_ms=number)
        (log,) = logs_in(foreign(path / name))
        data.append(log.read_bytes())
    (path / "one" / "recovery-point-offset-checkpoint").unlink()
    (log,) = logs_in(path / "one" / "orders-0")
    return log, data[0], data[1], [frame.pos for frame in frames(log)]


@pytest.mark.parametrize("way", ["read", "batches", "arrow"])
def test_replica_that_truncates_under_a_read_gives_no_mixture(
    tmp_path: Path, way: str
) -> None:
    """Batch over batch, so that nothing looks like damage."""
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
        assert [r.value for r in reader.read(500, 501)] == [b"new".ljust(300, b".")]


@pytest.mark.parametrize("stands", [True, False])
def test_follower_of_a_replica_is_told_of_a_cut_below_it(
    tmp_path: Path, stands: bool
) -> None:
    """And goes on where what it has seen of the log still stands."""
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
    """Kafka's leader epochs: (epoch, where it began)."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {first}" for epoch, first in epochs)]
    new = partition / "leader-epoch-checkpoint.tmp"
    new.write_text("\n".join(lines) + "\n")
    new.rename(partition / "leader-epoch-checkpoint")


def three_segments(path: Path, same: int) -> tuple[list[Path], list[bytes]]:
    """The files of a foreign log of 150 records, and what is in those of another with
    the same records below an offset, and behind it others of the same sizes."""
    found = []
    for name, value in (("one", b"old"), ("two", b"new")):
        with open_store(path / name, files=Unsynced()) as store:
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
    """Where only the last file is another, all before it still stands. Where more was
    cut, the other files may have their names, numbers and sizes again: the epoch of who
    leads since begins where they are not the same."""
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
        # What was decoded before is delivered.
        assert found == list(range(100))
        values = {(record.value or b"")[:3] for record in reader.read(cut)}
        assert values == {b"new"}


@pytest.mark.parametrize("cut", [110, 130])
def test_cut_is_as_low_as_the_first_epoch_begun_since(tmp_path: Path, cut: int) -> None:
    """Leaders may have changed several times between two looks at the epochs, and the
    log been cut at any of these times: also where the same bytes stand there again,
    since nothing says that they stayed."""
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


def test_damage_is_not_loaded_anew_while_a_broker_appends_behind_it(
    tmp_path: Path,
) -> None:
    """What stands there does not change; only when it does, it is looked at again."""
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

    with open_store(tmp_path / "one", read_only=True, files=Counting()) as reading:
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
