"""A stage and what it hands out: good for one publication, whoever asks again; and a
`Staged` is a value from another process, of which each field is looked at."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    CorruptRecordError,
    LogStoreError,
    Partition,
    RecordTooLargeError,
    ReentrantCallError,
    StorageError,
    Store,
    StoreConfig,
    TimestampType,
    TopicConfig,
    TopicNotFoundError,
    UnsupportedError,
)
from logstore.io import layout
from logstore.io.files import Files
from logstore.log.write import staging
from logstore.log.write.staged_files import Staged, StagedLog
from logstore.maintenance.verify import verify
from logstore.store.store import open_store
from support.adopting import adopting
from support.damage import FixedClock
from support.users import SOMEBODY, as_user, needs_root, shared_place
from support.values import FORMATS, config_of

PUBLISHABLE = [(magic, codec) for magic, codec in FORMATS if magic]


@pytest.fixture(params=["copied", "adopted"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "adopted":
            stack.enter_context(adopting())
        yield request.param


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with logstore.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def partition(store: Store) -> Partition:
    return store.create_topic("t", 1, config_of(2))[0]


def stage(store: Store, partition: Partition, *values: bytes) -> Staged:
    with store.stage("me", 1) as opened:
        opened.append_many(partition, list(values) or [b"x"])
        return opened.finish()


def staged_files(store: Store) -> list[str]:
    names = os.listdir(store.path)
    return [name for name in names if name.startswith(layout.STAGED_PREFIX)]


def values(partition: Partition) -> list[Any]:
    return [record.value for record in partition.read()]


# ---------------------------------------------------------------- the second use


@pytest.mark.parametrize("size", [1, 100_000])
def test_finished_stage_returns_the_same_again(
    store: Store, partition: Partition, size: int
) -> None:
    """Each record is published once, however often it is asked what there is."""
    with store.stage("me", 1) as opened:
        for number in range(20):
            opened.append_many(partition, [b"%d" % number + b"." * size])
        first = opened.finish()
        assert opened.finish() is first
    assert opened.finish() is first
    assert first.records == 20
    store.publish([first], identity="me", sequence=1)
    assert opened.finish() is first
    assert [v[:2].rstrip(b".") for v in values(partition)] == [
        b"%d" % number for number in range(20)
    ]


def test_stage_that_is_over_takes_no_more_records(
    store: Store, partition: Partition
) -> None:
    """Finished, discarded, left by an error or without one: a named error each time."""
    finished = store.stage()
    finished.append_many(partition, [b"x"])
    staged = finished.finish()
    discarded = store.stage()
    discarded.append_many(partition, [b"x" * 100_000])
    discarded.discard()
    with store.stage() as left:
        left.append_many(partition, [b"x"])
    with pytest.raises(ZeroDivisionError), store.stage() as failed:
        raise ZeroDivisionError
    for number, over in enumerate((finished, discarded, left, failed)):
        for _ in range(2):
            with pytest.raises(ConfigError, match="Make a new one"):
                over.append_many(partition, [b"more"])
            with pytest.raises(ConfigError, match="Make a new one"):
                over.append_many(partition, [])
            with pytest.raises(ConfigError, match="Make a new one"):
                over.__enter__()
        if number in (1, 3):
            with pytest.raises(ConfigError, match="discarded"):
                over.finish()
    assert finished.finish() is staged
    store.publish([staged, left.finish()])
    assert values(partition) == [b"x", b"x"]
    assert staged_files(store) == []


def test_stage_is_entered_once(store: Store, partition: Partition) -> None:
    with store.stage() as opened:
        with pytest.raises(ConfigError, match="entered before"), opened:
            pass
        opened.append_many(partition, [b"x"])
        store.publish([opened.finish()])
    assert values(partition) == [b"x"]


def test_discard_again_and_behind_the_publication_is_harmless(
    store: Store, partition: Partition
) -> None:
    with store.stage() as opened:
        opened.append_many(partition, [b"x" * 100_000])
        staged = opened.finish()
    store.publish([staged])
    opened.discard()
    store.discard_staged([staged])
    opened.discard()
    assert values(partition) == [b"x" * 100_000]
    assert verify(store.path, deep=True).ok


def test_staged_is_published_once(store: Store, partition: Partition) -> None:
    """Twice in a list, and again when it is in the log: nothing more gets in."""
    staged = stage(store, partition, b"a", b"b")
    with pytest.raises(ConfigError, match="twice"):
        store.publish([staged, staged])
    assert partition.end_offset == 0
    store.publish(iter([staged]))
    with pytest.raises(StorageError, match="published or removed"):
        store.publish([staged])
    assert values(partition) == [b"a", b"b"]


def test_exhausted_iterator_publishes_nothing(
    store: Store, partition: Partition
) -> None:
    once = iter([stage(store, partition)])
    store.publish(once)
    assert store.publish(once).records == 0
    assert partition.end_offset == 1


class Failing(Files):
    """Fails a write of staged records, then goes on."""

    fails = False

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        if self.fails:
            self.fails = False
            raise OSError(28, "no space")
        super().write(fd, data, pos)


def test_stage_whose_write_failed_is_over(tmp_path: Path) -> None:
    """What is in its files is not known: it is not finished without some of them."""
    files = Failing()
    with open_store(tmp_path / "store", files=files) as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        for call in ("append", "finish"):
            opened = store.stage()
            opened.append_many(partition, [b"first"])
            files.fails = True
            with pytest.raises(StorageError):
                if call == "append":
                    opened.append_many(partition, [b"x" * 200_000])
                else:
                    opened.finish()
            for _ in range(2):
                with pytest.raises(ConfigError, match="failed"):
                    opened.finish()
                with pytest.raises(ConfigError, match="failed"):
                    opened.append_many(partition, [b"second"])
            opened.discard()
        assert staged_files(store) == []


def test_refused_records_leave_a_stage_as_it_was(
    store: Store, partition: Partition
) -> None:
    """Nothing of a call is staged that could not be encoded at all."""
    config = config_of(2, max_message_bytes=500)
    small = store.create_topic("small", 1, config)[0]
    old = store.create_topic("old", 1, config_of(0))[0]
    with store.stage() as opened:
        opened.append_many(partition, [b"a"])
        with pytest.raises(TypeError):
            opened.append_many(partition, [1])  # type: ignore[list-item]
        with pytest.raises(RecordTooLargeError):
            opened.append_many(small, [b"x", b"x" * 1000])
        with pytest.raises(UnsupportedError):
            opened.append_many(old, [b"x"])
        opened.append_many(partition, [b"b"])
        opened.append_many(small, [b"c"])
        store.publish([opened.finish()])
    assert values(partition) == [b"a", b"b"]
    assert values(small) == [b"c"]


def test_append_that_ends_half_way_ends_the_stage(
    store: Store, partition: Partition
) -> None:
    """Of a reader that fails behind its first batch nothing is published."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Iterator[Any]:
        yield pa.record_batch([pa.array([b"first"])], schema)
        raise ZeroDivisionError

    with store.stage() as opened:
        with pytest.raises(ZeroDivisionError):
            opened.append_arrow(
                partition, pa.RecordBatchReader.from_batches(schema, batches())
            )
        with pytest.raises(ConfigError, match="half-way"):
            opened.finish()


