"""Publications that fail or are interrupted: nothing is published, and nothing else is
harmed."""

from __future__ import annotations

import datetime
import errno
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore import (
    ConfigError,
    CorruptRecordError,
    DiskFullError,
    StorageError,
    Store,
    TopicNotFoundError,
)
from logstore.errors import PartitionNotFoundError, UnsupportedError
from logstore.io import layout
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.log.write.staged_files import Staged, staged_name, staged_sequence
from logstore.store.opening import open_store
from logstore.store.partition.partitions import PartitionWriters
from logstore.store.topic.open_topics import OpenTopics
from support import staging
from support.damage import Unsynced
from support.disk import MemoryDisk
from support.disk_changes import tree
from support.staging import WAY, stage, staged_files
from support.values import (
    config_of,
    expected,
    fill,
)

UTC = datetime.timezone.utc

# Fixtures.
store, way = staging.store, staging.way


# ---------------------------------------------------------------- failures


def untouched(store: Store, ends: list[int]) -> None:
    """Assert that nothing was published, and that everything works."""
    topic = store.topic("a")
    assert [p.end_offset for p in topic] == ends
    assert store.published("test") is None
    for partition, end in zip(topic, ends, strict=True):
        assert list(partition.read()) == expected(WAY.magic, 0, end)
    staged = stage(store, dict.fromkeys(topic, 2))
    store.publish([staged], identity="test", sequence=1)
    assert [p.end_offset for p in topic] == [end + 2 for end in ends]


@pytest.mark.parametrize("where", ["first", "last"])
def test_damaged_staged_file_is_an_error_and_nothing_is_published(
    store: Store, where: str
) -> None:
    topic = store.create_topic("a", 3, config_of(WAY.magic))
    fill(topic[1], 2)
    staged = stage(store, dict.fromkeys(topic, 5))
    path = Path(store.path, staged.files[0])
    data = bytearray(path.read_bytes())
    data[20 if where == "first" else -1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="nothing was published"):
        store.publish([staged], identity="test", sequence=1)
    untouched(store, [0, 2, 0])


def test_shortened_staged_file_is_an_error(store: Store) -> None:
    topic = store.create_topic("a", 3, config_of(WAY.magic))
    staged = stage(store, dict.fromkeys(topic, 5))
    path = Path(store.path, staged.files[0])
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptRecordError):
        store.publish([staged], identity="test", sequence=1)
    untouched(store, [0, 0, 0])


@pytest.mark.parametrize("run", [(-1, 5), (0, 0), (0, -5), (0, 1 << 62), (1, 35)])
def test_runs_that_the_staged_file_does_not_have_are_an_error(
    store: Store, run: tuple[int, int]
) -> None:
    """They come from another process; no memory is allocated for them."""
    topic = store.create_topic("a", 1, config_of(WAY.magic))
    staged = stage(store, {topic[0]: 1})
    wrong = staged.logs[0]._replace(runs=(run,))
    with pytest.raises((CorruptRecordError, ConfigError)):
        store.publish([staged._replace(logs=(wrong,))])
    untouched(store, [0])


def test_staged_file_that_is_gone_is_an_error(store: Store) -> None:
    """Another machine may have written it to a separate disk."""
    topic = store.create_topic("a", 3, config_of(WAY.magic))
    staged = stage(store, dict.fromkeys(topic, 5))
    Path(store.path, staged.files[0]).unlink()
    with pytest.raises(StorageError, match=r"\.logstore-staged-"):
        store.publish([staged], identity="test", sequence=1)
    untouched(store, [0, 0, 0])


def test_staged_name_leads_nowhere_else(store: Store) -> None:
    """The name comes from another process."""
    topic = store.create_topic("a", 1, config_of(WAY.magic))
    staged = stage(store, {topic[0]: 1})
    outside = Path(store.path).parent / "outside"
    shutil.copy(Path(store.path, staged.files[0]), outside)
    inner = [layout.STAGED_PREFIX + name for name in ("", "\0x", "../x", "\ud800")]
    for name in ("../outside", str(outside), "a-0/00000000000000000000.log", *inner):
        wrong = Staged(tuple(log._replace(file=name) for log in staged.logs))
        with pytest.raises(ConfigError, match="staged"):
            store.publish([wrong])
        with pytest.raises(ConfigError, match="staged"):
            store.discard_staged([wrong])
    assert outside.exists()


def test_publishing_into_what_is_not_there_is_an_error(store: Store) -> None:
    topic = store.create_topic("a", 2, config_of(WAY.magic))
    other = store.create_topic("b", 1, config_of(WAY.magic))
    staged = stage(store, {topic[0]: 2, other[0]: 2})
    wrong = staged.logs[0]._replace(partition=7)
    store.delete_topic("b")
    with pytest.raises(TopicNotFoundError):
        store.publish([staged])
    with pytest.raises(PartitionNotFoundError):
        store.publish([staged._replace(logs=(wrong,))])
    untouched(store, [0, 0])


