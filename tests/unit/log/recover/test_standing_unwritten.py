"""Damage that cannot be recorded, on a full disk: the files that may be written
nevertheless."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.recovery_report import CORRUPT
from logstore.store.opening import open_store
from support.damage import FaultyFiles, flip_bit
from support.killed import labels, the_log
from support.values import fill, new_partition

COUNT = 30
DAMAGED = ".logstore-damaged"
SMALL = {"segment_bytes": 700}


def found(store: Path) -> list[str]:
    """The report of an opening for writing."""
    with logstore.open(store) as opened:
        return labels(opened)


def foreign_with_bad_end(store: Path) -> None:
    """A store that another program has closed, without recovery points. The last batch
    of a log is damaged: only the mark of the clean stop shows that it was whole."""
    with logstore.open(store) as opened:
        fill(new_partition(opened), COUNT)
        opened.create_topic("other")[0].append(b"x")
        opened.create_topic("third")
    os.unlink(store / ".logstore-owner")
    (store / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    log = the_log(store)
    flip_bit(log, 8 * (log.stat().st_size - 2))


def refuse_verdicts(files: FaultyFiles) -> None:
    files.fail("create", errno.ENOSPC, name=f"{DAMAGED}.tmp")


def test_damage_that_cannot_be_recorded_keeps_the_marks_of_a_clean_stop(
    tmp_path: Path,
) -> None:
    """No partition is written to: without the marks the next opening would take the
    damage for a torn tail, and cut it. With room again, appends continue."""
    foreign_with_bad_end(tmp_path)
    files = FaultyFiles()
    refuse_verdicts(files)
    with open_store(tmp_path, _files=files) as opened:
        assert CORRUPT in labels(opened)
        other = opened.topic("other")[0]
        with pytest.raises(logstore.DiskFullError, match="record the damage"):
            other.append(b"y")
        with pytest.raises(logstore.DiskFullError):
            opened.create_topic("fourth")
        assert other.end_offset == 1
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    size = the_log(tmp_path).stat().st_size
    with open_store(tmp_path, _files=files) as opened:
        opened.recover()
        files.heal()
        assert opened.topic("other")[0].append(b"y") == 1
        assert (tmp_path / "orders-0" / DAMAGED).exists()
    assert found(tmp_path) == [CORRUPT]
    assert the_log(tmp_path).stat().st_size == size


def test_damage_that_cannot_be_recorded_does_not_stop_deletion(
    tmp_path: Path,
) -> None:
    """Deletion makes the missing room; `close` records the damage."""
    foreign_with_bad_end(tmp_path)
    files = FaultyFiles()
    refuse_verdicts(files)
    with open_store(tmp_path, _files=files) as opened:
        opened.recover()
        opened.delete_topic("third")
        assert opened.topic("other")[0].delete_before(1) == 1
        files.heal()
    assert (tmp_path / "orders-0" / DAMAGED).exists()
    assert found(tmp_path) == [CORRUPT]


def test_topic_whose_damage_cannot_be_recorded_can_be_deleted(tmp_path: Path) -> None:
    """The store then takes appends again."""
    foreign_with_bad_end(tmp_path)
    files = FaultyFiles()
    refuse_verdicts(files)
    with open_store(tmp_path, _files=files) as opened:
        opened.recover()
        opened.delete_topic("orders")
        assert opened.topic("other")[0].append(b"y") == 1
