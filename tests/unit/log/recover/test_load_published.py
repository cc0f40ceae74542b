"""Publications in the journal: opening cuts none of them, and notices if they are gone,
even after a reboot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    LOST_END,
    LOST_SEGMENT,
)
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import cut, flip_bit, frames, logs_in, restart_machine
from support.killed import labels

NEVER = 1 << 60
COUNT = 3


def put(store: logstore.Store, sequence: int) -> bool:
    """Publish one record for each topic. Returns whether it is new."""
    with store.stage("spark", sequence) as stage:
        for topic in ("orders", "other"):
            stage.append_many(store.topic(topic)[0], [b"%d" % sequence * 50])
        staged = stage.finish()
    return store.publish(staged, identity="spark", sequence=sequence).is_new


def killed(path: Path, work: Callable[[logstore.Store], object]) -> Path:
    """A store whose writer is killed after some work on two topics."""
    child = os.fork()
    if child == 0:
        try:
            config = logstore.StoreConfig(flush_checkpoint_ms=NEVER)
            store = open_store(path, config=config, _files=KilledAtCommit())
            topic = logstore.TopicConfig(flush_ms=NEVER, flush_messages=NEVER)
            for name in ("orders", "other"):
                store.create_topic(name, 1, topic)
            work(store)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return path


class KilledAtCommit(Files):
    """A process that can be killed in its next commit of a publication."""

    left = NEVER

    def write(self, fd: int, data: Any, pos: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if ".logstore-publication" in name:
            self.left -= 1
            if self.left == 0:
                os._exit(0)
        super().write(fd, data, pos)


def published(store: logstore.Store) -> None:
    for sequence in range(COUNT):
        put(store, sequence)


def flip_in_last(log: Path) -> None:
    flip_bit(log, 8 * (frames(log)[-1].pos + 40))


def cut_last(log: Path) -> None:
    cut(log, frames(log)[-1].pos)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("damage", "label"),
    [(flip_in_last, CORRUPT), (cut_last, LOST_END), (Path.unlink, LOST_SEGMENT)],
)
def test_what_was_published_is_no_torn_tail(
    tmp_path: Path,
    damage: Callable[[Path], object],
    label: str,
    is_restarted: bool,
) -> None:
    """A publication is not halved: its other log still has it."""
    store = killed(tmp_path / "store", published)
    log = logs_in(store / "orders-0")[-1]
    damage(log)
    (store / "orders-0" / ".logstore-durable").unlink()
    if is_restarted:
        restart_machine(store)
    assert logstore.verify(store).problems
    with logstore.open(store, read_only=True) as reader:
        with pytest.raises(logstore.CorruptRecordError):
            list(reader.topic("orders")[0].read())
        assert len(list(reader.topic("other")[0].read())) == COUNT
    size = log.stat().st_size if log.exists() else -1
    for _ in range(2):
        with logstore.open(store) as opened:
            assert labels(opened) == [label]
            assert opened.topic("orders")[0].end_offset == COUNT
            with pytest.raises(logstore.CorruptRecordError):
                opened.topic("orders")[0].append(b"x")
            assert not put(opened, COUNT - 1)
        assert size == (log.stat().st_size if log.exists() else -1)


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_lets_the_journal_forget_what_is_lost(tmp_path: Path, mode: str) -> None:
    """The partition takes appends; later publications work as before."""
    store = killed(tmp_path / "store", published)
    cut_last(logs_in(store / "orders-0")[-1])
    restart_machine(store)
    assert logstore.repair(store, mode).ok
    with logstore.open(store) as opened:
        assert not {LOST_END, CORRUPT} & {*labels(opened)}
        end = COUNT - (mode == "cut")
        assert opened.topic("orders")[0].end_offset == end
        assert put(opened, COUNT)
        assert len(list(opened.topic("orders")[0].read())) == COUNT


def test_log_that_was_cut_after_a_publication_has_lost_nothing(tmp_path: Path) -> None:
    """A log whose head was deleted, or that was deleted with its topic, has lost
    nothing either."""

    def work(store: logstore.Store) -> None:
        published(store)
        store.topic("orders")[0].truncate_to(1)
        store.topic("other")[0].delete_before(COUNT)
        put(store, COUNT)
        store.topic("orders")[0].truncate_to(0)
        store.delete_topic("other")
        store.create_topic("other")

    store = killed(tmp_path / "store", work)
    with logstore.open(store) as opened:
        assert not {LOST_END, LOST_SEGMENT, CORRUPT} & {*labels(opened)}
        assert [opened.topic(t)[0].end_offset for t in ("orders", "other")] == [0, 0]
        assert not put(opened, COUNT)
        assert put(opened, COUNT + 1)


def test_end_of_a_publication_that_was_cut_short_may_be_lost_with_the_power(
    tmp_path: Path,
) -> None:
    """Records appended before it were not synced yet, and never reported as durable."""

    def work(store: logstore.Store) -> None:
        store.topic("orders")[0].append(b"first", durable=True)
        store.topic("orders")[0].append(b"second")
        files = store._context.files
        assert isinstance(files, KilledAtCommit)
        files.left = 2
        put(store, 1)

    store = killed(tmp_path / "store", work)
    log = logs_in(store / "orders-0")[-1]
    cut(log, frames(log)[1].pos)
    (store / "orders-0" / ".logstore-durable").unlink()
    restart_machine(store)
    with logstore.open(store) as opened:
        assert not {LOST_END, CORRUPT} & {*labels(opened)}
        assert opened.topic("orders")[0].end_offset == 1
        assert put(opened, 1)


def test_repair_leaves_a_bad_journal_to_the_next_opening(tmp_path: Path) -> None:
    """A repair of a partition does not repair the journal."""
    store = killed(tmp_path / "store", published)
    cut_last(logs_in(store / "orders-0")[-1])
    flip_bit(store / ".logstore-publication", 8 * 30)
    logstore.repair(store / "orders-0", "cut")
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        logstore.open(store)
