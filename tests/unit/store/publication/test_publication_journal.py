"""The journal of publications: its cost, its contents, and its end."""

from __future__ import annotations

import contextlib
import errno
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore import DiskFullError, StorageError, Store
from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, publication_journal
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.store.opening import open_store
from support.disk import MemoryDisk
from support.power_cut import cuts
from support.staging import stage
from support.values import config_of, expected, fill

MAGIC = 2
CONFIG = config_of(MAGIC)


class Counting(Files):
    """Counts the syncs."""

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()

    def sync(self, fd: int) -> None:
        self.syncs["file"] += 1
        super().sync(fd)

    def sync_directory(self, dir_fd: int) -> None:
        self.syncs["directory"] += 1
        super().sync_directory(dir_fd)


def publish(store: Store, sequence: int, *numbers: int, **more: Any) -> None:
    """Publish two records to each of these partitions of the topic, durably."""
    topic = store.topic("a")
    staged = stage(store, {topic[number]: 2 for number in numbers}, sequence)
    store.publish([staged], identity="test", sequence=sequence, **more)


def journal_of(store: Store) -> dict[TopicPartition, int]:
    journal = Publications(store._context.root).journal()
    assert journal is not None
    return dict(journal.bases)


def memory_store() -> tuple[MemoryDisk, Store]:
    disk = MemoryDisk()
    store = open_quietly(disk)
    store.create_topic("a", 2, CONFIG)
    return disk, store


# ---------------------------------------------------------------- cost


def test_publication_to_the_same_partitions_syncs_each_log_and_the_journal(
    tmp_path: Path,
) -> None:
    """No directory is synced. Another partition costs one sync more, as after an
    append."""
    files = Counting()
    with open_store(tmp_path, _files=files) as store:
        topic = store.create_topic("a", 3, CONFIG)

        def syncs(sequence: int, *numbers: int) -> dict[str, int]:
            files.syncs.clear()
            publish(store, sequence, *numbers)
            return dict(files.syncs)

        syncs(1, 0)
        assert syncs(2, 0) == {"file": 2}
        publish(store, 3, 0, 1)
        assert syncs(4, 0, 1) == {"file": 3}
        assert syncs(5, 0) == {"file": 2}
        files.syncs.clear()
        topic[0].append(b"x")
        assert files.syncs == {"file": 1}
        topic[0].append(b"x")
        topic[1].append(b"x")
        assert files.syncs == {"file": 2}
        assert syncs(6, 0) == {"file": 3}


def test_journal_begins_again_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers, which read only added entries, find the same as before."""
    monkeypatch.setattr(publication_journal, "_GROWTH_BYTES", 600)
    with (
        logstore.open(tmp_path) as store,
        logstore.open(tmp_path, read_only=True) as reader,
    ):
        store.create_topic("a", 2, CONFIG)
        store.publish([], identity="other", sequence=7, metadata=b"m", pinned=True)
        path, sizes = tmp_path / layout.PUBLICATION, []
        for sequence in range(1, 60):
            publish(store, sequence, sequence % 2, note=f"note {sequence}")
            sizes.append(path.stat().st_size)
            for one in (store, reader):
                assert one.published("test") == sequence
                last = one.last_publication("test")
                assert last is not None
                assert last.note == f"note {sequence}"
                other = one.last_publication("other")
                assert other is not None
                assert (other.sequence, other.metadata, other.pinned) == (7, b"m", True)
            ends = [p.end_offset for p in reader.topic("a")]
            assert ends == [p.end_offset for p in store.topic("a")]
        assert sizes != sorted(sizes)
        assert max(sizes) < 6_000


def test_journal_has_the_ends_of_few_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the logs last published to; all others take appends as well."""
    monkeypatch.setattr(publication_journal, "_BASES_MAX", 3)
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("a", 8, CONFIG)
        for number in range(5):
            publish(store, number + 1, number)
        assert [key.partition for key in journal_of(store)] == [2, 3, 4]
        publish(store, 6, *range(8))
        assert [key.partition for key in journal_of(store)] == [5, 6, 7]
        for partition in topic:
            partition.append(b"x")
        assert journal_of(store) == {}


