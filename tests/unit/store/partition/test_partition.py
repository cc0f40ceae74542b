"""Appending: accepted values, refusals, and the resulting log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import logstore
from logstore import Record, TimestampType
from logstore.store.opening import open_store
from support.damage import FixedClock, logs_in
from support.values import (
    FIRST_TIMESTAMP,
    append_one,
    append_records,
    config_of,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)


@every_format
def test_append_returns_offset_and_record_comes_back(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Single appends get the offsets 0, 1, 2, ... and are read back unchanged."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        assert [append_one(partition) for _ in range(30)] == list(range(30))
        assert partition.end_offset == 30
        assert list(partition.read()) == expected(magic, 0, 30)
    assert read_all(tmp_path) == expected(magic, 0, 30)


@every_format
def test_append_many_returns_range_and_records_come_back(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """One call gives consecutive offsets, whatever batches it forms."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        assert append_records(partition, 100) == range(100)
        assert append_records(partition, 1) == range(100, 101)
        assert list(partition.read()) == expected(magic, 0, 101)
    assert read_all(tmp_path) == expected(magic, 0, 101)


@every_format
def test_append_many_of_nothing_returns_empty_range(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """No values, no offsets, no bytes."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        fill(partition, 3)
        span = partition.append_many([])
        assert span == range(3, 3)
        assert len(span) == 0
        assert partition.end_offset == 3


@every_format
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_append_takes_bytes_like_values_and_keys(
    tmp_path: Path, magic: int, codec: str, kind: type
) -> None:
    """bytes, bytearray and memoryview are stored alike, and come back as bytes."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        partition.append(kind(b"value"), kind(b"key"), timestamp_ms=1)
        partition.append_many([kind(b"value")], [kind(b"key")], [1])
        for record in partition.read():
            assert record[1:4] == (-1 if magic == 0 else 1, b"key", b"value")
            assert type(record.key) is bytes
            assert type(record.value) is bytes


@every_format
def test_append_keeps_null_and_empty_apart(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """None is a null, b"" is empty; neither turns into the other."""
    pairs = [(None, None), (b"", b""), (None, b""), (b"", None)]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        for key, value in pairs:
            partition.append(value, key)
        partition.append_many([v for _, v in pairs], [k for k, _ in pairs])
        assert [(r.key, r.value) for r in partition.read()] == pairs * 2


@pytest.mark.parametrize("fortran", [False, True])
def test_append_flattens_a_memoryview_of_any_shape(
    tmp_path: Path, fortran: bool
) -> None:
    """A strided or shaped view is stored as the bytes that it shows."""
    view = memoryview(bytes(range(24))).cast("B", (4, 6)) if fortran else None
    if view is None:
        view = memoryview(bytes(range(24)))[::3]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append(view, view)
        partition.append_many([view], [view])
        want = view.tobytes()
        assert [(r.key, r.value) for r in partition.read()] == [(want, want)] * 2


def test_append_of_wide_memoryview_stores_its_bytes(tmp_path: Path) -> None:
    """A view of wider elements counts in bytes."""
    view = memoryview(bytes(16)).cast("Q")
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(view, view)
        assert [r.value for r in topic[0].read()] == [bytes(16)]


@every_magic
@pytest.mark.parametrize("bad", ["text", 1, 1.5, [b"x"], object(), (b"a",)])
def test_append_of_another_type_raises_type_error_before_writing(
    tmp_path: Path, magic: int, bad: object
) -> None:
    """A value that is neither bytes-like nor None is refused before anything is
    written."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", config=config_of(magic))
        partition = topic[0]
        for call in (
            lambda: partition.append(bad),
            lambda: partition.append(b"v", bad),
            lambda: topic.append(bad),
            lambda: topic.append(b"v", bad),
            lambda: partition.append_many([b"first", bad]),
            lambda: partition.append_many([b"v", b"w"], [b"first", bad]),
        ):
            with pytest.raises(TypeError) as caught:
                call()
            assert type(bad).__name__ in str(caught.value)
        assert partition.end_offset == 0
        assert logs_in(tmp_path / "orders-0") == [] or not os.path.getsize(
            logs_in(tmp_path / "orders-0")[0]
        )


def test_append_many_of_bytes_raises_type_error(tmp_path: Path) -> None:
    """One value in place of a sequence is a mistake, not a sequence of integers."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        with pytest.raises(TypeError):
            partition.append_many(b"abc")
        with pytest.raises(TypeError):
            partition.append_many("abc")
        assert partition.end_offset == 0


@pytest.mark.parametrize("column", ["keys", "timestamps_ms", "headers"])
def test_append_many_with_columns_of_other_length_raises(
    tmp_path: Path, column: str
) -> None:
    """Columns have one element per value."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        for wrong in ([], [None], [None] * 3):
            with pytest.raises(ValueError):
                partition.append_many([b"a", b"b"], **{column: wrong})
        assert partition.end_offset == 0


def test_append_many_takes_any_iterable(tmp_path: Path) -> None:
    """A generator or a tuple is as good as a list."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        assert partition.append_many(b"%d" % i for i in range(3)) == range(3)
        assert partition.append_many((b"x",), keys=iter([b"k"])) == range(3, 4)
        assert [r.value for r in partition.read()] == [b"0", b"1", b"2", b"x"]


def test_append_many_whose_iterable_raises_writes_nothing(tmp_path: Path) -> None:
    """An error of the caller's own generator does not change the log."""

    def values():
        yield b"first"
        raise RuntimeError("mine")

    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        with pytest.raises(RuntimeError, match="mine"):
            partition.append_many(values())
        assert partition.end_offset == 0
        fill(partition, 3)
        assert list(partition.read()) == expected(1, 0, 3)


# ---------------------------------------------------------------- headers


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_headers_keep_order_repeats_and_nulls(tmp_path: Path, codec: str) -> None:
    """Headers come back unchanged."""
    headers = (("b", b"1"), ("a", None), ("b", b""), ("", b"\xff"), ("größe", b"2"))
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, codec)
        partition.append(b"v", headers=headers)
        partition.append(b"v", headers=[list(h) for h in headers])
        partition.append_many([b"v", b"w"], headers=[headers, ()])
        partition.append_many([b"v", b"w"], headers=[headers, None])
        found = [r.headers for r in partition.read()]
    assert found == [headers, headers, headers, (), headers, ()]


def test_header_name_with_a_lone_surrogate_is_refused_by_name(tmp_path: Path) -> None:
    """It is no text that could be read again."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        for headers in ([("\ud800", b"")], [("a", b""), ("a\udfff", None)]):
            with pytest.raises(logstore.ConfigError, match="lone surrogate") as told:
                partition.append(b"v", headers=headers)
            assert told.value.name == "headers"
        assert partition.end_offset == 0


def test_header_values_may_be_any_bytes_like(tmp_path: Path) -> None:
    """bytearray and memoryview work in headers, too."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        partition.append(
            b"v", headers=[("a", bytearray(b"1")), ("b", memoryview(b"2"))]
        )
        assert next(partition.read()).headers == (("a", b"1"), ("b", b"2"))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_headers_in_old_magic_raise_unsupported(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Magic 0 and 1 have no headers; an empty list is accepted."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", config=config_of(magic, codec))
        for call in (
            lambda: topic[0].append(b"v", headers=[("a", b"1")]),
            lambda: topic.append(b"v", headers=[("a", b"1")]),
            lambda: topic[0].append_many([b"v", b"w"], headers=[(), [("a", b"1")]]),
        ):
            with pytest.raises(
                logstore.errors.UnsupportedError, match="message_format=2"
            ):
                call()
        assert topic[0].end_offset == 0
        topic[0].append(b"v", headers=())
        topic[0].append(b"v", headers=[])
        topic[0].append_many([b"v"], headers=[()])
        assert topic[0].end_offset == 3


