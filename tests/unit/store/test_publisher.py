"""Publishing: all of it or nothing, once, and for no reader in part."""

from __future__ import annotations

import contextlib
import datetime
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore import (
    ConfigError,
    CorruptCheckpointError,
    CorruptRecordError,
    DiskFullError,
    Partition,
    PartitionNotFoundError,
    PublicationConflictError,
    ReadOnlyError,
    StorageError,
    Store,
    TopicNotFoundError,
    UnsupportedError,
)
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.log.write.staged_files import Staged, staged_name, staged_sequence
from logstore.store import publisher as publishing
from logstore.store.open_topics import OpenTopics
from logstore.store.publisher import Publisher
from logstore.store.store import open_store, publication_token
from support.adopting import adopting
from support.damage import Unsynced
from support.disk import MemoryDisk, tree
from support.values import (
    FORMATS,
    config_of,
    expected,
    fill,
    headers_of,
    key_of,
    timestamp_of,
    value_of,
)

UTC = datetime.timezone.utc


class WAY:
    """How records get into the log in this test: written again, or with the file that
    they are in, for which they have magic 2."""

    magic = 1


@pytest.fixture(params=["copied", "adopted"], autouse=True)
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "adopted":
            monkeypatch.setattr(WAY, "magic", 2)
            stack.enter_context(adopting())
        yield request.param


PUBLISHABLE = [(magic, codec) for magic, codec in FORMATS if magic]


def stage(store: Store, counts: dict[Partition, int], sequence: int = 0) -> Staged:
    """The next records of these partitions, staged."""
    with store.stage("test", sequence) as opened:
        for partition, count in counts.items():
            first = partition.end_offset
            for begin in range(first, first + count, 7):
                offsets = range(begin, min(begin + 7, first + count))
                two = partition.config.message_format == 2
                opened.append_many(
                    partition,
                    [value_of(o) for o in offsets],
                    [key_of(o) for o in offsets],
                    [timestamp_of(o) for o in offsets],
                    [headers_of(o) for o in offsets] if two else None,
                )
        return opened.finish()


def staged_files(path: Path) -> list[str]:
    return [n for n in os.listdir(path) if n.startswith(layout.STAGED_PREFIX)]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with logstore.open(tmp_path / "store") as opened:
        yield opened


# ---------------------------------------------------------------- what is published


@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_staged_records_are_read_where_they_were_published(
    store: Store, magic: int, codec: str
) -> None:
    """Into several topics and partitions, behind what is there, over several segments;
    not before."""
    config = config_of(magic, codec, segment_bytes=1000)
    a = store.create_topic("a", 2, config)
    b = store.create_topic("b", 1, config)
    fill(a[0], 5)
    staged = stage(store, {a[0]: 60, a[1]: 8, b[0]: 1})
    assert staged.records == 69
    assert [p.end_offset for p in (*a, *b)] == [5, 0, 0]
    published = store.publish([staged], identity="test", sequence=3)
    assert published.is_new
    assert published.offsets == {
        ("a", 0): range(5, 65),
        ("a", 1): range(8),
        ("b", 0): range(1),
    }
    assert (published.records, store.published("test")) == (69, 3)
    for partition, end in ((a[0], 65), (a[1], 8), (b[0], 1)):
        assert list(partition.read()) == expected(magic, 0, end)
        assert partition.durable_offset == end
        assert partition.append(b"next") == end
    assert staged_files(Path(store.path)) == []
    store.close()
    assert not logstore.verify(store.path, deep=True).problems
    with logstore.open(store.path) as again:
        assert not again.recovery_report
        assert len(list(again.topic("a")[0].read())) == 66


def test_parts_of_one_partition_keep_their_order(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(2))[0]
    parts = []
    for name in (b"first", b"second", b"third"):
        with store.stage("test", 1) as opened:
            opened.append_many(partition, [name] * 3)
            parts.append(opened.finish())
    store.publish(parts)
    values = [record.value for record in partition.read()]
    assert values == [b"first"] * 3 + [b"second"] * 3 + [b"third"] * 3


