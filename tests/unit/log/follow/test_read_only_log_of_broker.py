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
from support.broker import MARKER, bases, compaction, foreign, with_transactions
from support.broker_logs import FEW, WAYS, fresh, small_log
from support.changing_logs import Scene, write_starts
from support.damage import FaultyFiles, Unsynced, frames
from support.levels import Steps
from support.read_ways import COUNT, append
from support.read_ways import WAYS as PAIRS
from support.values import config_of

# ---------------------------------------------------------------- compaction


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", WAYS)
def test_compaction_at_any_call_of_a_read(tmp_path: Path, way: str, seed: int) -> None:
    """Some of its steps come before one call of the reader, the others before a later
    one; another look may come between. Remaining records are read once and in order."""
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


@pytest.mark.parametrize("options", [{}, {"isolation": "read_committed"}], ids=str)
@pytest.mark.parametrize("way", ["read", "read_batches", "read_arrow"])
def test_segment_that_was_compacted_and_deleted_is_a_deletion_for_who_has_to_read_it(
    tmp_path: Path, way: str, options: dict[str, Any]
) -> None:
    """Under its new name is another file than before."""
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
                got = list(WAYS["batches"](reader))
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


# ---------------------------------------------------------------- deletion of records


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
    """No file in the directory of the log changes then."""
    _log_of_three(tmp_path)
    with open_store(tmp_path, read_only=True) as reading:
        partition = reading.topic("orders")[0]
        assert (partition.start_offset, len(list(partition.read()))) == (0, 30)
        write_starts(tmp_path, 5)
        assert partition.start_offset == 5
        assert [r.offset for r in partition.read()] == list(range(5, 30))
        # A damaged file counts as empty, as in Kafka; deleted records stay deleted.
        (tmp_path / "log-start-offset-checkpoint").write_bytes(b"x")
        assert partition.start_offset == 5
        # The start of another log, and an impossible start.
        write_starts(tmp_path, 99)
        assert (partition.start_offset, list(partition.read())) == (30, [])


@pytest.mark.parametrize("way", ["read", "skip", "batches", "arrow"])
@pytest.mark.parametrize("magic", [1, 2])
def test_read_under_way_goes_on_in_a_segment_that_a_broker_compacts(
    tmp_path: Path, magic: int, way: str
) -> None:
    """It gives each remaining record once, in order, although it has to open the file
    again."""
    with Scene(tmp_path) as scene:
        p = scene.create(magic)
        append(p, b"x", COUNT)
        p.roll()
        p.append(b"the last")
    foreign(scene.path)
    with scene.reading() as reading:
        reader: Any = reading.topic("orders")[0]
        records = PAIRS[way](reader)
        found = [next(records)[0]]
        for step in compaction(scene.partition_path, [0]):
            step()
        reading._context.descriptors._evict(0)
        found += (offset for offset, _ in records)
        assert found == sorted(set(found))
        stay = [record.offset for record in reader.read()]
        assert len(stay) < COUNT * 3 // 4
        assert set(stay) <= set(found)