def test_magic_0_cannot_be_staged(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(0))[0]
    with pytest.raises(UnsupportedError, match="message_format=0"), store.stage() as s:
        s.append_many(partition, [b"x"])
    assert staged_files(Path(store.path)) == []


def test_stage_that_is_left_by_an_error_leaves_no_file(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(WAY.magic))[0]
    with pytest.raises(ZeroDivisionError), store.stage() as opened:
        opened.append_many(partition, [b"x" * 100_000] * 12)
        assert staged_files(Path(store.path))
        raise ZeroDivisionError
    assert staged_files(Path(store.path)) == []


def test_leftovers_of_an_identity_are_removed(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(WAY.magic))[0]
    old, new = (stage(store, {partition: 1}, sequence) for sequence in (3, 4))
    store.discard_staged(identity="other", before=9)
    assert sorted(staged_files(Path(store.path))) == sorted([*old.files, *new.files])
    store.discard_staged(identity="test", before=4)
    assert staged_files(Path(store.path)) == [new.files[0]]
    store.discard_staged([new, new])
    assert staged_files(Path(store.path)) == []


def test_staged_names_tell_whose_they_are() -> None:
    assert staged_sequence(staged_name("a", 12), "a") == 12
    assert staged_sequence(staged_name("a", 12), "b") is None
    assert staged_sequence("00000000000000000000.log", "a") is None


# ---------------------------------------------------------------- crashes, in memory


def half_published(counts: dict[str, int]) -> tuple[MemoryDisk, Store]:
    """A store whose publication was killed before its commit."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    topic = store.create_topic(
        "a", len(counts), config_of(WAY.magic, segment_bytes=300)
    )
    for partition in topic:
        fill(partition, 2)
    staged = stage(store, dict(zip(topic, counts.values(), strict=True)), 1)
    disk.fail("write", errno.EIO, name=layout.PUBLICATION)
    disk.fail("create", errno.EIO, name=f"{layout.PARTITION_STATE}.tmp")
    with pytest.raises(StorageError):
        store.publish([staged], identity="test", sequence=1)
    return disk, store


def test_publication_that_a_crash_cut_short_is_taken_back() -> None:
    """The report has it; a reader before that does not see it; it can be repeated."""
    disk, _store = half_published({"0": 20, "1": 3})
    disk = disk.kill()
    assert f"store/{layout.PUBLICATION}" in disk.tree()
    assert len(disk.tree()["store/a-0/00000000000000000000.log"]) > 0
    with open_quietly(disk.process(), read_only=True) as reader:
        assert [p.end_offset for p in reader.topic("a")] == [2, 2]
    with open_quietly(disk) as store:
        labels = [action.label for action in store.recovery_report.actions]
        assert set(labels) <= {"unpublished", "index-rebuilt"}
        assert labels.count("unpublished") == 2
        topic = store.topic("a")
        assert [list(p.read()) for p in topic] == [expected(WAY.magic, 0, 2)] * 2
        assert store.published("test") is None
        staged = stage(store, dict.fromkeys(topic, 4), 1)
        store.publish([staged], identity="test", sequence=1)
        assert [p.end_offset for p in topic] == [6, 6]
    with open_quietly(disk) as store:
        assert not store.recovery_report


def test_writer_whose_publication_cannot_be_undone_takes_no_more_appends() -> None:
    """The next opening restores their ends; readers stop there already."""
    _, store = half_published({"0": 3, "1": 3})
    for partition in store.topic("a"):
        assert list(partition.read()) == expected(WAY.magic, 0, 2)
        with pytest.raises(StorageError):
            partition.append(b"x")
    with pytest.raises(StorageError, match="could not be undone"):
        store.publish([stage(store, {store.topic("a")[0]: 1}, 2)])


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_publication_stays_hidden_where_the_identity_cannot_be_read(nth: int) -> None:
    """Any read for the cut may fail, also after the log was loaded: nothing of the
    publication is visible, and the next opening cuts it."""
    disk = half_published({"0": 3})[0].kill()
    disk.fail("open", errno.EIO, nth=nth, times=1, name=layout.TOPIC_IDENTITY)
    with open_quietly(disk) as store:
        disk.heal()
        partition = store.topic("a")[0]
        assert list(partition.read()) == expected(WAY.magic, 0, 2)
    with open_quietly(disk) as store:
        assert list(store.topic("a")[0].read()) == expected(WAY.magic, 0, 2)
        assert store.topic("a")[0].append(b"x") == 2


def test_publication_before_another_writer_came_is_left_to_it() -> None:
    """A broker that takes over keeps the records that it finds, and appends after
    them."""
    disk = half_published({"0": 3})[0].kill()
    files = disk.tree()
    names = [name for name in files if name.endswith(layout.OWNER)]
    assert names
    disk.unlink(disk.open_root(PATH), layout.OWNER)
    with open_quietly(disk.process(), read_only=True) as reader:
        assert reader.topic("a")[0].end_offset == 5
    with open_quietly(disk) as store:
        assert store.topic("a")[0].end_offset == 5
        assert f"store/{layout.PUBLICATION}" not in disk.tree()


def test_full_disk_publishes_nothing_and_ends_nothing() -> None:
    """At each amount of room, some step is the first one without."""
    for left in itertools.chain(range(0, 3000, 100), range(3000, 90_000, 3000)):
        disk = MemoryDisk()
        store = open_quietly(disk)
        topic = store.create_topic("a", 2, config_of(WAY.magic))
        fill(topic[0], 2)
        staged = stage(store, dict.fromkeys(topic, 30), 1)
        disk.fill(left)
        ends = [32, 30]
        try:
            store.publish([staged], identity="test", sequence=1)
        except DiskFullError:
            ends = [2, 0]
        assert [p.end_offset for p in topic] == ends
        disk.medium.budget = None
        for partition in topic:
            append = partition.append(b"x")
            assert append == partition.end_offset - 1
        store.close()
        with open_quietly(disk) as again:
            assert not again.recovery_report
            assert [p.end_offset for p in again.topic("a")] == [e + 1 for e in ends]


def test_commit_that_may_be_lost_ends_the_writers() -> None:
    """Later appends would be lost with it; repeating it makes it safe."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    topic = store.create_topic("a", 2, config_of(WAY.magic))
    staged = stage(store, dict.fromkeys(topic, 3), 1)
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION)
    with pytest.raises(logstore.errors.SyncFailedError, match="it was published"):
        store.publish([staged], identity="test", sequence=1)
    with pytest.raises(logstore.errors.SyncFailedError):
        topic[0].append(b"x")
    assert [p.end_offset for p in topic] == [3, 3]
    disk.heal()
    disk = disk.kill()
    assert f"store/{layout.PUBLISHED}" not in tree(disk.medium.base)
    with open_quietly(disk) as again:
        assert again.published("test") == 1
        assert tree(disk.medium.base)[f"store/{layout.PUBLISHED}"]


