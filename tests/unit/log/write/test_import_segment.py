"""Staged files that become segments: the log equals one with their records copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore import CorruptRecordError, Partition, StorageError, Store, StoreConfig
from logstore.io import layout
from logstore.log.write import import_segment as adoption
from logstore.log.write import staging
from logstore.log.write.writer import PartitionWriter
from logstore.maintenance.verify import verify
from logstore.types import Staged
from support.adopting import adopting
from support.disk import MemoryDisk
from support.values import FORMATS, config_of, expected, fill, key_of, value_of

MAGIC_2 = [codec for magic, codec in FORMATS if magic == 2]


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    with adopting():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with logstore.open(tmp_path / "store") as opened:
        yield opened


def stage(store: Store, partition: Partition, counts: list[int]) -> Staged:
    """Stage batches with these counts of records, from the partition's next record
    on."""
    first = partition.end_offset
    with store.stage("test", 1) as opened:
        for count in counts:
            offsets = range(first, first + count)
            opened.append_many(
                partition,
                [value_of(o) for o in offsets],
                [key_of(o) for o in offsets],
                [1_700_000_000_000 + o for o in offsets],
            )
            first += count
        return opened.finish()


def inodes(directory: str) -> set[int]:
    return {entry.inode() for entry in os.scandir(directory)}


def values(partition: Partition) -> list[Any]:
    return [(r.offset, r.value, r.key) for r in partition.read()]


def wanted(end: int) -> list[Any]:
    return [(o, value_of(o), key_of(o)) for o in range(end)]


@pytest.mark.parametrize("codec", MAGIC_2)
@pytest.mark.parametrize("before", [0, 5])
def test_the_file_itself_becomes_a_segment(
    store: Store, codec: str, before: int
) -> None:
    """After existing records, in a new segment; with the indexes that the same records
    would have if they had been appended."""
    config = config_of(2, codec, index_interval_bytes=50)
    topic = store.create_topic("a", 2, config)
    for partition in topic:
        fill(partition, before)
    staged = stage(store, topic[0], [7, 1, 30, 2])
    inode = os.stat(Path(store.path, staged.files[0])).st_ino
    store.publish([staged])
    assert inode in inodes(topic[0].path)
    assert not os.path.exists(Path(store.path, staged.files[0]))
    assert values(topic[0])[before:] == wanted(before + 40)[before:]
    base = f"{before:020}"
    assert len(topic[0].segments) == (2 if before else 1)

    if before:
        topic[1].roll()
    first = before
    for count in (7, 1, 30, 2):
        offsets = range(first, first + count)
        topic[1].append_many(
            [value_of(o) for o in offsets],
            [key_of(o) for o in offsets],
            [1_700_000_000_000 + o for o in offsets],
        )
        first += count
    store.close()
    for suffix in (".log", ".index", ".timeindex"):
        adopted, appended = (
            Path(store.path, f"a-{n}", base + suffix).read_bytes() for n in range(2)
        )
        assert adopted == appended, suffix
    assert verify(store.path, deep=True).ok


def test_appends_and_more_files_follow(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(2, segment_bytes=2000))[0]
    for _ in range(3):
        store.publish([stage(store, partition, [20])])
        end = partition.end_offset
        partition.append(value_of(end), key_of(end))
    assert values(partition) == wanted(63)
    assert partition.durable_offset >= 62
    with logstore.open(store.path, read_only=True) as reader:
        assert values(reader.topic("a")[0]) == wanted(63)
    store.close()
    with logstore.open(store.path) as again:
        assert not again.recover()
        assert values(again.topic("a")[0]) == wanted(63)


def test_many_records_fill_several_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is larger than a segment may be."""
    monkeypatch.setattr(staging, "_DIRECT_BYTES", 1)
    partition = store.create_topic("a", 1, config_of(2, segment_bytes=1000))[0]
    staged = stage(store, partition, [10] * 40)
    assert len(staged.files) > 5
    assert {log.first for log in staged.logs} > {0}
    paths = [Path(store.path, name) for name in staged.files]
    taken = {path.stat().st_ino for path in paths}
    assert max(path.stat().st_size for path in paths) <= 1000
    store.publish([staged])
    assert taken <= inodes(partition.path)
    assert values(partition) == wanted(400)
    assert verify(store.path, deep=True).ok


