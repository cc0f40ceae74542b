"""`Partition.compact` and `Store.compact`: effects, refusals, and reports."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    DiskFullError,
    Partition,
    Store,
    StoreConfig,
    TopicConfig,
    TopicPartition,
)
from logstore import _native as native
from logstore.errors import InvalidRecordError
from logstore.log.compact import compactor
from support.compacting import (
    COMMIT,
    TIME_MS,
    Item,
    batch2,
    marker,
    messages,
)
from support.damage import FaultyFiles, FixedClock, FullDisk

SETTINGS: dict[str, Any] = {
    "cleanup_policy": "compact",
    "message_format": 2,
    "segment_bytes": 500,
    "file_delete_delay_ms": 0,
    "delete_retention_ms": 1000,
}


Segments = Callable[..., AbstractContextManager[Partition]]


def topic(store: Store, name: str = "t", **settings: Any) -> Partition:
    config = TopicConfig(**{**SETTINGS, **settings})
    return store.create_topic(name, config=config)[0]


def write(partition: Partition, count: int = 40, keys: int = 5) -> dict[bytes, bytes]:
    values = {}
    for number in range(count):
        key, value = b"k%d" % (number % keys), b"%d" % number
        partition.append(value, key)
        values[key] = value
    partition.roll()
    return values


def values(partition: Partition) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in partition.read()}


def checkpoint(store: Path) -> str:
    return (store / "cleaner-offset-checkpoint").read_text()


def test_report_says_what_was_done(tmp_path: Path) -> None:
    """Kafka's cleaner checkpoint gets the end offset of the compaction."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        wanted = write(partition)
        before = sum(s.size_bytes for s in partition.segments)
        planned = partition.compact(dry_run=True)
        assert not (tmp_path / "cleaner-offset-checkpoint").exists()
        report = partition.compact()
        assert report._replace(memory=0) == planned._replace(memory=0)
        assert (report.before, report.removed, report.tombstones) == (before, 35, 0)
        assert report.after == sum(s.size_bytes for s in partition.segments)
        assert report.dirty_ratio == 1.0
        assert report.segments > 1
        assert 0 < report.memory < 4 << 20
        assert values(partition) == wanted
        assert checkpoint(tmp_path) == "0\n1\nt 0 40\n"
        # Nothing is dirty now.
        assert partition.compact().removed == 0


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_empty_log_has_nothing_to_compact(
    tmp_path: Path, force: bool, dry_run: bool
) -> None:
    """A read-only store reports the same."""
    with logstore.open(tmp_path) as store:
        topic(store)
        report = store.topic("t")[0].compact(force=force, dry_run=dry_run)
        assert (report.before, report.removed, report.segments) == (0, 0, 0)
    with logstore.open(tmp_path, read_only=True) as reader:
        assert reader.topic("t")[0].compact(force=force, dry_run=True).removed == 0


