"""`Consumer`: its records, its start positions, its commits."""

from __future__ import annotations

import datetime
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetAndMetadata, TopicPartition
from support.groups import T0, T1, consumer, drain, store_with

VALUES = [b"%d:%d" % (p, n) for p in range(2) for n in range(10)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "s")


def appended(path: Path, *values: bytes, partition: int = 0) -> None:
    with logstore.open(path) as store:
        store.topic("t")[partition].append_many(values)


# ------------------------------------------------------------------ records


def test_poll_delivers_records_with_their_places(path: Path) -> None:
    """The records are grouped by partition, in order, up to the given number."""
    with consumer(path) as one:
        first = one.poll(max_records=3)
        (key,) = first
        assert isinstance(key, TopicPartition)
        assert [r.offset for r in first[key]] == [0, 1, 2]
        record = first[key][0]
        assert (record.topic, record.partition) == key
        assert isinstance(record, logstore.TopicRecord)
        assert one.position(key) == 3
        rest = drain(one)
        assert sorted([*rest, *(r.value for r in first[key])]) == sorted(VALUES)
        assert one.poll() == {}


def test_all_partitions_have_their_turn(path: Path) -> None:
    """This holds even if a call returns less than one partition has."""
    with consumer(path) as one:
        keys = [next(iter(one.poll(max_records=2))) for _ in range(4)]
    assert set(keys) == {T0, T1}


def test_iterator_delivers_one_by_one(path: Path) -> None:
    """The position is after the last one; a `poll` continues there."""
    with consumer(path) as one:
        first = [next(one) for _ in range(4)]
        assert [r.offset for r in first] == [0, 1, 2, 3]
        key = TopicPartition(first[0].topic, first[0].partition)
        assert one.position(key) == 4
        one.commit()
        assert one.committed(key) == OffsetAndMetadata(4)
        assert sorted([*drain(one), *(r.value for r in first)]) == sorted(VALUES)


def test_iterator_follows_a_seek(path: Path) -> None:
    """Records that were read ahead are dropped."""
    with consumer(path, topics=()) as one:
        one.assign([T0])
        assert next(one).offset == 0
        one.seek(T0, 7)
        assert next(one).offset == 7
        one.pause(T0)
        one.assign([T1])
        assert next(one).value == b"1:0"


def test_iterator_waits_for_records(path: Path) -> None:
    """Another process or thread appends them."""
    with consumer(path, durable_only=False) as one:
        drain(one)
        thread = threading.Timer(0.05, appended, (path, b"new"))
        thread.start()
        assert next(one).value == b"new"
        thread.join()


def test_poll_waits_for_records(path: Path) -> None:
    """It waits up to the given timeout."""
    with consumer(path) as one:
        drain(one)
        assert one.poll(timeout_ms=20) == {}
        thread = threading.Timer(0.05, appended, (path, b"new"))
        thread.start()
        (found,) = one.poll(timeout_ms=60_000).values()
        thread.join()
        assert [record.value for record in found] == [b"new"]


def test_open_store_of_the_writer_can_be_consumed(path: Path) -> None:
    """The process that appends can consume; a wait ends with the append."""
    with logstore.open(path) as store, consumer(store) as one:
        assert sorted(drain(one)) == sorted(VALUES)
        partition = store.topic("t")[1]
        thread = threading.Timer(0.05, partition.append, (b"new",), {"durable": True})
        thread.start()
        assert [r.value for r in one.poll(60_000)[T1]] == [b"new"]
        thread.join()


def test_durable_records_only_by_default(path: Path) -> None:
    """A power failure cannot remove delivered records."""
    config = logstore.StoreConfig(flush_checkpoint_ms=0)
    with logstore.open(path, config=config) as store:
        store.topic("t").configure(logstore.TopicConfig(flush_ms=3_600_000))
        one, other = consumer(store), consumer(store, group="h", durable_only=False)
        with one, other:
            drain(one)
            drain(other)
            store.topic("t")[0].append(b"new")
            assert drain(other) == [b"new"]
            assert drain(one) == []
            store.topic("t")[0].flush()
            assert [r.value for r in one.poll(60_000)[T0]] == [b"new"]


def test_without_a_group_all_partitions_are_read(path: Path) -> None:
    """Each consumer reads all; it cannot commit."""
    with consumer(path, group=None) as one, consumer(path, group=None) as two:
        assert sorted(drain(one)) == sorted(drain(two)) == sorted(VALUES)
        with pytest.raises(logstore.ConfigError, match="no group"):
            one.commit()
        with pytest.raises(logstore.ConfigError, match="no group"):
            one.committed(T0)
        assert one.group_metadata() == (None, -1, "")
    assert not list(path.glob(".logstore-group-*"))


