"""Retention policies, deletion from the front, truncation from the back."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import logstore
from logstore import RetainAge, RetainBytes, RetainFreeSpace
from logstore.log.write.writer import PartitionWriter
from logstore.store.opening import open_store
from logstore.types import SegmentInfo
from support.broker import foreign
from support.damage import FaultyFiles, FixedClock, Unsynced, crash, frames, logs_in
from support.values import (
    append_one,
    append_records,
    config_of,
    every_magic,
    expected,
    few_formats,
    fill,
    new_partition,
    read_all,
    record_of,
    write_store,
)

VALUE = bytes(100 - 34)  # a message of 100 bytes in magic 1


def segmented(
    store: logstore.Store, stamps: Sequence[int], **settings: int
) -> logstore.Partition:
    """A partition with one segment of 100 bytes for each timestamp; the last is
    active."""
    settings.setdefault("retention_ms", -1)
    settings.setdefault("file_delete_delay_ms", 0)
    partition = new_partition(store, segment_bytes=100, **settings)
    for stamp in stamps:
        partition.append(VALUE, timestamp_ms=stamp)
    assert len(partition.segments) == len(stamps)
    return partition


@pytest.mark.parametrize(
    ("retention_bytes", "left"),
    [(500, 5), (401, 5), (400, 4), (399, 4), (301, 4), (300, 3), (100, 1), (99, 1),
     (1, 1), (0, 0)],
)  # fmt: skip
def test_retention_by_bytes_never_goes_below_the_limit(
    tmp_path: Path, retention_bytes: int, left: int
) -> None:
    """The oldest segment goes while the rest has at least `retention_bytes`."""
    with logstore.open(tmp_path) as store:
        partition = segmented(store, [1] * 5, retention_bytes=retention_bytes)
        deletions = store.topic("orders").apply_retention()
        assert len(deletions) == 5 - left
        assert partition.start_offset == 5 - left
        assert [r.offset for r in partition.read()] == list(range(5 - left, 5))


@pytest.mark.parametrize(
    ("now", "gone"), [(1100, 0), (1101, 1), (1200, 1), (1201, 2), (1501, 5)]
)
def test_retention_by_age_is_strict(tmp_path: Path, now: int, gone: int) -> None:
    """A segment goes when now - largest timestamp > retention_ms, not at equality."""
    with logstore.open(tmp_path) as store:
        partition = segmented(store, [100, 200, 300, 400, 500], retention_ms=1000)
        deletions = store.topic("orders").apply_retention(now_ms=now)
        assert [d.segment.base_offset for d in deletions] == list(range(gone))
        assert partition.start_offset == gone
        assert all("retention_ms=1000" in d.reason for d in deletions)


def test_retention_by_age_stops_at_the_first_young_segment(tmp_path: Path) -> None:
    """Segments after a segment that stays are kept, too."""
    with logstore.open(tmp_path) as store:
        partition = segmented(store, [100, 5000, 100, 100], retention_ms=1000)
        store.topic("orders").apply_retention(now_ms=2000)
        assert partition.start_offset == 1


def test_retention_of_everything_leaves_an_empty_active_segment(tmp_path: Path) -> None:
    """If all are too old a new one is begun; the end does not move, and an empty
    segment is never deleted."""
    with logstore.open(tmp_path) as store:
        partition = segmented(store, [100, 200], retention_ms=1000)
        assert len(store.topic("orders").apply_retention(now_ms=10**6)) == 2
        assert (partition.start_offset, partition.end_offset) == (2, 2)
        assert [s.base_offset for s in partition.segments] == [2]
        assert store.topic("orders").apply_retention(now_ms=10**9) == []
        assert partition.append(b"x") == 2
    assert [r.offset for r in read_all(tmp_path)] == [2]


def test_retention_by_age_without_timestamps_goes_by_the_files_time(
    tmp_path: Path,
) -> None:
    """Magic 0 has no timestamps: the time of the last change counts."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 0, segment_bytes=50, retention_ms=1000)
        for _ in range(3):
            partition.append(bytes(20))
        for log, seconds in zip(
            logs_in(tmp_path / "orders-0"), (10, 20, 30), strict=True
        ):
            os.utime(log, (seconds, seconds))
        topic = store.topic("orders")
        assert topic.apply_retention(now_ms=11_000) == []
        assert len(topic.apply_retention(now_ms=11_001)) == 1
        assert len(topic.apply_retention(now_ms=21_001)) == 1
        assert partition.start_offset == 2


