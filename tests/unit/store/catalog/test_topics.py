"""The topics file: entries that are appended, and rewrites of the whole file."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from pathlib import Path

import pytest

import logstore
from logstore import TopicConfig
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, growing_file
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import FaultyFiles, FullDisk, crash, cut, flip_bit


def entries(store: Path) -> int:
    return (store / layout.TOPICS).read_bytes().count(b"xxh64 ")


def segment_bytes(store: logstore.Store) -> dict[str, int]:
    return {topic.name: topic.config.segment_bytes for topic in store}


def test_changes_of_topics_are_appended_and_closing_writes_the_file_whole(
    tmp_path: Path,
) -> None:
    """An earlier version can read the topics of a store that was closed."""
    with logstore.open(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            store.create_topic(name)
        # The first one writes it whole.
        assert entries(tmp_path / "store") == 7
        store.delete_topic("b")
        store.topic("a").add_partitions(2)
        store.topic("c").configure(TopicConfig(segment_bytes=1000))
        assert entries(tmp_path / "store") == 13
        copy = crash(tmp_path / "store", tmp_path / "copy")
    assert entries(tmp_path / "store") == 1
    for path in (tmp_path / "store", copy):
        with logstore.open(path) as store:
            assert {topic.name: len(topic) for topic in store} == {"a": 3, "c": 1}
            assert segment_bytes(store)["c"] == 1000
            assert not store.recovery_report


def test_change_writes_what_it_says_whatever_the_store_has(tmp_path: Path) -> None:
    class Counting(Files):
        """Counts the bytes that are written."""

        written = 0

        def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
            self.written += len(data)
            super().write(fd, data, pos)

    files, costs = Counting(), []
    with open_store(tmp_path, _files=files) as store:
        for number in range(100):
            files.written = 0
            store.create_topic(f"topic-{number:03d}")
            costs.append(files.written)
        files.written = 0
        store.topic("topic-050").configure(TopicConfig(segment_bytes=1000))
        costs.append(files.written)
        files.written = 0
        store.delete_topic("topic-050")
        costs.append(files.written)
    assert max(costs[1:]) <= costs[1] + 10


@pytest.mark.parametrize("lost", ["cut", "flipped"])
def test_lost_last_entry_undoes_no_call(tmp_path: Path, lost: str) -> None:
    """Opening completes a creation or a deletion; new settings are followed by an entry
    without content."""

    def create(store: logstore.Store) -> None:
        store.create_topic("new", 2, TopicConfig(segment_bytes=1000))

    def delete(store: logstore.Store) -> None:
        store.delete_topic("old")

    def configure(store: logstore.Store) -> None:
        store.topic("old").configure(TopicConfig(segment_bytes=2000))

    for number, change in enumerate((create, delete, configure)):
        path, copy = tmp_path / f"{number}", tmp_path / f"{number}-copy"
        with logstore.open(path) as store:
            store.create_topic("old")
            change(store)
            expected = segment_bytes(store)
            crash(path, copy)
        file = copy / layout.TOPICS
        if lost == "cut":
            cut(file, file.stat().st_size - 3)
        else:
            flip_bit(file, file.stat().st_size * 8 - 30)
        with logstore.open(copy) as store:
            assert segment_bytes(store) == expected
            assert not store.recovery_report


def test_damage_before_the_last_entry_is_reported(tmp_path: Path) -> None:
    """No topic loses its settings in silence."""
    with logstore.open(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            store.create_topic(name, config=TopicConfig(segment_bytes=1000))
        data = (tmp_path / "store" / layout.TOPICS).read_bytes()
        last = data.rindex(b"xxh64 ")
        copy = crash(tmp_path / "store", tmp_path / "copy")
    for byte in range(7, last, 40):
        (copy / layout.TOPICS).write_bytes(data)
        flip_bit(copy / layout.TOPICS, byte * 8)
        with logstore.open(copy, read_only=True) as store:
            labels = [action.label for action in store.recovery_report.actions]
            assert labels == ["state-damaged"]
    shutil.rmtree(copy)


@pytest.mark.parametrize("at", ["before", "behind"])
@pytest.mark.parametrize("call", [1, 2])
def test_interrupted_change_leaves_memory_and_file_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, call: int
) -> None:
    """The next change rewrites the file from memory."""
    append, left = growing_file.GrowingFile.append, call

    def interrupted(self: growing_file.GrowingFile, text: str) -> bool:
        nonlocal left
        left -= 1
        if left == 0 and at == "before":
            raise KeyboardInterrupt
        done = append(self, text)
        if left == 0:
            raise KeyboardInterrupt
        return done

    with logstore.open(tmp_path / "store") as store:
        store.create_topic("first")
        monkeypatch.setattr(growing_file.GrowingFile, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.create_topic("interrupted")
        monkeypatch.undo()
        store.create_topic("last")
        expected = set(store.topics())
        assert {"first", "last"} <= expected
        copy = crash(tmp_path / "store", tmp_path / "copy")
    for path in (tmp_path / "store", copy):
        with logstore.open(path) as store:
            assert {"first", "last"} <= set(store.topics())
            assert set(store.topics()) <= {*expected, "interrupted"}
            assert not store.recovery_report


def test_reader_in_another_process_sees_an_appended_change(tmp_path: Path) -> None:
    """The directory of the store does not show new settings."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t")
        with logstore.open(tmp_path, read_only=True) as reading:
            for size in (1000, 2000, 3000):
                topic.configure(TopicConfig(segment_bytes=size))
                assert reading.topics() == ["t"]
                found = reading._topics.settings_of("t").config("t")
                assert found.segment_bytes == size
            store.create_topic("u")
            assert reading.topics() == ["t", "u"]
            store.delete_topic("t")
            assert reading.topics() == ["u"]


