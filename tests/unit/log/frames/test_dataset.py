"""The dataset of a partition or topic: correct results, and the filters that it pushes
down."""

from __future__ import annotations

import datetime
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import logstore
from logstore.log.frames import pieces, pushdown
from logstore.segment import Segment
from support.values import expected, few_formats, write_store

START_MS = 1_700_000_000_000
COUNT = 400
UTC = datetime.timezone.utc
F = pc.field


def make(path: Path, partitions: int = 3, **settings: Any) -> logstore.Topic:
    """A topic of many segments; a value names partition and offset."""
    config = logstore.TopicConfig(
        **{"message_format": 2, "segment_bytes": 1500, **settings}
    )
    with logstore.open(path) as store:
        topic = store.create_topic("orders", partitions=partitions, config=config)
        for p in topic:
            for first in range(0, COUNT, 10):
                offsets = range(first, first + 10)
                p.append_many(
                    [b"%d@%d" % (p.number, o) for o in offsets],
                    timestamps_ms=[START_MS + 1000 * o for o in offsets],
                )
    return logstore.open(path, read_only=True).topic("orders")


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> logstore.Topic:
    """A topic, shared since it is read-only."""
    return make(tmp_path_factory.mktemp("dataset"))


@pytest.fixture
def reads(topic: logstore.Topic, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Segments of which more was read than the few bytes of an index lookup."""
    for p in topic:
        assert p.end_offset == COUNT  # opening it walks over its last segment
    seen: set[str] = set()
    read = Segment.read

    def noted(self: Segment, view: memoryview, pos: int, *ahead: Any) -> int:
        if len(view) > 16 * 1024:
            seen.add(self.path)
        return read(self, view, pos, *ahead)

    monkeypatch.setattr(Segment, "read", noted)
    return seen


def segments_with(
    topic: logstore.Topic, low: int, high: int, numbers: range = range(3)
) -> set[str]:
    """Paths of the segments that have an offset in [low, high)."""
    return {
        s.path
        for number in numbers
        for s in topic[number].segments
        if s.base_offset < high and s.next_offset > low
    }


def time_of(offset: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(START_MS // 1000 + offset, UTC)


FILTERS: dict[str, tuple[Any, int, int, range]] = {
    "between": ((F("offset") >= 100) & (F("offset") <= 130), 100, 131, range(3)),
    "equal": (F("offset") == 77, 77, 78, range(3)),
    "reversed": (pc.scalar(390) < F("offset"), 391, 400, range(3)),
    "not": (~(F("offset") >= 20), 0, 20, range(3)),
    "in": (F("offset").isin([200, 203]), 200, 204, range(3)),
    "float": (F("offset") < 9.5, 0, 10, range(3)),
    "small int": (F("offset") < pa.scalar(9, pa.int8()), 0, 9, range(3)),
    "beside a value": (
        (F("offset") < 30) & (F("value") != b"0@3"),
        0,
        30,
        range(3),
    ),
    "partition": (F("partition") == 1, 0, COUNT, range(1, 2)),
    "partition and offset": (
        (F("partition") == 2) & (F("offset") >= 350),
        350,
        COUNT,
        range(2, 3),
    ),
    "since, datetime": (F("timestamp") >= time_of(300), 300, COUNT, range(3)),
    "since, ns": (
        F("timestamp")
        >= pa.scalar((START_MS + 300_000) * 10**6, pa.timestamp("ns", "UTC")),
        300,
        COUNT,
        range(3),
    ),
    "between times": (
        (F("timestamp") >= time_of(300)) & (F("timestamp") < time_of(310)),
        300,
        COUNT,  # an upper bound gives no information
        range(3),
    ),
    "time and offset": (
        (F("timestamp") >= time_of(300)) & (F("offset") < 330),
        300,
        330,
        range(3),
    ),
    "never": ((F("offset") < 5) & (F("offset") > 5), 0, 0, range(3)),
    "another topic": (F("topic") == "bills", 0, 0, range(3)),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", FILTERS)
def test_filter_reads_only_the_segments_it_needs(
    topic: logstore.Topic, reads: set[str], name: str, threads: int
) -> None:
    """The result equals that of the same filter on a table of everything."""
    filter, low, high, numbers = FILTERS[name]
    table = topic.to_dataset(threads=threads).to_table(filter=filter)
    assert reads == segments_with(topic, low, high, numbers)
    whole = topic.read_arrow(columns=table.column_names).read_all()
    assert table.equals(whole.filter(filter))


def test_gaps_between_wanted_offsets_are_left_out(
    topic: logstore.Topic, reads: set[str]
) -> None:
    """An OR of two places does not read the records between them."""
    first = (F("partition") == 0) & (F("offset") == 3)
    last = (F("partition") == 2) & (F("offset") == 396)
    table = topic.to_dataset().to_table(columns=["value"], filter=first | last)
    assert table.column(0).to_pylist() == [b"0@3", b"2@396"]
    assert reads == segments_with(topic, 3, 4, range(1)) | segments_with(
        topic, 396, 397, range(2, 3)
    )


def test_part_of_a_large_segment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read goes from the batch of the first offset to that of the last, not over
    all of the file."""
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(tmp_path) as store:
        p = store.create_topic("big", config=config)[0]
        for _ in range(100):
            p.append_many([b"x" * 1000] * 100)
        used = 0
        read = Segment.read

        def counted(self: Segment, view: memoryview, pos: int, *ahead: Any) -> int:
            nonlocal used
            n = read(self, view, pos, *ahead)
            used += n
            return n

        monkeypatch.setattr(Segment, "read", counted)
        found = p.to_dataset().count_rows((F("offset") >= 5000) & (F("offset") < 5100))
        assert found == 100
        assert 0 < used < 1_000_000 < p.segments[0].size_bytes


def test_columns_that_nobody_asks_for_are_not_decoded(
    topic: logstore.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of the projection and of the filter are decoded, in the dataset's
    order."""
    asked: list[tuple[str, ...]] = []
    from logstore.log.frames import dataset

    batches_of = dataset.batches_of

    def noted(found: Any, names: Any, *others: Any) -> Any:
        asked.append(names)
        return batches_of(found, names, *others)

    monkeypatch.setattr(dataset, "batches_of", noted)
    d = topic.to_dataset()
    d.to_table(columns=["value"], filter=F("offset") < 3)
    d.to_table(columns=["key", "topic"])
    d.to_table(columns={"n": pc.binary_length(F("value"))})
    d.count_rows()
    d.count_rows(F("partition") == 1)
    assert asked == [
        ("offset", "value"),
        ("topic", "key"),
        ("value",),
        ("timestampType",),
        ("partition", "timestampType"),
    ]


@few_formats
def test_any_filter_finds_what_it_finds_in_a_table(
    tmp_path: Path, magic: int, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters are random, over all columns, with nulls and times that do not rise."""
    write_store(tmp_path, 120, magic, codec, segment_bytes=600)
    topic = logstore.open(tmp_path, read_only=True).topic("orders")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 900)
    d = topic.to_dataset(threads=2)
    whole = topic.read_arrow(columns=d.schema.names).read_all()
    rng = random.Random(f"{magic}/{codec}")
    times = [r.timestamp_ms for r in expected(magic, 0, 120)]

    def some(depth: int) -> Any:
        kind = rng.randrange(9 if depth else 6)
        offset = rng.randrange(-2, 125)
        time = pa.scalar(
            (rng.choice(times) + rng.randrange(-3, 4)) * 1000, pa.timestamp("us", "UTC")
        )
        if kind == 0:
            return F("offset") >= offset
        if kind == 1:
            return F("offset") < offset
        if kind == 2:
            return F("timestamp") >= time
        if kind == 3:
            return F("timestamp") < time
        if kind == 4:
            return rng.choice(
                [F("key").is_null(), F("timestamp").is_null(), F("value").is_valid()]
            )
        if kind == 5:
            return F("offset").isin([offset, offset + 30])
        if kind == 6:
            return ~some(depth - 1)
        one, other = some(depth - 1), some(depth - 1)
        return one & other if kind == 7 else one | other

    for _ in range(25):
        filter = some(3)
        assert d.to_table(filter=filter).equals(whole.filter(filter)), filter


def test_time_that_does_not_rise_hides_nothing(tmp_path: Path) -> None:
    """Old records after new ones, and new ones before old ones, are found."""
    config = logstore.TopicConfig(message_format=2, segment_bytes=400)
    rng = random.Random(5)
    times = [START_MS + rng.randrange(100_000) for _ in range(300)]
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t", config=config)[0]
        for first in range(0, 300, 3):
            p.append_many([b"v"] * 3, timestamps_ms=times[first : first + 3])
        d = p.to_dataset()
        for at in (0, 10, 50_000, 90_000, 99_000, 99_990, 100_001):
            bound = pa.scalar(START_MS + at, pa.timestamp("ms", "UTC"))
            want = sum(t >= START_MS + at for t in times)
            assert d.count_rows(F("timestamp") >= bound) == want
            assert d.count_rows(F("timestamp") < bound) == 300 - want


def test_log_that_another_process_appends_to_hides_nothing(tmp_path: Path) -> None:
    """Records since the last scan are found by their time, in the same segment."""
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t")[0]
        p.append(b"old", timestamp_ms=START_MS)
        reading = logstore.open(tmp_path, read_only=True).topic("t")
        d = reading.to_dataset()
        for at in range(1, 6):
            bound = pa.scalar(START_MS + at, pa.timestamp("ms", "UTC"))
            assert d.count_rows(F("timestamp") >= bound) == 0
            p.append(b"new", timestamp_ms=START_MS + at)
            assert reading[0].end_offset == at + 1
            # A look that was under way when the segment grew leaves it like this.
            reading[0]._log.segments[-1].max_timestamp = START_MS
            assert d.count_rows(F("timestamp") >= bound) == 1


# ---------------------------------------------------------------- as a dataset


def test_dataset_reads_the_log_as_it_is_then(tmp_path: Path) -> None:
    """Each scan reads again: records that were appended since are there, deleted ones
    are not."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(segment_bytes=200)
        p = store.create_topic("t", config=config)[0]
        d = p.to_dataset()
        assert (d.count_rows(), d.to_table().num_rows) == (0, 0)
        p.append_many([b"x" * 50] * 20)
        assert d.count_rows() == 20
        p.delete_before(15)
        assert d.to_table(columns=["offset"]).column(0).to_pylist() == [*range(15, 20)]
    with pytest.raises(logstore.errors.StoreClosedError):
        d.count_rows()


def test_dataset_has_the_methods_of_a_dataset(topic: logstore.Topic) -> None:
    """Each method gives the same as for a table."""
    d = topic[0].to_dataset()
    whole = d.to_table()
    assert whole.schema == d.schema
    assert whole.column_names[:2] == ["topic", "partition"]
    assert d.head(7).equals(whole.slice(0, 7))
    assert d.head(0).num_rows == 0
    assert d.take([3, 1]).equals(whole.take([3, 1]))
    assert d.count_rows() == COUNT
    assert sum(b.num_rows for b in d.to_batches(batch_size=9)) == COUNT
    assert max(b.num_rows for b in d.to_batches(batch_size=9)) == 9
    scanner = d.scanner(["value"], filter=F("offset") < 2)
    for _ in range(2):  # each use is a scan
        assert scanner.to_table().column("value").to_pylist() == [b"0@0", b"0@1"]
        assert scanner.count_rows() == 2
        assert pa.table(scanner).num_rows == 2
        assert scanner.to_reader().read_all().num_rows == 2
    assert scanner.projected_schema.names == ["value"]
    assert pa.schema(scanner).names == ["value"]
    assert scanner.head(1).num_rows == 1
    assert scanner.take([1]).num_rows == 1
    assert scanner.dataset_schema == d.schema
    some = d.filter(F("offset") < 50).filter(F("offset") > 20)
    assert some.count_rows() == 29
    assert some.count_rows(F("offset") == 30) == 1
    assert d.count_rows() == COUNT
    assert "orders-0" in repr(d)


def test_expressions_are_columns(topic: logstore.Topic) -> None:
    """Expressions have names, and work without rows."""
    d = topic[0].to_dataset()
    columns = {"n": pc.binary_length(F("value")), "next": F("offset") + 1}
    table = d.to_table(columns=columns, filter=F("offset") < 12)
    assert table.column("n").to_pylist() == [3] * 10 + [4] * 2
    assert table.column("next").to_pylist() == [*range(1, 13)]
    assert d.to_table(columns=columns, filter=F("offset") < 0).schema == table.schema


def test_unknown_column_is_refused(topic: logstore.Topic) -> None:
    """The column may be in the projection, in an expression or in a filter."""
    d = topic[0].to_dataset()
    for use in (
        {"columns": ["colour"]},
        {"columns": {"c": F("colour")}},
        {"filter": F("colour") == 1},
    ):
        with pytest.raises(pa.ArrowInvalid, match="colour"):
            d.scanner(**use)
    with pytest.raises((pa.ArrowException, TypeError)):
        d.scanner(filter=F("offset") == "x")


def test_sort_works_in_memory(topic: logstore.Topic) -> None:
    """Any dataset does the same."""
    d = topic[0].to_dataset().filter(F("offset") < 5)
    back = d.sort_by([("offset", "descending")]).to_table()
    assert back.column("offset").to_pylist() == [4, 3, 2, 1, 0]


def test_way_around_the_scanner_is_an_error(topic: logstore.Topic) -> None:
    """The dataset is never empty instead: as part of another one, or as fragments."""
    d = topic[0].to_dataset()
    for use in (
        lambda: ds.dataset([d]).to_table(),
        lambda: ds.dataset([d]).count_rows(),
        lambda: next(iter(d.get_fragments())).to_table(),
        lambda: d.replace_schema(d.schema).to_table(),
    ):
        with pytest.raises(logstore.errors.UnsupportedError, match=r"to_table\("):
            use()
    with pytest.raises(TypeError, match="read_only=True"):
        pickle.dumps(d)


def test_dataset_is_written_as_parquet(topic: logstore.Topic, tmp_path: Path) -> None:
    """The write takes a reader: pyarrow's writer accepts no scanner but its own."""
    found = topic.to_dataset().scanner(["partition", "value"])
    ds.write_dataset(found.to_reader(), tmp_path / "out", format="parquet")
    assert ds.dataset(tmp_path / "out").count_rows() == 3 * COUNT


# ---------------------------------------------------------------- DuckDB and Polars

QUERIES: dict[str, tuple[str, int, int, range]] = {
    "between": ("d.offset between 100 and 130", 100, 131, range(3)),
    "in": ("d.offset in (10, 12)", 10, 13, range(3)),
    "since": ("timestamp >= timestamptz '2023-11-14 22:18:20Z'", 300, COUNT, range(3)),
    "since, us": ("timestamp > to_timestamp(1700000300.5)", 300, COUNT, range(3)),
    "partition": ("partition = 1", 0, COUNT, range(1, 2)),
    "all three": (
        "partition = 1 and d.offset < 320 and timestamp >= to_timestamp(1700000300)",
        300,
        320,
        range(1, 2),
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_duckdb_pushes_its_conditions_down(
    topic: logstore.Topic, reads: set[str], name: str
) -> None:
    """DuckDB gets the same result as from a table, twice."""
    duckdb = pytest.importorskip("duckdb")
    condition, low, high, numbers = QUERIES[name]
    d = topic.to_dataset()
    query = f"select sum(octet_length(value)), count(*) from {{}} d where {condition}"
    for _ in range(2):
        found = duckdb.sql(query.format("d")).fetchall()
        assert reads == segments_with(topic, low, high, numbers)
    whole = d.to_table()
    assert whole.num_rows == 3 * COUNT
    assert found == duckdb.sql(query.format("whole")).fetchall()


def polars_filters(pl: Any) -> dict[str, tuple[Any, int, int, range]]:
    offset, time = pl.col("offset"), pl.col("timestamp")
    return {
        "between": (offset.is_between(100, 130), 100, 131, range(3)),
        "since": (time >= time_of(300), 300, COUNT, range(3)),
        "partition": (pl.col("partition") == 1, 0, COUNT, range(1, 2)),
    }


@pytest.mark.parametrize("name", ["between", "since", "partition"])
def test_polars_pushes_its_conditions_down(
    topic: logstore.Topic, reads: set[str], name: str
) -> None:
    """`pl.scan_pyarrow_dataset` gives it twice."""
    pl = pytest.importorskip("polars")
    condition, low, high, numbers = polars_filters(pl)[name]
    lazy = pl.scan_pyarrow_dataset(topic.to_dataset())
    for _ in range(2):
        found = lazy.filter(condition).select("value").collect()
        assert reads == segments_with(topic, low, high, numbers)
    want = pl.DataFrame(topic).filter(condition).select("value")
    assert found.equals(want)
    assert lazy.head(3).collect().height == 3


# ---------------------------------------------------------------- the questions


def test_questions_to_arrow_are_few(
    topic: logstore.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan makes some dozens, for any number of offsets: each costs 0.1 ms."""
    asked = 0
    survivors: Callable[..., list[int]] = pushdown._survivors

    def counted(*arguments: Any) -> list[int]:
        nonlocal asked
        asked += 1
        return survivors(*arguments)

    monkeypatch.setattr(pushdown, "_survivors", counted)
    filter = (F("offset") > 100) & (F("offset") < 120) & (F("timestamp") > time_of(3))
    topic.to_dataset().count_rows(filter)
    assert 0 < asked < 100
