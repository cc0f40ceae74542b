"""Deletion at the head of a damaged log: the file that records the new start."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.recovery_report import CORRUPT
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import FaultyFiles, crash, flip_bit, logs_in
from support.killed import labels
from support.values import fill, write_store

COUNT = 30
DAMAGED = ".logstore-damaged"
SMALL = {"segment_bytes": 700}


@pytest.mark.parametrize("is_killed", [False, True])
def test_start_inside_a_segment_of_a_damaged_log_of_others_stays(
    tmp_path: Path, is_killed: bool
) -> None:
    """Our state does not count there: Kafka's checkpoint has the start before the call
    returns. A read-only store sees it, and each later opening."""
    partition = foreign(write_store(tmp_path / "store", COUNT, **SMALL).parent)
    log = logs_in(partition)[-1]
    flip_bit(log, 8 * (log.stat().st_size // 2))
    store = partition.parent
    second = int(logs_in(partition)[1].stem)
    files = FaultyFiles()
    with open_store(store, _files=files) as opened:
        assert CORRUPT in labels(opened)
        assert opened.topic("orders")[0].delete_before(second + 1) == second + 1
        seen = crash(store, tmp_path / "killed") if is_killed else store
    with logstore.open(seen, read_only=True) as reading:
        assert reading.topic("orders")[0].start_offset == second + 1
    for _ in range(2):
        with logstore.open(seen) as opened:
            assert CORRUPT in labels(opened)
            assert opened.topic("orders")[0].start_offset == second + 1


def test_start_of_a_damaged_log_of_others_that_cannot_be_recorded_is_refused(
    tmp_path: Path,
) -> None:
    """The segments that are wholly below it are deleted nevertheless."""
    partition = foreign(write_store(tmp_path / "store", COUNT, **SMALL).parent)
    log = logs_in(partition)[-1]
    flip_bit(log, 8 * (log.stat().st_size // 2))
    second = int(logs_in(partition)[1].stem)
    files = FaultyFiles()
    with open_store(partition.parent, _files=files) as opened:
        opened.recover()
        files.fail("create", errno.ENOSPC, name="log-start-offset-checkpoint.tmp")
        with pytest.raises(logstore.DiskFullError):
            opened.topic("orders")[0].delete_before(second + 1)
        assert opened.topic("orders")[0].start_offset == second
        files.heal()
    with logstore.open(partition.parent) as opened:
        assert opened.topic("orders")[0].start_offset == second


def test_start_of_a_log_that_cannot_be_read_stays(tmp_path: Path) -> None:
    """Another partition's new start is written into the same file."""
    partition = write_store(tmp_path / "store", COUNT, **SMALL)
    store = partition.parent
    with logstore.open(store) as opened:
        other = opened.create_topic("other")[0]
        fill(other, 3)
    foreign(store)
    (store / "log-start-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    files = FaultyFiles()
    with open_store(store, _files=files) as opened:
        files.fail("list", errno.EIO, name="orders-0")
        opened.recover()
        opened.topic("other")[0].delete_before(1)
    files.heal()
    with logstore.open(store) as opened:
        assert opened.topic("other")[0].start_offset == 1
        assert opened.topic("orders")[0].start_offset == 1