def test_names_collide_as_long_as_the_other_topic_is_there(tmp_path: Path) -> None:
    """Kafka does not distinguish "." from "_"; names of topics made since count,
    too."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a.b")
        for _ in range(2):
            for name in ("a_b", "x_y"):
                store.create_topic("x.y", exist_ok=True)
                with pytest.raises(logstore.TopicExistsError, match="collides"):
                    store.create_topic(name)
            store.delete_topic("a.b")
            store.create_topic("a_b")
            with pytest.raises(logstore.TopicExistsError, match="collides"):
                store.create_topic("a.b")
            store.delete_topic("a_b")
            store.create_topic("a.b")


def test_deletion_on_a_full_disk_is_written_when_there_is_room(tmp_path: Path) -> None:
    """Entries and whole files need room; partial ones are ignored."""
    files = FullDisk()
    with open_store(tmp_path / "store", _files=files) as store:
        for name in ("a", "b", "c"):
            store.create_topic(name)
        files.full = True
        store.delete_topic("b")
        assert store.topics() == ["a", "c"]
        files.full = False
        store.create_topic("d")
        copy = crash(tmp_path / "store", tmp_path / "copy")
    with logstore.open(copy) as store:
        assert store.topics() == ["a", "c", "d"]
        assert not store.recovery_report


@pytest.mark.parametrize("nth", [1, 2])
def test_creation_without_room_is_undone(tmp_path: Path, nth: int) -> None:
    """Neither new topics nor new partitions are there, now or after the next opening,
    if a directory or the last entry finds no room."""
    files = FullDisk()
    with open_store(tmp_path / "store", _files=files) as store:
        store.create_topic("a")
        for call in (
            lambda: store.create_topic("b", 3),
            lambda: store.topic("a").add_partitions(3),
        ):
            method = "make_directory" if nth == 1 else "write"
            files.fail(method, errno.ENOSPC, nth=2, times=1)
            with pytest.raises(logstore.DiskFullError):
                call()
            files.heal()
            assert store.topics() == ["a"]
            assert len(store.topic("a")) == 1
        copy = crash(tmp_path / "store", tmp_path / "copy")
        assert len(store.create_topic("b", 2)) == 2
    with logstore.open(copy) as store:
        assert store.topics() == ["a"]
        assert len(store.topic("a")) == 1
        assert not store.recovery_report
    with logstore.open(tmp_path / "store") as store:
        assert len(store.topic("b")) == 2


def test_creation_that_cannot_be_undone_is_not_in_the_settings_later(
    tmp_path: Path,
) -> None:
    """The entry that reverts it finds no room: it is written with the next one."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        store.create_topic("a")
        files.fail("make_directory", errno.ENOSPC, times=1)
        files.fail("write", errno.ENOSPC, nth=2)
        with pytest.raises(logstore.DiskFullError):
            store.create_topic("b")
        files.heal()
        assert store.topics() == ["a"]
    with logstore.open(tmp_path) as store:
        assert store.topics() == ["a"]


