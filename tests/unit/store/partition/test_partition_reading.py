"""Reads with a limit, a time, or for a single record, and their errors."""

from __future__ import annotations

import copy
import datetime
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import TopicConfig
from support.values import config_of, new_partition

UTC = datetime.timezone.utc
# Midnight in UTC, and every hour from there on.
DAY = datetime.datetime(2023, 11, 14, tzinfo=UTC)
DAY_MS = 1_699_920_000_000
HOUR_MS = 3_600_000


@pytest.fixture(params=[(1, "none"), (1, "gzip"), (2, "none"), (2, "zstd")])
def partition(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """48 records, one an hour, four in a batch, in several segments."""
    magic, codec = request.param
    with logstore.open(tmp_path) as store:
        made = new_partition(
            store, magic, codec, segment_bytes=600, retention_ms=-1,
            index_interval_bytes=100,
        )  # fmt: skip
        for first in range(0, 48, 4):
            hours = range(first, first + 4)
            made.append_many(
                [b"%d" % hour for hour in hours],
                timestamps_ms=[DAY_MS + hour * HOUR_MS for hour in hours],
            )
        yield made


def fetched(partition: Any, start: int, limit: int | None) -> list[int]:
    chunk = partition.fetch(start, limit=limit)
    offsets = [record.offset for record in chunk]
    assert [record.offset for record in chunk] == offsets
    if limit is not None and len(offsets) == limit:
        assert chunk.next_offset >= start + limit
    return offsets


def by_arrow(partition: Any, start: int, limit: int | None) -> list[int]:
    offsets: list[int] = (
        partition.read_arrow(start, limit=limit).read_all()["offset"].to_pylist()
    )
    return offsets


WAYS: dict[str, Callable[[Any, int, int | None], list[int]]] = {
    "read": lambda p, start, limit: [r.offset for r in p.read(start, limit=limit)],
    "follow": lambda p, start, limit: [
        r.offset for r in p.follow(start, limit=limit, timeout=0)
    ],
    "arrow": by_arrow,
    "committed": lambda p, start, limit: [
        r.offset for r in p.read(start, limit=limit, isolation="read_committed")
    ],
}


@pytest.mark.sampled(40)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [0, 1, 3, 4, 17, 46, 47, 1000, None])
def test_limit_ends_a_read_after_so_many_records(
    partition: Any, way: str, limit: int | None
) -> None:
    count = 46 if limit is None else min(limit, 46)
    assert WAYS[way](partition, 2, limit) == list(range(2, 2 + count))


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5, 10_000])
def test_limit_of_a_fetch_ends_its_records_and_moves_next_offset(
    partition: Any, limit: int
) -> None:
    """Fetching on from there misses nothing; the buffer holds whole batches."""
    whole = partition.fetch(2)
    chunk = partition.fetch(2, limit=limit)
    expected = [record.offset for record in whole][:limit]
    assert [record.offset for record in chunk] == expected
    assert bytes(chunk.buffer) == bytes(whole.buffer)
    if limit <= len(expected):
        assert chunk.next_offset == 2 + limit
    else:
        assert chunk.next_offset == whole.next_offset
    if limit:
        found: list[int] = []
        offset = 0
        while offset < partition.end_offset:
            chunk = partition.fetch(offset, limit=limit)
            found += [record.offset for record in chunk]
            offset = chunk.next_offset
        assert found == list(range(48))


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 100])
def test_limit_of_batches_ends_with_the_batch_of_the_last_record(
    partition: Any, limit: int
) -> None:
    batches = list(partition.read_batches(2, limit=limit))
    offsets = [r.offset for batch in batches for r in batch if r.offset >= 2]
    wanted = list(range(2, min(2 + limit, 48)))
    assert offsets[: len(wanted)] == wanted
    if wanted:
        assert batches[-1].base_offset <= wanted[-1] <= batches[-1].last_offset
    else:
        assert not batches


def test_follow_does_not_wait_behind_its_limit(partition: Any) -> None:
    """Without a timeout it would wait for ever."""
    records = partition.follow(start=46, limit=2)
    assert [record.offset for record in records] == [46, 47]
    records = partition.follow(start=48, limit=1)
    partition.append(b"new")
    assert [record.value for record in records] == [b"new"]


@pytest.mark.parametrize("method", ["read", "follow", "read_batches", "read_arrow"])
def test_limit_that_is_none_names_the_argument(partition: Any, method: str) -> None:
    with pytest.raises(TypeError, match="limit is str"):
        getattr(partition, method)(limit="3")
    with pytest.raises(logstore.ConfigError, match="limit=-1") as caught:
        getattr(partition, method)(limit=-1)
    assert caught.value.name == "limit"


def test_get_gives_the_record_at_an_offset(partition: Any) -> None:
    for offset in (0, 1, 5, 30, 47):
        assert partition.get(offset) == next(partition.read(offset))
        committed = partition.get(offset, isolation="read_committed")
        assert committed.offset == offset


