"""Closing a log: again after an interrupt, and the error that it raises then."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

import logstore
from logstore.errors import StoreClosedError
from logstore.log.write.writer import PartitionWriter
from logstore.store.opening import open_store
from support.damage import FaultyFiles
from support.interrupts import InterruptAtCall
from support.values import expected, fill, new_partition

_BEHIND_ALL = 1 << 30
CLEAN = ".kafka_cleanshutdown"


def writer_of(partition: logstore.Partition) -> PartitionWriter:
    writer = partition._writer
    assert writer is not None
    return writer


@pytest.mark.parametrize("magic", [1, 2])
def test_close_that_is_interrupted_anywhere_and_made_again_loses_nothing(
    tmp_path: Path, magic: int
) -> None:
    """An append may have been undone before, which gives the writer another state: a
    repeated close begins with the writer's current state."""

    def closed_at(place: int) -> int:
        """Interrupt the close at a place; return how many there are, if `place` is past
        all."""
        path, files = tmp_path / str(place), FaultyFiles()
        store = open_store(path, _files=files)
        partition = new_partition(store, magic)
        fill(partition, 4)
        partition.flush()
        files.fail("write", errno.ENOSPC, name=".log", times=1)
        with pytest.raises(logstore.DiskFullError):
            partition.append_many([bytes(5_000)] * 3)
        records = expected(magic, 0, 4)
        assert list(partition.read()) == records
        partition.append_many([b"acknowledged"] * 3, durable=True)
        everything = list(partition.read())
        interrupt = InterruptAtCall(place)
        with contextlib.suppress(InterruptAtCall.Interrupt), interrupt:
            writer_of(partition).close(StoreClosedError("closed"), record_end=True)
        store.close()
        assert (path / CLEAN).exists()
        with open_store(path, _files=files) as store:
            partition = store.topic("orders")[0]
            assert not store.recovery_report
            assert list(partition.read()) == everything
            assert partition.append(b"more") == 7
        assert interrupt.has_raised == (place < _BEHIND_ALL)
        return interrupt.seen

    places = closed_at(_BEHIND_ALL)
    assert places > 100
    # Each place at which the writer is given up.
    for place in (*range(1, places - 60, 12), *range(places - 60, places)):
        closed_at(place)


def test_failure_of_close_that_an_interrupt_has_hidden_is_raised_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is not marked as cleanly closed: its logs are examined again."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(store)
    fill(partition, 5)
    writer = writer_of(partition)

    def interrupted() -> None:
        monkeypatch.undo()
        writer._end_close()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_end_close", interrupted)
    files.fail("write", errno.EIO, name=".timeindex")
    with pytest.raises(KeyboardInterrupt):
        store.close()
    files.heal()
    with pytest.raises(logstore.StorageError):
        store.close()
    assert not (tmp_path / CLEAN).exists()
    store.close()  # it is closed
    with open_store(tmp_path, _files=files) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)


def test_closed_log_says_nothing_when_it_is_closed_again(tmp_path: Path) -> None:
    """A close that has succeeded is over."""
    with open_store(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 3)
        for _ in range(2):
            writer_of(partition).close(StoreClosedError("closed"), record_end=True)
            assert writer_of(partition).is_end_recorded
    assert (tmp_path / CLEAN).exists()