def test_read_only_store_stages_for_the_writer(store: Store) -> None:
    """In another process, which needs no lock; a staged file is a plain value."""
    store.create_topic("a", 1, config_of(WAY.magic))
    with logstore.open(store.path, read_only=True) as reader:
        staged = stage(reader, {reader.topic("a")[0]: 4})
        with pytest.raises(ReadOnlyError):
            reader.publish([staged])
        store.publish([Staged(*staged)])
        assert list(reader.topic("a")[0].read()) == expected(WAY.magic, 0, 4)


def test_arrow_data_is_staged(store: Store) -> None:
    pa = pytest.importorskip("pyarrow")
    partition = store.create_topic("a", 1, config_of(2))[0]
    table = pa.table({"value": [b"x", None], "key": [None, b"k"], "timestamp": [5, 6]})
    with store.stage() as opened:
        assert opened.append_arrow(partition, table) == 2
        store.publish([opened.finish()])
    records = [(r.key, r.value, r.timestamp_ms) for r in partition.read()]
    assert records == [(None, b"x", 5), (b"k", None, 6)]


def test_records_without_a_timestamp_get_the_time_of_the_staging(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(WAY.magic))[0]
    before = store._context.files.now_ms()
    with store.stage() as opened:
        opened.append_many(partition, [b"x"])
        store.publish([opened.finish()])
    assert (
        before <= next(partition.read()).timestamp_ms <= store._context.files.now_ms()
    )


def test_nothing_is_published_for_nothing(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(WAY.magic))[0]
    with store.stage() as opened:
        assert opened.append_many(partition, []) == 0
        empty = opened.finish()
    assert empty == Staged(())
    assert not store.publish([empty], identity="test", sequence=1).offsets
    assert partition.end_offset == 0
    assert store.published("test") is None


# ---------------------------------------------------------------- once


def test_the_same_sequence_is_published_once(store: Store) -> None:
    """Also after the store was opened again, and with other staged files."""
    topic = store.create_topic("a", 2, config_of(2))
    store.publish([stage(store, {topic[0]: 3})], identity="test", sequence=5)
    again = store.publish(
        [stage(store, {topic[0]: 3, topic[1]: 2}, 5)], identity="test", sequence=5
    )
    assert (again.is_new, again.records, again.offsets) == (False, 3, {})
    store.close()
    with logstore.open(store.path) as reopened:
        topic = reopened.topic("a")
        staged = stage(reopened, {topic[1]: 2}, 5)
        assert not reopened.publish([staged], identity="test", sequence=5).is_new
        assert [p.end_offset for p in topic] == [3, 0]
        assert staged_files(Path(store.path)) == []
        with pytest.raises(PublicationConflictError) as caught:
            reopened.publish(
                [stage(reopened, {topic[1]: 2}, 4)], identity="test", sequence=4
            )
        assert (caught.value.sequence, caught.value.last) == (4, 5)
        other = reopened.publish(
            [stage(reopened, {topic[1]: 2}, 4)], identity="else", sequence=4
        )
        assert other.is_new
        assert [p.end_offset for p in topic] == [3, 2]


def test_note_is_kept_with_the_last_publication(store: Store) -> None:
    """Until the next one, also one that does nothing; any text, and the store opens."""
    partition = store.create_topic("a", 1, config_of(2))[0]
    assert store.last_publication("test") is None
    notes = ["", "one", "\u2603 [[{{ 20251122084530123456", "x" * 1000, ""]
    for sequence, note in zip((1, 1, 2, 3, 3), notes, strict=True):
        staged = [stage(store, {partition: 2}, sequence)]
        done = store.publish(staged, identity="test", sequence=sequence, note=note)
        assert done.note == note
        with logstore.open(store.path, read_only=True) as reader:
            last = reader.last_publication("test")
        assert last is not None
        assert (last.sequence, last.records, last.note) == (sequence, 2, note)
        assert (last.is_new, last.offsets) == (False, {})
    assert partition.end_offset == 6
    store.publish([stage(store, {partition: 1})], identity="other", note="its own")
    found = [store.last_publication(identity) for identity in ("test", "other")]
    assert [last.note for last in found if last is not None] == ["", "its own"]