def test_store_that_may_not_be_written_can_be_read_without_a_group(path: Path) -> None:
    """A group needs its files."""
    with logstore.open(path, read_only=True) as store:
        with consumer(store, group=None, topics=(), pattern="^t$") as one:
            assert sorted(drain(one)) == sorted(VALUES)
            assert one.subscription() == {"t"}


# ------------------------------------------------------------------ start positions


def test_group_continues_where_it_has_committed(path: Path) -> None:
    """The second consumer begins after the first has left."""
    with consumer(path) as one:
        seen = one.poll(max_records=5)
        one.commit()
    with consumer(path, reset="error") as two:
        (key,) = seen
        two.poll(0, 1) if key == T0 else None
        assert two.committed(key) == OffsetAndMetadata(5)


def test_reset_decides_without_a_committed_offset(path: Path) -> None:
    """The start, the end, a time, or an error until a seek."""
    with consumer(path, group="latest", reset="latest") as one:
        assert drain(one) == []
        assert one.position(T0) == 10
    ago = datetime.timedelta(days=1)
    with consumer(path, group="ago", reset=ago) as one:
        assert sorted(drain(one)) == sorted(VALUES)
    with consumer(path, group="now", reset=datetime.timedelta(0)) as one:
        assert drain(one) == []
    with consumer(path, group="error", reset="error") as one:
        for _ in range(2):
            with pytest.raises(logstore.errors.NoOffsetForPartitionError) as caught:
                one.poll()
        assert caught.value.group == "error"
        assert caught.value.partition in ("t-0", "t-1")
        with pytest.raises(logstore.errors.NoOffsetForPartitionError):
            one.position(T0)
        one.seek_to_beginning()
        assert sorted(drain(one)) == sorted(VALUES)


def test_offset_that_retention_has_deleted_is_an_error_until_a_seek(path: Path) -> None:
    """The error has the start of the log; other partitions wait, too."""
    with consumer(path) as one:
        drain(one)
        one.seek(T0, 2)
        one.commit()
    with logstore.open(path) as store:
        store.topic("t")[0].delete_before(6)
    with consumer(path, reset="error") as two:
        for _ in range(2):
            with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
                two.poll()
        assert (caught.value.start, caught.value.requested) == (6, 2)
        two.seek(T0, caught.value.start)
        assert drain(two) == [b"0:6", b"0:7", b"0:8", b"0:9"]
    with consumer(path, reset="earliest") as three:
        assert drain(three) == [b"0:6", b"0:7", b"0:8", b"0:9"]


def test_offset_past_the_end_is_reset(path: Path) -> None:
    """A store that was restored from a backup has such offsets."""
    with consumer(path, reset="latest") as one:
        one.poll()
        one.commit({T0: 99, T1: 0})
    with consumer(path, reset="error") as two:
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            two.poll()
        assert caught.value.end == 10
        two.pause(T0)
        assert two.paused() == {T0}
        assert len(drain(two)) == 10


def test_topic_made_again_is_another_one(path: Path) -> None:
    """Commits for the first topic do not count, though the offset would exist."""
    with consumer(path) as one:
        drain(one)
        one.commit({T0: 5, T1: 5})
    with logstore.open(path) as store:
        store.delete_topic("t")
        for partition in store.create_topic("t", 2):
            partition.append_many([b"new"] * 8)
    with consumer(path, reset="error") as two:
        with pytest.raises(logstore.errors.NoOffsetForPartitionError):
            two.poll()
        assert two.committed(T0) is None
    with consumer(path) as three:
        assert drain(three) == [b"new"] * 16


def test_damage_is_raised_after_the_records_before_it(path: Path) -> None:
    """It is raised at each call, until a seek over it."""
    with logstore.open(path) as store:
        store.topic("t")[0].append_many([b"a" * 100])
        store.topic("t")[0].append_many([b"b"])
    log = next((path / "t-0").glob("*.log"))
    data = log.read_bytes()
    at = data.index(b"a" * 100)
    log.write_bytes(data[:at] + b"x" + data[at + 1 :])
    with consumer(path, topics=()) as one:
        one.assign([T0])
        assert len(drain(one, 10)) == 10
        for _ in range(2):
            with pytest.raises(logstore.CorruptRecordError) as caught:
                one.poll()
        assert caught.value.offset == 10
        one.seek(T0, caught.value.next_offset)
        assert drain(one) == [b"b"]


# ------------------------------------------------------------------ commits