def test_closed_store_has_the_file_of_earlier_versions(tmp_path: Path) -> None:
    """There is one file, of one entry, and no journal."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 1, CONFIG)
        publish(store, 1, 0)
        publish(store, 2, 0, note="n")
        assert not (tmp_path / layout.PUBLISHED).exists()
    assert not (tmp_path / layout.PUBLICATION).exists()
    _, body, rest = (tmp_path / layout.PUBLISHED).read_bytes().split(b"\n")
    value = json.loads(body)
    assert rest == b""
    assert value["version"] == 1
    assert [row[:3] for row in value["published"]] == [["test", 2, 2]]
    assert value["notes"] == [["test", "n"]]


# ---------------------------------------------------------------- later appends


def test_append_behind_a_publication_survives_a_crash() -> None:
    """It survives a kill, and, if it was durable, a power cut: it is no part of the
    publication, and no later one undoes it."""
    for ends in ("kill", "cut"):
        disk, store = memory_store()
        publish(store, 1, 0)
        partition = store.topic("a")[0]
        fill(partition, 3)
        if ends == "cut":
            partition.flush()
        disk.fail("sync", errno.EIO, name=layout.PUBLICATION)
        with pytest.raises(StorageError):
            publish(store, 2, 0)
        assert partition.end_offset == 5
        disk.heal()
        moment = disk.kill().moment()
        nodes = moment.nodes if ends == "kill" else moment.base
        with open_quietly(MemoryDisk(nodes)) as again:
            assert again.published("test") == 1
            assert list(again.topic("a")[0].read()) == expected(MAGIC, 0, 5)


def test_append_is_refused_while_the_journal_cannot_be_written() -> None:
    """It would be cut off after a crash."""
    disk, store = memory_store()
    publish(store, 1, 0)
    partition = store.topic("a")[0]
    for call in ("write", "sync"):
        disk.fail(call, errno.EIO, name=layout.PUBLICATION)
        disk.fail("create", errno.EIO, name=f"{layout.PUBLICATION}.tmp")
        for _ in range(2):
            with pytest.raises(StorageError, match="Nothing was appended"):
                partition.append(b"x")
        assert partition.end_offset == 2
        disk.heal()
    assert partition.append(b"x") == 2
    assert journal_of(store) == {}


def test_log_that_was_cut_behind_its_publication_begins_where_it_ends() -> None:
    """The end in the journal is out of date. A failed publication is undone to the
    current end."""
    disk, store = memory_store()
    publish(store, 1, 0)
    publish(store, 2, 0)
    partition = store.topic("a")[0]
    partition.truncate_to(2)
    disk.fail("write", errno.EIO, name=layout.PUBLICATION, nth=2)
    disk.fail("create", errno.EIO, name=f"{layout.PARTITION_STATE}.tmp")
    with pytest.raises(StorageError):
        publish(store, 3, 0)
    disk.heal()
    with open_quietly(disk.kill()) as again:
        assert again.topic("a")[0].end_offset == 2
        assert again.published("test") == 2


# ---------------------------------------------------------------- failed syncs


def after_power_cut(disk: MemoryDisk) -> Store:
    """The store with only synced data on its disk."""
    return open_quietly(MemoryDisk(disk.kill().moment().base))


def test_append_tried_again_after_a_failed_sync_of_the_journal_is_not_lost() -> None:
    """The journal bytes of the first append may be in the page cache only, while the
    disk has the end after which nothing may follow."""
    disk, store = memory_store()
    publish(store, 1, 0)
    partition = store.topic("a")[0]
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION, times=1)
    with pytest.raises(StorageError, match="Nothing was appended"):
        partition.append(b"x", durable=True)
    disk.heal()
    assert partition.append(b"y", durable=True) == 2
    with after_power_cut(disk) as again:
        assert again.published("test") == 1
        assert [r.value for r in again.topic("a")[0].read(2)] == [b"y"]


def test_topic_made_again_after_a_failed_sync_of_the_journal_is_not_cut() -> None:
    """The end of a deleted partition does not apply to the new one, also if the
    deletion could not remove it from the journal."""
    disk, store = memory_store()
    publish(store, 1, 0)
    disk.fail("create", errno.EIO, name=f"{layout.PUBLISHED}.tmp")
    store.delete_topic("a")
    disk.heal()
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION, times=1)
    with pytest.raises(StorageError):
        store.create_topic("a", 2, CONFIG)
    disk.heal()
    partition = store.create_topic("a", 2, CONFIG)[0]
    fill(partition, 5)
    partition.flush()
    with after_power_cut(disk) as again:
        assert list(again.topic("a")[0].read()) == expected(MAGIC, 0, 5)


def test_bad_memory_of_publications_does_not_keep_a_topic(tmp_path: Path) -> None:
    """The topic can be deleted, though the journal cannot be updated."""
    with open_store(tmp_path) as store:
        store.create_topic("a", 2, CONFIG)
        publish(store, 1, 0)
    with open_store(tmp_path) as store:
        publish(store, 2, 0)
        store._changes._journal._state = None  # as after a write that failed
        (tmp_path / layout.PUBLISHED).write_bytes(b"x")
        store.delete_topic("a")
        assert store.topics() == []
        (tmp_path / layout.PUBLISHED).unlink()


def test_publication_tried_again_after_a_failed_sync_of_the_journal_is_atomic() -> None:
    """The power may fail at any time: the ends that the first one has recorded may be
    in the page cache only."""
    found = set()
    disk, store = memory_store()
    publish(store, 1, 0, 1)
    for partition in store.topic("a"):
        partition.append(b"x", durable=True)
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION, times=1)
    with pytest.raises(StorageError, match="Nothing was published"):
        publish(store, 2, 0, 1)
    disk.heal()
    moments = disk.record()
    publish(store, 2, 0, 1)
    moments.append(disk.moment("acknowledged"))
    rng = random.Random(1)
    for moment in moments:
        for _, nodes in cuts(moment, rng, 8):
            with open_quietly(MemoryDisk(nodes, clock=moment.clock)) as last:
                ends = [p.end_offset for p in last.topic("a")]
                found.add((last.published("test"), *ends))
    assert found == {(1, 3, 3), (2, 5, 5)}


def test_records_whose_commit_may_be_lost_do_not_count_as_durable() -> None:
    """Their logs are synced, but the next opening may cut them. Earlier records are
    durable as before."""
    disk, store = memory_store()
    publish(store, 1, 0)
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION)
    with pytest.raises(logstore.errors.SyncFailedError, match="it was published"):
        publish(store, 2, 0)
    disk.heal()
    partition = store.topic("a")[0]
    assert partition.end_offset == 4
    assert partition.durable_offset == 2
    assert len(list(partition.read(durable_only=True))) == 2
    with after_power_cut(disk) as again:
        assert again.topic("a")[0].end_offset == 2


@pytest.mark.parametrize("is_pinned", [False, True])
def test_pin_tried_again_after_a_failed_sync_of_the_journal_is_durable(
    is_pinned: bool,
) -> None:
    disk, store = memory_store()
    publish(store, 1, 0, pinned=not is_pinned)
    publisher = store._publishing.publisher
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION, times=1)
    with publisher.lock, pytest.raises(OSError, match="Input/output"):
        publisher.pin("test", is_pinned)
    disk.heal()
    with publisher.lock:
        assert publisher.pin("test", is_pinned)
    with after_power_cut(disk) as again:
        last = again.last_publication("test")
        assert last is not None
        assert last.pinned == is_pinned


# ---------------------------------------------------------------- crashes


def test_commit_whose_sync_failed_is_found_by_all_or_by_none() -> None:
    """The next owner finds it in memory. If the power fails at any later time, either
    the publication is remembered and its records are there, or neither."""
    disk, store = memory_store()
    publish(store, 1, 0, 1)
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION)
    with pytest.raises(logstore.errors.SyncFailedError, match="it was published"):
        publish(store, 2, 0, 1)
    disk.heal()
    disk = disk.kill()
    moments = disk.record()
    again = open_quietly(disk)
    assert again.published("test") == 2
    publish(again, 2, 0)  # the error says that it was published
    moments.append(disk.moment("acknowledged"))
    rng, found = random.Random(1), set()
    for number, moment in enumerate(moments):
        for _, nodes in cuts(moment, rng, 8):
            with open_quietly(MemoryDisk(nodes, clock=moment.clock)) as last:
                done = last.published("test")
                ends = [p.end_offset for p in last.topic("a")]
            assert ends == [2 * (done or 0)] * 2
            found.add(done)
            if number + 1 == len(moments):
                assert done == 2
    assert found == {1, 2}


def killed_before_commit(
    disk: MemoryDisk,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[], None] = lambda: None,
) -> MemoryDisk:
    """Disk after a kill before the commit of a publication to both partitions."""
    found: list[MemoryDisk] = []

    def commit(*_: object) -> None:
        look()
        found.append(disk.kill())
        raise OSError(errno.EIO, "killed")

    with monkeypatch.context() as patch:
        patch.setattr(store._publishing.publisher._journal, "publish", commit)
        with pytest.raises(StorageError):
            publish(store, 9, 0, 1)
    return found[0]


def test_partition_that_is_loaded_later_shows_no_unfinished_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The opening could not load it, and the next one will cut it: until then it takes
    no appends, which would be lost."""
    disk, store = memory_store()
    publish(store, 1, 0, 1)
    disk = killed_before_commit(disk, store, monkeypatch)
    disk.fail("open_directory", errno.EACCES, name="a-0")
    again = open_quietly(disk)
    disk.heal()
    first, second = again.topic("a")
    assert list(first.read()) == list(second.read()) == expected(MAGIC, 0, 2)
    with pytest.raises(StorageError, match="Open the store again"):
        first.append(b"lost")
    with pytest.raises(StorageError, match="Open the store again"):
        publish(again, 2, 1)
    assert second.append(b"kept", durable=True) == 2
    with contextlib.suppress(StorageError):
        again.close()
    with open_quietly(disk.process()) as last:
        assert [p.end_offset for p in last.topic("a")] == [2, 3]
        publish(last, 2, 0, 1)
        assert [p.end_offset for p in last.topic("a")] == [4, 5]


