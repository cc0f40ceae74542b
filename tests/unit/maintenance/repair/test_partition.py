"""The state of a repaired log: its effect on readers that follow the log."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import PARTITION_STATE
from logstore.store.opening import open_store
from support.damage import Unsynced, frames, logs_in, overwrite
from support.values import config_of

CUT = 15


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """The directory of a log of 20 batches with one record each, of a closed store."""
    with open_store(tmp_path / "store", _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        for _ in range(20):
            partition.append(b"value")
    return tmp_path / "store" / "orders-0"


def test_end_that_was_lost_is_a_cut_for_a_follower(part: Path) -> None:
    """The remaining records are unchanged, and the log is the same one."""
    log = logs_in(part)[0]
    with open_store(part.parent, read_only=True) as reading:
        follower = reading.topic("orders")[0].follow(timeout=0.3)
        assert [next(follower).offset for _ in range(20)] == list(range(20))
        os.truncate(log, frames(log)[CUT].pos)
        assert logstore.repair(part.parent, "cut").actions
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            next(follower)
        assert caught.value.cut_to == CUT


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_compactions_are_counted_on(part: Path, mode: str) -> None:
    """Otherwise a reader would take files of the next compaction for restored ones."""
    directory = Directory.open_root(Files(), str(part))
    state = PartitionState.read(directory)
    assert state is not None
    value = dataclasses.replace(state, compactions=4).to_dict()
    checkpoints.write_state(directory, PARTITION_STATE, value)
    log = logs_in(part)[0]
    overwrite(log, frames(log)[CUT].pos + 70, b"\xff\xff")
    assert logstore.repair(part.parent, mode).actions
    state = PartitionState.read(directory)
    directory.close()
    assert state is not None
    assert state.compactions == 5
