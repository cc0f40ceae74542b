"""A position counts in the log in which it was reached, or with a proof."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.group.consumer.log_reader import LogReader
from logstore.group.consumer.options import Options
from logstore.group.member.assignors import assignor_of
from support.transactions import batch, marker

OPTIONS = Options(
    group=None,
    assignor=assignor_of("range"),
    reset="error",
    offsets=None,
    auto_commit_ms=None,
    isolation="read_committed",
    durable_only=True,
    max_poll_records=10,
    max_poll_interval_ms=1000,
    on_stuck="report",
    instance=None,
)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[logstore.Partition]:
    """A log with the records 0 to 9, each in a separate batch."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for first in (0, 5):
            partition.append_many([b"%d" % n for n in range(first, first + 5)])
        partition.flush()
        yield partition


def values(found: tuple[list[Any], int | None]) -> tuple[bytes, int | None]:
    return b"".join(record.value for record in found[0]), found[1]


def test_records_follow_each_other_up_to_the_end(
    partition: logstore.Partition,
) -> None:
    """After a restart they are read again from the position of the caller."""
    log = LogReader(partition, OPTIONS)
    assert not log.has_seen()
    assert values(log.read(1, 3)) == (b"123", 4)
    assert log.has_seen(10)
    assert not log.has_seen(11)
    assert values(log.read(4, 9)) == (b"456789", 10)
    assert values(log.read(10, 9)) == (b"", 10)
    log.restart()
    assert values(log.read(8, 9)) == (b"89", 10)


def cut(partition: logstore.Partition) -> None:
    partition.truncate_to(6)
    partition.append_many([b"x"] * 6, durable=True)


@pytest.mark.parametrize("keeps_log", [True, False])
def test_log_that_was_seen_is_not_replaced_unnoticed(
    partition: logstore.Partition, keeps_log: bool
) -> None:
    """The read fails unless the next position belongs to the new log."""
    log = LogReader(partition, OPTIONS)
    log.read(0, 10)
    cut(partition)
    log = log.anew(keeps_log=keeps_log, proof=None)
    if not keeps_log:
        assert values(log.read(8, 9)) == (b"xxxx", 12)
        return
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.read(8, 9)
    assert caught.value.cut_to == 6


def test_position_with_a_proof_is_of_the_log_that_has_its_batch(
    partition: logstore.Partition,
) -> None:
    log = LogReader(partition, OPTIONS)
    log.read(0, 10)
    proof = log.proof_of(10, 10)
    assert proof is not None
    assert values(log.anew(keeps_log=False, proof=proof).read(10, 1)) == (b"", 10)
    cut(partition)
    with pytest.raises(OffsetOutOfRangeError):
        log.proof_of(10, 10)
    with pytest.raises(OffsetOutOfRangeError, match="t-0") as caught:
        log.anew(keeps_log=False, proof=proof).read(10, 1)
    assert caught.value.cut_to == 9


def test_damage_waits_for_the_records_before_it(
    partition: logstore.Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised again, also after a restart, until the caller takes it back."""
    damage = logstore.CorruptRecordError("damaged", path="/a", position=0, offset=10)

    def broken(position: int | None) -> Iterator[Any]:
        raise damage

    log = LogReader(partition, OPTIONS)
    assert values(log.read(0, 2)) == (b"01", 2)
    monkeypatch.setattr(log, "_next_item", broken)
    assert values(log.read(2, 9)) == (b"23456789", 10)
    for _ in range(2):
        log.restart()
        with pytest.raises(logstore.CorruptRecordError):
            log.read(10, 9)
    monkeypatch.undo()
    log.behind = None
    assert values(log.read(10, 9)) == (b"", 10)
    assert not log.waits_for_sync


@pytest.mark.parametrize("damaged", [0, 2, 3])
def test_end_for_what_is_committed_is_known_although_a_batch_is_damaged(
    tmp_path: Path, damaged: int
) -> None:
    """It is the end of the reads, even if the damage is below every position."""
    batches = [batch(at, [(b"k", b"v")], -1, control=False) for at in range(3)]
    batches.append(batch(3, [(b"k", b"v")], 7, control=False))
    batches.append(marker(4, 7, commit=True))
    batches.append(batch(5, [(b"k", b"v")], -1, control=False))
    batches.append(batch(6, [(b"k", b"v")], 8, control=False))
    batches[damaged] = batches[damaged][:-1] + b"~"
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    options = dataclasses.replace(OPTIONS, durable_only=False)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("t")[0]
        log = LogReader(partition, options)
        with pytest.raises(logstore.CorruptRecordError):
            partition.last_stable_offset()
        assert log.readable_end() == 6
        assert values(log.read(4, 9)) == (b"v", 6)
    config = {"isolation": "read_committed", "durable_only": False}
    with logstore.Consumer(tmp_path, topics=["t"], reset="latest", **config) as one:
        assert one.poll(timeout_ms=0) == {}
        assert one.end_offsets([("t", 0)]) == {("t", 0): 6}
        assert (one.lag(), one.position(("t", 0))) == ({("t", 0): 0}, 6)


def test_end_of_what_is_durable_and_committed_is_where_a_read_ends(
    tmp_path: Path,
) -> None:
    """The last offset of an ended transaction may not be durable yet."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        first = batch(0, [(b"k", b"v")], -1, control=False)
        partition.append_batches(
            first + batch(1, [(b"k", b"w")], 7, control=False), transactions=True
        )
        partition.flush()
        partition.append_batches(marker(2, 7, commit=True), transactions=True)
        log = LogReader(partition, OPTIONS)
        for end, read in ((1, b"v"), (3, b"vw")):
            assert log.readable_end() == end
            assert values(log.anew(keeps_log=False, proof=None).read(0, 9))[0] == read
            partition.flush()