def test_topic_made_again_has_nothing_of_an_unfinished_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old partition could not be loaded; the new topic is a different one."""
    disk, store = memory_store()
    publish(store, 1, 0, 1)
    disk = killed_before_commit(disk, store, monkeypatch)
    disk.fail("open_directory", errno.EACCES, name="a-0", times=1)
    again = open_quietly(disk)
    disk.heal()
    again.delete_topic("a")
    partition = again.create_topic("a", 2, CONFIG)[0]
    fill(partition, 5)
    partition.flush()
    with after_power_cut(disk) as last:
        assert list(last.topic("a")[0].read()) == expected(MAGIC, 0, 5)


def test_publication_is_atomic_after_the_disk_was_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the session began to write, there was no space for the owner file, without
    which a publication is neither hidden nor undone."""
    disk, store = memory_store()
    publish(store, 1, 0, 1)
    store.close()
    disk = disk.process()
    store = open_quietly(disk)
    disk.fill(0)
    with pytest.raises(DiskFullError):
        store.topic("a")[0].append(b"x" * 1000)
    assert f"store/{layout.OWNER}" not in disk.tree()
    disk.medium.budget = None
    # There is space for anything but this file.
    disk.fail("create", errno.ENOSPC, name=f"{layout.OWNER}.tmp")
    with pytest.raises(DiskFullError, match="Nothing was published"):
        publish(store, 2, 0, 1)
    assert [p.end_offset for p in store.topic("a")] == [2, 2]
    disk.heal()
    publish(store, 2, 0, 1)
    reader, seen = open_quietly(disk.process(), read_only=True), []

    def look() -> None:
        seen.extend(p.end_offset for p in reader.topic("a"))

    disk = killed_before_commit(disk, store, monkeypatch, look)
    assert seen == [4, 4]
    with open_quietly(disk) as again:
        assert again.published("test") == 2
        assert [p.end_offset for p in again.topic("a")] == [4, 4]