def test_timestamp_in_the_future_does_not_keep_a_segment_for_ever(
    tmp_path: Path,
) -> None:
    """A wrong clock must not block deletion: such a segment ages by its file time."""
    with logstore.open(tmp_path) as store:
        segmented(store, [1 << 60, 100, 200], retention_ms=1000)
        for log in logs_in(tmp_path / "orders-0"):
            os.utime(log, (10, 10))
        topic = store.topic("orders")
        assert topic.apply_retention(now_ms=10_500) == []
        assert len(topic.apply_retention(now_ms=11_001)) == 3


def test_retention_minus_one_keeps_everything(tmp_path: Path) -> None:
    """The value -1 means for ever and any size."""
    with logstore.open(tmp_path) as store:
        segmented(store, [1] * 5, retention_ms=-1, retention_bytes=-1)
        assert store.topic("orders").apply_retention(now_ms=1 << 60) == []


def test_dry_run_tells_and_deletes_nothing(tmp_path: Path) -> None:
    """It returns the segments to delete, without a change, even in a read-only
    store."""
    with logstore.open(tmp_path) as store:
        partition = segmented(store, [1] * 5, retention_bytes=200)
        told = store.topic("orders").apply_retention(dry_run=True)
        assert [d.segment.base_offset for d in told] == [0, 1, 2]
        assert all(d.partition == 0 for d in told)
        assert partition.start_offset == 0
        assert len(logs_in(tmp_path / "orders-0")) == 5
        with logstore.open(tmp_path, read_only=True) as reader:
            again = reader.topic("orders").apply_retention(dry_run=True)
            assert [d.segment.base_offset for d in again] == [0, 1, 2]
        assert store.topic("orders").apply_retention() == told


