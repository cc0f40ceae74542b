"""Tasks: planned and read as Spark does it, without a Java machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import ConfigError, LogStoreError
from logstore.log.follow.read_only_log import ReadOnlyLog

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import types

from logstore import TopicPartition
from pyspark_logstore import stores
from pyspark_logstore.read import columns, tasks
from pyspark_logstore.read.batch import BatchReader
from pyspark_logstore.read.columns import arrow_schema, source_schema
from pyspark_logstore.read.offsets import DataLossError
from pyspark_logstore.read.options import parse
from pyspark_logstore.stores import NotSharedError, StoreCache

MakeTopic = Callable[..., logstore.Topic]
SCHEMA = source_schema(include_headers=True)


def reader_of(path: str, schema: Any = SCHEMA, **options: str) -> BatchReader:
    """A reader as Spark makes it."""
    given = {"path": path, **options}
    if not {"assign", "subscribe", "subscribePattern"} & given.keys():
        given["subscribe"] = "orders"
    return BatchReader(schema, parse(given, streaming=False))


def rows_of(reader: BatchReader, planned: list[Any] | None = None) -> list[Any]:
    """What all tasks deliver, as dicts."""
    found: list[Any] = []
    for task in reader.partitions() if planned is None else planned:
        for batch in reader.read(task):
            found += batch.to_pylist()
    return found


def offsets_of(reader: BatchReader, planned: list[Any] | None = None) -> list[int]:
    return [row["offset"] for row in rows_of(reader, planned)]


def schema_of(*names: str) -> Any:
    return types.StructType([SCHEMA[name] for name in names])


# ----------------------------------------------------------------------- what is read


def test_batches_have_just_the_schema_that_spark_expects(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Types, names and nullability; Spark 4.2 and later compare them."""
    make_topic(count=10, message_format=2)
    reader = reader_of(writer.path)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert batch.schema == arrow_schema(SCHEMA)
    batch.validate(full=True)
    assert batch.column("timestamp").type == pa.timestamp("us", tz="UTC")