@pytest.mark.parametrize("left", [0, 4096])
def test_owner_that_was_killed_before_a_commit_is_opened_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """The publication is undone; with room again its partitions take appends and
    publications."""
    disk, store = memory_store()
    publish(store, 1, 0, 1)
    disk = killed_before_commit(disk, store, monkeypatch)
    disk.fill(left)
    with open_quietly(disk) as again:
        assert [p.end_offset for p in again.topic("a")] == [2, 2]
        disk.medium.budget = None
        publish(again, 10, 0, 1)
        assert again.topic("a")[0].append(b"x") == 4
        assert again.published("test") == 10


def test_journal_that_cannot_be_ended_is_ended_by_the_next_opening() -> None:
    """Closing reports it, and the store is not marked as closed."""
    disk, store = memory_store()
    publish(store, 1, 0)
    disk.fail("create", errno.EIO, name=f"{layout.PUBLISHED}.tmp")
    with pytest.raises(StorageError, match="close"):
        store.close()
    disk.heal()
    assert f"store/{layout.PUBLICATION}" in disk.tree()
    with open_quietly(disk) as again:
        assert again.published("test") == 1
        assert f"store/{layout.PUBLICATION}" not in disk.tree()


def test_each_damaged_bit_of_a_commit_prevents_opening(tmp_path: Path) -> None:
    """The records must not be cut off as if the publication was not committed."""
    disk, store = memory_store()
    publish(store, 1, 0)
    disk = disk.kill()
    name = f"store/{layout.PUBLICATION}"
    data = disk.tree()[name]
    begin = data.index(b'"changes":[["test"')
    entry = data.rindex(b"xxh64 ", 0, begin)
    for pos in range(entry, data.index(b"\n", begin) + 1, 7):
        damaged = bytearray(data)
        damaged[pos] ^= 4
        nodes = {
            number: bytes(damaged) if node == data else node
            for number, node in disk.medium.nodes.items()
        }
        with pytest.raises(CorruptCheckpointError):
            open_quietly(MemoryDisk(nodes))