@pytest.mark.parametrize("can_cut", [True, False])
def test_creation_whose_last_write_is_made_and_fails_is_undone_if_that_can_be_told(
    tmp_path: Path, can_cut: bool
) -> None:
    """If the settings named the partitions, and the directories were gone, they would
    count as lost."""
    files = FullDisk()
    with open_store(tmp_path / "store", _files=files) as store:
        store.create_topic("a")
        files.fail("write", errno.EFBIG, nth=2, done=True)
        if not can_cut:
            files.fail("truncate", errno.EIO)
        with pytest.raises(logstore.DiskFullError):
            store.topic("a").add_partitions(2)
        copy = crash(tmp_path / "store", tmp_path / "copy")
        files.heal()
        assert store.topic("a").add_partitions(2) == 3
    with logstore.open(copy) as store:
        assert len(store.topic("a")) == (1 if can_cut else 3)
        assert not store.recovery_report
    with logstore.open(tmp_path / "store") as store:
        assert len(store.topic("a")) == 3
        assert not store.recovery_report


def test_creation_is_undone_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Its entry is cut off: that needs no room, and no later opening finishes it."""
    files = FullDisk()
    with contextlib.suppress(logstore.StorageError):
        with open_store(tmp_path / "store", _files=files) as store:
            store.create_topic("a")
            files.fail("write", errno.ENOSPC, nth=2)
            files.fail("create", errno.ENOSPC)
            for create in (
                lambda: store.create_topic("b"),
                lambda: store.topic("a").add_partitions(2),
            ):
                with pytest.raises(logstore.DiskFullError):
                    create()
            copy = crash(tmp_path / "store", tmp_path / "copy")
    for path in (copy, tmp_path / "store"):
        with logstore.open(path) as store:
            assert {topic.name: len(topic) for topic in store} == {"a": 1}
            assert not store.recovery_report


def begin_creation(store: Path, topic: str, partitions: int) -> None:
    """Leave the files of a process that is killed while it adds partitions."""
    value = json.loads((store / layout.TOPICS).read_bytes().partition(b"\n")[2])
    value["topics"][topic].update(partitions=partitions, creating=True)
    root = Directory.open_root(Files(), str(store))
    checkpoints.write_state(root, layout.TOPICS, value)
    root.close()


@pytest.mark.parametrize("method", ["make_directory", "sync", "write"])
def test_creation_is_finished_by_an_opening_that_finds_room(
    tmp_path: Path, method: str
) -> None:
    """A full disk does not stop the opening: incomplete partitions do not exist yet."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a")[0].append(b"x")
    begin_creation(tmp_path, "a", 3)
    files = FullDisk()
    files.fail(method, errno.ENOSPC, nth=1)
    with open_store(tmp_path, _files=files) as store:
        assert len(store.topic("a")) == 1
        assert [record.value for record in store.topic("a").read()] == [b"x"]
        files.heal()
    with logstore.open(tmp_path) as store:
        assert len(store.topic("a")) == 3
        assert not store.recovery_report


def test_opening_that_cannot_finish_a_creation_raises_other_errors(
    tmp_path: Path,
) -> None:
    """Only a full disk is tolerated."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a")
    begin_creation(tmp_path, "a", 2)
    files = FaultyFiles()
    files.fail("make_directory", errno.EIO)
    with pytest.raises(logstore.StorageError):
        open_store(tmp_path, _files=files)


def test_deletion_is_finished_after_its_entry_is_synced(tmp_path: Path) -> None:
    """A process that was killed may have written it without a sync. If a power failure
    reverted it, directories would be missing."""
    files = FaultyFiles()
    with open_store(tmp_path / "store", _files=files) as store:
        for name in ("a", "b"):
            store.create_topic(name)
        files.fail("sync", times=1, name=layout.TOPICS)
        with pytest.raises(logstore.StorageError):
            store.delete_topic("b")
        copy = crash(tmp_path / "store", tmp_path / "copy")
    files.heal()
    files.forget()
    with open_store(copy, _files=files) as store:
        assert store.topics() == ["a"]
        renamed = files.calls.index(("rename", "b-0"))
        assert ("sync", layout.TOPICS) in files.calls[:renamed]


@pytest.mark.parametrize(("is_recorded", "fails"), [(True, 1), (False, 1), (False, 2)])
def test_topic_is_deleted_where_its_directory_cannot_be_renamed(
    tmp_path: Path, is_recorded: bool, fails: int
) -> None:
    """A full disk has no room for the longer name. If the deletion is recorded, the
    directory is removed at once; otherwise its indexes make room for two more
    attempts."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        config = logstore.TopicConfig(file_delete_delay_ms=0)
        store.create_topic("orders", config=config)[0].append(b"x")
        store.create_topic("others", config=config)[0].append(b"x")
        files.full = not is_recorded
        files.fail("rename", errno.ENOSPC, name="orders-0", times=fails)
        store.delete_topic("orders")
        assert files.count("rename", "orders-0") == (1 if is_recorded else 1 + fails)
        assert store.topics() == ["others"]
        files.full = False
    with logstore.open(tmp_path) as store:
        assert store.topics() == ["others"]
        assert not store.recovery_report
    assert not (tmp_path / "orders-0").exists()