def test_retention_covers_all_partitions(tmp_path: Path) -> None:
    """One call covers a topic, each partition separately."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(
            segment_bytes=100, retention_bytes=200, file_delete_delay_ms=0
        )
        topic = store.create_topic("orders", 3, config)
        for number, count in enumerate((1, 3, 5)):
            for _ in range(count):
                topic[number].append(VALUE)
        deletions = topic.apply_retention()
        assert [d.partition for d in deletions] == [1, 2, 2, 2]
        assert [p.start_offset for p in topic] == [0, 1, 3]


class Every(logstore.RetentionPolicy):
    """Selects the segments of some base offsets."""

    def __init__(self, *bases: int) -> None:
        self.bases = bases
        self.seen: tuple[Sequence[SegmentInfo], int] | None = None

    def select(
        self, segments: Sequence[SegmentInfo], now_ms: int
    ) -> Iterable[SegmentInfo]:
        self.seen = segments, now_ms
        return [s for s in segments if s.base_offset in self.bases]


@pytest.mark.parametrize(
    ("bases", "gone"),
    [((0, 1), 2), ((0, 2), 1), ((1, 2), 0), ((), 0), ((0, 1, 2, 3), 4)],
)
def test_custom_policy_deletes_the_leading_run_of_what_it_selects(
    tmp_path: Path, bases: tuple[int, ...], gone: int
) -> None:
    """A policy is any subclass; a segment after one that stays is never deleted."""
    policy = Every(*bases)
    with logstore.open(tmp_path) as store:
        partition = segmented(store, [1, 2, 3, 4])
        infos = partition.segments
        deletions = store.topic("orders").apply_retention(77, policies=[policy])
        assert policy.seen == (infos, 77)
        assert len(deletions) == gone == partition.start_offset
        assert all(d.reason == "Every" for d in deletions)


def test_policy_that_does_not_select_says_so() -> None:
    """A policy without select() is no policy."""
    with pytest.raises(NotImplementedError, match="select"):
        logstore.RetentionPolicy().select([], 0)


def test_policies_are_shipped_for_age_and_bytes(tmp_path: Path) -> None:
    """The policies also work as explicit arguments."""
    for policy in (RetainAge(1000), RetainBytes(300)):
        with logstore.open(tmp_path / type(policy).__name__) as store:
            partition = segmented(store, [1, 2, 3000, 3000, 3000])
            store.topic("orders").apply_retention(2500, policies=[policy])
            assert partition.start_offset == 2


class SmallDisk(FaultyFiles):
    """A disk that has 1000 bytes left, whatever is deleted."""

    def free_bytes(self, fd: int) -> int:
        return 1000


@pytest.mark.parametrize(
    ("wanted", "gone"),
    [(0, 0), (1000, 0), (1001, 1), (1100, 1), (1101, 2), (1 << 40, 4)],
)
def test_retention_by_free_space_deletes_what_is_missing(
    tmp_path: Path, wanted: int, gone: int
) -> None:
    """Sealed segments go until `wanted` bytes are free; the active one never."""
    with open_store(tmp_path, _files=SmallDisk()) as store:
        partition = segmented(store, [1] * 5)
        store.topic("orders").apply_retention(policies=[RetainFreeSpace(wanted)])
        assert partition.start_offset == gone


def test_retention_by_free_space_counts_what_waits_for_deletion(tmp_path: Path) -> None:
    """Files that still exist for readers are not counted a second time."""
    with open_store(tmp_path, _files=SmallDisk()) as store:
        partition = segmented(store, [1] * 5, file_delete_delay_ms=60_000)
        for _ in range(3):
            store.topic("orders").apply_retention(policies=[RetainFreeSpace(1150)])
            assert partition.start_offset == 2


# ---------------------------------------------------------------- delete_before


@few_formats
def test_delete_before_is_exact_at_every_offset(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The start is exactly the requested offset, even inside batches; files are removed
    when all their records are below; a reopened store keeps it."""
    store = open_store(tmp_path, _files=Unsynced())
    partition = new_partition(
        store, magic, codec, segment_bytes=600, file_delete_delay_ms=0
    )
    fill(partition, 40)
    for start in range(41):
        assert partition.delete_before(start) == start
        assert partition.start_offset == start
        assert list(partition.read()) == expected(magic, start, 40)
        assert list(partition.read(start)) == expected(magic, start, 40)
        if start:
            with pytest.raises(logstore.OffsetOutOfRangeError):
                partition.read(start - 1)
        assert partition.segments[0].base_offset <= start
        assert len(partition.segments) == 1 or partition.segments[0].next_offset > start
        assert len(logs_in(tmp_path / "orders-0")) == len(partition.segments)
        assert read_all(tmp_path) == expected(magic, start, 40)
        if start % 9 == 4:
            store.close()
            store = logstore.open(tmp_path)
            assert not store.recovery_report
            partition = store.topic("orders")[0]
            assert partition.start_offset == start
    assert append_one(partition) == 40
    store.close()
    assert read_all(tmp_path) == expected(magic, 40, 41)


@pytest.mark.parametrize("bad", [-1, 9, 31, 1 << 62])
def test_delete_before_out_of_range_raises(tmp_path: Path, bad: int) -> None:
    """The start only moves forward, and not past the end."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 30)
        partition.delete_before(10)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            partition.delete_before(bad)
        assert partition.start_offset == 10


@every_magic
@pytest.mark.parametrize("start", [1, 7, 20, 30])
def test_delete_before_survives_a_crash(tmp_path: Path, magic: int, start: int) -> None:
    """Deleted records do not come back."""
    with logstore.open(tmp_path / "live") as store:
        partition = new_partition(store, magic, segment_bytes=400)
        fill(partition, 30)
        partition.delete_before(start)
        crash(tmp_path / "live", tmp_path / "killed")
        append_one(partition)
        crash(tmp_path / "live", tmp_path / "later")
    for name, end in (("killed", 30), ("later", 31)):
        assert read_all(tmp_path / name) == expected(magic, start, end)
        with logstore.open(tmp_path / name) as store:
            partition = store.topic("orders")[0]
            assert (partition.start_offset, partition.end_offset) == (start, end)
            assert list(partition.read()) == expected(magic, start, end)


def test_deleted_files_are_renamed_at_once_and_removed_after_the_delay(
    tmp_path: Path,
) -> None:
    """They keep their names with a suffix until the delay is over."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=300, file_delete_delay_ms=150)
        fill(partition, 40)
        names = {p.name for p in logs_in(tmp_path / "orders-0")}
        partition.delete_before(35)
        kept = {p.name for p in logs_in(tmp_path / "orders-0")}
        waiting = {p.name for p in (tmp_path / "orders-0").glob("*.log.deleted")}
        assert waiting <= {f"{name}.deleted" for name in names - kept}
        assert kept == {Path(s.path).name for s in partition.segments}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not list((tmp_path / "orders-0").glob("*.deleted")):
                break
            time.sleep(0.01)
        assert not list((tmp_path / "orders-0").glob("*.deleted"))
        assert list(partition.read()) == expected(1, 35, 40)


