"""Byte ranges: the bytes for a reader outside of this process, and the files it
watches."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import logstore
from logstore.log.follow.byte_ranges import UNSETTLED, ByteRanges, Guard
from support.broker import foreign, with_random_transactions
from support.values import config_of, every_format, fill

NEVER = (1 << 63) - 1


def stamp_of(path: str) -> tuple[int, int, int, int]:
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return 0, -1, -1, -1
    return info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def holds(guard: Guard) -> bool:
    now = stamp_of(guard.path)
    return all(a in (-1, b) for a, b in zip(guard.stamp, now, strict=True))


def is_same(found: ByteRanges) -> bool:
    return all(holds(guard) for guard in found.guards)


@every_format
def test_planned_bytes_have_the_records(tmp_path: Path, magic: int, codec: str) -> None:
    config = config_of(magic, codec, segment_bytes=700)
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders", config=config)[0], 60, call=4)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        found = partition.byte_ranges(17, 45)
        assert found is not None
        assert found.is_contiguous
        assert found.files[0].last_offset < 17
        assert found.files[-1].next_offset >= 45
        for file, after in zip(found.files, found.files[1:], strict=False):
            assert file.next_offset == after.last_offset + 1
            assert after.position == 0
            assert os.stat(file.path).st_size >= file.size
            assert os.stat(file.path).st_ino == file.inode


def test_offsets_that_are_not_there_have_none(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        writer = store.create_topic("orders")[0]
        fill(writer, 10)
        assert writer.byte_ranges(0, 10) is None  # only for a store that is read
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        assert partition.byte_ranges(0, 11) is None
        assert partition.byte_ranges(3, 3) is None
        assert partition.byte_ranges(0, 10) is not None


def test_guards_change_with_a_cut_and_not_with_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of the file system counts as fine enough.
    monkeypatch.setattr("logstore.io.stamps._TICK_MS", 0)
    with logstore.open(tmp_path) as store:
        config = config_of(2, "none", flush_messages=NEVER, flush_ms=NEVER)
        writer = store.create_topic("orders", config=config)[0]
        fill(writer, 20)
        writer.flush()
        with logstore.open(tmp_path, read_only=True) as reading:
            partition = reading.topic("orders")[0]
            found = partition.byte_ranges(0, 20)
            assert found is not None
            assert is_same(found)
            writer.append(b"more")
            assert is_same(found)
            writer.truncate_to(15)
            assert not is_same(found)


def test_stamp_that_is_too_young_never_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change might leave the stamp unchanged."""
    monkeypatch.setattr("logstore.io.stamps._TICK_MS", 1 << 40)
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders")[0], 20)
    with logstore.open(tmp_path, read_only=True) as store:
        found = store.topic("orders")[0].byte_ranges(0, 20)
    assert found is not None
    assert UNSETTLED in [guard.stamp for guard in found.guards]
    assert not is_same(found)


def test_log_of_a_broker_is_guarded_by_its_files(tmp_path: Path) -> None:
    """Such a log has no state of logstore: its guards are its leader epochs, and the
    files that are read."""
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders", config=config_of(2, "none"))[0], 20)
    for name in (".logstore-owner", ".logstore-topics", "orders-0/.logstore-state"):
        (tmp_path / name).unlink(missing_ok=True)
    with logstore.open(tmp_path, read_only=True) as store:
        found = store.topic("orders")[0].byte_ranges(0, 20)
    assert found is not None
    assert not found.is_contiguous
    names = [os.path.basename(guard.path) for guard in found.guards]
    assert "leader-epoch-checkpoint" in names
    assert "00000000000000000000.log" in names


def transactional_log(path: Path, rng: random.Random) -> logstore.Store:
    """A broker's log with the transactions of several producers."""
    with logstore.open(path) as store:
        codec = rng.choice(["none", "zstd"])
        config = config_of(2, codec, segment_bytes=rng.choice([700, 1 << 20]))
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(rng.randrange(1, 60)):
            partition.append_many([b"v"] * rng.choice([1, 1, 3]))
    with_random_transactions(foreign(path), rng)
    return logstore.open(path, read_only=True)


@pytest.mark.parametrize("seed", range(40))
def test_transactions_are_decided_as_by_a_reader(tmp_path: Path, seed: int) -> None:
    """Aborted batches are the ones that ``read_committed`` leaves out; with an open
    transaction there is no answer."""
    rng = random.Random(seed)
    with transactional_log(tmp_path, rng) as store:
        partition = store.topic("orders")[0]
        end, stable = partition.end_offset, partition.last_stable_offset()
        batches = list(partition.read_batches())
        known = 0
        for _ in range(20):
            below = rng.choice([stable, end]) or 1
            start = rng.randrange(below)
            stop = rng.randrange(start + 1, below + 1)
            found = partition.byte_ranges(start, stop, isolation="read_committed")
            assert found is not None
            assert (found.transactions is None) == (stop > stable)
            if found.transactions is None:
                continue
            known += 1
            ranges = found.transactions.aborted
            offsets = [
                record.offset
                for batch in batches
                if not batch.is_control
                and not (
                    batch.is_transactional
                    and any(
                        r.producer_id == batch.producer_id
                        and r.first_offset <= batch.base_offset <= r.last_offset
                        for r in ranges
                    )
                )
                for record in batch
                if start <= record.offset < stop
            ]
            committed = partition.read(start, stop, isolation="read_committed")
            assert offsets == [record.offset for record in committed]
            assert stop <= found.transactions.upto <= end
        plain = partition.byte_ranges(0, end)
        assert plain is not None
        assert plain.transactions is None
        assert known or stable < end


def test_damage_before_a_marker_decides_nothing(tmp_path: Path) -> None:
    with transactional_log(tmp_path, random.Random(1)) as store:
        partition = store.topic("orders")[0]
        stable = partition.last_stable_offset()
        assert stable > 10
        log = partition.segments[-1].path
    data = bytearray(Path(log).read_bytes())
    data[-1] ^= 1
    Path(log).write_bytes(data)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        found = partition.byte_ranges(0, 10, isolation="read_committed")
        assert found is None or found.transactions is None