def test_clean_part_is_compacted_by_the_dirty_one(tmp_path: Path) -> None:
    """The ratio must be exceeded, or the compaction forced."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        write(partition, 100, 100)
        partition.compact()
        partition.append(b"new", b"k7")
        partition.roll()
        small = partition.compact()
        assert (small.removed, small.segments) == (0, 0)
        assert 0 < small.dirty_ratio < 0.5
        assert partition.compact(force=True).removed == 1
        assert len(list(partition.read())) == 100


def test_many_keys_take_several_passes(tmp_path: Path) -> None:
    """The smallest map has room for 300,000 of them; a dry run counts each record
    once."""
    with logstore.open(tmp_path) as store:
        partition = topic(store, segment_bytes=4 << 20)
        keys = [b"%08d" % number for number in range(400_000)]
        partition.append_many([b"1"] * len(keys), keys)
        partition.append_many([b"2"] * len(keys), keys)
        partition.roll()
        steps: list[int] = []
        planned = partition.compact(dry_run=True, max_memory=compactor.MEMORY_MIN)
        report = partition.compact(
            max_memory=compactor.MEMORY_MIN,
            on_progress=lambda progress: steps.append(progress.removed),
        )
        assert planned.removed == report.removed == len(keys)
        assert steps == sorted(steps)
        assert report.memory <= compactor.MEMORY_MIN
        assert [r.value for r in partition.read()] == [b"2"] * len(keys)


@pytest.mark.parametrize(
    ("compression", "value", "times"),
    [("none", bytes(20 << 20), 1), ("gzip", bytes(20 << 20), 1),
     ("lz4", os.urandom(20 << 20), 3)],
    ids=["none", "gzip", "incompressible"],
)  # fmt: skip
def test_report_has_the_memory_of_large_batches(
    tmp_path: Path, compression: str, value: bytes, times: int
) -> None:
    """The report adds to `max_memory` the batch, and for a compressed batch a copy and
    its decompressed records. Unused parts of a buffer do not count."""
    with logstore.open(tmp_path) as store:
        partition = topic(
            store,
            compression_type=compression,
            max_message_bytes=64 << 20,
            segment_bytes=1 << 20,
        )
        partition.append_many([value, b"1"], [b"k", b"z"])
        partition.append(b"2", b"k")
        partition.roll()
        report = partition.compact(max_memory=compactor.MEMORY_MIN)
        assert times * len(value) < report.memory < (times * 20 + 5) << 20
        assert values(partition) == {b"z": b"1", b"k": b"2"}


def test_dry_run_ends_with_more_keys_than_have_room(tmp_path: Path) -> None:
    """Each key occurs once: no class of keys is much smaller than its share of the
    offsets."""
    with logstore.open(tmp_path) as store:
        partition = topic(store, segment_bytes=4 << 20)
        keys = [b"%08d" % number for number in range(400_000)]
        partition.append_many([b"1"] * len(keys), keys)
        partition.roll()
        planned = partition.compact(dry_run=True, max_memory=compactor.MEMORY_MIN)
        assert planned.removed == 0
        assert planned.memory <= compactor.MEMORY_MIN


@pytest.fixture
def with_segments_at(tmp_path: Path) -> Segments:
    """A log of segments with a record each, all of one key; the last one is active."""

    @contextmanager
    def made(*bases: int) -> Iterator[Partition]:
        folder = tmp_path / "t-0"
        folder.mkdir()
        for base in bases:
            data = batch2([Item(base, b"k", b"v", TIME_MS)]).data
            (folder / f"{base:020d}.log").write_bytes(data)
        with logstore.open(tmp_path) as store:
            store.topic("t").configure(TopicConfig(**SETTINGS))
            yield store.topic("t")[0]

    return made


def test_more_offsets_than_a_map_knows(
    with_segments_at: Segments,
) -> None:
    """The log is compacted in several passes; a dry run would need one."""
    far = native.MAP_OFFSETS_MAX
    with with_segments_at(0, far // 2, far, far + 1) as partition:
        with pytest.raises(
            logstore.errors.UnsupportedError, match=r"4294967295 offsets; in t-0"
        ):
            partition.compact(dry_run=True)
        assert partition.compact().removed == 2
        assert [record.offset for record in partition.read()] == [far, far + 1]


def test_as_many_offsets_as_a_map_knows(
    with_segments_at: Segments,
) -> None:
    far = native.MAP_OFFSETS_MAX - 1
    with with_segments_at(0, far // 2, far, far + 1) as partition:
        assert partition.compact(dry_run=True).removed == 2
        assert partition.compact().removed == 2
        assert [record.offset for record in partition.read()] == [far, far + 1]


def test_tombstone_goes_after_its_time(tmp_path: Path) -> None:
    """The delay begins at its first compaction; a clock that jumps ahead before that
    does not remove it."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        partition.append(b"1", b"a")
        partition.append(None, b"a")
        partition.append(b"1", b"b")
        partition.roll()
        now = TIME_MS + 10**9
        first = partition.compact(now_ms=now)
        assert (first.removed, first.tombstones) == (1, 0)
        batch = next(iter(partition.read_batches()))
        assert batch.delete_horizon_ms == now + 1000
        assert partition.compact(force=True, now_ms=now + 999).removed == 0
        last = partition.compact(force=True, now_ms=now + 1000)
        assert (last.removed, last.tombstones) == (1, 1)
        assert values(partition) == {b"b": b"1"}


def test_old_tombstones_go_by_the_times_of_the_files(tmp_path: Path) -> None:
    """Magic 1 has no delete horizon: the last clean segment must be younger by the
    delay."""
    import os

    items = [Item(n, b"k%d" % n, None, TIME_MS) for n in range(2)]
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base, item in enumerate(items):
        (directory / f"{base:020d}.log").write_bytes(messages([item], 1)[0].data)
    (directory / f"{2:020d}.log").write_bytes(b"")
    for base, age in ((0, 5000), (1, 0)):
        for path in directory.glob(f"{base:020d}*"):
            os.utime(path, ((TIME_MS - age) / 1000,) * 2)
    with logstore.open(tmp_path) as store:
        found = store.topic("t")
        found.configure(TopicConfig(**{**SETTINGS, "segment_bytes": 14}))
        assert found[0].compact().removed == 0
        report = found[0].compact(force=True)
        assert (report.removed, report.tombstones) == (1, 1)
        assert values(found[0]) == {b"k1": None}