def test_stage_may_be_used_by_what_makes_its_records(
    store: Store, partition: Partition
) -> None:
    """A reader that stages a line of its own; one that finishes the stage is told."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("value", pa.binary())])
    opened = store.stage()

    def batches() -> Iterator[Any]:
        yield pa.record_batch([pa.array([b"first"])], schema)
        opened.append_many(partition, [b"between"])
        yield pa.record_batch([pa.array([b"second"])], schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    assert opened.append_arrow(partition, reader) == 2
    store.publish([opened.finish()])
    assert values(partition) == [b"first", b"between", b"second"]


class Calling(Files):
    """Calls a stage from inside its own write."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.met: list[BaseException] = []

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            try:
                call()
            except LogStoreError as error:
                self.met.append(error)
        super().write(fd, data, pos)


def test_call_from_inside_a_call_changes_nothing(tmp_path: Path) -> None:
    """As a finalizer makes it, which the garbage collector runs anywhere."""
    files = Calling()
    with open_store(tmp_path / "store", files=files) as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        opened = store.stage()
        files.calls = [
            lambda: opened.append_many(partition, [b"inner"]),
            opened.finish,
            opened.discard,
        ]
        opened.append_many(partition, [b"x" * 200_000, b"last"])
        assert [type(error) for error in files.met] == [ReentrantCallError] * 3
        store.publish([opened.finish()])
        assert values(partition) == [b"x" * 200_000, b"last"]