def test_commit_takes_offsets_and_metadata(path: Path) -> None:
    """The partitions are assigned to it."""
    with consumer(path) as one:
        one.poll()
        one.commit({T0: 3, T1: OffsetAndMetadata(4, "note", 2)}, durable=False)
        assert one.committed(T0) == OffsetAndMetadata(3)
        assert one.committed(T1) == OffsetAndMetadata(4, "note", 2)
        one.seek_to_committed()
        assert (one.position(T0), one.position(T1)) == (3, 4)
        assert one.lag() == {T0: 7, T1: 6}
        one.commit({})
        one.commit()


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({T0: -1}, logstore.ConfigError),
        ({T0: 1 << 63}, logstore.ConfigError),
        ({T0: "5"}, TypeError),
        ({T0: (1, 2)}, TypeError),
        ({"t": 1}, TypeError),
        ([T0], TypeError),
        ({T0: OffsetAndMetadata(1, "\ud800")}, logstore.ConfigError),
        (
            {T0: OffsetAndMetadata(1, "ü" * 2049)},
            logstore.errors.OffsetMetadataTooLargeError,
        ),
        ({T0: OffsetAndMetadata(1, "", -2)}, logstore.ConfigError),
    ],
)
def test_bad_commit_is_refused(path: Path, offsets: Any, error: type) -> None:
    """No commit of the call is made."""
    with consumer(path) as one:
        one.poll()
        one.commit({T1: 1})
        with pytest.raises(error):
            one.commit({T1: 7, **offsets} if isinstance(offsets, dict) else offsets)
        assert one.committed(T1) == OffsetAndMetadata(1)


def test_longest_metadata_is_kept(path: Path) -> None:
    """4,096 bytes of UTF-8."""
    with consumer(path) as one:
        one.poll()
        one.commit({T0: OffsetAndMetadata(1, "ü" * 2048)})
        assert one.committed(T0) == OffsetAndMetadata(1, "ü" * 2048)
        with pytest.raises(logstore.errors.OffsetMetadataTooLargeError) as caught:
            one.commit({T0: OffsetAndMetadata(1, "ü" * 2049)})
        assert (caught.value.size, caught.value.limit) == (4098, 4096)


def test_commits_by_itself_when_it_is_time(path: Path) -> None:
    """Records delivered by earlier calls are committed; all of them at close."""
    with consumer(path, auto_commit_ms=0) as one, consumer(path, group="h") as other:
        found = one.poll(max_records=3)
        (key,) = found
        assert one.committed(key) is None
        one.poll(max_records=2)
        assert one.committed(key) == OffsetAndMetadata(3)
        drain(one)
        assert not drain(other, 0)
    with consumer(path, reset="error") as two:
        assert drain(two) == []


def test_error_in_the_block_commits_nothing_by_itself(path: Path) -> None:
    """The records delivered last may not be processed."""
    with pytest.raises(RuntimeError), consumer(path, auto_commit_ms=100_000) as one:
        one.poll()
        raise RuntimeError
    with consumer(path) as two:
        assert len(drain(two)) == 20


class Database:
    """Committed offsets in another place."""

    def __init__(self) -> None:
        self.kept: dict[TopicPartition, OffsetAndMetadata] = {}
        self.durable: list[bool] = []

    def committed(self, partitions: Any) -> Any:
        return {key: self.kept[key] for key in partitions if key in self.kept}

    def commit(self, offsets: Any, *, durable: bool) -> None:
        self.kept.update(offsets)
        self.durable.append(durable)


def test_offsets_may_be_kept_elsewhere(path: Path) -> None:
    """The group's file has no offsets then; it still has the assignment of
    partitions."""
    database = Database()
    with consumer(path, offsets=database) as one:
        assert len(drain(one)) == 20
        one.commit(durable=False)
    assert database.kept == {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(10)}
    assert database.durable == [False]
    with consumer(path, offsets=database, reset="error") as two:
        assert drain(two) == []
        with pytest.raises(logstore.errors.CommitFailedError):
            two.commit({TopicPartition("t", 2): 1})
    with consumer(path) as three:
        assert len(drain(three)) == 20


# ------------------------------------------------------------------ positions


def test_seeks_move_the_position(path: Path) -> None:
    """The target is an offset, an end, or a time."""
    with logstore.open(path) as store:
        t0 = store.topic("t")[0]
        t0.append(b"late", timestamp_ms=5_000_000_000_000)
    with consumer(path) as one:
        one.poll(0, 1)
        one.seek(T0, 8)
        assert one.position(T0) == 8
        one.seek_to_end(T0)
        assert one.position(T0) == 11
        one.seek_to_beginning(T0)
        assert one.position(T0) == 0
        one.seek_to_time(4_000_000_000_000)
        assert (one.position(T0), one.position(T1)) == (10, 10)
        one.seek_to_time({T0: 0})
        assert (one.position(T0), one.position(T1)) == (0, 10)
        one.seek_to_time({T0: datetime.datetime.now(datetime.timezone.utc)})
        assert one.position(T0) == 10