def test_open_transaction_ends_the_compaction_before_it(tmp_path: Path) -> None:
    """The transaction's segment, and all segments after it, stay unchanged."""

    def put(base: int, *batches: Any) -> None:
        path = tmp_path / "t-0" / f"{base:020d}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(batch.data for batch in batches))

    put(0, batch2([Item(0, b"a", b"1", 1)]), batch2([Item(1, b"a", b"2", 1)]))
    put(2, batch2([Item(2, b"a", b"3", 1)], producer=(9, 0, 0), attributes=0x10))
    put(3, batch2([Item(3, b"a", b"4", 1)]))
    put(4)
    with logstore.open(tmp_path) as store:
        found = store.topic("t")
        found.configure(TopicConfig(**{**SETTINGS, "segment_bytes": 100}))
        assert found[0].compact().removed == 1
        assert [r.offset for r in found[0].read()] == [1, 2, 3]
        assert checkpoint(tmp_path) == "0\n1\nt 0 2\n"


def test_committed_data_stays_across_groups_and_rounds(tmp_path: Path) -> None:
    """The marker is in another group than the data, and the data in the clean part."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    data = batch2([Item(0, b"a", b"1", 1)], producer=(9, 0, 0), attributes=0x10)
    (directory / f"{0:020d}.log").write_bytes(data.data)
    end = marker(1, 9, 0, COMMIT, TIME_MS)
    (directory / f"{1:020d}.log").write_bytes(end.data)
    (directory / f"{2:020d}.log").write_bytes(b"")
    with logstore.open(tmp_path) as store:
        found = store.topic("t")
        found.configure(TopicConfig(**{**SETTINGS, "segment_bytes": 100}))
        for _ in range(3):
            found[0].compact(force=True)
            records = found[0].read(isolation="read_committed")
            assert [r.value for r in records] == [b"1"]


def test_truncation_lowers_the_checkpoint(tmp_path: Path) -> None:
    """Records appended from there on are dirty."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        write(partition)
        partition.compact()
        last = list(partition.read())[-1].offset
        partition.truncate_to(last)
        assert checkpoint(tmp_path) == f"0\n1\nt 0 {last}\n"
        partition.append(b"x", b"k0")
        partition.append(b"y", b"k0")
        partition.roll()
        partition.compact(force=True)
        assert values(partition)[b"k0"] == b"y"
        assert sum(r.key == b"k0" for r in partition.read()) == 1


def test_deleted_topic_leaves_the_checkpoint(tmp_path: Path) -> None:
    """Another topic of its name begins without one."""
    with logstore.open(tmp_path) as store:
        write(topic(store))
        write(topic(store, "u"))
        assert store.compact().keys() == {
            TopicPartition("t", 0),
            TopicPartition("u", 0),
        }
        store.delete_topic("t")
        assert checkpoint(tmp_path) == "0\n1\nu 0 40\n"


def test_damaged_checkpoint_counts_as_empty(tmp_path: Path) -> None:
    """The whole log is compacted again."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        write(partition)
        partition.compact()
        (tmp_path / "cleaner-offset-checkpoint").write_bytes(b"\xff\n")
        assert partition.compact().dirty_ratio == 1.0
        assert checkpoint(tmp_path) == "0\n1\nt 0 40\n"


def test_topic_that_is_not_compacted_refuses(tmp_path: Path) -> None:
    """The store skips it."""
    with logstore.open(tmp_path) as store:
        partition = topic(store, cleanup_policy="delete")
        with pytest.raises(ConfigError, match="without 'compact'"):
            partition.compact()
        assert store.compact() == {}


@pytest.mark.parametrize(
    "given", [{"max_memory": 100}, {"max_bytes_per_s": 0}, {"max_memory": "much"}]
)
def test_bad_option_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    """The error comes before any change."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        with pytest.raises(ConfigError):
            partition.compact(**given)