def test_forgotten_stage_gives_its_descriptor_back(
    store: Store, partition: Partition
) -> None:
    gc.collect()  # what other tests have left behind
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        store.stage().append_many(partition, [b"x" * 200_000])
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------- arguments


BAD_IDENTITIES = [5, None, b"me", ("me",), 1.5, "a" * 1001, "\ud800", "a\udfffb"]


@pytest.mark.parametrize("identity", BAD_IDENTITIES, ids=range(len(BAD_IDENTITIES)))
def test_identity_that_is_none_is_a_named_error(
    store: Store, partition: Partition, identity: Any
) -> None:
    """In each call that takes one, before anything is written."""
    staged = stage(store, partition)
    before = sorted(os.listdir(store.path))
    for call in (
        lambda: store.stage(identity, 1),
        lambda: store.publish([staged], identity=identity, sequence=1),
        lambda: store.published(identity),
        lambda: store.discard_staged([staged], identity=identity, before=3),
    ):
        with pytest.raises(ConfigError, match="identity"):
            call()
    assert sorted(os.listdir(store.path)) == before
    assert partition.end_offset == 0
    store.publish([staged], identity="me", sequence=1)


BAD_NUMBERS = [-1, 1 << 63, 1.0, math.nan, "1", None, True]


@pytest.mark.parametrize("number", BAD_NUMBERS, ids=range(len(BAD_NUMBERS)))
def test_sequence_that_is_none_is_a_named_error(
    store: Store, partition: Partition, number: Any
) -> None:
    staged = stage(store, partition)
    calls: list[Any] = [
        lambda: store.stage("me", number),
        lambda: store.publish([staged], identity="me", sequence=number),
        lambda: store.discard_staged([staged], identity="me", before=number),
    ]
    if number is not None:
        calls.append(lambda: store.discard_staged([staged], older_than_ms=number))
    for call in calls:
        with pytest.raises(ConfigError):
            call()
    assert staged_files(store) == list(staged.files)
    assert partition.end_offset == 0


ODD_IDENTITIES = [
    "a[",
    '"',
    "\\",
    "\x00\n",
    "\u2028",
    "\U0001f600" * 1000,
    "9" * 1000,
    ":99999999999999999999",
]


@pytest.mark.parametrize("identity", ODD_IDENTITIES, ids=range(len(ODD_IDENTITIES)))
def test_identity_of_any_characters_publishes_once(
    store: Store, partition: Partition, identity: str
) -> None:
    """And others go on publishing beside it; also when the store is opened again."""
    for sequence in (1, 2):
        for name in (identity, "other"):
            with store.stage(name, sequence) as opened:
                opened.append_many(partition, [b"x"])
                staged = opened.finish()
            assert store.publish([staged], identity=name, sequence=sequence).is_new
    store.close()
    with logstore.open(store.path) as again:
        assert again.published(identity) == again.published("other") == 2
        assert not again.publish([], identity=identity, sequence=2).is_new
        assert again.topic("t")[0].end_offset == 4


# ---------------------------------------------------------------- values from elsewhere


NOT_STAGED: list[Any] = [
    5,
    None,
    [5],
    [None],
    ["abc"],
    [()],
    [Staged(5)],  # type: ignore[arg-type]
    [Staged(None)],  # type: ignore[arg-type]
    [Staged((5,))],  # type: ignore[arg-type]
    [Staged((("t", 0),))],  # type: ignore[arg-type]
    Staged(()),
]