def test_paused_partitions_deliver_nothing(path: Path) -> None:
    """They stay assigned."""
    with consumer(path) as one:
        one.poll(0, 1)
        one.seek_to_beginning()
        one.pause(T0)
        assert drain(one) == VALUES[10:]
        one.resume(T0)
        assert drain(one) == VALUES[:10]
        assert one.assignment() == {T0, T1}


def test_offsets_of_the_log(path: Path) -> None:
    """Partitions of other members can be queried, too."""
    with consumer(path, topics=()) as one:
        assert one.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
        assert one.end_offsets([T0]) == {T0: 10}
        found = one.offsets_for_times({T0: 0, T1: 5_000_000_000_000})
        assert found[T1] is None
        assert found[T0].offset == 0
        assert found[T0].timestamp > 1_000_000_000_000


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.position(T0),
        lambda one: one.seek(T0, 1),
        lambda one: one.pause(T0),
        lambda one: one.resume(T0),
        lambda one: one.seek_to_beginning(T0),
        lambda one: one.seek_to_time({T0: 5}),
    ],
)
def test_partition_that_it_does_not_have_is_refused(path: Path, ask: Any) -> None:
    """The error names it."""
    with consumer(path, topics=()) as one:
        with pytest.raises(logstore.ConfigError, match="not assigned"):
            ask(one)


# ------------------------------------------------------------------ assign


def test_assigned_partitions_are_read(path: Path) -> None:
    """No other partition is read; in a group their positions are committed, too."""
    with consumer(path, topics=()) as one:
        one.assign([T1])
        assert (one.assignment(), one.subscription()) == ({T1}, set())
        assert drain(one) == VALUES[10:]
        one.commit()
        one.assign([T0, T1])
        assert drain(one) == VALUES[:10]
        one.unsubscribe()
        assert (one.assignment(), one.poll()) == (set(), {})
    with consumer(path, topics=()) as two:
        two.assign([T1])
        assert drain(two) == []


def test_assigned_partition_of_another_member_cannot_be_committed(path: Path) -> None:
    """It can be read; and be committed after the other one has left."""
    with consumer(path, topics=()) as one, consumer(path) as two:
        two.poll()
        one.assign([T0])
        assert len(drain(one)) == 10
        with pytest.raises(
            logstore.errors.CommitFailedError, match="process"
        ) as caught:
            one.commit()
        assert caught.value.group == "g"
        two.close()
        one.commit()
        assert one.committed(T0) == OffsetAndMetadata(10)


def test_assigning_what_does_not_exist_changes_nothing(path: Path) -> None:
    """The error names it."""
    with consumer(path, topics=()) as one:
        one.assign([T0])
        with pytest.raises(logstore.TopicNotFoundError):
            one.assign([("x", 0)])
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            one.assign([T1, ("t", 9)])
        assert one.assignment() == {T0}


# ------------------------------------------------------------------ arguments, state


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"group": ""}, logstore.ConfigError),
        ({"topics": "t"}, TypeError),
        ({"topics": ["/"]}, logstore.ConfigError),
        ({"topics": (), "pattern": "("}, logstore.ConfigError),
        ({"topics": (), "pattern": b"t"}, TypeError),
        ({"assignor": "x"}, logstore.ConfigError),
        ({"reset": "none"}, logstore.ConfigError),
        ({"reset": datetime.timedelta(-1)}, logstore.ConfigError),
        ({"auto_commit_ms": -1}, logstore.ConfigError),
        ({"auto_commit_ms": 5, "group": None}, logstore.ConfigError),
        ({"isolation": "x"}, logstore.ConfigError),
        ({"max_poll_records": 0}, logstore.ConfigError),
        ({"max_poll_interval_ms": 0}, logstore.ConfigError),
        ({"on_stuck": "x"}, logstore.ConfigError),
        ({"instance": ""}, logstore.ConfigError),
        ({"instance": "a\0"}, logstore.ConfigError),
        ({"instance": "a", "group": None}, logstore.ConfigError),
        ({"offsets": Database(), "group": None}, logstore.ConfigError),
    ],
)
def test_bad_argument_is_refused(path: Path, given: Any, error: type) -> None:
    """Nothing is opened."""
    with pytest.raises(error):
        consumer(path, **given)
    assert not list(path.glob(".logstore-group-*"))