def test_what_is_small_at_first_moves_into_a_file_of_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "OWN_FILE_BYTES", 300)
    monkeypatch.setattr(staging, "_DIRECT_BYTES", 1)
    topic = store.create_topic("a", 2, config_of(2))
    with store.stage() as opened:
        for o in range(50):
            opened.append_many(topic[0], [value_of(o)], [key_of(o)])
        opened.append_many(topic[1], [value_of(0)], [key_of(0)])
        staged = opened.finish()
    assert [log.is_alone for log in staged.logs] == [True, False]
    store.publish([staged])
    assert values(topic[0]) == wanted(50)
    assert values(topic[1]) == wanted(1)


def test_more_than_so_many_files_share_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_OWN_FILES_MAX", 3)
    topic = store.create_topic("a", 6, config_of(2))
    with store.stage() as opened:
        for partition in topic:
            opened.append_many(partition, [value_of(0)], [key_of(0)])
        staged = opened.finish()
    assert sum(log.is_alone for log in staged.logs) == 3
    assert len(staged.files) == 4
    store.publish([staged])
    assert [values(p) for p in topic] == [wanted(1)] * 6
    assert not [n for n in os.listdir(store.path) if "staged" in n]


def test_large_files_are_on_their_way_to_the_disk_while_they_are_staged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of each file except its end is written back, one range after the other."""
    monkeypatch.setattr(staging, "_WRITE_BACK_BYTES", 300)
    monkeypatch.setattr(staging, "_DIRECT_BYTES", 1)
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(
        store._context.files,
        "write_back",
        lambda fd, pos, size: begun.append((pos, size)),
    )
    partition = store.create_topic("a", 1, config_of(2))[0]
    staged = stage(store, partition, [3] * 30)
    ends = [pos + size for pos, size in begun]
    assert [0, *ends][:-1] == [pos for pos, _ in begun]
    assert 0 <= staged.logs[0].bytes - ends[-1] < 300


def test_small_batches_are_copied(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication would have to write the offset into each of them."""
    monkeypatch.setattr(adoption, "BATCH_BYTES_MIN", 1000)
    partition = store.create_topic("a", 1, config_of(2))[0]
    staged = stage(store, partition, [1] * 20)
    inode = os.stat(Path(store.path, staged.files[0])).st_ino
    store.publish([staged])
    assert inode not in inodes(partition.path)
    assert values(partition) == wanted(20)


def test_reader_in_another_process_that_waits_at_an_empty_log_sees_it(
    store: Store,
) -> None:
    """It knows the empty file that the staged one replaces."""
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 3)
    partition.roll()
    with logstore.open(store.path, read_only=True) as reader:
        other = reader.topic("a")[0]
        assert len(list(other.read())) == 3
        store.publish([stage(store, partition, [10])])
        assert values(other)[3:] == wanted(13)[3:]
        partition.append(value_of(13), key_of(13))
        assert values(other)[3:] == wanted(14)[3:]


def test_what_the_group_may_do_is_said_of_the_file(tmp_path: Path) -> None:
    config = StoreConfig(group_access=True)
    with logstore.open(tmp_path / "store", config=config) as store:
        partition = store.create_topic("a", 1, config_of(2))[0]
        with logstore.open(store.path, read_only=True) as reader:
            staged = stage(reader, reader.topic("a")[0], [3])
        store.publish([staged])
        assert os.stat(partition.segments[0].path).st_mode & 0o777 == 0o640


@pytest.mark.parametrize("what", ["more bytes", "another batch", "other runs"])
def test_file_that_is_not_what_was_staged(store: Store, what: str) -> None:
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 2)
    staged = stage(store, partition, [3, 4])
    path = Path(store.path, staged.files[0])
    data = path.read_bytes()
    if what == "more bytes":
        path.write_bytes(data + b"\0")
    elif what == "another batch":
        path.write_bytes(data + data)
    else:
        ((_, size),) = staged.logs[0].runs
        path.write_bytes(data + data)
        log = staged.logs[0]._replace(runs=((size, size),))
        staged = Staged((log,))
    with pytest.raises(CorruptRecordError, match="nothing was published"):
        store.publish([staged])
    assert partition.end_offset == 2
    store.publish([stage(store, partition, [3])])
    assert partition.end_offset == 5