@pytest.mark.parametrize("given", NOT_STAGED, ids=range(len(NOT_STAGED)))
def test_what_no_stage_returned_is_a_named_error(
    store: Store, partition: Partition, given: Any
) -> None:
    with pytest.raises(ConfigError, match="staged"):
        store.publish(given)
    with pytest.raises(ConfigError, match="staged"):
        store.discard_staged(given)
    assert partition.end_offset == 0


HUGE = 10**5000
EXTREMES: dict[str, list[Any]] = {
    "topic": ["", ".", "..", "a/b", "\0", "t" * 300, None, 5, b"t", "\ud800"],
    "partition": [-1, 1 << 31, 1 << 63, HUGE, None, 0.0, math.nan, "0", True],
    "magic": [-1, 0, 1, 3, 255, HUGE, None, 2.0, math.nan, "2", True],
    "records": [-1, 0, 1, 4, 1 << 62, (1 << 63) - 1, HUGE, None, math.inf, True],
    "file": ["", ".lock", "../x", "/etc/passwd", ".logstore-owner", None, 5, b"x"],
    "is_alone": [None, 1, 0, "yes", math.nan],
    "first": [-1, 1, 7, (1 << 63) - 1, 1 << 63, HUGE, None, 0.0, True],
    "runs": [
        (),
        None,
        5,
        ((0, 0),),
        ((0, -1),),
        ((-1, 5),),
        ((0, 1 << 62),),
        ((1 << 62, 1),),
        ((0, HUGE),),
        ((HUGE, 1),),
        ((0, math.nan),),
        ((0, 1), (0, 1)),
        ((0, 10), (5, 10)),
        ((5, 10), (0, 10)),
        ((1, 20),),
        ((0,),),
        ((0, 1, 2),),
        (0, 1),
        "ab",
        ((True, True),),
    ],
    "topic_id": ["other", None, 5, "x" * 1000],
}


@pytest.mark.parametrize("field", EXTREMES)
def test_each_field_at_its_extremes_is_a_named_error(
    store: Store, partition: Partition, field: str
) -> None:
    """Nothing is changed by it, and nothing but staged files is touched."""
    partition.append(b"there")
    other = stage(store, partition, b"of another")
    staged = stage(store, partition, b"a", b"b", b"c")
    outside = snapshot(Path(store.path))
    named = (ConfigError, CorruptRecordError, LookupError)
    for value in EXTREMES[field]:
        wrong = Staged((staged.logs[0]._replace(**{field: value}),))
        with pytest.raises(named) as caught:
            store.publish([wrong], identity="x", sequence=1)
        assert isinstance(caught.value, LogStoreError), value
        assert partition.end_offset == 1
        with contextlib.suppress(ConfigError):
            store.discard_staged([Staged((wrong.logs[0]._replace(file="x" * 9),))])
    assert snapshot(Path(store.path)) == outside
    store.publish([staged, other])
    assert values(partition) == [b"there", b"a", b"b", b"c", b"of another"]