def test_files_that_wait_for_deletion_go_at_a_later_opening(tmp_path: Path) -> None:
    """A process that ended before the delay was over leaves them to the next."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=300)
        fill(partition, 40)
        partition.delete_before(35)
        assert list((tmp_path / "orders-0").glob("*.deleted"))
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert not store.recovery_report
        assert list(partition.read()) == expected(1, 35, 40)


# ---------------------------------------------------------------- truncate_to


@few_formats
@pytest.mark.parametrize("call", [1, 5])
def test_truncate_to_any_offset(
    tmp_path: Path, magic: int, codec: str, call: int
) -> None:
    """At the begin of a batch everything from there is removed; inside a batch the call
    is refused with the two nearest offsets, and nothing changes."""
    for target in (0, 1, 5, 14, 15, 29, 30):
        path = tmp_path / str(target)
        with open_store(path, _files=Unsynced()) as store:
            partition = new_partition(store, magic, codec, segment_bytes=500)
            fill(partition, 30, call=call)
            starts = {b.base_offset for b in partition.read_batches()} | {30}
            if target not in starts:
                with pytest.raises(logstore.errors.UnsupportedError) as caught:
                    partition.truncate_to(target)
                low = max(s for s in starts if s < target)
                high = min(s for s in starts if s > target)
                assert str(low) in str(caught.value)
                assert str(high) in str(caught.value)
                assert caught.value.offset == target
                assert list(partition.read()) == expected(magic, 0, 30)
                continue
            assert partition.truncate_to(target) == target
            assert partition.end_offset == target
            assert partition.durable_offset <= target
            assert list(partition.read()) == expected(magic, 0, target)
            assert read_all(path) == expected(magic, 0, target)
            fill(partition, 10)
            records = expected(magic, 0, target + 10)
            for start in range(target + 11):
                assert list(partition.read(start)) == records[start:]
        with logstore.open(path) as store:
            assert not store.recovery_report
            partition = store.topic("orders")[0]
            assert list(partition.read()) == expected(magic, 0, target + 10)


def compacted(path: Path, magic: int, codec: str, layout: str) -> list[int]:
    """A broker's log, a batch for each record, with a gap at 3 to 6: in a segment,
    before one, within its offsets, or with nothing before it. Returns its offsets."""
    write_store(path, 9, magic, codec, call=1)
    directory = foreign(path)
    (log,) = logs_in(directory)
    data, found = log.read_bytes(), frames(log)
    head, tail = data[: found[3].pos], data[found[7].pos :]
    if layout == "two segments":
        log.write_bytes(head)
        (directory / f"{5:020d}.log").write_bytes(tail)
    else:
        log.write_bytes(tail if layout == "at the start" else head + tail)
    for index in directory.glob("*index"):
        index.unlink()
    return [7, 8] if layout == "at the start" else [0, 1, 2, 7, 8]


def in_all_ways(partition: logstore.Partition) -> list[list[int]]:
    """Return the offsets that each of six ways to read returns."""
    fetched, offset = [], partition.start_offset
    while chunk := [record.offset for record in partition.fetch(offset)]:
        fetched += chunk
        offset = chunk[-1] + 1
    return [
        fetched,
        [record.offset for record in partition.read()],
        [record.offset for record in partition.read(isolation="read_committed")],
        [record.offset for record in partition.follow(timeout=0)],
        [record.offset for batch in partition.read_batches() for record in batch],
        partition.read_arrow().read_all().column("offset").to_pylist(),
    ]


@pytest.mark.sampled(10)
@few_formats
@pytest.mark.parametrize("layout", ["one segment", "two segments", "at the start"])
@pytest.mark.parametrize("appends", [True, False], ids=["append", "reopen"])
def test_log_that_was_cut_in_a_gap_goes_on_where_it_was_cut(
    tmp_path: Path, magic: int, codec: str, layout: str, appends: bool
) -> None:
    """The next offset is the offset of the cut, not the one after the last remaining
    record: all ways to append agree on that, and so does the next opening. The missing
    offsets between the two are no damage, even before the next append."""
    for target in (3, 4, 5, 6, 7, 8):
        path = tmp_path / str(target)
        offsets = compacted(path, magic, codec, layout)
        offsets = [offset for offset in offsets if offset < target]
        with open_store(path, _files=Unsynced()) as store:
            topic = store.topic("orders")
            topic.configure(config_of(magic, codec))
            partition = topic[0]
            assert partition.truncate_to(target) == target
            assert partition.end_offset == target
            assert in_all_ways(partition) == [offsets] * 6
            assert partition.offset_for_time(1 << 50) is None
            with logstore.open(path, read_only=True) as reading:
                assert reading.topic("orders")[0].end_offset == target
                assert in_all_ways(reading.topic("orders")[0]) == [offsets] * 6
            if appends:
                assert append_one(partition) == target
                assert append_records(partition, 2) == range(target + 1, target + 3)
                assert append_one(partition) == target + 3
                offsets += range(target, target + 4)
                assert in_all_ways(partition) == [offsets] * 6
        with logstore.open(path) as store:
            assert not store.recovery_report
            partition = store.topic("orders")[0]
            assert partition.end_offset == target + 4 * appends
            assert in_all_ways(partition) == [offsets] * 6
            assert append_one(partition) == target + 4 * appends
        offsets.append(target + 4 * appends)
        assert read_all(path) == [record_of(offset, magic) for offset in offsets]
        assert logstore.verify(path).ok


@pytest.mark.parametrize("layout", ["one segment", "two segments", "at the start"])
def test_cut_in_a_gap_that_is_cut_short_leaves_a_log_that_can_be_read(
    tmp_path: Path, layout: str
) -> None:
    """Killed before any of its calls that change something: the old log, or the rest of
    it, and never one that ends in apparent damage."""
    path = tmp_path / "store"
    old = compacted(path, 1, "none", layout)
    new = [offset for offset in old if offset < 6]
    files, copies = FaultyFiles(), 0

    def copy(method: str, name: str) -> None:
        nonlocal copies
        if method in ("create", "rename", "truncate", "unlink", "write"):
            crash(path, tmp_path / str(copies))
            copies += 1

    with open_store(path, _files=files) as store:
        partition = store.topic("orders")[0]
        files.before = copy
        partition.truncate_to(6)
        files.before = None
    assert copies > 5
    for number in range(copies):
        with logstore.open(tmp_path / str(number), read_only=True) as store:
            assert in_all_ways(store.topic("orders")[0])[0] in (old, new)
        with logstore.open(tmp_path / str(number)) as store:
            partition = store.topic("orders")[0]
            ways = in_all_ways(partition)
            assert ways == [ways[0]] * 6
            assert ways[0] in (old, new)
            end = append_one(partition)
            assert in_all_ways(partition) == [[*ways[0], end]] * 6


@every_magic
def test_cut_in_a_gap_ends_before_it_where_no_segment_can_begin(
    tmp_path: Path, magic: int
) -> None:
    """The disk has no room for the file: the log is cut nevertheless, and the call
    returns its end."""
    compacted(tmp_path, magic, "none", "one segment")
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = store.topic("orders")[0]
        files.fail("create", errno.ENOSPC, name=".log", times=1)
        assert partition.truncate_to(5) == partition.end_offset == 3
        assert in_all_ways(partition) == [[0, 1, 2]] * 6
        assert append_one(partition) == 3
        assert partition.end_offset == 4
    assert [record.offset for record in read_all(tmp_path)] == [0, 1, 2, 3]


def test_cut_in_a_gap_moves_no_start(tmp_path: Path) -> None:
    """A log that starts in the gap still does so after the cut."""
    compacted(tmp_path, 1, "none", "one segment")
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = store.topic("orders")[0]
        partition.delete_before(4)
        assert partition.truncate_to(6) == 6
        assert partition.start_offset == 4
        assert in_all_ways(partition) == [[]] * 6
        assert append_one(partition) == 6
    with logstore.open(tmp_path) as store:
        assert store.topic("orders")[0].start_offset == 4
        assert in_all_ways(store.topic("orders")[0]) == [[6]] * 6


@pytest.mark.parametrize("bad", [-1, 4, 31, 1 << 62])
def test_truncate_out_of_range_raises(tmp_path: Path, bad: int) -> None:
    """Only a readable offset can be truncated to."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 30)
        partition.delete_before(5)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            partition.truncate_to(bad)
        assert list(partition.read()) == expected(1, 5, 30)


