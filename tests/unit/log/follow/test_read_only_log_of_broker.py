"""A reader of a log that a broker compacts or takes over meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.store.opening import open_store
from support.broker import (
    MARKER,
    bases,
    compaction,
    foreign,
    with_epoch,
    with_transactions,
)
from support.broker_logs import FEW, TICK_S, WAYS, fresh, in_batches, small_log
from support.damage import FaultyFiles, Unsynced, frames, logs_in
from support.levels import Steps
from support.values import config_of

# ---------------------------------------------------------------- compaction


@pytest.mark.sampled(8)
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
    with open_store(path, read_only=True, _files=files, config=FEW) as reading:
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
    with open_store(tmp_path, _files=Unsynced()) as store:
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
    with open_store(tmp_path, _files=Unsynced()) as store:
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
    with open_store(tmp_path / "was", _files=Unsynced()) as store:
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
        with open_store(path, read_only=True, _files=files) as reading:
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
    """The last segment at the first look is one of compaction at the next, alone or
    together with the one before."""
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
    """Its batches have a leader epoch; the reader continues in them, across a roll."""
    with open_store(tmp_path, _files=Unsynced()) as store:
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


# ---------------------------------------------------------------- deletion of records


def _starts(path: Path, start: int | None) -> None:
    """Write the log start offsets as a broker does."""
    rows = "" if start is None else f"orders 0 {start}\n"
    temporary = path / "log-start-offset-checkpoint.tmp"
    temporary.write_text(f"0\n{len(rows) and 1}\n{rows}")
    temporary.rename(path / "log-start-offset-checkpoint")


def _log_of_three(path: Path) -> Path:
    """Three segments of a broker, from 0, 10 and 20 on."""
    with open_store(path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        for offset in range(30):
            if offset in (10, 20):
                partition.roll()
            partition.append(b"%d" % offset)
    directory = foreign(path)
    os.utime(directory, (time.time() - 100,) * 2)
    return directory


def test_records_that_a_broker_deletes_are_gone_for_who_reads_on(
    tmp_path: Path,
) -> None:
    """Nothing changes in the directory of the log then."""
    _log_of_three(tmp_path)
    with open_store(tmp_path, read_only=True) as reading:
        partition = reading.topic("orders")[0]
        assert (partition.start_offset, len(list(partition.read()))) == (0, 30)
        _starts(tmp_path, 5)
        assert partition.start_offset == 5
        assert [r.offset for r in partition.read()] == list(range(5, 30))
        # A file that is damaged is taken as empty, as Kafka does; what is gone is gone.
        (tmp_path / "log-start-offset-checkpoint").write_bytes(b"x")
        assert partition.start_offset == 5
        # Of another log, and a start that cannot be right.
        _starts(tmp_path, 99)
        assert (partition.start_offset, list(partition.read())) == (30, [])


def test_start_of_a_log_does_not_go_back_between_two_looks(tmp_path: Path) -> None:
    """A broker deletes records, and then the segment that they were in: the checkpoint
    has no row any more. Whatever it does between two calls of a look, the start is the
    one before or the one after."""
    call = 1
    while _looks_at_a_deletion_before(tmp_path / str(call), call):
        call += 1
    assert call > 10


def _looks_at_a_deletion_before(path: Path, call: int) -> bool:
    """Whether a look takes so many calls."""
    directory = _log_of_three(path)
    files, calls = FaultyFiles(), 0

    def before(method: str, name: str) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            for file in directory.glob("00000000000000000000.*"):
                file.rename(f"{file}.deleted")
            _starts(path, None)

    with open_store(path, read_only=True, _files=files) as reading:
        partition = reading.topic("orders")[0]
        assert partition.start_offset == 0
        _starts(path, 10)
        files.before = before
        assert partition.start_offset == 10
        files.before = None
        assert partition.start_offset == 10
    return calls >= call


@pytest.mark.parametrize("is_clean", [True, False])
def test_read_of_an_own_log_sees_that_a_broker_takes_it_over_and_cuts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_clean: bool
) -> None:
    """A broker removes the clean-shutdown marker when it starts; after a kill there is
    none, and its recovery points show it. No batch of magic 1 has a leader epoch."""
    # The clock of the file system is taken as fine enough.
    monkeypatch.setattr("logstore.io.stamps._TICK_MS", 0)
    for name, after in ("own", b"old"), ("broker", b"new"):
        with open_store(tmp_path / name, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(1))[0]
            for offset in range(2000):
                value = b"same" if offset < 100 else after
                partition.append(value * 100, timestamp_ms=offset)
    path, marker = tmp_path / "own", tmp_path / "own/.kafka_cleanshutdown"
    if not is_clean:
        path = tmp_path / "killed"
        with open_store(tmp_path / "own", _files=Unsynced()) as store:
            store.topic("orders")[0].append(b"last")
            shutil.copytree(tmp_path / "own", path)
        marker = path / "recovery-point-offset-checkpoint"
    [log], [new] = logs_in(path / "orders-0"), logs_in(tmp_path / "broker/orders-0")
    with open_store(path, read_only=True) as reading:
        partition = reading.topic("orders")[0]
        records = partition.read()
        found = [next(records) for _ in range(300)]
        assert partition.end_offset >= 2000
        marker.unlink()
        at = frames(new)[100].pos
        with log.open("r+b") as file:
            file.truncate(at)
            file.seek(at)
            file.write(new.read_bytes()[at:])
        with pytest.raises(logstore.OffsetOutOfRangeError, match="was truncated"):
            found.extend(records)
        assert not any(record.value.startswith(b"new") for record in found)


@pytest.mark.parametrize("is_rolled", [False, True], ids=["grown", "rolled"])
def test_broker_that_was_there_between_two_looks_has_cut_nothing(
    tmp_path: Path, is_rolled: bool
) -> None:
    """The state of an empty last segment tells no batch that would show it. The log was
    once said to be cut to its start: who read on from there got all twice."""
    with open_store(tmp_path / "s", _files=Unsynced()) as store:
        partition = store.create_topic("t")[0]
        partition.append_many([b"1", b"2"], durable=True)
        reader = logstore.open(tmp_path / "s", read_only=True)
        follower = reader.topic("t")[0].follow(0)
        assert [next(follower).offset for _ in range(2)] == [0, 1]
        if is_rolled:
            partition.roll()
    (tmp_path / "s" / "recovery-point-offset-checkpoint").write_text("0\n1\nx 0 7\n")
    (tmp_path / "s" / ".kafka_cleanshutdown").unlink()
    with open_store(tmp_path / "s", _files=Unsynced()) as store:
        store.topic("t")[0].append(b"3", durable=True)
        assert next(follower).offset == 2
    reader.close()
