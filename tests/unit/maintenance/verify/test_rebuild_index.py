"""`rebuild_index` restores the former indexes, and reports each unreadable log."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import logstore
from support import verifying
from support.damage import FaultyFiles, flip_bit, frames, logs_in, snapshot_of

# Fixtures.
partition = verifying.partition


def indexes(partition: Path) -> dict[str, bytes]:
    """The bytes of all index files."""
    paths = [*partition.glob("*.index"), *partition.glob("*.timeindex")]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("what", ["store", "partition", "log", "index"])
def test_rebuild_index_makes_what_was_there(partition: Path, what: str) -> None:
    """It uses the interval of the topic, for sealed segments and the closed last
    one."""
    before = indexes(partition)
    for name in before:
        (partition / name).write_bytes(b"\xff" * 24)
    log = logs_in(partition)[0]
    target = {
        "store": partition.parent,
        "partition": partition,
        "log": log,
        "index": log.with_suffix(".index"),
    }[what]
    built = logstore.rebuild_index(target)
    logs = logs_in(partition) if what in ("store", "partition") else [log]
    assert [path for path, _, _ in built] == [str(path) for path in logs]
    for path, entries, times in built:
        index = Path(path).with_suffix(".index")
        assert index.stat().st_size == 8 * entries
        assert index.with_suffix(".timeindex").stat().st_size == 12 * times
        assert index.read_bytes() == before[index.name]
    if what in ("store", "partition"):
        assert indexes(partition) == before
        assert logstore.verify(partition.parent).ok
        with logstore.open(partition.parent) as store:
            assert not store.recovery_report


def test_rebuild_index_dry_run_changes_nothing(partition: Path) -> None:
    """It returns the same numbers."""
    (partition / f"{0:020d}.index").unlink()
    before = snapshot_of(partition.parent)
    told = logstore.rebuild_index(partition, dry_run=True)
    assert snapshot_of(partition.parent) == before
    assert told == logstore.rebuild_index(partition)
    with logstore.open(partition.parent):
        assert told == logstore.rebuild_index(partition, dry_run=True)


def test_rebuild_index_under_a_writer_raises(partition: Path) -> None:
    """The writer may be in this process, whose lock must survive the attempt."""
    with logstore.open(partition.parent):
        for _ in range(2):
            with pytest.raises(logstore.StoreLockedError):
                logstore.rebuild_index(partition)
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(partition.parent)
    assert logstore.rebuild_index(partition)


def test_rebuild_index_of_a_damaged_log_raises_and_builds_the_others(
    partition: Path,
) -> None:
    """The indexes of the damaged one are not changed."""
    bad, other = logs_in(partition)[:2]
    flip_bit(bad, 8 * 20)
    kept, lost = bad.with_suffix(".index"), other.with_suffix(".index")
    before = kept.read_bytes(), lost.read_bytes()
    lost.unlink()
    with pytest.raises(logstore.CorruptRecordError):
        logstore.rebuild_index(partition)
    assert (kept.read_bytes(), lost.read_bytes()) == before


def test_rebuild_index_tells_each_damaged_log_and_what_it_built(
    partition: Path,
) -> None:
    """It raises nothing if `on_damage` is given; each error has the end of its damage:
    the next batch, or the next segment."""
    first, second = logs_in(partition)[:2]
    flip_bit(first, 8 * 20)
    frame = frames(second)[-1]
    flip_bit(second, 8 * (frame.pos + frame.size - 1))
    errors: list[Any] = []
    built = logstore.rebuild_index(partition, on_damage=errors.append)
    assert [Path(path) for path, _, _ in built] == logs_in(partition)[2:]
    assert [error.path for error in errors] == [str(first), str(second)]
    ranges = [(error.offset, error.next_offset) for error in errors]
    after = int(logs_in(partition)[2].stem)
    assert ranges == [(0, frames(first)[1].offset), (frame.offset, after)]
    assert f"reading can continue at offset {after}." in str(errors[1])
    calls: list[tuple[int, int]] = []
    logstore.rebuild_index(
        partition,
        on_damage=errors.append,
        on_progress=lambda done, total: calls.append((done, total)),
    )
    sizes = [log.stat().st_size for log in logs_in(partition)]
    assert calls[-1] == (sum(sizes[2:]), sum(sizes))
    errors.clear()
    assert logstore.rebuild_index(first, on_damage=errors.append) == ()
    assert len(errors) == 1


def test_rebuild_index_goes_on_behind_a_partition_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    """The system refuses one directory; the indexes of the others are built."""
    with logstore.open(tmp_path) as store:
        for name in ("a", "b"):
            store.create_topic(name)[0].append(b"x")
    index = tmp_path / "b-0" / f"{0:020d}.index"
    index.unlink(missing_ok=True)
    faulty = FaultyFiles()
    faulty.fail("open_directory", errno.EIO, name="a-0")
    errors: list[logstore.LogStoreError] = []
    built = logstore.rebuild_index(tmp_path, on_damage=errors.append, _files=faulty)
    assert [path for path, _, _ in built] == [str(index.with_suffix(".log"))]
    assert [type(error) for error in errors] == [logstore.StorageError]


@pytest.mark.parametrize(
    "name", ["nothing", "orders-0/x.log", f"orders-0/{77:020d}.log"]
)
def test_rebuild_index_of_nothing_raises(partition: Path, name: str) -> None:
    """A missing path, or one that is no segment."""
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.rebuild_index(partition.parent / name)