def snapshot(path: Path) -> dict[str, bytes]:
    """What a publication that was refused may not change; that a log was cut again, its
    state tells."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and "index" not in p.name and p.name != layout.PARTITION_STATE
    }


def test_runs_of_two_logs_that_overlap_are_refused(store: Store) -> None:
    """The same bytes in two partitions, or in parts."""
    topic = store.create_topic("two", 2, config_of(1))
    with store.stage() as opened:
        for partition in topic:
            opened.append_many(partition, [b"x" * 50])
        staged = opened.finish()
    first, second = staged.logs
    for runs in (first.runs, ((first.runs[0][0] + 1, 20),)):
        with pytest.raises(ConfigError, match="twice"):
            store.publish([Staged((first, second._replace(runs=runs)))])
    with pytest.raises(ConfigError, match="twice"):
        store.publish([Staged((first,)), Staged((first._replace(partition=1),))])
    assert [p.end_offset for p in topic] == [0, 0]
    store.publish([staged])
    assert [p.end_offset for p in topic] == [1, 1]


def test_discarding_with_a_wrong_name_removes_nothing(
    store: Store, partition: Partition
) -> None:
    """All of it is looked at first."""
    staged = stage(store, partition)
    wrong = Staged((staged.logs[0]._replace(file="../x"),))
    with pytest.raises(ConfigError):
        store.discard_staged([staged, wrong])
    assert staged_files(store) == list(staged.files)


def test_staged_goes_from_process_to_process(
    store: Store, partition: Partition
) -> None:
    """Pickled, and with lists for its tuples, as JSON makes them."""
    staged = pickle.loads(pickle.dumps(stage(store, partition, b"a")))
    log = staged.logs[0]
    lists = Staged([log._replace(runs=[list(run) for run in log.runs])])  # type: ignore[arg-type]
    store.publish([lists])
    assert values(partition) == [b"a"]
    # As a version without ids of topics made it.
    assert StagedLog(*log[:8]).topic_id == ""


def test_file_of_another_kind_is_refused(store: Store, partition: Partition) -> None:
    """A directory, a link, a FIFO of a staged file's name."""
    staged = stage(store, partition)
    path = Path(store.path, staged.files[0])
    target = path.with_name("target")
    path.rename(target)
    for make in (path.mkdir, lambda: path.symlink_to(target), lambda: os.mkfifo(path)):
        make()
        with pytest.raises((CorruptRecordError, StorageError)):
            store.publish([staged])
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert partition.end_offset == 0
    assert target.exists()


# ---------------------------------------------------------------- another topic


def test_staged_for_a_topic_that_was_made_anew_is_refused(store: Store) -> None:
    """Its records are not for that one, which has settings of its own."""
    partition = store.create_topic("t", 1, config_of(2))[0]
    staged = stage(store, partition, b"for the first")
    store.delete_topic("t")
    again = store.create_topic("t", 1, config_of(2))[0]
    with pytest.raises(TopicNotFoundError, match="Stage them again"):
        store.publish([staged], identity="me", sequence=1)
    with store.stage() as opened:  # the partition of the first one
        opened.append_many(partition, [b"too late"])
        with pytest.raises(TopicNotFoundError):
            store.publish([opened.finish()])
    assert again.end_offset == 0
    store.publish([stage(store, again, b"for the second")], identity="me", sequence=1)
    assert values(again) == [b"for the second"]


def test_id_of_a_topic_stays_for_its_life(store: Store) -> None:
    """With more partitions, other settings, and when the store is opened again."""
    topic = store.create_topic("t", 1, config_of(2))
    staged = stage(store, topic[0], b"a")
    topic.add_partitions(1)
    topic.configure(config_of(2, retention_ms=5_000_000_000))
    store.close()
    with logstore.open(store.path) as again:
        again.publish([staged])
        assert values(again.topic("t")[0]) == [b"a"]
        with logstore.open(store.path, read_only=True) as reader:
            staged = stage(reader, reader.topic("t")[1], b"b")
        again.publish([staged])
        assert values(again.topic("t")[1]) == [b"b"]


def test_topic_of_an_older_store_has_no_id(store: Store) -> None:
    """Nor does it get one: what was staged for it before is still for it."""
    store.create_topic("t", 1, config_of(2))
    store.close()
    Path(store.path, layout.TOPICS).unlink()
    with logstore.open(store.path) as again:
        topic = again.topic("t")
        staged = stage(again, topic[0], b"a")
        assert staged.logs[0].topic_id == ""
        topic.configure(config_of(2))
        again.publish([staged])
        assert values(topic[0]) == [b"a"]
        other = stage(again, topic[0], b"b")
        again.delete_topic("t")
        anew = again.create_topic("t", 1, config_of(2))[0]
        with pytest.raises(TopicNotFoundError):
            again.publish([other])
        assert anew.end_offset == 0