def test_truncate_to_the_end_changes_nothing(tmp_path: Path) -> None:
    """There is nothing to drop."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 30)
        assert partition.truncate_to(30) == 30
        assert list(partition.read()) == expected(1, 0, 30)


@every_magic
def test_truncate_survives_a_crash(tmp_path: Path, magic: int) -> None:
    """Dropped records do not come back, and later ones are there."""
    with logstore.open(tmp_path / "live") as store:
        partition = new_partition(store, magic, segment_bytes=400)
        fill(partition, 40)
        partition.truncate_to(15)
        crash(tmp_path / "live", tmp_path / "killed")
        fill(partition, 10, seed=1)
        crash(tmp_path / "live", tmp_path / "later")
    want = expected(magic, 0, 15)
    for name in ("killed", "later"):
        assert read_all(tmp_path / name) == want
        with logstore.open(tmp_path / name) as store:
            assert list(store.topic("orders")[0].read()) == want
        want = want + expected(magic, 15, 25, seed=1)


def test_truncate_corrects_time_lookups(tmp_path: Path) -> None:
    """Neither the index nor the largest timestamp covers removed records."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, index_interval_bytes=0)
        for stamp in (100, 200, 900, 300):
            partition.append(b"v", timestamp_ms=stamp)
        partition.truncate_to(2)
        assert partition.offset_for_time(150) == 1
        assert partition.offset_for_time(201) is None
        assert partition.segments[0].max_timestamp_ms == 200
        partition.append(b"v", timestamp_ms=400)
        assert partition.offset_for_time(201) == 2
        assert partition.offset_for_time(401) is None
    assert frames(logs_in(tmp_path / "orders-0")[0])[-1].offset == 2


