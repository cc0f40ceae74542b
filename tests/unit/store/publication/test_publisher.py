"""Publishing: completely or not at all, once, and never partly visible."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import ConfigError, Store
from logstore.errors import (
    CorruptCheckpointError,
    PublicationConflictError,
    ReadOnlyError,
)
from logstore.io import layout
from logstore.io.checkpoint import ledger
from logstore.io.stamps import Look
from logstore.log.follow.followed import FollowedLog
from logstore.log.write.staged_files import Staged
from logstore.store.package_access import publication_key
from logstore.store.publication.group_commit import GroupCommit
from support import staging
from support.staging import WAY, stage, staged_files
from support.values import (
    FORMATS,
    config_of,
    expected,
    fill,
)

# Fixtures.
store, way = staging.store, staging.way

PUBLISHABLE = [(magic, codec) for magic, codec in FORMATS if magic]


# ---------------------------------------------------------------- published records


@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_staged_records_are_read_where_they_were_published(
    store: Store, magic: int, codec: str
) -> None:
    """They go into several topics and partitions, after existing records, over several
    segments, and are not visible before."""
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
    """Another process does it, without a lock; a staged file is a plain value."""
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
    """This holds even after the store was reopened, and with other staged files."""
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
    """It is kept until the next one, also one without records; any text is accepted,
    and the store opens."""
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
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 3)
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
    """It is unknown whether it was published, so nothing is published."""
    partition = store.create_topic("a", 1, config_of(2))[0]
    store.publish([stage(store, {partition: 1})], identity="test", sequence=1)
    store.close()
    path = Path(store.path, layout.PUBLISHED)
    path.write_bytes(path.read_bytes().replace(b"test", b"tost"))
    with logstore.open(store.path) as again:
        partition = again.topic("a")[0]
        with pytest.raises(CorruptCheckpointError):
            again.published("test")
        with pytest.raises(CorruptCheckpointError):
            again.publish([stage(again, {partition: 1})], identity="test", sequence=1)
        assert partition.end_offset == 1


# ---------------------------------------------------------------- partial visibility


def test_no_reader_sees_part_of_a_publication(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers in this process and in another one are checked at each step; so are
    segments."""
    topic = store.create_topic("a", 3, config_of(WAY.magic, segment_bytes=300))
    for partition in topic:
        fill(partition, 3)
    seen: list[list[list[int]]] = []
    steps = {"_append": GroupCommit._append, "_put_in": GroupCommit._put_in}

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
            monkeypatch.setattr(GroupCommit, name, looking(name))
        store.publish([stage(store, dict.fromkeys(topic, 20))])
        look()
        before, after = [3, 3, 3], [23, 23, 23]
        assert seen[:7] == [[before] * 3] * 7
        # The commit: readers of the files see it first.
        assert seen[7] == [before, after, after]
        assert seen[8] == [after] * 3


def test_reader_that_looks_while_a_publication_ends_looks_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read half of the log when the rest is added and the publication counts."""
    partition = store.create_topic("a", 1, config_of(WAY.magic, segment_bytes=300))[0]
    staged = stage(store, {partition: 20})
    with logstore.open(store.path, read_only=True) as reader:
        live = reader.topic("a")[0]
        assert live.end_offset == 0
        walked, done = FollowedLog.grow, []

        def grow(log: FollowedLog, look: Look) -> bool:
            has_grown = walked(log, look)
            if not done:
                done.append(store.publish([staged]))
            return has_grown

        monkeypatch.setattr(FollowedLog, "grow", grow)
        # A change of the directory: the reader checks regardless of its last check.
        Path(partition.path, "foreign").touch()
        assert live.end_offset == 20


@pytest.mark.parametrize("is_owner", [False, True])
def test_ends_that_belong_together_are_seen_together(
    store: Store, is_owner: bool
) -> None:
    """A reader checks again if the token has changed."""
    topic = store.create_topic("a", 3, config_of(WAY.magic))
    rounds = 0
    seen: set[int] = set()

    def publish() -> None:
        nonlocal rounds
        # A busy machine may let the other thread check only rarely.
        while rounds < 40 or (len(seen) < 3 and rounds < 4_000):
            store.publish([stage(store, dict.fromkeys(topic, 5))])
            rounds += 1

    with logstore.open(store.path, read_only=True) as reader:
        looking = (store if is_owner else reader).topic("a")
        thread = threading.Thread(target=publish)
        thread.start()
        while thread.is_alive():
            token = publication_key(store if is_owner else reader)
            ends = [p.end_offset for p in looking]
            if publication_key(store if is_owner else reader) == token:
                assert len(set(ends)) == 1, ends
                seen.add(ends[0])
        thread.join()
        assert [p.end_offset for p in looking] == [5 * rounds] * 3
        assert len(seen) > 2


# ---------------------------------------------------- after another program, like Kafka


def another_program_writes(path: Path, times: int = 1) -> None:
    """Leave the directory as after a broker."""
    for number in range(times):
        text = f"0\n1\na 0 {number}\n"
        (path / layout.RECOVERY_CHECKPOINT).write_text(text)
    (path / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)


@pytest.mark.parametrize("change", ["first", "behind another"])
def test_what_is_staged_behind_another_program_is_published(
    tmp_path: Path, change: str
) -> None:
    """This includes the first change, which takes over the topics."""
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
    """The topic keeps its id: records staged before that program wrote are for the same
    topic. A topic made again is another one."""
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
        for number, staged in enumerate((before, behind, last), 1):
            found = store.publish([staged]).offsets
            assert found == {("a", 0): range(number, number + 1)}
        assert store.publish([staged_by_a_reader()]).records == 1
    late = staged_by_a_reader()
    another_program_writes(tmp_path)
    shutil.rmtree(tmp_path / "a-0")
    (tmp_path / "a-0").mkdir(0o700)
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.TopicNotFoundError, match="Stage them again"):
            store.publish([late])