@pytest.mark.parametrize("method", ["move", "sync_directory", "write"])
@pytest.mark.parametrize("before", [0, 2])
def test_failure_takes_it_back(method: str, before: int) -> None:
    """The log is unchanged, and takes appends."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 2)
    if not before:
        partition.roll()
    staged = stage(store, partition, [5])
    if method == "sync_directory":
        # The sync of the partition's directory, after the move.
        moved = disk.move

        def move(*args: Any) -> None:
            moved(*args)
            disk.fail("sync_directory", errno.EIO, times=1)

        disk.move = move  # type: ignore[method-assign]
    else:
        disk.fail(method, errno.EIO, name=staged.files[0])
    with pytest.raises(StorageError):
        store.publish([staged], identity="test", sequence=1)
    assert partition.end_offset == 2
    assert store.published("test") is None
    fill(partition, 3)
    assert list(partition.read()) == expected(2, 0, 5)
    store.close()
    again = logstore.store.opening.open_store(PATH, _files=disk.process())
    assert list(again.topic("a")[0].read()) == expected(2, 0, 5)
    again.close()


def test_failure_that_cannot_be_taken_back_ends_the_writer() -> None:
    disk = MemoryDisk()
    store = open_quietly(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 2)
    staged = stage(store, partition, [5])
    moved = disk.move

    def move(*args: Any) -> None:
        moved(*args)
        disk.fail("sync_directory", errno.EIO)
        disk.fail("truncate", errno.EIO)

    disk.move = move  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        store.publish([staged], identity="test", sequence=1)
    assert partition.end_offset == 2
    with pytest.raises(StorageError):
        partition.append(b"x")
    with open_quietly(disk.kill()) as again:
        assert list(again.topic("a")[0].read()) == expected(2, 0, 2)


def opened(disk: MemoryDisk, **options: Any) -> Store:
    """Open a store without a thread; the durable point is rarely recorded."""
    config = StoreConfig(recovery_threads=1, flush_checkpoint_ms=10**9)
    return open_quietly(disk, config=config, **options)


def after_power_cut(disk: MemoryDisk) -> Store:
    return opened(MemoryDisk(dict(disk.medium.base)))


def fail_behind_move(
    disk: MemoryDisk, error: BaseException, look: Callable[[], object] = list
) -> None:
    """Let the next sync of a directory after a move fail, once."""
    moved, synced = disk.move, disk.sync_directory

    def move(*args: Any) -> None:
        def once(fd: int) -> None:
            disk.sync_directory = synced  # type: ignore[method-assign]
            look()
            raise error

        moved(*args)
        disk.move = moved  # type: ignore[method-assign]
        disk.sync_directory = once  # type: ignore[method-assign]

    disk.move = move  # type: ignore[method-assign]


@pytest.mark.parametrize("model", ["weak", "ext4"])
@pytest.mark.parametrize("before", [0, 2])
def test_what_is_published_is_durable(model: str, before: int) -> None:
    """The name of the file is durable, too, before another call syncs its directory."""
    disk = MemoryDisk(model=model)
    store = opened(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, before)
    store.publish([stage(store, partition, [5])], identity="test", sequence=1)
    with after_power_cut(disk) as again:
        found = again.topic("a")[0]
        assert values(found)[before:] == wanted(before + 5)[before:]
        assert again.published("test") == 1


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_what_is_appended_behind_an_undone_exchange_is_durable(
    error: BaseException,
) -> None:
    """The append goes into the file that keeps the name."""
    disk = MemoryDisk()
    store = opened(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 2)
    staged = stage(store, partition, [5])
    fail_behind_move(disk, error)
    with pytest.raises((StorageError, KeyboardInterrupt)):
        store.publish([staged], identity="test", sequence=1)
    fill(partition, 4)
    partition.flush()
    assert partition.durable_offset == 6
    with after_power_cut(disk) as again:
        assert list(again.topic("a")[0].read()) == expected(2, 0, 6)


@pytest.mark.parametrize("call", [1, 2])
def test_staged_file_whose_sync_failed_is_not_published_again(call: int) -> None:
    """Its pages count as clean: the next sync would wrongly succeed."""
    disk = MemoryDisk()
    store = opened(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 2)
    staged = stage(store, partition, [5])
    disk.fail("sync", errno.EIO, nth=call, times=1, name=staged.files[0])
    for _ in range(2):
        with pytest.raises(StorageError):
            store.publish([staged], identity="test", sequence=1)
    store.publish([stage(store, partition, [5])], identity="test", sequence=1)
    with after_power_cut(disk) as again:
        assert again.topic("a")[0].end_offset == 7


def test_messages_of_magic_1_are_copied_whatever_is_said_of_the_file(
    store: Store,
) -> None:
    partition = store.create_topic("a", 1, config_of(1))[0]
    fill(partition, 2)
    staged = stage(store, partition, [5])
    lie = Staged(tuple(log._replace(is_alone=True, magic=2) for log in staged.logs))
    with pytest.raises(CorruptRecordError, match="is incomplete"):
        store.publish([lie])
    assert partition.end_offset == 2
    store.publish([Staged(tuple(log._replace(is_alone=True) for log in staged.logs))])
    assert values(partition)[2:] == wanted(7)[2:]


def test_leader_epoch_in_a_staged_file_does_not_matter(store: Store) -> None:
    """No checksum covers it."""
    partition = store.create_topic("a", 1, config_of(2))[0]
    staged = stage(store, partition, [5])
    path = Path(store.path, staged.files[0])
    data = bytearray(path.read_bytes())
    data[15] = 5
    path.write_bytes(data)
    store.publish([staged])
    assert values(partition) == wanted(5)
    assert verify(store.path, deep=True).ok


def test_publication_is_seen_whole_where_an_interrupt_comes_behind_the_commit() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    topic = store.create_topic("a", 2, config_of(2))
    with store.stage("test", 1) as opened_stage:
        for partition in topic:
            opened_stage.append_many(partition, [value_of(0)], [key_of(0)])
        staged = opened_stage.finish()
    with (
        mock.patch.object(
            PartitionWriter, "wake_readers", side_effect=KeyboardInterrupt
        ),
        pytest.raises(KeyboardInterrupt),
    ):
        store.publish([staged], identity="test", sequence=1)
    assert store.published("test") == 1
    assert [p.end_offset for p in topic] == [1, 1]
    assert topic[1].append(value_of(1), key_of(1), expected_offset=1) == 1
    assert values(topic[1]) == wanted(2)


def test_segment_that_a_failed_deletion_holds_open_is_read_as_it_is_now() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    for _ in range(3):
        fill(partition, 5)
        partition.roll()
    fill(partition, 2)
    disk.fail("write", errno.EIO, name=layout.PARTITION_STATE + ".tmp")
    with pytest.raises(StorageError):
        partition.delete_before(15)
    disk.heal()
    partition.truncate_to(10)
    store.publish([stage(store, partition, [5])])
    assert values(partition)[10:] == wanted(15)[10:]


def test_file_that_would_fill_several_segments_is_copied(store: Store) -> None:
    """Time decides: a segment must be removed when its records are old."""
    config = config_of(2, segment_ms=86_400_000)
    partition = store.create_topic("a", 1, config)[0]
    with store.stage() as opened_stage:
        for o in range(10):
            opened_stage.append_many(
                partition, [value_of(o)], [key_of(o)], [o * 2 * 86_400_000]
            )
        staged = opened_stage.finish()
    assert staged.logs[0].is_alone
    store.publish([staged])
    assert len(partition.segments) == 10
    assert values(partition) == wanted(10)


@pytest.mark.parametrize("before", [0, 3])
def test_where_a_file_cannot_be_renamed_into_the_partition_it_is_copied(
    before: int,
) -> None:
    """A mount of the same device may be in between."""
    disk = MemoryDisk()
    store = opened(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, before)
    disk.fail("move", errno.EXDEV)
    for _ in range(2):
        store.publish([stage(store, partition, [5])])
    end = before + 10
    assert values(partition)[before:] == wanted(end)[before:]
    with after_power_cut(disk) as again:
        assert values(again.topic("a")[0])[before:] == wanted(end)[before:]


@pytest.mark.parametrize("looks", ["end", "segments"])
@pytest.mark.parametrize("then", ["again", "appends"])
def test_follower_that_looks_before_an_exchange_is_undone_reads_what_comes_then(
    looks: str, then: str
) -> None:
    """The file that it knows is not the one that has the name later, or has become
    longer than it was."""
    disk = MemoryDisk()
    store = opened(disk)
    partition = store.create_topic("a", 1, config_of(2))[0]
    fill(partition, 2)
    reader = opened(disk.process(), read_only=True)
    other = reader.topic("a")[0]
    assert len(list(other.read())) == 2
    first, second = (stage(store, partition, [5]) for _ in range(2))
    fail_behind_move(
        disk,
        OSError(errno.EIO, "broken"),
        lambda: other.end_offset if looks == "end" else other.segments,
    )
    with pytest.raises(StorageError):
        store.publish([first])
    if then == "again":
        store.publish([second])
    else:
        for o in range(2, 14):
            partition.append(value_of(o), key_of(o))
    end = partition.end_offset
    assert values(other)[2:] == wanted(end)[2:]
    partition.append(value_of(end), key_of(end))
    assert values(other)[2:] == wanted(end + 1)[2:]