def test_time_lookup_stops_where_readers_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncommitted segments of a publication may be withdrawn: no lookup returns them,
    in either process."""
    seen: list[object] = []

    publish = PublicationJournal.publish

    def look(self: PublicationJournal, *arguments: Any) -> None:
        with open_store(tmp_path, read_only=True) as reading:
            for looking in (partition, reading.topic("orders")[0]):
                seen.append(looking.offset_for_time(2000))
                since = datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
                seen.append(list(looking.read(since)) or None)
        publish(self, *arguments)

    monkeypatch.setattr(PublicationJournal, "publish", look)
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(2, segment_bytes=1 << 20)
        partition = store.create_topic("orders", config=config)[0]
        partition.append_many([b"x"] * 10, timestamps_ms=[1000] * 10)
        with store.stage() as stage:
            for _ in range(3):
                times = [3000] * 1000
                stage.append_many(partition, [b"y" * 1000] * 1000, timestamps_ms=times)
            staged = stage.finish()
        store.publish([staged])
        assert seen == [None] * 4
        assert partition.offset_for_time(2000) == 10


def test_topic_that_is_deleted_while_a_publication_looks_for_it_is_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("a", 1, config_of(1))
        staged = stage(store, {topic[0]: 1})
        found = OpenTopics.now

        def delete(self: OpenTopics, name: str) -> Any:
            found(self, name)[0]
            monkeypatch.undo()
            store.delete_topic("a")
            return [None]

        monkeypatch.setattr(PartitionWriters, "usual", lambda *_: None)
        monkeypatch.setattr(OpenTopics, "now", delete)
        with pytest.raises(logstore.TopicNotFoundError):
            store.publish([staged])
        assert store.topics() == []


@pytest.mark.parametrize("names", ["a", "ab"])
def test_publication_is_not_undone_in_a_later_topic_of_the_name(names: str) -> None:
    """Records appended to that topic were acknowledged; the other topics are
    unchanged."""
    disk = MemoryDisk()
    with open_quietly(disk) as store:
        partitions = [store.create_topic(n, 1, config_of(WAY.magic))[0] for n in "ab"]
        staged = stage(store, {p: 3 for p in partitions if p.topic in names})
        disk.fail("write", errno.EIO, name=layout.PUBLICATION)
        disk.fail("truncate", errno.EIO)
        with pytest.raises(logstore.LogStoreError):
            store.publish([staged])
        disk.heal()
        assert layout.PUBLICATION in disk.list(disk.open_root(PATH))
        store.delete_topic("a")
        new = store.create_topic("a")[0]
        for value in (b"new", b"newer"):
            new.append(value, durable=True)
        with open_quietly(disk.process(), read_only=True) as reading:
            assert len(list(reading.topic("a")[0].read())) == 2
    with open_quietly(disk) as store:
        assert [r.value for r in store.topic("a")[0].read()] == [b"new", b"newer"]
        assert store.topic("b")[0].end_offset == 0