@pytest.mark.parametrize("offset", [-1, 48, 1 << 62])
def test_get_outside_of_the_log_says_what_there_is(partition: Any, offset: int) -> None:
    with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
        partition.get(offset)
    assert (caught.value.requested, caught.value.start, caught.value.end) == (
        offset, 0, 48,
    )  # fmt: skip
    with pytest.raises(TypeError, match="offset is str"):
        partition.get("1")


def test_get_of_what_is_not_durable_yet_is_out_of_range(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        made = new_partition(store, flush_ms=1 << 40)
        made.append(b"1", durable=True)
        made.append(b"2")
        assert made.get(1).value == b"2"
        assert made.get(0, durable_only=True).value == b"1"
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            made.get(1, durable_only=True)
        assert caught.value.end == 1


def test_get_in_a_gap_is_a_record_not_found(tmp_path: Path) -> None:
    """Compaction has removed offsets 1 to 3 of a broker's log here."""
    with logstore.open(tmp_path) as store:
        made = new_partition(store, 2)
        made.append(b"first")
        batches = [bytes(b.buffer) for b in made.read_batches()]
    log = tmp_path / "orders-0" / ("0" * 20 + ".log")
    later = bytearray(batches[0])
    later[:8] = (4).to_bytes(8, "big")
    log.write_bytes(batches[0] + bytes(later))
    for name in (".logstore-owner", ".logstore-topics", ".kafka_cleanshutdown"):
        (tmp_path / name).unlink(missing_ok=True)
    with logstore.open(tmp_path, read_only=True) as store:
        made = store["orders"][0]
        assert [r.offset for r in made.read()] == [0, 4]
        assert made.get(4).value == b"first"
        for offset in (1, 2, 3):
            with pytest.raises(logstore.errors.RecordNotFoundError) as caught:
                made.get(offset)
            assert (caught.value.offset, caught.value.partition) == (offset, "orders-0")
            assert isinstance(caught.value, LookupError)
        assert len(made) == 5  # offsets


def test_length_is_the_number_of_records_and_an_empty_one_is_true(
    tmp_path: Path,
) -> None:
    with logstore.open(tmp_path) as store:
        made = new_partition(store)
        assert len(made) == 0
        assert made
        made.append_many([b"1", b"2", b"3"])
        made.roll()
        made.delete_before(1)
        assert len(made) == 2
        assert len(made) == len(list(made.read()))


TIMES: dict[str, Any] = {
    "datetime": DAY + datetime.timedelta(hours=24),
    "zone": datetime.datetime(
        2023, 11, 15, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))
    ),
    "text": "2023-11-15T00:00:00+00:00",
    "Z": "2023-11-15T00:00:00Z",
    "space": " 2023-11-15 00:00:00.000Z ",
    "late": "2023-11-14T23:00:00.000001Z",
}