@pytest.mark.parametrize("note", [None, 5, "x" * 1001, "\ud800"], ids=ascii)
def test_note_that_cannot_be(note: Any, store: Store) -> None:
    """Nothing is published."""
    partition = store.create_topic("a", 1, config_of(2))[0]
    staged = stage(store, {partition: 2})
    with pytest.raises(ConfigError, match="note"):
        store.publish([staged], identity="test", note=note)
    assert (partition.end_offset, store.published("test")) == (0, None)


def test_without_an_identity_nothing_is_remembered(store: Store) -> None:
    partition = store.create_topic("a", 1, config_of(2))[0]
    for _ in range(2):
        assert store.publish([stage(store, {partition: 2})]).is_new
    assert partition.end_offset == 4


def test_the_identities_that_published_last_are_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "IDENTITIES_MAX", 3)
    partition = store.create_topic("a", 1, config_of(2))[0]
    for identity in ("a", "b", "c", "a", "d"):
        sequence = partition.end_offset
        store.publish(
            [stage(store, {partition: 1})], identity=identity, sequence=sequence
        )
    assert [store.published(i) for i in "abcd"] == [3, None, 2, 4]


@pytest.mark.parametrize(
    ("identity", "sequence"), [("x", -1), ("x", 1 << 63), ("x" * 1001, 0)]
)
def test_identity_or_sequence_that_cannot_be(
    store: Store, identity: str, sequence: int
) -> None:
    with pytest.raises(ConfigError):
        store.publish([], identity=identity, sequence=sequence)


def test_damaged_memory_of_what_was_published_is_a_named_error(store: Store) -> None:
    """Whether it was published cannot be told, so it is not."""
    partition = store.create_topic("a", 1, config_of(2))[0]
    store.publish([stage(store, {partition: 1})], identity="test", sequence=1)
    path = Path(store.path, layout.PUBLISHED)
    path.write_bytes(path.read_bytes().replace(b"test", b"tost"))
    with pytest.raises(CorruptCheckpointError):
        store.published("test")
    with pytest.raises(CorruptCheckpointError):
        store.publish([stage(store, {partition: 1})], identity="test", sequence=1)
    assert partition.end_offset == 1


# ---------------------------------------------------------------- for no reader in part