# ---------------------------------------------------------------- settings that changed


@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_batches_are_held_against_the_limit_at_the_publication(
    store: Store, magic: int, codec: str
) -> None:
    """A smaller one than when they were made; with the old one they get in."""
    config = config_of(magic, codec)
    topic = store.create_topic("t", 1, config)
    staged = stage(store, topic[0], os.urandom(300))
    topic.configure(config_of(magic, codec, max_message_bytes=200))
    with pytest.raises(RecordTooLargeError, match="max_message_bytes=200") as caught:
        store.publish([staged])
    assert caught.value.limit == 200
    assert (caught.value.size or 0) > 300
    assert topic[0].end_offset == 0
    topic.configure(config)
    store.publish([staged])
    assert topic[0].end_offset == 1


@pytest.mark.parametrize("now", [0, 1, 2])
@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_staged_batches_keep_their_magic(
    store: Store, magic: int, codec: str, now: int
) -> None:
    """Whatever the topic writes by the time of the publication: logs may be mixed."""
    topic = store.create_topic("t", 1, config_of(magic, codec))
    staged = stage(store, topic[0], b"a", b"b")
    topic.configure(config_of(now))
    topic[0].append(b"before")
    store.publish([staged])
    topic[0].append(b"behind")
    assert values(topic[0]) == [b"before", b"a", b"b", b"behind"]
    assert {b.magic for b in topic[0].read_batches(1, 3)} == {magic}
    store.close()
    assert verify(store.path, deep=True).ok
    with logstore.open(store.path) as again:
        assert values(again.topic("t")[0]) == [b"before", b"a", b"b", b"behind"]


def stamping(magic: int, codec: str, kind: str) -> TopicConfig:
    return config_of(magic, codec, message_timestamp_type=kind, index_interval_bytes=1)