@pytest.mark.parametrize(
    "group", ["x" * 300, "a/b", "a%2Fb", "\N{PILE OF POO}", ".", "a.lock", "g\n"]
)
def test_group_may_have_any_name(path: Path, group: str) -> None:
    """Each name is another group."""
    for name in (group, group + "x"):
        with consumer(path, group=name) as one:
            assert len(drain(one)) == 20
            one.commit()
    with consumer(path, group=group, reset="error") as two:
        assert drain(two) == []
        assert two.group_metadata()[0] == group


def test_missing_store_is_a_named_error(tmp_path: Path) -> None:
    """Nothing is made."""
    with pytest.raises(logstore.StoreNotFoundError):
        consumer(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_closed_consumer_refuses(path: Path) -> None:
    """Closing twice is allowed."""
    one = consumer(path)
    one.close()
    one.close()
    with pytest.raises(logstore.errors.StoreClosedError):
        one.poll()


def test_forgotten_consumer_leaves_the_group(path: Path) -> None:
    """It warns."""
    one, two = consumer(path), consumer(path)
    one.poll()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del one
    while len(two.assignment()) < 2:
        two.poll(timeout_ms=50)
    two.close()


def test_call_of_another_thread_is_refused(path: Path) -> None:
    """Another call is in progress."""
    one = consumer(path)
    drain(one)
    thread = threading.Thread(target=one.poll, args=(60_000,))
    thread.start()
    while one._core._waiting._new_records._wakeups is None:
        time.sleep(0.001)
    with pytest.raises(logstore.errors.ReentrantCallError, match="another thread"):
        one.poll()
    appended(path, b"end")
    thread.join()
    one.close()


@pytest.fixture
def calls() -> list[Any]:
    return []


def test_callbacks_may_use_the_consumer(path: Path, calls: list[Any]) -> None:
    """They may seek, commit and query, but neither poll nor close."""

    def on_assign(keys: Any) -> None:
        calls.append(("assign", keys, one.assignment()))
        for key in keys:
            one.seek(key, 9)
        with pytest.raises(logstore.errors.ReentrantCallError, match="callbacks"):
            one.poll()
        with pytest.raises(logstore.errors.ReentrantCallError, match="callbacks"):
            one.close()

    def on_revoke(keys: Any) -> None:
        calls.append(("revoke", keys, one.assignment()))
        one.commit()

    with consumer(path, on_assign=on_assign, on_revoke=on_revoke) as one:
        assert sorted(drain(one)) == [b"0:9", b"1:9"]
    assert calls == [("assign", [T0, T1], {T0, T1}), ("revoke", [T0, T1], {T0, T1})]
    with consumer(path, reset="error") as two:
        assert drain(two) == []


def test_error_of_a_callback_is_raised(path: Path) -> None:
    """The partitions are given up nevertheless."""

    def on_revoke(keys: Any) -> None:
        raise RuntimeError

    one = consumer(path, on_revoke=on_revoke)
    one.poll()
    with pytest.raises(RuntimeError):
        one.close()
    with consumer(path) as two:
        assert len(drain(two)) == 20


def test_topic_that_does_not_exist_yet_is_waited_for(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names it."""
    with consumer(path, topics=["later"]) as one:
        assert one.poll() == {}
        assert "later" in caplog.text
        with logstore.open(path) as store:
            store.create_topic("later")[0].append(b"x", durable=True)
        (found,) = one.poll(60_000).values()
        assert found[0].value == b"x"


def test_pattern_finds_topics_that_are_made_later(path: Path) -> None:
    """Topics match by the beginnings of their names."""
    with consumer(path, topics=(), pattern="t|lat") as one:
        assert len(drain(one)) == 20
        assert one.subscription() == {"t"}
        with logstore.open(path) as store:
            store.create_topic("later")[0].append(b"x", durable=True)
        (found,) = one.poll(60_000).values()
        assert found[0].value == b"x"
        assert one.subscription() == {"t", "later"}


def test_consumer_says_what_it_is(path: Path) -> None:
    """The text is meant for a service's log."""
    with consumer(path) as one:
        assert repr(one) == f"<logstore.Consumer of group 'g' on {path}>"
        assert one.group_metadata() == ("g", -1, "")
        one.poll()
        group, generation, member = one.group_metadata()
        assert (group, generation) == ("g", 1)
        assert member.startswith("consumer-0-")
        with pytest.raises(TypeError, match="pickled"):
            one.__reduce__()