def test_no_reader_sees_part_of_a_publication(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in this process nor in another, at any step; the segments neither."""
    topic = store.create_topic("a", 3, config_of(WAY.magic, segment_bytes=300))
    for partition in topic:
        fill(partition, 3)
    seen: list[list[list[int]]] = []
    steps = {"_append": Publisher._append, "_show": Publisher._show}

    def look() -> None:
        views = []
        for opened in (store, reader, logstore.open(store.path, read_only=True)):
            for p in opened.topic("a"):
                offsets = [r.offset for r in p.read()]
                assert offsets == list(range(p.end_offset))
                assert p.durable_offset <= p.end_offset
                assert p.segments[-1].next_offset == p.end_offset
            views.append([p.end_offset for p in opened.topic("a")])
        seen.append(views)

    def looking(name: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            look()
            steps[name](*args)
            look()

        return call

    with logstore.open(store.path, read_only=True) as reader:
        for name in steps:
            monkeypatch.setattr(Publisher, name, looking(name))
        store.publish([stage(store, dict.fromkeys(topic, 20))])
        before, after = [3, 3, 3], [23, 23, 23]
        assert seen[:6] == [[before] * 3] * 6
        # The commit: whoever reads the files sees it first.
        assert seen[6] == [before, after, after]
        assert seen[7] == [after] * 3


def test_reader_that_looks_while_a_publication_ends_looks_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has walked over half of the log when the rest comes and all of it counts."""
    partition = store.create_topic("a", 1, config_of(WAY.magic, segment_bytes=300))[0]
    staged = stage(store, {partition: 20})
    with logstore.open(store.path, read_only=True) as reader:
        live = reader.topic("a")[0]
        assert live.end_offset == 0
        walked, done = live._log._refresh, []

        def refresh() -> None:
            walked()
            if not done:
                done.append(store.publish([staged]))

        monkeypatch.setattr(live._log, "_refresh", refresh)
        assert live.end_offset == 20


@pytest.mark.parametrize("is_owner", [False, True])
def test_ends_that_belong_together_are_seen_together(
    store: Store, is_owner: bool
) -> None:
    """By who looks again where the token has changed."""
    topic = store.create_topic("a", 3, config_of(WAY.magic))
    rounds = 0
    seen: set[int] = set()

    def publish() -> None:
        nonlocal rounds
        # A machine that is busy may let the other thread look once in a long while.
        while rounds < 40 or (len(seen) < 3 and rounds < 4_000):
            store.publish([stage(store, dict.fromkeys(topic, 5))])
            rounds += 1

    with logstore.open(store.path, read_only=True) as reader:
        looking = (store if is_owner else reader).topic("a")
        thread = threading.Thread(target=publish)
        thread.start()
        while thread.is_alive():
            token = publication_token(store if is_owner else reader)
            ends = [p.end_offset for p in looking]
            if publication_token(store if is_owner else reader) == token:
                assert len(set(ends)) == 1, ends
                seen.add(ends[0])
        thread.join()
        assert [p.end_offset for p in looking] == [5 * rounds] * 3
        assert len(seen) > 2


# ---------------------------------------------------------------- what goes wrong


def untouched(store: Store, ends: list[int]) -> None:
    """Nothing was published, and everything works."""
    topic = store.topic("a")
    assert [p.end_offset for p in topic] == ends
    assert not Path(store.path, layout.PUBLICATION).exists()
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
    """They come from another process; no memory is taken for them."""
    topic = store.create_topic("a", 1, config_of(WAY.magic))
    staged = stage(store, {topic[0]: 1})
    wrong = staged.logs[0]._replace(runs=(run,))
    with pytest.raises((CorruptRecordError, ConfigError)):
        store.publish([staged._replace(logs=(wrong,))])
    untouched(store, [0])


def test_staged_file_that_is_gone_is_an_error(store: Store) -> None:
    """As where another machine has written it to a disk of its own."""
    topic = store.create_topic("a", 3, config_of(WAY.magic))
    staged = stage(store, dict.fromkeys(topic, 5))
    Path(store.path, staged.files[0]).unlink()
    with pytest.raises(StorageError, match=r"\.logstore-staged-"):
        store.publish([staged], identity="test", sequence=1)
    untouched(store, [0, 0, 0])


def test_staged_name_leads_nowhere_else(store: Store) -> None:
    """It comes from another process."""
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
    disk.fail("rename", errno.EIO, name=layout.PUBLICATION)
    disk.fail("create", errno.EIO, name=f"{layout.PARTITION_STATE}.tmp")
    with pytest.raises(StorageError):
        store.publish([staged], identity="test", sequence=1)
    return disk, store


def test_publication_that_a_crash_cut_short_is_taken_back() -> None:
    """And told; a reader before that does not see it; it can be repeated."""
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
    """The next opening cuts them where they were; readers stop there already."""
    _, store = half_published({"0": 3, "1": 3})
    for partition in store.topic("a"):
        assert list(partition.read()) == expected(WAY.magic, 0, 2)
        with pytest.raises(StorageError):
            partition.append(b"x")
    with pytest.raises(StorageError, match="could not be undone"):
        store.publish([stage(store, {store.topic("a")[0]: 1}, 2)])


def test_publication_before_another_writer_came_is_left_to_it() -> None:
    """A broker that takes over makes what it finds its own, and appends behind it."""
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
    """However much room there is, in which every step may be the one too much."""
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


def test_commit_that_may_be_lost_ends_the_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they appended later would be lost with it; repeating it makes it safe."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    topic = store.create_topic("a", 2, config_of(WAY.magic))
    staged = stage(store, dict.fromkeys(topic, 3), 1)
    sync = Directory.sync

    def failing(directory: Directory) -> None:
        if directory.exists(layout.PUBLISHED):
            raise OSError(errno.EIO, "no")
        sync(directory)

    monkeypatch.setattr(Directory, "sync", failing)
    with pytest.raises(logstore.SyncFailedError, match="it was published"):
        store.publish([staged], identity="test", sequence=1)
    with pytest.raises(logstore.SyncFailedError):
        topic[0].append(b"x")
    assert [p.end_offset for p in topic] == [3, 3]
    monkeypatch.undo()
    disk = disk.kill()
    assert f"store/{layout.PUBLISHED}" not in tree(disk.medium.base)
    with open_quietly(disk) as again:
        assert again.published("test") == 1
        assert tree(disk.medium.base)[f"store/{layout.PUBLISHED}"]


def test_time_lookup_stops_where_readers_stop(tmp_path: Path) -> None:
    """What a publication has put into segments of its own, and not committed, may be
    taken back: no lookup leads there, in either process."""
    seen: list[object] = []

    class Watched(Unsynced):
        def rename(self, dir_fd: int, old: str, new: str) -> None:
            if new == ".logstore-published":
                with open_store(tmp_path, read_only=True) as reading:
                    for looking in (partition, reading.topic("orders")[0]):
                        seen.append(looking.offset_for_time(2000))
                        since = datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
                        seen.append(list(looking.read(since)) or None)
            super().rename(dir_fd, old, new)

    with open_store(tmp_path, files=Watched()) as store:
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

        monkeypatch.setattr(OpenTopics, "now", delete)
        with pytest.raises(logstore.TopicNotFoundError):
            store.publish([staged])
        assert store.topics() == []


# ------------------------------------------------ behind another program, as Kafka's


def another_program_writes(path: Path, times: int = 1) -> None:
    """As a broker that has used the directory leaves it."""
    for number in range(times):
        text = f"0\n1\na 0 {number}\n"
        (path / layout.RECOVERY_CHECKPOINT).write_text(text)
    (path / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)


@pytest.mark.parametrize("change", ["first", "behind another"])
def test_what_is_staged_behind_another_program_is_published(
    tmp_path: Path, change: str
) -> None:
    """Also as the first change, which takes the topics over."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 2, config_of(1))[0].append(b"x")
    another_program_writes(tmp_path)
    with logstore.open(tmp_path) as store:
        partition = store.topic("a")[0]
        if change != "first":
            store.topic("a")[1].append(b"y")
        for number in range(2):
            with store.stage() as opened:
                opened.append_many(partition, [b"1"])
                found = store.publish([opened.finish()])
            assert found.offsets == {("a", 0): range(1 + number, 2 + number)}


def test_what_another_process_staged_behind_another_program_is_published(
    tmp_path: Path,
) -> None:
    """Both give the topic the same new id. What was staged before that program wrote
    may be for another topic."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 1, config_of(1))[0].append(b"x")

    def staged_by_a_reader() -> Staged:
        with logstore.open(tmp_path, read_only=True) as reader, reader.stage() as one:
            one.append_many(reader.topic("a")[0], [b"1"])
            return one.finish()

    before = staged_by_a_reader()
    another_program_writes(tmp_path)
    behind = staged_by_a_reader()
    another_program_writes(tmp_path, 2)
    last = staged_by_a_reader()
    with logstore.open(tmp_path) as store:
        for staged in (before, behind):
            with pytest.raises(logstore.TopicNotFoundError, match="Stage them again"):
                store.publish([staged])
        assert store.publish([last]).offsets == {("a", 0): range(1, 2)}
        assert store.publish([staged_by_a_reader()]).records == 1