@pytest.mark.parametrize("time", TIMES)
def test_time_is_a_start_and_a_stop(partition: Any, time: str) -> None:
    given = TIMES[time]
    assert next(partition.read(given)).offset == 24
    assert [r.offset for r in partition.read(20, given)] == [20, 21, 22, 23]
    assert next(partition.follow(given, timeout=0)).offset == 24
    assert partition.read_arrow(given).read_all()["offset"][0].as_py() == 24
    assert next(partition.read_batches(given)).base_offset == 24
    assert partition.offset_for_time(given) == 24


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_date_is_its_midnight_in_local_time(
    partition: Any, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A datetime and a text without a zone are local, too."""
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        local = datetime.datetime(2023, 11, 15).astimezone(UTC)
        hour = int((local - DAY).total_seconds() // 3600)
        for given in (
            datetime.date(2023, 11, 15),
            datetime.datetime(2023, 11, 15),
            "2023-11-15",
            "2023-11-15T00:00",
        ):
            assert next(partition.read(given)).offset == hour
    finally:
        monkeypatch.undo()
        time.tzset()


def test_time_beyond_the_log_is_its_end(partition: Any) -> None:
    assert list(partition.read("9999-12-31")) == []
    assert next(partition.read("0001-01-01")).offset == 0
    assert partition.offset_for_time("9999-12-31") is None


@pytest.mark.parametrize("text", ["yesterday", "", "12", "2023-13-01", "1e3"])
def test_text_that_is_no_time_names_the_argument(partition: Any, text: str) -> None:
    for name in ("start", "stop"):
        with pytest.raises(logstore.ConfigError, match=f"{name}=") as caught:
            partition.read(**{name: text})
        assert (caught.value.name, caught.value.value) == (name, text)


def test_timestamp_of_a_record_is_a_datetime_in_utc(partition: Any) -> None:
    record = partition.get(5)
    assert record.timestamp == DAY + datetime.timedelta(hours=5)
    assert record.timestamp.tzinfo is UTC
    assert record == logstore.Record(
        5, DAY_MS + 5 * HOUR_MS, None, b"5", (), record.timestamp_type
    )


def test_record_without_a_timestamp_has_none(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        made = new_partition(store, 0)
        made.append(b"x")
        assert made.get(0).timestamp is None
    for stamp in (-1, (1 << 63) - 1):  # none; beyond the year 9999
        assert logstore.Record(0, stamp, None, None).timestamp is None
    exact = logstore.Record(0, 1_700_000_000_123, None, None).timestamp
    assert exact == datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


@pytest.mark.parametrize("what", ["Store", "Topic", "Partition"])
@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_says_what_to_do_instead(
    tmp_path: Path, what: str, how: Callable[[Any], Any]
) -> None:
    """Following it works."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        topic[1].append(b"there")
        thing = {"Store": store, "Topic": topic, "Partition": topic[1]}[what]
        with pytest.raises(TypeError, match=f"a {what} cannot be pickled") as caught:
            how(thing)
        advice = str(caught.value).rpartition("open it there: ")[2]
        made = eval(advice, {"logstore": logstore})
        assert repr(made).startswith(f"<logstore.{what} ")
        if what == "Partition":
            assert made.get(0).value == b"there"
        elif what == "Store":
            made.close()


MISTAKES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "values": ("values is bytes", lambda p: p.append_many(b"abc")),
    "values 2": ("values is int", lambda p: p.append_many(5)),
    "keys": ("keys is int", lambda p: p.append_many([b""], keys=5)),
    "times": ("timestamps_ms is int", lambda p: p.append_many([b""], None, 5)),
    "headers": ("headers is int", lambda p: p.append(b"", headers=5)),
    "headers 2": ("headers is int", lambda p: p.append_many([b""], headers=[5])),
    "start": ("start is float", lambda p: p.read(1.5)),
    "stop": ("stop is bytes", lambda p: p.read(stop=b"1")),
    "timeout": ("timeout is 'x'", lambda p: p.follow(timeout="x")),
    "max_bytes": ("max_bytes is str", lambda p: p.fetch(0, "x")),
    "offset": ("offset is list", lambda p: p.fetch([])),
    "columns": ("columns is str", lambda p: p.read_arrow(columns="value")),
    "batch_records": ("batch_records is str", lambda p: p.read_arrow(batch_records="")),
    "now_ms": ("now_ms is str", lambda p: p.apply_retention(now_ms="x")),
    "policies": ("policies is int", lambda p: p.apply_retention(policies=5)),
    "buffer": ("buffer is int", lambda p: p.append_batches(5)),
    "mark": ("mark is int, not LogMark", lambda p: p.unchanged_below(5)),
    "expected": ("expected_offset is", lambda p: p.append(b"", expected_offset="")),
    "before": ("offset is str, not an offset", lambda p: p.delete_before("1")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_type_error_names_the_argument_at_the_call(
    tmp_path: Path, mistake: str
) -> None:
    text, call = MISTAKES[mistake]
    with logstore.open(tmp_path) as store:
        made = new_partition(store, 2)
        with pytest.raises(TypeError, match=text):
            call(made)
        assert made.end_offset == 0


def test_type_errors_of_stores_and_topics_name_the_argument(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="path is int"):
        logstore.open(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config is TopicConfig, not StoreConfig"):
        logstore.open(tmp_path / "new", config=TopicConfig())  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    with logstore.open(tmp_path) as store:
        with pytest.raises(TypeError, match="config is dict, not TopicConfig"):
            store.create_topic("a", config={})  # type: ignore[arg-type]
        assert store.topics() == []
        topic = store.create_topic("a")
        with pytest.raises(TypeError, match="config is NoneType"):
            topic.configure(None)  # type: ignore[arg-type]
        for bad in (5, None, ["a"]):
            with pytest.raises(logstore.TopicNotFoundError):
                store[bad]  # type: ignore[index]


def test_store_is_a_collection_of_topics(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        assert list(store) == []
        b = store.create_topic("b")
        a = store.create_topic("a", 2)
        assert store["a"] is a
        assert list(store) == [a, b]
        assert "a" in store
        assert "c" not in store
        assert 5 not in store
        with pytest.raises(logstore.TopicNotFoundError):
            store["c"]
        with logstore.open(tmp_path, read_only=True) as other:
            assert [topic.name for topic in other] == ["a", "b"]
            store.create_topic("c")
            assert "c" in other
            assert other["c"].partitions
    for ask in (lambda: store["a"], lambda: "a" in store, lambda: list(store)):
        with pytest.raises(logstore.errors.StoreClosedError):
            ask()


def test_arrow_of_a_limit_is_in_batches(partition: Any) -> None:
    batches = list(partition.read_arrow(limit=10, batch_records=4))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert pa.Table.from_batches(batches)["value"].to_pylist() == [
        b"%d" % hour for hour in range(10)
    ]
    assert config_of(1) == TopicConfig(**config_of(1).to_dict())