@pytest.mark.parametrize("version", [1, 2])
def test_publication_that_an_earlier_version_left_is_undone(
    tmp_path: Path, version: int
) -> None:
    """The file of that version has the state after the publication: none of it
    counts."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a", 1, CONFIG)[0]
        fill(partition, 3)
        fill(partition, 2)
        store.publish([], identity="test", sequence=1, metadata=b"m")
    root = Directory.open_root(Files(), str(tmp_path))
    ownership = Ownership(root)
    ownership.read_owner(lambda action: None)
    value = {
        "version": version,
        "generation": ownership.store_epoch,
        "bases": [["a", 0, 3]],
        "published": [["test", 2, 2, 1]],
        "notes": [],
    }
    if version == 2:
        value |= {"pinned": ["test"], "metadata": [["test", "bW0="]]}
    checkpoints.write_state(root, layout.PUBLICATION, value)
    root.close()
    with logstore.open(tmp_path, read_only=True) as reader:
        assert reader.topic("a")[0].end_offset == 3
        assert reader.published("test") == 1
    with logstore.open(tmp_path) as store:
        assert [a.label for a in store.recovery_report.actions] == ["unpublished"]
        assert store.topic("a")[0].end_offset == 3
        last = store.last_publication("test")
        assert last is not None
        assert (last.sequence, last.metadata, last.pinned) == (1, b"m", False)
        assert not (tmp_path / layout.PUBLICATION).exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"bases": 1}, {"bases": [["a", 0]]}, {"bases": [["../a", 0, 1]]},
        {"bases": [["a", -1, 1]]}, {"bases": [["a", 0, -1]]},
        {"bases": [["a", 0, "1"]]}, {"changes": {}}, {"changes": [[]]},
        {"changes": [[1]]},
        {"changes": [["x", 1]]}, {"changes": [["x", -1, 1, 1, "", False, ""]]},
        {"changes": [["x", 1, 1, 1, 1, False, ""]]},
        {"changes": [["x", 1, 1, 1, "", 0, ""]]},
        {"changes": [["x", 1, 1, 1, "", False, "%"]]},
        {"changes": [["x", 1, 1, 1, "", False, 1]]},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("is_later", [False, True])
def test_journal_that_no_version_writes_is_damage(
    tmp_path: Path, fields: dict[str, Any], is_later: bool
) -> None:
    """Both its first entry and an appended one, whose reader has the others, are
    checked."""
    root = Directory.open_root(Files(), str(tmp_path))
    good: dict[str, Any] = {"generation": "g", "bases": [], "changes": []}
    file = publication_journal.GrowingFile(root, layout.PUBLICATION, is_sealed=True)
    text = {"version": 3, **good}
    readers = Publications(root), Publications(root)
    if is_later:
        file.replace(checkpoints.state_text(text))
        assert readers[0].journal() is not None
        assert file.append(checkpoints.state_text({**text, **fields}))
    else:
        file.replace(checkpoints.state_text({**text, **fields}))
    for reader in readers:
        with pytest.raises(CorruptCheckpointError):
            reader.journal()


def test_journal_of_no_generation_is_damage(tmp_path: Path) -> None:
    """Only the first entry has one."""
    root = Directory.open_root(Files(), str(tmp_path))
    for more in ({}, {"generation": 1}):
        value = {"version": 3, "bases": [], "changes": [], **more}
        root.write_file(layout.PUBLICATION, checkpoints.pack_state(value))
        with pytest.raises(CorruptCheckpointError):
            Publications(root).journal()


def test_verify_tells_of_records_that_the_journal_does_not_commit() -> None:
    """A journal alone is not reported."""
    disk, store = memory_store()
    publish(store, 1, 0, 1)

    def notes(found: MemoryDisk) -> list[str]:
        report = logstore.verify(PATH, _files=found)
        assert not report.problems
        return [note.kind for note in report.notes if note.kind != "unclean-stop"]

    assert notes(disk.process()) == []
    disk.fail("write", errno.EIO, name=layout.PUBLICATION)
    disk.fail("create", errno.EIO, name=f"{layout.PARTITION_STATE}.tmp")
    with pytest.raises(StorageError):
        publish(store, 2, 0)
    disk.heal()
    disk = disk.kill()
    assert notes(disk.process()) == ["unpublished"]
    with open_quietly(disk):
        pass
    assert notes(disk.process()) == []