def test_read_only_store_refuses(tmp_path: Path) -> None:
    """It changes nothing, and reports the changes that a compaction would make."""
    with logstore.open(tmp_path) as store:
        write(topic(store))
    with logstore.open(tmp_path, read_only=True) as store:
        with pytest.raises(logstore.errors.ReadOnlyError):
            store.topic("t")[0].compact()
        with pytest.raises(logstore.errors.ReadOnlyError):
            store.compact()
        report = store.compact(dry_run=True)[TopicPartition("t", 0)]
        assert report == store.topic("t")[0].compact(dry_run=True)
        assert report.removed == 35


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("magic", [1, 2])
def test_record_without_key_is_refused(tmp_path: Path, magic: int, codec: str) -> None:
    """Each way of writing refuses it; an empty key is accepted."""
    with logstore.open(tmp_path) as store:
        partition = topic(store, message_format=magic, compression_type=codec)
        plain = topic(store, "plain", cleanup_policy="delete", message_format=magic)
        keyless = [messages([Item(0, None, b"v", 1)], 1)[0].data]
        if magic == 2:
            keyless = [
                batch2([Item(0, b"k", b"", 1), Item(1, None, b"", 1)], codec=one).data
                for one in ("none", "zstd")
            ]
        for _ in range(2):
            with pytest.raises(InvalidRecordError) as caught:
                partition.append(b"v")
            assert caught.value.index == 0
            with pytest.raises(InvalidRecordError) as caught:
                partition.append_many([b"1", b"2"], [b"k", None])
            assert caught.value.index == 1
            with pytest.raises(InvalidRecordError):
                partition.append_many([b"1"])
            for data in keyless:
                with pytest.raises(InvalidRecordError):
                    partition.append_batches(data)
                plain.append_batches(data)
            with store.stage("id", 1) as stage, pytest.raises(InvalidRecordError):
                stage.append_many(partition, [b"v"])
            partition.append(b"v", b"")
            partition.append_many([b"1", b"2"], [b"", b"x"])
        assert len(list(partition.read())) == 6


def test_topic_that_becomes_compacted_refuses_from_then_on(tmp_path: Path) -> None:
    """The compaction removes its existing records without a key."""
    with logstore.open(tmp_path) as store:
        partition = topic(store, cleanup_policy="delete")
        partition.append(b"old")
        store.topic("t").configure(TopicConfig(**SETTINGS))
        with pytest.raises(InvalidRecordError):
            partition.append(b"new")
        partition.append(b"v", b"k")
        partition.roll()
        assert partition.compact().removed == 1


def test_full_disk_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    """The free space must exceed the size of the group by a tenth."""
    files = FullDisk()
    with logstore.store.opening.open_store(tmp_path, _files=files) as store:
        partition = topic(store)
        wanted = write(partition)
        names = set((tmp_path / "t-0").iterdir())
        files.full = True
        with pytest.raises(DiskFullError, match="may take"):
            partition.compact()
        assert set((tmp_path / "t-0").iterdir()) == names
        files.full = False
        partition.compact()
        assert values(partition) == wanted


def test_damaged_batch_ends_the_compaction(tmp_path: Path) -> None:
    """The log stays unchanged."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        write(partition)
        path = Path(partition.segments[1].path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.CorruptRecordError):
            store.topic("t")[0].compact()
        assert not list((tmp_path / "t-0").glob("*.cleaned"))
        assert path.read_bytes() == data


def test_store_compacts_by_itself(tmp_path: Path) -> None:
    """The store compacts every `compaction_ms`; the next call raises a failure."""
    config = StoreConfig(compaction_ms=10)
    with logstore.open(tmp_path, config=config) as store:
        partition = topic(store, min_cleanable_dirty_ratio=0.0)
        wanted = write(partition)
        for _ in range(1000):
            if len(list(partition.read())) == len(wanted):
                break
            time.sleep(0.01)
        assert values(partition) == wanted
        assert len(list(partition.read())) == len(wanted)
        # A segment that cannot be read.
        write(partition)
        damaged = Path(partition.segments[-2].path)
        data = bytearray(damaged.read_bytes())
        data[70] ^= 1
        damaged.write_bytes(data)

        def fail() -> None:
            for _ in range(1000):
                store.topics()
                time.sleep(0.01)

        with pytest.raises(logstore.CorruptRecordError, match="compaction of t-0"):
            fail()


@pytest.mark.parametrize(
    ("config", "expected"),
    [(StoreConfig(), True), (StoreConfig(compaction_ms=0), False)],
    ids=["default", "never"],
)
def test_compaction_is_on_by_default(
    tmp_path: Path, config: StoreConfig, expected: bool
) -> None:
    """A thread compacts topics that ask for it."""
    with logstore.open(tmp_path, config=config) as store:
        store.create_topic("plain")[0].append(b"v")
        assert not store._topics.compaction._has_begun
        topic(store).append(b"v", b"k")
        assert store._topics.compaction._has_begun is expected


def _are_small_in_time(logs: list[Path]) -> bool:
    """Whether the files become smaller than 200 bytes within ten seconds. Between two
    renames of a compaction a file has another name."""
    for _ in range(1000):
        with contextlib.suppress(FileNotFoundError):
            if all(log.stat().st_size < 200 for log in logs):
                return True
        time.sleep(0.01)
    return False


def test_damaged_partition_keeps_compaction_from_no_other(tmp_path: Path) -> None:
    """The other partitions are compacted, and the only error is that of the damaged
    one."""
    config = StoreConfig(compaction_ms=10)
    with logstore.open(tmp_path) as store:
        for name in ("a", "b", "c"):
            partition = topic(store, name, min_cleanable_dirty_ratio=0.0)
            partition.append_many([b"v"] * 50, [b"k"] * 50)
            partition.roll()
            partition.append(b"v", b"k")
    damaged = tmp_path / "a-0" / f"{0:020}.log"
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    store = logstore.open(tmp_path, config=config)
    try:
        # Not through the store: a call may raise the failure of the first round.
        firsts = [tmp_path / f"{name}-0" / damaged.name for name in ("b", "c")]
        assert _are_small_in_time(firsts)
        for _ in range(100):
            time.sleep(0.01)  # the rounds continue
        with pytest.raises(logstore.CorruptRecordError) as caught:
            store.topics()
        assert str(caught.value).count("in the background") == 1
        assert "compaction of a-0" in str(caught.value)
    finally:
        store.close()


def test_rate_is_limited(tmp_path: Path) -> None:
    """The compaction waits between two steps, by the clock of the store."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        wanted = write(partition)
        partition.compact(max_bytes_per_s=1 << 20)
        assert values(partition) == wanted