@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_published_records_have_the_time_of_their_publication(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Where the topic has the time of the append: not that of their staging, which may
    be hours before what is in the log already; also in the indexes."""
    clock = FixedClock(1_700_000_000_000)
    with open_store(tmp_path / "store", files=clock) as store:
        partition = store.create_topic("t", 2, stamping(magic, codec, "LogAppendTime"))[
            0
        ]
        with store.stage() as opened:
            for number in range(40):
                opened.append_many(
                    partition,
                    [b"%d" % number * 30] * 5,
                    timestamps_ms=[number * 1000] * 5,
                )
            staged = opened.finish()
        clock.now += 3_600_000
        partition.append(b"appended")
        clock.now += 1000
        published = clock.now
        store.publish([staged])
        clock.now += 1000
        partition.append(b"behind")
        records = list(partition.read())
        times = [r.timestamp_ms for r in records]
        assert times == [published - 1000] + [published] * 200 + [published + 1000]
        assert {r.timestamp_type for r in records} == {TimestampType.LOG_APPEND_TIME}
        for when, offset in (
            (published - 1000, 0),
            (published - 999, 1),
            (published, 1),
            (published + 1, 201),
            (published + 1001, None),
        ):
            assert partition.offset_for_time(when) == offset
    report = verify(tmp_path / "store", deep=True)
    assert report.ok, report.problems
    with open_store(tmp_path / "store", files=clock) as store:
        partition = store.topic("t")[0]
        assert not store.recovery_report
        assert [r.timestamp_ms for r in partition.read()] == times
        assert partition.offset_for_time(published) == 1


@pytest.mark.parametrize("now", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("then", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("magic", [1, 2])
def test_kind_of_timestamp_is_that_of_the_publication(
    tmp_path: Path, magic: int, then: str, now: str
) -> None:
    """Staged with one and published with another: as if appended when published."""
    clock = FixedClock(1_700_000_000_000)
    with open_store(tmp_path / "store", files=clock) as store:
        topic = store.create_topic("t", 1, stamping(magic, "none", then))
        with store.stage() as opened:
            opened.append_many(topic[0], [b"a"] * 9, timestamps_ms=[1000] * 9)
            staged = opened.finish()
        topic.configure(stamping(magic, "none", now))
        clock.now += 5000
        store.publish([staged])
        wanted = 1000 if now == "CreateTime" else clock.now
        assert {r.timestamp_ms for r in topic[0].read()} == {wanted}
        assert {r.timestamp_type for r in topic[0].read()} == {
            TimestampType.CREATE_TIME
            if now == "CreateTime"
            else TimestampType.LOG_APPEND_TIME
        }
        assert topic[0].offset_for_time(wanted) == 0
    assert verify(tmp_path / "store", deep=True).ok


def test_batch_that_was_stamped_when_it_was_staged_is_stamped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older versions staged them, whatever the topic says by now."""
    clock = FixedClock(1_700_000_000_000)
    with open_store(tmp_path / "store", files=clock) as store:
        topic = store.create_topic("t", 1, stamping(2, "none", "LogAppendTime"))
        with monkeypatch.context() as patched:
            patched.setattr(staging.dataclasses, "replace", lambda config, **_: config)
            staged = stage(store, topic[0], b"a", b"b")
        topic.configure(stamping(2, "none", "CreateTime"))
        clock.now += 5000
        store.publish([staged])
        assert {r.timestamp_ms for r in topic[0].read()} == {clock.now}
    assert verify(tmp_path / "store", deep=True).ok


# ---------------------------------------------------------------- whose files they are


def mode_of(store: Store, staged: Staged) -> int:
    return os.stat(Path(store.path, staged.files[0])).st_mode & 0o777


@pytest.mark.parametrize("size", [1, 500_000])
def test_staged_file_is_for_whom_the_store_is_for(tmp_path: Path, size: int) -> None:
    """Whoever stages opens the store read-only and need not know of the group: the
    owner, another user of the group, has to read the file."""
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o770)
    ours = StoreConfig(group_access=True)
    with logstore.open(root, config=ours) as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        for config in (ours, None):
            partition.append(b"x")
            with logstore.open(root, read_only=True, config=config) as reader:
                staged = stage(reader, reader.topic("t")[0], b"x" * size)
                assert mode_of(reader, staged) == 0o660
            store.publish([staged])
            for path in Path(root, "t-0").iterdir():
                assert path.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("size", [1, 500_000])
def test_staged_file_of_a_private_store_is_private(tmp_path: Path, size: int) -> None:
    """And so is the segment that it becomes, whatever its own mode was."""
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        partition.append(b"x")
        with logstore.open(store.path, read_only=True) as reader:
            staged = stage(reader, reader.topic("t")[0], b"x" * size)
            assert mode_of(reader, staged) == 0o600
        Path(store.path, staged.files[0]).chmod(0o666)
        store.publish([staged])
        for path in Path(store.path, "t-0").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600


@needs_root
def test_file_of_another_user_is_copied(way: str) -> None:
    """A log belongs to the owner of its store."""
    group = SOMEBODY + 1
    with shared_place(SOMEBODY) as place:
        root = place / "store"
        root.mkdir()
        os.chown(root, SOMEBODY, group)
        root.chmod(0o2770)
        found: Path = place / "staged"
        found.touch()
        found.chmod(0o666)
        config = StoreConfig(group_access=True)

        def create() -> None:
            with logstore.open(root, config=config) as store:
                store.create_topic("t", 1, config_of(2))[0].append(b"x")

        def stage_there() -> None:
            with logstore.open(root, read_only=True) as reader:
                staged = stage(reader, reader.topic("t")[0], b"y" * 100_000)
                found.write_bytes(pickle.dumps(staged))

        def publish() -> None:
            with logstore.open(root, config=config) as store:
                store.publish([pickle.loads(found.read_bytes())])
                assert values(store.topic("t")[0])[-1][:1] == b"y"
                for path in Path(root, "t-0").iterdir():
                    assert path.stat().st_uid == SOMEBODY

        as_user(SOMEBODY, create, group=group)
        as_user(SOMEBODY + 2, stage_there, group=group)
        as_user(SOMEBODY, publish, group=group)