@pytest.mark.parametrize(
    "bad",
    [
        [(b"bytes", b"v")],
        [("name", "text")],
        [("name", 1)],
        [("name",)],
        [("name", b"v", b"w")],
        ["name"],
        [None],
        [(None, b"v")],
        5,
    ],
    ids=repr,
)
def test_bad_headers_raise_type_error_before_writing(
    tmp_path: Path, bad: object
) -> None:
    """A header is a (str, bytes | None) pair."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        with pytest.raises(TypeError):
            partition.append(b"v", headers=bad)
        with pytest.raises(TypeError):
            partition.append_many([b"v"], headers=[bad])
        assert partition.end_offset == 0


# ---------------------------------------------------------------- timestamps


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_timestamp_none_is_now(tmp_path: Path, magic: int, codec: str) -> None:
    """Without a timestamp the clock gives it."""
    with open_store(tmp_path, _files=FixedClock(1234567890123)) as store:
        topic = store.create_topic("orders", config=config_of(magic, codec))
        assert topic.append(b"a").timestamp_ms == 1234567890123
        topic[0].append_many([b"b", b"c"], timestamps_ms=[None, 5])
        topic[0].append_many([b"d"])
        assert [r.timestamp_ms for r in topic[0].read()] == [
            1234567890123, 1234567890123, 5, 1234567890123,
        ]  # fmt: skip


@every_format
def test_timestamp_limits_come_back(tmp_path: Path, magic: int, codec: str) -> None:
    """The smallest and largest timestamps are stored exactly; -1 means none."""
    stamps = [0, 1, (1 << 63) - 1, 0, -1, 1 << 40]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, segment_ms=(1 << 63) - 1)
        for stamp in stamps:
            partition.append(b"v", timestamp_ms=stamp)
        partition.append_many([b"v"] * len(stamps), timestamps_ms=stamps)
        found = [r.timestamp_ms for r in partition.read()]
        assert found == (stamps * 2 if magic else [-1] * 12)


@every_magic
@pytest.mark.parametrize("bad", [-2, 1 << 63, -(1 << 63)])
def test_timestamp_out_of_range_raises_config_error(
    tmp_path: Path, magic: int, bad: int
) -> None:
    """A timestamp is -1 or a number of milliseconds from 1970 on."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic)
        with pytest.raises(logstore.ConfigError) as caught:
            partition.append(b"v", timestamp_ms=bad)
        assert caught.value.value == bad
        with pytest.raises(logstore.ConfigError):
            partition.append_many([b"v", b"w"], timestamps_ms=[1, bad])
        assert partition.end_offset == 0