@pytest.mark.parametrize("is_empty", [True, False])
def test_topic_that_finds_no_room_to_be_deleted_is_there_after_a_kill(
    tmp_path: Path, is_empty: bool
) -> None:
    """Deletions that make room can be repeated: records and offsets stay."""
    files = FullDisk()
    with open_store(tmp_path / "store", _files=files) as store:
        partition = store.create_topic("orders")[0]
        partition.append(b"x")
        if is_empty:
            partition.delete_before(1)
            partition.roll()
        files.full = True
        files.fail("rename", errno.ENOSPC, name="orders-0")
        with pytest.raises(logstore.DiskFullError):
            store.delete_topic("orders")
        copy = crash(tmp_path / "store", tmp_path / "copy")
        files.heal()
        files.full = False
    with logstore.open(copy) as store:
        partition = store.topic("orders")[0]
        assert [r.value for r in partition.read()] == ([] if is_empty else [b"x"])
        assert partition.append(b"y") == 1


def forge_settings(store: Path, **settings: object) -> None:
    """Give orders settings in the topics file that no current release accepts."""
    value = json.loads((store / layout.TOPICS).read_bytes().partition(b"\n")[2])
    value["topics"]["orders"]["config"].update(settings)
    root = Directory.open_root(Files(), str(store))
    checkpoints.write_state(root, layout.TOPICS, value)


@pytest.mark.parametrize("what", [{"segment_bytes": -1}, {"segment_bytes": "much"}])
@pytest.mark.parametrize("is_set", [False, True])
def test_topic_whose_stored_settings_do_not_count_can_be_deleted_or_configured(
    tmp_path: Path, what: dict[str, object], is_set: bool
) -> None:
    """The store opens, and names it; its other topics are usable, and are retained."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 2)[0].append(b"v")
        store.create_topic("others")[0].append(b"v")
    forge_settings(tmp_path, **what, retention_ms=1)
    with logstore.open(tmp_path) as store:
        actions = store.recovery_report.actions
        assert [(a.label, a.topic) for a in actions] == [("unreadable", "orders")] * 2
        with pytest.raises(logstore.ConfigError, match="settings of topic orders"):
            list(store.topic("orders")[0].read())
        assert len(list(store.topic("others")[0].read())) == 1
        if is_set:
            store.topic("orders").configure(TopicConfig())
        else:
            store.delete_topic("orders")
            assert store.create_topic("orders")[0].append(b"w") == 0
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        values = [record.value for record in store.topic("orders")[0].read()]
        assert values == ([b"v"] if is_set else [b"w"])


def test_deletion_of_a_topic_with_invalid_settings_that_fails_is_undone(
    tmp_path: Path,
) -> None:
    """If nothing could be written, the topic is unchanged, and named as before."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")[0].append(b"v")
    forge_settings(tmp_path, segment_bytes=-1)
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        store.create_topic("others")
        files.fail("write", errno.EIO, name=layout.TOPICS, times=1)
        with pytest.raises(logstore.StorageError):
            store.delete_topic("orders")
        assert store.topics() == ["orders", "others"]
        assert (tmp_path / "orders-0").is_dir()
        store.delete_topic("orders")
        assert store.topics() == ["others"]
