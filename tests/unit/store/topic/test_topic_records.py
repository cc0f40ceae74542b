"""Records of a topic: appended to many partitions, read and followed from all."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import TopicRecord
from logstore import _native as native
from logstore.log.read import cursor
from logstore.log.write.appender import Appender
from logstore.store.opening import open_store
from support.damage import FaultyFiles, flip_bit
from support.values import config_of

COLUMNS = ("partition", "value")


def made(store: logstore.Store, partitions: int = 4, **settings: Any) -> logstore.Topic:
    return store.create_topic("orders", partitions, config=config_of(**settings))


def in_partitions(topic: logstore.Topic) -> list[list[bytes | None]]:
    return [[record.value for record in p.read()] for p in topic]


class Modulo:
    """Chooses by the first byte of the key, and records its arguments."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes | None, int]] = []

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        self.seen.append((key, size))
        return (key or b"\0")[0] % partitions


# ------------------------------------------------------------------ append_many


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_records_go_where_single_appends_go(tmp_path: Path, magic: int) -> None:
    """The choice is Kafka's hash, record by record; each partition keeps their
    order."""
    keys = [b"%d" % (n % 11) for n in range(200)]
    values = [b"v%d" % n for n in range(200)]
    with logstore.open(tmp_path / "one") as store:
        topic = made(store, magic=magic)
        for key, value in zip(keys, values, strict=True):
            topic.append(value, key=key)
        wanted = in_partitions(topic)
    with logstore.open(tmp_path / "many") as store:
        topic = made(store, magic=magic)
        assert topic.append_many([b"first"], [b"0"]) != ()
        done = topic.append_many(iter(values), (key for key in keys))
        assert [number for number, _ in done] == sorted(number for number, _ in done)
        for number, span in done:
            records = list(topic[number].read(span.start))
            assert [r.value for r in records] == wanted[number]
            assert [r.offset for r in records] == list(span)


def test_records_without_a_key_take_turns(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store, 3)
        topic.append_many([bytes(1000)] * 100)
        assert [p.end_offset for p in topic] == [34, 33, 33] or all(topic.partitions)
        assert sum(len(p) for p in topic) == 100
        assert all(len(p) >= 17 for p in topic)


def test_partitioner_is_asked_for_each_record(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store)
        topic.partitioner = modulo = Modulo()
        done = topic.append_many(
            [b"12", None, bytearray(b"3"), memoryview(b"4567")],
            [b"\1", b"\2", None, b"\1"],
            [5, None, 7, 8],
        )
        assert done == ((0, range(1)), (1, range(2)), (2, range(1)))
        assert modulo.seen == [(b"\1", 3), (b"\2", 1), (None, 1), (b"\1", 5)]
        assert [r.timestamp_ms for r in topic[1].read()] == [5, 8]
        assert topic[2].get(0).value is None
        assert topic[0].get(0).value == b"3"


def test_headers_and_partition_are_taken(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store, magic=2)
        headers = [[("h", b"%d" % n)] for n in range(10)]
        done = topic.append_many([b"v"] * 10, headers=headers, partition=2)
        assert done == ((2, range(10)),)
        assert [r.headers for r in topic[2].read()] == [tuple(h) for h in headers]
        done = topic.append_many([b"k"] * 10, [b"%d" % n for n in range(10)],
                                 headers=headers)  # fmt: skip
        for number, span in done:
            for record in topic[number].read(span.start):
                assert record.headers == ((("h", record.key)),)
        assert topic.append_many([]) == ()
        assert topic.append_many([], partition=1) == ()
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            topic.append_many([b"x"], partition=4)


def test_durable_records_are_durable(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store, flush_ms=1 << 40)
        topic.append_many([b"x"] * 50, [b"%d" % n for n in range(50)])
        assert [p.durable_offset for p in topic] == [0, 0, 0, 0]
        topic.append_many([b"x"] * 50, [b"%d" % n for n in range(50)], durable=True)
        assert [p.durable_offset for p in topic] == [p.end_offset for p in topic]