def test_rows_are_those_of_the_log(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Every column, nulls, and headers: null where a record has none."""
    partition = make_topic("users", partitions=3, message_format=2)[2]
    headers = [("a", b"1"), ("a", None)]
    partition.append(b"value", b"key", timestamp_ms=1_700_000_000_123, headers=headers)
    partition.append(None, timestamp_ms=0)
    first, second = rows_of(reader_of(writer.path, subscribe="users"))
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123
    assert first == {
        "key": b"key",
        "value": b"value",
        "topic": "users",
        "partition": 2,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }
    assert second["key"] is second["value"] is second["headers"] is None
    assert second["timestamp"].timestamp() == 0


def test_record_without_timestamp_has_none(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Null, and -1 as its type: magic 0 has no timestamps."""
    make_topic(message_format=0)[0].append(b"value")
    (row,) = rows_of(reader_of(writer.path))
    assert row["timestamp"] is None
    assert row["timestampType"] == -1


def test_timestamp_that_spark_cannot_hold_is_an_error(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """It names the record; without the column it can be read."""
    partition = make_topic()[0]
    partition.append(b"value")
    partition.append(b"value", timestamp_ms=1 << 62)
    with pytest.raises(LogStoreError, match=f"offset 1 has the timestamp {1 << 62} ms"):
        rows_of(reader_of(writer.path))
    assert len(rows_of(reader_of(writer.path, schema_of("offset", "value")))) == 2


@pytest.mark.parametrize(
    "names",
    [
        ("offset",),
        ("topic",),
        ("partition", "value"),
        ("timestamp", "key"),
        ("headers",),
    ],
    ids=str,
)
def test_schema_chooses_columns(
    names: tuple[str, ...], make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """In the order in which the user gives them."""
    make_topic(count=120, message_format=2)
    rows = rows_of(reader_of(writer.path, schema_of(*names)))
    assert len(rows) == 120
    assert all(tuple(row) == names for row in rows)


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        (("value", types.StringType()), "value string"),
        (("v", types.BinaryType()), "v binary"),
    ],
)
def test_other_schema_is_refused(field: Any, shown: str) -> None:
    """With the columns there are."""
    schema = types.StructType([types.StructField(*field)])
    with pytest.raises(ConfigError, match=f"column {shown}; .*value binary"):
        reader_of("data", schema)
    with pytest.raises(ConfigError, match="needs columns"):
        reader_of("data", types.StructType([]))
    with pytest.raises(ConfigError, match="needs columns, each once"):
        reader_of("data", schema_of("offset", "offset"))


def test_large_batch_is_handed_on_in_pieces(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of about the size that is set, and nothing is lost between them."""
    monkeypatch.setattr(columns, "SLICE_BYTES", 10_000)
    partition = make_topic()[0]
    partition.append_many([b"x" * 1000] * 100)
    partition.append(b"x" * 50_000)
    reader = reader_of(writer.path)
    (task,) = reader.partitions()
    batches = list(reader.read(task))
    assert [o for b in batches for o in b.column("offset").to_pylist()] == [*range(101)]
    assert len(batches) > 10


# ---------------------------------------------------------------------------- bounds


def test_start_and_end_are_offsets_or_times(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """End exclusive; times are the first record at or after them."""
    make_topic(count=100)
    path, time_ms = writer.path, 1_700_000_000_000
    given = {
        "startingOffsets": '{"orders":{"0":10}}',
        "endingOffsets": '{"orders":{"0":20}}',
    }
    assert offsets_of(reader_of(path, **given)) == [*range(10, 20)]
    given = {
        "startingTimestamp": str(time_ms + 30),
        "endingTimestamp": str(time_ms + 33),
    }
    assert offsets_of(reader_of(path, **given)) == [30, 31, 32]
    given = {"startingOffsetsByTimestamp": f'{{"orders":{{"0":{time_ms + 98}}}}}'}
    assert offsets_of(reader_of(path, **given)) == [98, 99]
    late = {"startingTimestamp": str(time_ms + 1000)}
    with pytest.raises(ConfigError, match="no record at or after"):
        reader_of(path, **late).partitions()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert offsets_of(reader_of(path, **late)) == []
    assert len(offsets_of(reader_of(path, endingTimestamp=str(time_ms + 1000)))) == 100


def test_start_behind_the_end_reads_nothing(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """One task that delivers nothing."""
    make_topic(count=10)
    given = {
        "startingOffsets": '{"orders":{"0":9}}',
        "endingOffsets": '{"orders":{"0":3}}',
    }
    reader = reader_of(writer.path, **given)
    assert len(reader.partitions()) == 1
    assert offsets_of(reader) == []


def test_durable_only_leaves_out_what_is_not_synced(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """It may leave out more: the durable point lags in another process."""
    partition = make_topic(count=10, flush_ms=(1 << 63) - 1)[0]
    partition.flush()
    partition.append(b"not durable")
    assert len(offsets_of(reader_of(writer.path))) == 11
    durable = reader_of(writer.path, durableOnly="true")
    assert len(offsets_of(durable)) <= 10


def test_assign_reads_those_partitions_only(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """And in order."""
    make_topic("orders", partitions=3, count=2)
    make_topic("users", partitions=2, count=2)
    reader = reader_of(writer.path, assign='{"users": [1], "orders": [2, 0]}')
    found = {(row["topic"], row["partition"]) for row in rows_of(reader)}
    assert found == {("users", 1), ("orders", 0), ("orders", 2)}


# ----------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_tasks_begin_where_batches_do(
    codec: str, make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """No batch is read by two tasks, and nothing is lost or read twice."""
    topic = make_topic(
        partitions=2, count=5000, message_format=2, compression_type=codec
    )
    reader = reader_of(writer.path, minPartitions="7")
    planned = reader.partitions()
    assert len(planned) == 7
    for task in planned:
        for found in task.ranges:
            batch = next(topic[found.partition.partition].read_batches(found.start))
            assert batch.base_offset == found.start
    rows = rows_of(reader, planned)
    assert [(r["partition"], r["offset"]) for r in rows] == [
        (n, o) for n in range(2) for o in range(5000)
    ]
    assert all(
        r["value"] == b"orders-%d@%d" % (r["partition"], r["offset"]) for r in rows
    )


def test_max_records_bounds_each_task(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Exactly."""
    make_topic(partitions=3, count=250)
    reader = reader_of(writer.path, maxRecordsPerPartition="100")
    planned = reader.partitions()
    assert all(sum(r.count for r in task.ranges) <= 100 for task in planned)
    assert len(planned) == 8
    assert len(offsets_of(reader, planned)) == 750


# ---------------------------------------------------------------------------- losses


def test_retention_that_overtakes_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """An error that tells what is gone; else the query goes on behind it."""
    partition = make_topic(count=200)[0]
    strict = reader_of(writer.path)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    planned = strict.partitions()
    partition.delete_before(60)
    with pytest.raises(DataLossError, match="orders-0: offsets 0 to 59 were deleted"):
        rows_of(strict, planned)
    assert offsets_of(lenient, planned) == [*range(60, 200)]
    partition.delete_before(200)
    with pytest.raises(DataLossError, match="offsets 0 to 199 were"):
        rows_of(strict, planned)
    assert offsets_of(lenient, planned) == []


def test_retention_while_a_task_reads_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files go while they are read: never a gap without an error."""
    monkeypatch.setattr(tasks, "batch_records", lambda count, size: 64)
    monkeypatch.setattr(tasks, "FEW_RECORDS", 0)
    partition = make_topic(count=3000, file_delete_delay_ms=0)[0]
    for fails in ("true", "false"):
        reader = reader_of(writer.path, failOnDataLoss=fails)
        (task,) = reader.partitions()
        batches = reader.read(task)
        seen = next(batches).column("offset").to_pylist()
        partition.delete_before(partition.start_offset + 1400)
        wait_until_files_are_gone(partition)
        if fails == "true":
            with pytest.raises(DataLossError, match="deleted while it was read"):
                for batch in batches:
                    seen += batch.column("offset").to_pylist()
        else:
            for batch in batches:
                seen += batch.column("offset").to_pylist()
            assert seen[-1] == 2999
            assert len(seen) < 3000 - 1400
        assert seen == sorted(set(seen))


def wait_until_files_are_gone(partition: logstore.Partition) -> None:
    """A deletion removes files a moment later, in a thread of the writer's."""
    import time

    for _ in range(500):
        if not list(Path(partition.path).glob("*.deleted")):
            return
        time.sleep(0.01)
    pytest.fail("deleted files stay")


def test_cut_tail_under_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """What was planned is not there any more."""
    partition = make_topic(count=100, message_format=2)[0]
    strict = reader_of(writer.path)
    planned = strict.partitions()
    partition.truncate_to(50)
    with pytest.raises(
        DataLossError, match="ends at 50 now, and was to be read up to 100"
    ):
        rows_of(strict, planned)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    assert offsets_of(lenient, planned) == [*range(50)]


def test_worker_with_an_old_view_of_the_files_opens_them_anew(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS, which may show an old size of a file that is open."""
    partition = make_topic(count=100)[0]
    worker = StoreCache()
    monkeypatch.setattr(stores, "_CACHE", worker)
    assert len(offsets_of(reader_of(writer.path))) == 100  # and the store stays open
    monkeypatch.setattr(ReadOnlyLog, "_look", lambda self: None)
    partition.append_many([b"value"] * 50)
    monkeypatch.setattr(stores, "_CACHE", StoreCache())  # the driver's
    reader = reader_of(writer.path)
    planned = reader.partitions()
    monkeypatch.setattr(stores, "_CACHE", worker)
    assert offsets_of(reader, planned) == [*range(150)]


def test_topic_deleted_under_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """As above."""
    make_topic(count=100)
    make_topic("users", count=1)
    strict = reader_of(writer.path, subscribe="orders,users")
    planned = strict.partitions()
    writer.delete_topic("orders")
    with pytest.raises(DataLossError, match="orders-0 was deleted before it was read"):
        rows_of(strict, planned)
    lenient = reader_of(writer.path, subscribe="orders,users", failOnDataLoss="false")
    assert [row["topic"] for row in rows_of(lenient, planned)] == ["users"]


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "lenient"])
def test_topic_deleted_while_it_is_read_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store, is_strict: bool
) -> None:
    """Its segments that were not open yet are gone; what was read before is right."""
    partition = make_topic(segment_bytes=4096, file_delete_delay_ms=0)[0]
    for _ in range(40):
        partition.append_many([b"value" * 200] * 100)
    reader = reader_of(writer.path, failOnDataLoss=str(is_strict).lower())
    batches = (batch for task in reader.partitions() for batch in reader.read(task))
    found = next(batches).column("offset").to_pylist()
    writer.delete_topic("orders")
    with contextlib.ExitStack() as stack:
        if is_strict:
            told = "orders-0 was deleted while it was read"
            stack.enter_context(pytest.raises(DataLossError, match=told))
        for batch in batches:
            found += batch.column("offset").to_pylist()
    assert found == [*range(len(found))]
    assert 0 < len(found) < 4000


def test_damage_is_raised_after_what_is_before_it(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Whatever failOnDataLoss says: damage is no retention."""
    partition = make_topic(count=100)[0]
    path = Path(partition.segments[0].path)
    writer.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reader = reader_of(writer.path, failOnDataLoss="false")
    seen = []
    with pytest.raises(logstore.CorruptRecordError):
        for task in reader.partitions():
            for batch in reader.read(task):
                seen += batch.column("offset").to_pylist()
    assert seen == [*range(len(seen))]
    assert 0 < len(seen) < 100


# ---------------------------------------------------------------------------- sharing


def test_task_that_finds_no_store_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """An executor where the path leads nowhere."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.close()
    Path(writer.path).rename(f"{writer.path}-away")
    with pytest.raises(NotSharedError, match=r"there is no directory .*/data on host"):
        rows_of(reader, planned)


def test_task_that_finds_another_store_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """A copy, as another host may have at the same path: the numbers would fit."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.close()
    Path(writer.path).rename(f"{writer.path}-away")
    shutil.copytree(f"{writer.path}-away", writer.path)
    with pytest.raises(
        NotSharedError, match="is not the directory that the driver saw"
    ):
        rows_of(reader, planned)


@pytest.mark.parametrize("kafka", [False, True], ids=["logstore", "kafka"])
def test_another_store_with_the_same_inode_is_told_apart(
    kafka: bool, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """As on machines that were set up alike, each with a store of its own."""
    make_topic(count=10)
    other = tmp_path / "other"
    with logstore.open(other) as store:
        store.create_topic("orders")[0].append(b"value")
    if kafka:
        for number, path in enumerate((Path(writer.path), other)):
            (path / ".logstore-owner").unlink()
            text = f"#Sat Nov 21\nnode.id={number}\nversion=1\ncluster.id=_nALWl4P\n"
            (path / "meta.properties").write_text(text)
    driver = stores.identity_of(writer.path, names=True)
    assert driver is not None
    stores.check_store(writer.path, driver)
    expected = driver._replace(inode=other.stat().st_ino)
    with pytest.raises(
        NotSharedError, match=r"option path: .*/other on host .* is not"
    ):
        stores.check_store(str(other), expected)


def test_name_that_comes_later_is_no_other_store(tmp_path: Path) -> None:
    """The first change gives a store its name, and another writer's run keeps it."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        before = stores.identity_of(str(path), names=True)
        assert before is not None
        assert before.names == ()
        partition = store.create_topic("orders")[0]
        partition.append(b"value")
        stores.check_store(str(path), before)
        named = stores.identity_of(str(path), names=True)
        assert named is not None
        assert named.names
    stores.check_store(str(path), named)
    with logstore.open(path) as store:
        store.topic("orders")[0].append(b"value")
        stores.check_store(str(path), named)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("version=1\r\ndirectory.id=GbP10\ncluster.id=_nAL\nnode.id=1\n", "GbP10"),
        ("cluster.id=_nAL\nbroker.id=12\nversion=0\n", "_nAL/12"),
        ("cluster.id=_nAL\nversion=0\n", "_nAL"),
        ("#cluster.id=_nAL\n", ""),
        ("\x00\xff", ""),
    ],
)
def test_name_of_a_broker_directory(text: str, name: str, tmp_path: Path) -> None:
    """The directory's own, or that of the broker."""
    (tmp_path / "meta.properties").write_text(text, encoding="latin-1", newline="")
    expected = (("meta.properties", name),) if name else ()
    found = stores.identity_of(str(tmp_path), names=True)
    assert found is not None
    assert found.names == expected


@pytest.mark.parametrize(
    "text",
    ["", "xxh64 0\n", "xxh64 0\n[1]\n", "xxh64 0\n" + "[" * 100_000, "\n{}"],
    ids=["empty", "cut", "list", "deep", "other"],
)
def test_owner_file_that_is_none_gives_no_name(text: str, tmp_path: Path) -> None:
    """And no error: opening the store complains about it."""
    (tmp_path / ".logstore-owner").write_text(text)
    found = stores.identity_of(str(tmp_path), names=True)
    assert found is not None
    assert found.names == ()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_no_file_in_place_of_an_owner_file_gives_no_name(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """Nobody waits for who might write to a pipe, and no descriptor stays open."""
    make(tmp_path / ".logstore-owner")
    before = os.listdir("/proc/self/fd")
    found = stores.identity_of(str(tmp_path), names=True)
    assert found is not None
    assert found.names == ()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_path_that_a_task_may_not_look_at_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """As where executors run as another user; here it leads in a circle."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.close()
    Path(writer.path).rename(f"{writer.path}-away")
    Path(writer.path).symlink_to(writer.path)
    with pytest.raises(NotSharedError, match=r"option path: .* cannot be looked at"):
        rows_of(reader, planned)


def test_relative_path_is_that_of_the_driver(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks run elsewhere; what Spark sends them was made beside the driver."""
    make_topic(count=10)
    monkeypatch.chdir(Path(writer.path).parent)
    reader = reader_of("data")
    planned = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    monkeypatch.chdir("/")
    assert offsets_of(reader, planned) == [*range(10)]


def test_topic_created_again_under_a_query_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Its offsets mean other records."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.delete_topic("orders")
    make_topic(count=10)
    with pytest.raises(NotSharedError, match="deleted and created again"):
        rows_of(reader, planned)


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "circle"])
def test_path_without_a_store_is_an_error(kind: str, tmp_path: Path) -> None:
    """It names the path."""
    path = tmp_path / "nothing"
    if kind == "file":
        path.write_text("x")
    elif kind == "empty":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path)
    errors = {"circle": logstore.StorageError}
    expected = errors.get(kind, logstore.StoreNotFoundError)
    with pytest.raises(expected, match="nothing"):
        reader_of(str(path)).partitions()


# ----------------------------------------------------------------------- open stores


def test_stores_stay_open_and_the_oldest_is_closed(tmp_path: Path) -> None:
    """The one that was not used for longest."""
    cache = StoreCache(capacity=2)
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        logstore.open(path).close()
    first = cache.get(paths[0])
    second = cache.get(paths[1])
    assert cache.get(paths[0]) is first
    cache.get(paths[2])
    assert len(cache) == 2
    with pytest.raises(logstore.StoreClosedError):
        second.store.topics()
    assert cache.get(paths[0]).store.topics() == []


def test_store_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    """Another directory at the same path is another store."""
    cache = StoreCache()
    path = tmp_path / "data"
    with logstore.open(path) as store:
        store.create_topic("old")
    assert cache.get(str(path)).store.topics() == ["old"]
    path.rename(tmp_path / "away")
    with logstore.open(path) as store:
        store.create_topic("new")
    assert cache.get(str(path)).store.topics() == ["new"]


def test_lists_of_partitions_are_in_order(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """By topic and number; those of no topic are left out."""
    make_topic("b", partitions=11)
    make_topic("a")
    opened = stores.store_at(writer.path)
    options = parse({"path": "x", "subscribe": "b,a,c"}, streaming=False)
    found = opened.select(options.selection)
    assert found == [
        TopicPartition("a", 0),
        *(TopicPartition("b", n) for n in range(11)),
    ]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("tasks", ["1", "16"])
def test_damage_is_skipped_where_that_is_asked_for(
    make_topic: MakeTopic,
    writer: logstore.Store,
    caplog: pytest.LogCaptureFixture,
    isolation: str,
    tasks: str,
) -> None:
    """Everything besides the damaged batches comes, in order, and each of them is in a
    warning with its offsets."""
    topic = make_topic(count=400, partitions=2, segment_bytes=8000, message_format=2)
    want = [[*range(400)], [*range(400)]]
    damaged = []
    for number, wanted in ((0, 120), (0, 399), (1, 260)):
        partition = topic[number]
        batch = next(partition.read_batches(wanted))
        damaged.append(
            (_path_of(partition, wanted), batch.position + batch.size_bytes - 2)
        )
        lost = range(batch.base_offset, batch.next_offset)
        want[number] = [o for o in want[number] if o not in lost]
    writer.close()
    for path, position in damaged:
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(b"\xff\xfe")
    options = {"onCorruption": "skip", "minPartitions": tasks, "isolation": isolation}
    rows = rows_of(reader_of(writer.path, **options))
    found = [[r["offset"] for r in rows if r["partition"] == n] for n in (0, 1)]
    assert found == want
    told = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert all("checksum" in text for text in told)
    assert len(told) == 3
    assert any("orders-0: damage in the offsets 100 to 149" in text for text in told)
    assert any("orders-0: damage in the offsets 350 to 399" in text for text in told)
    assert any("orders-1: damage in the offsets 250 to 299" in text for text in told)
    with pytest.raises(logstore.CorruptRecordError):
        rows_of(reader_of(writer.path, isolation=isolation))


def _path_of(partition: logstore.Partition, offset: int) -> str:
    """The segment that holds an offset."""
    (path,) = (
        s.path for s in partition.segments if s.base_offset <= offset < s.next_offset
    )
    return path


def test_damage_does_not_stop_the_planning(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Where a cut falls on it: the records before it are still delivered."""
    partition = make_topic(count=400, segment_bytes=1 << 20)[0]
    path = Path(partition.segments[0].path)
    writer.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 500] = b"?" * 500
    path.write_bytes(data)
    reader = reader_of(writer.path, minPartitions="16")
    seen = []
    with pytest.raises((logstore.CorruptRecordError, logstore.UnsupportedError)):
        for task in reader.partitions():
            for batch in reader.read(task):
                seen += batch.column("offset").to_pylist()
    assert seen == [*range(len(seen))]
    assert len(seen) > 100
