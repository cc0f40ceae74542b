"""Offsets that were reported as durable to other processes: opening cuts none of them,
and notices if they are gone, while the machine runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import StoreConfig, TopicConfig
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    LOST_END,
    STATE_DAMAGED,
    TORN_TAIL,
)
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import cut, flip_bit, frames, restart_machine, zero
from support.killed import labels, the_log

NEVER = 1 << 60
# The state file is written at rolls and at the close.
CONFIG = StoreConfig(flush_checkpoint_ms=NEVER)
TOPIC = TopicConfig(flush_ms=NEVER, flush_messages=NEVER)
COUNT = 25


class _KilledAt(Files):
    """A process that is killed in a write to a log."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def write(self, fd: int, data: Any, pos: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith(".log"):
            self.left -= 1
            if self.left == 0:
                os._exit(0)
        super().write(fd, data, pos)


def killed(path: Path) -> Path:
    """A store whose writer was killed after durable appends."""
    child = os.fork()
    if child == 0:
        try:
            log = logstore.open(path, config=CONFIG).create_topic("orders", 1, TOPIC)[0]
            for n in range(COUNT):
                log.append(b"%d" % n * 50, durable=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return path


def found(store: Path) -> list[str]:
    with logstore.open(store) as opened:
        return labels(opened)


def test_log_that_is_shorter_than_was_told_is_not_continued(tmp_path: Path) -> None:
    """The log ends between two batches; the missing offsets are not assigned again."""
    store = killed(tmp_path / "store")
    log = the_log(store)
    cut(log, frames(log)[20].pos)
    assert logstore.verify(store).problems
    with logstore.open(store, read_only=True) as reader:
        seen = reader.topic("orders")[0]
        assert seen.end_offset == COUNT
        with pytest.raises(logstore.CorruptRecordError):
            list(seen.read())
    with logstore.open(store) as opened:
        assert labels(opened) == [LOST_END]
        with pytest.raises(logstore.CorruptRecordError):
            opened.topic("orders")[0].append(b"again")
    restart_machine(store)
    assert found(store) == [LOST_END]


@pytest.mark.parametrize("how", ["frame", "bit", "rest"])
def test_what_was_told_is_no_torn_tail(tmp_path: Path, how: str) -> None:
    """The damage is zeros in the place of a frame, as of an unfinished call; a bad last
    batch; or zeros up to the end of the file."""
    store = killed(tmp_path / "store")
    log = the_log(store)
    batch = frames(log)[-1 if how == "bit" else 10]
    if how == "bit":
        flip_bit(log, 8 * (batch.pos + 40))
    else:
        end = batch.pos + 17 if how == "frame" else log.stat().st_size
        zero(log, batch.pos, end)
    before = log.read_bytes()
    assert found(store) == [CORRUPT]
    assert log.read_bytes() == before


def test_what_was_told_counts_until_the_machine_starts_again(tmp_path: Path) -> None:
    """A bad file does not count either."""
    store = killed(tmp_path / "store")
    log = the_log(store)
    flip_bit(log, 8 * (frames(log)[-1].pos + 40))
    restart_machine(store)
    assert found(store) == [TORN_TAIL]
    store = killed(tmp_path / "bad")
    log = the_log(store)
    flip_bit(log, 8 * (frames(log)[-1].pos + 40))
    flip_bit(store / "orders-0" / ".logstore-durable", 8 * 64)
    assert found(store) == [TORN_TAIL]


def test_log_that_is_whole_is_as_before(tmp_path: Path) -> None:
    """The reported records are there; without a state that names the log the report is
    not read."""
    store = killed(tmp_path / "store")
    flip_bit(store / "orders-0" / ".logstore-state", 8 * 70)
    assert found(store) == [STATE_DAMAGED]
    assert found(killed(tmp_path / "whole")) == []


@pytest.mark.parametrize("nth", range(2, 12))
def test_call_that_was_not_finished_was_not_told(tmp_path: Path, nth: int) -> None:
    """Opening removes the bytes of the call, as it always has."""
    store = tmp_path / "store"
    child = os.fork()
    if child == 0:
        try:
            files = _KilledAt(nth)
            topic = TopicConfig(
                flush_ms=NEVER, segment_bytes=600, max_message_bytes=300
            )
            opened = open_store(store, config=CONFIG, _files=files)
            log = opened.create_topic("orders", 1, topic)[0]
            log.append(b"first", durable=True)
            log.append_many([b"%d" % n * 60 for n in range(20)], durable=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with logstore.open(store) as opened:
        assert not {CORRUPT, LOST_END} & {*labels(opened)}
        log = opened.topic("orders")[0]
        assert log.end_offset in (1, 21)
        assert len(list(log.read())) == log.end_offset