@pytest.mark.parametrize("bad", ["1", 1.0, b"1"])
def test_timestamp_of_another_type_raises_type_error(
    tmp_path: Path, bad: object
) -> None:
    """A timestamp is an integer."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        with pytest.raises(TypeError):
            partition.append(b"v", timestamp_ms=bad)
        with pytest.raises(TypeError):
            partition.append_many([b"v"], timestamps_ms=[bad])
        assert partition.end_offset == 0


def test_timestamp_type_of_magic_0_is_none(tmp_path: Path) -> None:
    """Magic 0 stores no timestamp, and the type of its records is NO_TIMESTAMP."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", config=config_of(0))
        assert topic.append(b"v", timestamp_ms=5).timestamp_ms == -1
        record = next(topic[0].read())
        assert record.timestamp_ms == -1
        assert record.timestamp_type is TimestampType.NO_TIMESTAMP


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_log_append_time_replaces_the_callers(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """All records of a call have the time of the call if LogAppendTime is set."""
    clock = FixedClock(FIRST_TIMESTAMP)
    with open_store(tmp_path, _files=clock) as store:
        config = config_of(magic, codec, message_timestamp_type="LogAppendTime")
        topic = store.create_topic("orders", config=config)
        assert topic.append(b"a", timestamp_ms=5).timestamp_ms == FIRST_TIMESTAMP
        clock.now += 7
        topic[0].append_many([b"b", b"c"], timestamps_ms=[1, None])
        records = list(topic[0].read())
        assert [r.timestamp_ms - FIRST_TIMESTAMP for r in records] == [0, 7, 7]
        assert {r.timestamp_type for r in records} == {TimestampType.LOG_APPEND_TIME}
        assert topic[0].offset_for_time(FIRST_TIMESTAMP + 1) == 1
        batches = list(topic[0].read_batches())
        assert batches[-1].timestamp_type is TimestampType.LOG_APPEND_TIME
        assert batches[-1].max_timestamp_ms == FIRST_TIMESTAMP + 7


# ---------------------------------------------------------------- expected_offset


@every_magic
def test_expected_offset_that_is_next_appends(tmp_path: Path, magic: int) -> None:
    """An append with the right offset succeeds."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic)
        assert partition.append(b"a", expected_offset=0) == 0
        assert partition.append_many([b"b"] * 3, expected_offset=1) == range(1, 4)
        assert partition.append_many([], expected_offset=4) == range(4, 4)


@every_magic
@pytest.mark.parametrize("wrong", [0, 2, 4, 1 << 62, -1])
def test_expected_offset_that_is_not_next_raises_conflict(
    tmp_path: Path, magic: int, wrong: int
) -> None:
    """A wrong offset writes nothing, and the error has the next one."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic)
        fill(partition, 3)
        batches = b"".join(bytes(b.buffer) for b in partition.read_batches())
        for call in (
            lambda: partition.append(b"x", expected_offset=wrong),
            lambda: partition.append_many([b"x"], expected_offset=wrong),
            lambda: partition.append_batches(batches, expected_offset=wrong),
        ):
            with pytest.raises(logstore.errors.OffsetConflictError) as caught:
                call()
            assert caught.value.expected == wrong
            assert caught.value.actual == 3
            assert caught.value.partition == "orders-0"
        assert list(partition.read()) == expected(magic, 0, 3)


# ---------------------------------------------------------------- offsets


def test_offsets_are_ordered_and_durable_moves_with_flush(tmp_path: Path) -> None:
    """start <= durable <= end, and flush brings durable to the end."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        assert (
            partition.start_offset, partition.durable_offset, partition.end_offset,
        ) == (0, 0, 0)  # fmt: skip
        fill(partition, 7)
        assert (partition.durable_offset, partition.end_offset) == (0, 7)
        partition.flush()
        assert partition.durable_offset == 7
        append_one(partition)
        assert (partition.durable_offset, partition.end_offset) == (7, 8)
        append_one(partition, durable=True)
        assert (partition.durable_offset, partition.end_offset) == (9, 9)


def test_durable_only_stops_at_the_durable_offset(tmp_path: Path) -> None:
    """A durable-only reader gets only records that cannot vanish."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 7)
        partition.flush()
        fill(partition, 5)
        assert list(partition.read(durable_only=True)) == expected(1, 0, 7)
        assert list(partition.fetch(0, durable_only=True)) == expected(1, 0, 7)
        assert partition.read_arrow(durable_only=True).read_all().num_rows == 7
        assert [
            b.base_offset for b in partition.read_batches(durable_only=True)
        ] == list(range(7))
        assert list(partition.read(7, durable_only=True)) == []


def test_end_of_offset_space_is_a_named_error(tmp_path: Path) -> None:
    """The last offset there can be is used, and no other afterwards."""
    last = (1 << 63) - 1
    base = last - 3
    with logstore.open(tmp_path) as store:
        new_partition(store)
    (tmp_path / "orders-0" / f"{base:020d}.log").touch()
    for own in (tmp_path / "orders-0").glob(".logstore*"):
        own.unlink()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == base
        assert partition.append_many([b"a", b"b"]) == range(base, base + 2)
        with pytest.raises(logstore.LogStoreError):
            partition.append_many([b"x"] * 3)
        assert partition.end_offset == base + 2
        assert partition.append(b"c") == base + 2
        with pytest.raises(logstore.LogStoreError):
            partition.append(b"d")
        assert [r.value for r in partition.read()] == [b"a", b"b", b"c"]
        assert partition.end_offset == last


def test_topic_append_tells_where_the_record_went(tmp_path: Path) -> None:
    """RecordMetadata has topic, partition, offset and the stored timestamp."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=3)
        meta = topic.append(b"v", key=b"k", timestamp_ms=77)
        assert meta == logstore.types.RecordMetadata("orders", meta.partition, 0, 77)
        record = next(topic[meta.partition].read())
        assert record == Record(0, 77, b"k", b"v")
        assert topic.append(b"v", partition=2, timestamp_ms=1).partition == 2
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            topic.append(b"v", partition=3)


def test_record_is_a_value(tmp_path: Path) -> None:
    """Records compare and hash by content and have no dictionary."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        fill(partition, 20)
        first, second = list(partition.read()), list(partition.read())
    assert first == second
    assert set(first) == set(second)
    assert not hasattr(first[0], "__dict__")
    with pytest.raises(AttributeError):
        first[0].offset = 5  # type: ignore[misc]


def test_fetch_takes_a_size_that_is_an_index(tmp_path: Path) -> None:
    """Numpy's integers have an index; other things are a `TypeError`."""

    class Size:
        def __index__(self) -> int:
            return 1 << 16

    with logstore.open(tmp_path) as store:
        log = store.create_topic("t")[0]
        log.append(b"x")
        chunk = log.fetch(0, max_bytes=Size())  # type: ignore[arg-type]
        assert [r.value for r in chunk] == [b"x"]
        with pytest.raises(TypeError):
            log.fetch(0, max_bytes="1")  # type: ignore[arg-type]