@pytest.mark.parametrize("by", ["repair", "opening"])
def test_log_that_became_shorter_without_the_store_lowers_the_checkpoint(
    tmp_path: Path, by: str
) -> None:
    """Records appended then are not compacted, though their offsets were."""
    with logstore.open(tmp_path) as store:
        partition = topic(store)
        write(partition, 40, 40)
        partition.compact()
        base = partition.segments[1].base_offset
        assert checkpoint(tmp_path) == "0\n1\nt 0 40\n"
    first = min((tmp_path / "t-0").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    before = checkpoint(tmp_path)
    logstore.repair(tmp_path, "cut", quarantine=tmp_path.parent / "kept")
    if by == "opening":
        # As if another program had cut it.
        (tmp_path / "cleaner-offset-checkpoint").write_text(before)
        with logstore.open(tmp_path) as store:
            end = store.topic("t")[0].end_offset
    else:
        with logstore.open(tmp_path, read_only=True) as store:
            end = store.topic("t")[0].end_offset
    assert 0 < end < base
    assert checkpoint(tmp_path) == f"0\n1\nt 0 {end}\n"


def test_partition_whose_checkpoint_cannot_be_read_is_loaded_once_it_can(
    tmp_path: Path,
) -> None:
    """Appends could end above the offset in it."""
    with logstore.open(tmp_path) as store:
        wanted = write(topic(store))
        partition_end = store.topic("t")[0].end_offset
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 99\n")
    files = FaultyFiles()
    with logstore.store.opening.open_store(tmp_path, _files=files) as store:
        files.fail("open", errno.EIO, name="cleaner-offset-checkpoint")
        with pytest.raises(logstore.StorageError, match="cleaner-offset-checkpoint"):
            store.topic("t")[0]
        files.heal()
        assert values(store.topic("t")[0]) == wanted
    assert checkpoint(tmp_path) == f"0\n1\nt 0 {partition_end}\n"


def test_clock_that_is_a_day_ahead_of_the_log_removes_no_tombstone(
    tmp_path: Path,
) -> None:
    """Its files show the time of the last write. An explicit time of the caller is
    used."""
    day_ms = 24 * 60 * 60 * 1000
    files = FixedClock(time.time_ns() // 1_000_000)
    with logstore.store.opening.open_store(tmp_path, _files=files) as store:
        partition = topic(store, delete_retention_ms=60_000)
        partition.append(b"1", b"a")
        partition.append(None, b"a")
        partition.roll()
        partition.append(b"1", b"b")
        assert partition.compact(force=True).removed == 1
        begun = files.now
        files.now = begun + 2 * day_ms
        assert partition.compact(force=True, dry_run=True).removed == 0
        assert partition.compact(force=True).removed == 0
        assert (
            partition.compact(force=True, dry_run=True, now_ms=files.now).removed == 1
        )
        files.now = begun + day_ms // 2
        assert partition.compact(force=True).tombstones == 1
        assert values(partition) == {b"b": b"1"}