BAD: dict[str, tuple[type[Exception], Any]] = {
    "value": (TypeError, lambda t: t.append_many([b"1", 5], [b"\1", b"\2"])),
    "key": (TypeError, lambda t: t.append_many([b"1", b"2"], [b"\1", "k"])),
    "values": (TypeError, lambda t: t.append_many(b"12")),
    "length": (logstore.ConfigError, lambda t: t.append_many([b"1"] * 2, [b"\1"])),
    "time": (TypeError, lambda t: t.append_many([b"1"] * 2, [b"\1", b"\2"], [1, "2"])),
    "headers": (
        logstore.errors.UnsupportedError,
        lambda t: t.append_many([b"1"] * 2, [b"\1", b"\2"], None, [(), [("h", b"")]]),
    ),
    "large": (
        logstore.errors.RecordTooLargeError,
        lambda t: t.append_many([b"1", bytes(2000)], [b"\1", b"\2"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_what_cannot_be_stored_leaves_all_partitions_as_they_were(
    tmp_path: Path, what: str, codec: str
) -> None:
    """The invalid record is for the second partition."""
    kind, call = BAD[what]
    with logstore.open(tmp_path) as store:
        topic = made(store, codec=codec, max_message_bytes=1000)
        topic.partitioner = Modulo()
        if what == "large" and codec == "gzip":
            values = [b"1", os.urandom(2000)]
            with pytest.raises(kind):
                topic.append_many(values, [b"\1", b"\2"])
            # This record is not too large when it is compressed.
            assert len(topic.append_many([b"1", bytes(2000)], [b"\1", b"\2"])) == 2
            return
        with pytest.raises(kind) as caught:
            call(topic)
        assert getattr(caught.value, "appended", ()) == ()
        assert [p.end_offset for p in topic] == [0] * 4


@pytest.mark.parametrize("chosen", [4, -1, None, "1"])
def test_partitioner_that_chooses_none_is_told(tmp_path: Path, chosen: Any) -> None:
    class Bad:
        def partition(self, key: bytes | None, size: int, partitions: int) -> Any:
            return 0 if key == b"first" else chosen

    with logstore.open(tmp_path) as store:
        topic = made(store)
        topic.partitioner = Bad()
        with pytest.raises(logstore.ConfigError, match="the partitioner of topic"):
            topic.append_many([b"1", b"2"], [b"first", b"second"])
        assert [p.end_offset for p in topic] == [0] * 4


def test_partition_that_takes_no_appends_keeps_them_all_back(tmp_path: Path) -> None:
    """It is checked first."""
    with logstore.open(tmp_path) as store:
        topic = made(store)
        topic.partitioner = Modulo()
        topic.append_many([b"x"] * 8, [bytes([n]) for n in range(8)])
    log = tmp_path / "orders-3" / ("0" * 20 + ".log")
    os.truncate(log, log.stat().st_size - 1)
    with logstore.open(tmp_path) as store:
        topic = store["orders"]
        topic.partitioner = Modulo()
        with pytest.raises(logstore.CorruptRecordError):
            topic.append_many([b"y"] * 4, [bytes([n]) for n in range(4)])
        assert [topic[n].end_offset for n in range(3)] == [2, 2, 2]
        assert len(topic.append_many([b"y"] * 3, [bytes([n]) for n in range(3)])) == 3


def test_error_between_two_partitions_says_what_is_in(tmp_path: Path) -> None:
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        topic = made(store)
        topic.partitioner = Modulo()
        topic.append_many([b"x"] * 4, [bytes([n]) for n in range(4)])
        files.fail("write", errno.ENOSPC, nth=3)
        with pytest.raises(logstore.DiskFullError) as caught:
            topic.append_many([b"y"] * 4, [bytes([n]) for n in range(4)])
        assert caught.value.appended == ((0, range(1, 2)), (1, range(1, 2)))
        assert "offsets 1 to 1 of partition 0" in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
        files.heal()
        assert [len(p) for p in topic] == [2, 2, 1, 1]


@pytest.mark.parametrize("kind", [RecursionError, MemoryError, KeyboardInterrupt])
def test_error_of_python_between_two_partitions_says_what_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """The errors of logstore do so, too; before the first partition, nothing is
    written."""
    append, calls = Appender.append_rows, []

    def fail_at(number: int) -> None:
        def fail(self: Appender, *args: Any, **options: Any) -> Any:
            calls.append(self)
            if len(calls) == number:
                raise kind
            return append(self, *args, **options)

        calls.clear()
        monkeypatch.setattr(Appender, "append_rows", fail)

    with logstore.open(tmp_path) as store:
        topic = made(store)
        topic.partitioner = Modulo()
        fail_at(3)
        with pytest.raises(kind) as caught:
            topic.append_many([b"y"] * 4, [bytes([n]) for n in range(4)])
        appended = caught.value.appended  # type: ignore[attr-defined]
        assert appended == ((0, range(1)), (1, range(1)))
        assert [len(p) for p in topic] == [1, 1, 0, 0]
        fail_at(1)
        with pytest.raises(kind) as caught:
            topic.append_many([b"y"] * 4, [bytes([n]) for n in range(4)])
        assert not hasattr(caught.value, "appended")
        assert [len(p) for p in topic] == [1, 1, 0, 0]
        topic.append_many([b"z"] * 4, [bytes([n]) for n in range(4)])


def test_iterables_and_partitioners_may_call_again(tmp_path: Path) -> None:
    """They are consumed before a lock is taken."""
    with logstore.open(tmp_path) as store:
        topic = made(store)

        def values() -> Any:
            for n in range(3):
                topic.append_many([b"inner"], partition=n)
                yield b"outer"

        class Calling(Modulo):
            def partition(self, key: bytes | None, size: int, partitions: int) -> int:
                topic.append(b"asked", partition=3)
                return 0

        topic.partitioner = Calling()
        assert topic.append_many(values()) == ((0, range(1, 4)),)
        assert [len(p) for p in topic] == [4, 1, 1, 3]


def test_read_only_store_takes_nothing(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        made(store)
    with logstore.open(tmp_path, read_only=True) as store:
        with pytest.raises(logstore.errors.ReadOnlyError):
            store["orders"].append_many([b"x"])
        with pytest.raises(logstore.errors.ReadOnlyError):
            store["orders"].append_arrow(pa.table({"value": [b"x"]}))


# ------------------------------------------------------------------ append_arrow


@pytest.mark.parametrize("kind", ["binary", "string", "large_binary", "dictionary"])
def test_arrow_rows_go_where_single_appends_go(tmp_path: Path, kind: str) -> None:
    keys = [None if n % 7 == 0 else b"%d" % (n % 11) for n in range(100)]
    values = [b"v%d" % n for n in range(100)]
    column = pa.array(keys, "binary")
    if kind == "dictionary":
        column = column.dictionary_encode()
    elif kind != "binary":
        column = column.cast(kind)
    table = pa.table({"key": column, "value": pa.array(values, "binary")})
    with logstore.open(tmp_path / "one") as store:
        topic = made(store)
        topic.append_many(values, keys)
        wanted = in_partitions(topic)
    for number, data in enumerate((table, table.to_batches(max_chunksize=7))):
        with logstore.open(tmp_path / f"many-{number}") as store:
            topic = made(store)
            if isinstance(data, list):
                data = pa.RecordBatchReader.from_batches(table.schema, data)
            done = topic.append_arrow(data)
            assert in_partitions(topic) == wanted
            assert [(n, len(span)) for n, span in done] == [
                (n, len(rows)) for n, rows in enumerate(wanted) if rows
            ]


def test_column_partition_overrides_the_partitioner(tmp_path: Path) -> None:
    table = pa.table(
        {
            "partition": pa.array([3, 1, None, 3, None], pa.int32()),
            "key": pa.array([b"\0", b"\0", b"\2", b"\0", None], pa.binary()),
            "value": pa.array([b"a", b"b", b"c", b"d", b"e"], pa.binary()),
            "timestamp": pa.array([1, 2, 3, 4, 5], pa.timestamp("ms")),
        }
    )
    with logstore.open(tmp_path) as store:
        topic = made(store)
        topic.partitioner = modulo = Modulo()
        done = topic.append_arrow(table)
        assert done == ((0, range(1)), (1, range(1)), (2, range(1)), (3, range(2)))
        assert in_partitions(topic) == [[b"e"], [b"b"], [b"c"], [b"a", b"d"]]
        assert [r.timestamp_ms for r in topic[3].read()] == [1, 4]
        assert modulo.seen == [(b"\2", 2), (None, 1)]
        assert topic.append_arrow(table, partition=1) == ((1, range(1, 6)),)


def test_arrow_rows_that_are_wrong_leave_all_as_it_was(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store)
        value = pa.array([b"a", b"b"], pa.binary())
        for kind, columns in (
            (
                logstore.errors.PartitionNotFoundError,
                {"partition": [0, 4], "value": value},
            ),
            (logstore.ConfigError, {"partition": ["0", "1"], "value": value}),
            (logstore.ConfigError, {"colour": [0, 1], "value": value}),
            (logstore.ConfigError, {"key": value}),
            (TypeError, {"value": pa.array([[1], [2]])}),
        ):
            with pytest.raises(kind):
                topic.append_arrow(pa.table(columns))
        with pytest.raises(TypeError):
            topic.append_arrow(5)
        assert [p.end_offset for p in topic] == [0] * 4
        assert topic.append_arrow(pa.table({"value": pa.array([], pa.binary())})) == ()


def test_what_topic_records_read_can_be_appended_again(tmp_path: Path) -> None:
    """The columns of a table of records are accepted, or ignored."""
    with logstore.open(tmp_path) as store:
        topic, copy = made(store), store.create_topic("copy", 4)
        topic.append_many(
            [b"v%d" % n for n in range(20)], [b"%d" % n for n in range(20)]
        )
        rows = [r._asdict() for r in topic.read()]
        table = pa.table(
            {
                "topic": [row["topic"] for row in rows],
                "partition": [row["partition"] for row in rows],
                "offset": [row["offset"] for row in rows],
                "timestamp": pa.array([row["timestamp_ms"] for row in rows], "int64"),
                "key": pa.array([row["key"] for row in rows], "binary"),
                "value": pa.array([row["value"] for row in rows], "binary"),
            }
        )
        copy.append_arrow(table)
        assert [list(p.read()) for p in copy] == [list(p.read()) for p in topic]


# ------------------------------------------------------------------ read


def interleaved(store: logstore.Store) -> logstore.Topic:
    """Three partitions, whose records have the times 0, 1, 2, ... in turn."""
    topic = made(store, 3, segment_bytes=500)
    for n in range(30):
        topic.append(b"%d" % n, timestamp_ms=1000 + n, partition=n % 3)
    return topic


@pytest.mark.parametrize("read_only", [False, True])
def test_read_merges_by_time_or_by_partition(tmp_path: Path, read_only: bool) -> None:
    with logstore.open(tmp_path) as store:
        interleaved(store)
    with logstore.open(tmp_path, read_only=read_only) as store:
        topic = store["orders"]
        records = list(topic.read())
        assert [r.value for r in records] == [b"%d" % n for n in range(30)]
        assert records == list(topic.read(order="time"))
        assert all(type(r) is TopicRecord for r in records)
        assert [(r.topic, r.partition, r.offset) for r in records] == [
            ("orders", n % 3, n // 3) for n in range(30)
        ]
        one = topic[1].get(4)
        assert records[13][2:] == tuple(one)
        assert records[13].timestamp == one.timestamp
        by_partition = list(topic.read(order="partition"))
        assert [(r.partition, r.offset) for r in by_partition] == [
            (p, o) for p in range(3) for o in range(10)
        ]
        for order, whole in (("time", records), ("partition", by_partition)):
            for limit in (0, 1, 7, 100):
                assert list(topic.read(order=order, limit=limit)) == whole[:limit]


def test_times_that_fall_keep_the_order_of_their_partition(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store, 2)
        topic[0].append_many([b"a", b"b", b"c"], timestamps_ms=[5, 1, 9])
        topic[1].append_many([b"x", b"y"], timestamps_ms=[5, 7])
        assert [r.value for r in topic.read()] == [b"a", b"b", b"x", b"y", b"c"]


def test_start_and_stop_are_times_or_offsets_by_partition(tmp_path: Path) -> None:
    import datetime

    with logstore.open(tmp_path) as store:
        topic = interleaved(store)
        when = datetime.datetime.fromtimestamp(1.020, datetime.timezone.utc)
        assert next(topic.read(when)).value == b"20"
        assert [r.value for r in topic.read(stop=when)][-1] == b"19"
        assert len(list(topic.read("1970-01-01T00:00:01.020Z"))) == 10
        starts = {0: 9, 1: 8}
        found = [(r.partition, r.offset) for r in topic.read(starts, order="partition")]
        assert found == [(0, 9), (1, 8), (1, 9), *((2, n) for n in range(10))]
        stops = {0: 1, 1: 0, 2: "1970-01-01T00:00:01.003Z"}
        found = [(r.partition, r.offset) for r in topic.read(stop=stops)]
        assert found == [(0, 0), (2, 0)]
        assert len(list(topic.read(9))) == 3
        with pytest.raises(logstore.OffsetOutOfRangeError):  # at the call
            topic.read({1: 11})
        with pytest.raises(
            logstore.errors.PartitionNotFoundError, match="names partition 3"
        ):
            topic.read({3: 0})
        with pytest.raises(logstore.ConfigError, match="order="):
            topic.read(order="offset")
        with pytest.raises(TypeError, match="start is float"):
            topic.read(1.5)  # type: ignore[arg-type]


def test_read_is_of_the_logs_as_they_stand_at_the_call(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = interleaved(store)
        records = topic.read()
        topic.append(b"later", partition=0)
        topic[1].delete_before(10)
        assert [r.value for r in records] == [b"%d" % n for n in range(30)]
        assert len(list(topic.read())) == 21


def test_damage_in_one_partition_comes_behind_its_records(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        interleaved(store)
    log = sorted((tmp_path / "orders-1").glob("*.log"))[0]
    flip_bit(log, 8 * 60)
    with logstore.open(tmp_path, read_only=True) as store:
        topic = store["orders"]
        records = topic.read()
        found: list[Any] = []
        with pytest.raises(logstore.CorruptRecordError) as caught:
            found.extend(records)
        assert caught.value.next_offset is not None
        skipped = list(topic.read(on_corruption="skip"))
        assert len(skipped) < 30
        assert [r for r in skipped if r.partition != 1] == [
            r for r in topic.read({1: 10}) if r.partition != 1
        ]
        starts = {1: caught.value.next_offset}
        assert [r for r in topic.read(starts) if r.partition == 1] == [
            r for r in skipped if r.partition == 1 and r.offset >= starts[1]
        ]


def test_many_partitions_share_the_memory_of_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One alone has a buffer of 256 KiB."""
    sizes: list[int] = []

    def buffer(size: int) -> Any:
        sizes.append(size)
        return native.Buffer(size)

    with logstore.open(tmp_path) as store:
        topic = store.create_topic("wide", 100)
        for p in topic:
            p.append_many([bytes(100)] * 20)
        monkeypatch.setattr(cursor, "native", SimpleNamespace(**vars(native)))
        monkeypatch.setattr(cursor.native, "Buffer", buffer)
        assert sum(1 for _ in topic.read()) == 2000
        assert len(sizes) == 100
        assert sum(sizes) <= 2 << 20
        assert len(list(topic[0].read())) == 20
        assert sizes[-1] == 256 << 10


# ------------------------------------------------------------------ follow


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("order", ["time", "partition"])
def test_follow_goes_on_in_all_partitions(
    tmp_path: Path, read_only: bool, order: str
) -> None:
    with logstore.open(tmp_path) as writer:
        topic = interleaved(writer)
        other = logstore.open(tmp_path, read_only=True) if read_only else writer
        records = other["orders"].follow(order=order, timeout=20, limit=34)
        first = [next(records) for _ in range(30)]
        assert first == list(topic.read(order=order))

        def later() -> None:
            time.sleep(0.05)
            for n in (2, 0, 1, 2):
                topic.append(b"new %d" % n, partition=n)
                time.sleep(0.01)

        thread = threading.Thread(target=later)
        thread.start()
        found = [(r.partition, r.value) for r in records]
        thread.join()
        assert sorted(found) == sorted([(n, b"new %d" % n) for n in (2, 0, 1, 2)])
        if read_only:
            other.close()


def test_follow_ends_without_a_record_for_so_long(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = interleaved(store)
        ends = {p.number: p.end_offset for p in topic}
        begun = time.monotonic()
        assert list(topic.follow(ends, timeout=0.1)) == []
        assert 0.09 < time.monotonic() - begun < 10
        assert len(list(topic.follow(timeout=0))) == 30
        for bad in ("x", float("nan")):
            with pytest.raises(TypeError, match="timeout"):
                topic.follow(timeout=bad)  # type: ignore[arg-type]


def test_follower_in_the_writers_process_is_woken(tmp_path: Path) -> None:
    """It does not sleep for its whole pause of 50 ms."""
    with logstore.open(tmp_path) as store:
        topic = made(store, 3)
        records = topic.follow(timeout=20)
        waits = []
        for n in range(20):

            def append(n: int = n) -> None:
                time.sleep(0.03)
                waits.append(time.monotonic())
                topic.append(b"x", partition=n % 3)

            thread = threading.Thread(target=append)
            thread.start()
            next(records)
            waits[-1] = time.monotonic() - waits[-1]
            thread.join()
        assert sorted(waits)[10] < 0.02


@pytest.mark.parametrize("read_only", [False, True])
def test_follow_takes_up_partitions_that_are_added(
    tmp_path: Path, read_only: bool
) -> None:
    with logstore.open(tmp_path) as writer:
        topic = made(writer, 1)
        other = logstore.open(tmp_path, read_only=True) if read_only else writer
        records = other["orders"].follow(timeout=20)
        topic.append(b"1")
        assert next(records).partition == 0
        topic.add_partitions(1)
        topic.append(b"2", partition=1)
        found = next(records)
        assert (found.partition, found.value) == (1, b"2")
        del records
        if read_only:
            other.close()


def test_follower_of_a_deleted_topic_is_told(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = interleaved(store)
        records = topic.follow(timeout=20)
        next(records)
        store.delete_topic("orders")
        with pytest.raises(logstore.TopicNotFoundError):
            for _ in records:
                pass


def test_follower_of_a_closed_store_is_told(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        records = interleaved(store).follow(timeout=20)
        for _ in range(30):
            next(records)
    with pytest.raises(logstore.errors.StoreClosedError):
        next(records)


def test_follow_of_what_is_durable_only(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = made(store, 2, flush_ms=1 << 40)
        topic[0].append(b"1", durable=True)
        topic[1].append(b"2")
        records = topic.follow(durable_only=True, timeout=0.05)
        assert [r.value for r in records] == [b"1"]
        topic.flush()
        records = topic.follow(durable_only=True, timeout=0.05)
        assert [r.value for r in records] == [b"1", b"2"]