def test_truncate_after_delete_before_keeps_the_start(tmp_path: Path) -> None:
    """The log is truncated down to the start, not below."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=300)
        fill(partition, 30, call=1)
        partition.delete_before(12)
        partition.truncate_to(12)
        assert (partition.start_offset, partition.end_offset) == (12, 12)
        assert append_one(partition) == 12
        assert list(partition.read()) == expected(1, 12, 13)


def test_retention_uses_the_stores_clock(tmp_path: Path) -> None:
    """The default of now_ms is the time of the store."""
    clock = FixedClock(1000)
    with open_store(tmp_path, _files=clock) as store:
        segmented(store, [100, 200], retention_ms=1000)
        assert store.topic("orders").apply_retention() == []
        clock.now = 1101
        assert len(store.topic("orders").apply_retention()) == 1


def test_topic_that_is_deleted_while_its_retention_is_applied_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer may delete it: the error names the topic, not a directory that is
    gone."""
    free_bytes = PartitionWriter.free_bytes

    def after_deletion(self: PartitionWriter) -> int:
        store.delete_topic(partition.topic)
        assert not list(tmp_path.glob("orders-0*"))
        return free_bytes(self)

    with logstore.open(tmp_path) as store:
        partition = new_partition(store, file_delete_delay_ms=0)
        partition.append(b"x")
        monkeypatch.setattr(PartitionWriter, "free_bytes", after_deletion)
        with pytest.raises(logstore.TopicNotFoundError):
            partition.apply_retention(policies=[RetainFreeSpace(1)])
