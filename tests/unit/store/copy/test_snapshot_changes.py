"""Snapshots of logs that are compacted, cut, deleted and made again while they are
copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import TopicConfig
from logstore.io import layout
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.transactions import batch, marker

CONFIG = TopicConfig(
    segment_bytes=20_000,
    index_interval_bytes=100,
    cleanup_policy="compact",
    segment_digests=True,
)


def _during(
    store: logstore.Store, path: Path, change: Callable[[], object], *, links: bool
) -> logstore.types.SnapshotReport:
    """Make a snapshot, and a change after its first bytes of log."""
    done: list[object] = []

    def once(progress: logstore.types.SnapshotProgress) -> None:
        del progress
        if not done:
            done.append(None)
            done.append(change())

    report = store.snapshot(path, links=links, on_progress=once)
    assert len(done) == 2
    return report


def _records(partition: logstore.Partition) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in partition.read()]


def _compacted(store: logstore.Store, count: int = 3000) -> logstore.Partition:
    """A partition whose compaction leaves gaps; time advances by ten ms per record."""
    partition = store.create_topic("t", 1, CONFIG)[0]
    for number in range(count):
        key = number if number % 3 == 0 else number % 7
        partition.append(b"v%06d" % number * 5, b"k%d" % key, timestamp_ms=number * 10)
    return partition


@pytest.mark.parametrize("links", [True, False])
def test_snapshot_of_a_log_that_is_compacted_meanwhile_has_its_own_indexes(
    tmp_path: Path, links: bool
) -> None:
    """The indexes and digests of the copy belong to its segments, and not to newer
    segments of the same names."""
    source = tmp_path / "source"
    with logstore.open(source) as store:
        _compacted(store)
    assert (source / "t-0" / layout.digest_file(0)).exists()
    with logstore.open(source) as store:
        partition = store.topic("t")[0]
        expected = _records(partition)

        def compact() -> None:
            assert partition.compact(force=True).removed > 1000

        _during(store, tmp_path / "copy", compact, links=links)
        assert len(_records(partition)) < 2000
    report = logstore.verify(tmp_path / "copy", deep=True)
    assert not report.problems
    with logstore.open(tmp_path / "copy") as store:
        assert not store.recovery_report.actions
        partition = store.topic("t")[0]
        assert _records(partition) == expected
        for number in range(0, 3000, 7):
            assert partition.offset_for_time(number * 10) == number
    names = os.listdir(tmp_path / "copy" / "t-0")
    assert not [name for name in names if layout.DELETED in name]


def test_snapshot_of_a_log_whose_head_is_deleted_meanwhile_has_that_with_its_indexes(
    tmp_path: Path,
) -> None:
    """The files of deleted segments are copied under their former names, so that
    nothing is built at the opening."""
    with logstore.open(tmp_path / "source") as store:
        partition = _compacted(store)
        expected = _records(partition)
        _during(
            store,
            tmp_path / "copy",
            lambda: partition.delete_before(2500),
            links=True,
        )
    assert not logstore.verify(tmp_path / "copy", deep=True).problems
    with logstore.open(tmp_path / "copy") as store:
        assert not store.recovery_report.actions
        assert _records(store.topic("t")[0]) == expected


def test_snapshot_of_a_log_that_is_cut_meanwhile_is_made_again(tmp_path: Path) -> None:
    """Removed records cannot be copied any more: the copy is of a later moment."""
    with logstore.open(tmp_path / "source") as store:
        partition = _compacted(store)

        def change() -> None:
            partition.truncate_to(100)
            partition.append(b"later", b"k")

        _during(store, tmp_path / "copy", change, links=True)
        expected = _records(partition)
        assert len(expected) == 101
    with logstore.open(tmp_path / "copy", read_only=True) as store:
        assert _records(store.topic("t")[0]) == expected


def _aborted(partition: logstore.Partition, sequence: int) -> None:
    data = batch(0, [(b"k", b"lost")], 7, control=False, sequence=sequence)
    partition.append_batches(data, transactions=True)
    partition.append_batches(marker(0, 7, commit=False), transactions=True)


def test_snapshot_beside_transactions_has_the_aborted_ones_of_its_records(
    tmp_path: Path,
) -> None:
    """An abort whose marker came after the moment of the copy is not in its index: the
    producer may commit there."""
    with logstore.open(tmp_path / "source") as store:
        partition = store.create_topic("t")[0]
        _aborted(partition, 0)
        # A segment of another magic is sealed: the active one has no index yet.
        for number in range(8):
            partition.append(b"%d" % number)
        _during(store, tmp_path / "copy", lambda: _aborted(partition, 1), links=False)
        _aborted(partition, 2)
        _during(store, tmp_path / "other", lambda: _aborted(partition, 3), links=False)
    for name, end in (("copy", 10), ("other", 14)):
        assert not logstore.verify(tmp_path / name, deep=True).problems
        with logstore.open(tmp_path / name) as store:
            assert not store.recovery_report.actions
            partition = store.topic("t")[0]
            assert partition.end_offset == end
            data = batch(0, [(b"k", b"kept")], 7, control=False, sequence=end // 4)
            partition.append_batches(data, transactions=True)
            partition.append_batches(marker(0, 7, commit=True), transactions=True)
            read = partition.read(isolation="read_committed")
            assert [record.value for record in read] == [
                *(b"%d" % number for number in range(8)), b"kept",
            ]  # fmt: skip


class _During(Files):
    """Calls a function before a log is copied."""

    change: Callable[[], object] | None = None

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        if self.change is not None and name.endswith(layout.LOG):
            change, self.change = self.change, None
            change()
        return super().create(dir_fd, name, exclusive=exclusive)


def _damage(source: Path, number: int) -> None:
    """Damage a segment of partition t-0, after an unclean stop."""
    log = sorted((source / "t-0").glob("*.log"))[number]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    (source / layout.CLEAN_SHUTDOWN).unlink()


def test_snapshot_of_a_damaged_log_whose_head_is_deleted_starts_where_it_does(
    tmp_path: Path,
) -> None:
    """Its start, its state and its segments are of the same moment: no record comes
    back, and no segment counts as lost."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    files = _During()
    with logstore.open(source) as store:
        partition = store.create_topic("t", 1, TopicConfig(segment_bytes=2000))[0]
        for number in range(200):
            partition.append(b"old%06d" % number * 5)
    _damage(source, 4)
    with open_store(source, _files=files) as store:
        partition = store.topic("t")[0]
        files.change = lambda: partition.delete_before(60)
        assert store.snapshot(copy).damaged == (("t", 0),)
        assert partition.start_offset == 60
    kinds = [
        sorted({problem.kind for problem in logstore.verify(path).problems})
        for path in (source, copy)
    ]
    assert kinds[1] == kinds[0] == ["damaged-batch"]
    with logstore.open(copy, read_only=True) as store:
        assert store.topic("t")[0].start_offset == 60


@pytest.mark.parametrize("is_damaged", [False, True])
def test_snapshot_of_a_topic_that_is_made_again_meanwhile_has_one_of_the_two(
    tmp_path: Path, is_damaged: bool
) -> None:
    """Files of two topics of one name are never together: the copy takes appends."""
    config = TopicConfig(segment_bytes=2000)
    source = tmp_path / "source"
    with logstore.open(source) as store:
        store.create_topic("first")[0].append(b"x")
        partition = store.create_topic("t", 1, config)[0]
        for number in range(200):
            partition.append(b"old%06d" % number * 5)
    if is_damaged:
        _damage(source, 2)
    with logstore.open(source) as store:

        def change() -> None:
            store.delete_topic("t")
            store.create_topic("t")[0].append_many([b"new"] * 50)

        report = _during(store, tmp_path / "copy", change, links=True)
        assert report.damaged == ()
        topic_id = store.topic("t").id
    with logstore.open(tmp_path / "copy") as store:
        assert not store.recovery_report.actions
        topic = store.topic("t")
        assert topic.id == topic_id
        assert [record.value for record in topic[0].read()] == [b"new"] * 50
        topic.append(b"goes on")
