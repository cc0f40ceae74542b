"""Partitions and topics as Arrow streams, for pyarrow, pandas, Polars, DuckDB."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore.log.frames import pieces, stream
from support.damage import flip_bit, logs_in
from support.values import expected, few_formats, write_store

ALL = ("topic", "partition", "offset", "timestamp", "key", "value", "timestampType")


def topic_of(path: Path, partitions: int = 3, count: int = 200) -> logstore.Topic:
    """A topic with small segments, read-only; values name their partition and
    offset."""
    config = logstore.TopicConfig(message_format=2, segment_bytes=800)
    with logstore.open(path) as store:
        topic = store.create_topic("orders", partitions=partitions, config=config)
        for p in topic:
            for first in range(0, count, 10):
                offsets = range(first, first + 10)
                p.append_many(
                    [b"%d@%d" % (p.number, o) for o in offsets],
                    keys=[b"k%d" % (o % 7) for o in offsets],
                    timestamps_ms=[1_000_000 + 1000 * o for o in offsets],
                )
    return logstore.open(path, read_only=True).topic("orders")


def values_of(table: Any) -> list[bytes]:
    return list(table.column("value").to_pylist())


def in_order(partitions: int, count: int) -> list[bytes]:
    return [b"%d@%d" % (n, o) for n in range(partitions) for o in range(count)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take one small segment at a time, and their steps are short."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 700)
    monkeypatch.setattr(stream, "STEP_BYTES_MIN", 100)
    monkeypatch.setattr(stream, "STEP_BYTES_MAX", 300)


# ---------------------------------------------------------------- ------ consumers


def test_pyarrow_takes_a_partition_and_a_topic_as_they_are(tmp_path: Path) -> None:
    """The columns are the defaults of `read_arrow`; each call reads again."""
    topic = topic_of(tmp_path)
    for _ in range(2):
        table = pa.table(topic[1])
        assert table.equals(topic[1].read_arrow().read_all())
        table = pa.table(topic)
        assert table.equals(topic.read_arrow().read_all())
        assert table.column_names == list(ALL[:-1])
        assert values_of(table) == in_order(3, 200)
    assert pa.schema(topic[0]) == topic[0].read_arrow().schema
    assert pa.schema(topic) == topic.read_arrow().schema


def test_polars_and_pandas_take_them(tmp_path: Path) -> None:
    """Calls are `pl.DataFrame(p)` and `pd.DataFrame.from_arrow(p)`, also of a topic."""
    pl, pd = pytest.importorskip("polars"), pytest.importorskip("pandas")
    topic = topic_of(tmp_path)
    for source, count in ((topic[0], 200), (topic, 600)):
        frame = pl.DataFrame(source)
        assert frame.height == count
        assert frame["value"].to_list() == in_order(3, 200)[:count]
        assert frame.schema["timestamp"] == pl.Datetime("ms", "UTC")
        if hasattr(pd.DataFrame, "from_arrow"):  # since pandas 3
            assert len(pd.DataFrame.from_arrow(source)) == count


def test_duckdb_takes_them_by_the_name_of_the_variable(tmp_path: Path) -> None:
    """This works twice, in one statement or in two, and joined with each other."""
    duckdb = pytest.importorskip("duckdb")
    topic = topic_of(tmp_path)
    p = topic[0]  # noqa: F841 - DuckDB finds it by its name
    for _ in range(2):
        assert duckdb.sql("select count(*), max(p.offset) from p").fetchall() == [
            (200, 199)
        ]
        assert duckdb.sql("select count(distinct partition) from topic").fetchall() == [
            (3,)
        ]
    both = "select count(*) from p a join p b on a.offset = b.offset where a.offset < 9"
    assert duckdb.sql(both).fetchall() == [(9,)]


def test_append_arrow_takes_a_partition(tmp_path: Path) -> None:
    """Records go from log to log without a conversion."""
    source = topic_of(tmp_path / "a")[0]
    with logstore.open(tmp_path / "b") as store:
        p = store.create_topic("copy")[0]
        assert p.append_arrow(source) == range(200)
        assert [r.value for r in p.read()] == in_order(1, 200)


# ---------------------------------------------------------------- requested schema


def test_requested_schema_chooses_columns_and_types(tmp_path: Path) -> None:
    """A consumer gets the columns and types it requests: fewer, other ones, as other
    types."""
    topic = topic_of(tmp_path)
    asked = pa.schema(
        [
            ("value", pa.string()),
            ("partition", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
        ]
    )
    for source, count in ((topic, 600), (topic[2], 200)):
        reader = pa.RecordBatchReader.from_stream(source, schema=asked)
        assert reader.schema == asked
        table = reader.read_all()
        assert table.num_rows == count
        assert table.column("value")[0].as_py() in ("0@0", "2@0")


def test_requested_schema_with_an_unknown_column_is_refused(tmp_path: Path) -> None:
    """The error names the column; a schema without columns is refused, too, as is a
    type to which no column converts."""
    p = topic_of(tmp_path)[0]
    bad = pa.schema([("value", pa.binary()), ("colour", pa.string())])
    with pytest.raises(logstore.ConfigError, match="colour"):
        p.__arrow_c_stream__(bad.__arrow_c_schema__())
    with pytest.raises(logstore.ConfigError, match="at least one name"):
        p.__arrow_c_stream__(pa.schema([]).__arrow_c_schema__())
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        pa.RecordBatchReader.from_stream(
            p, schema=pa.schema([("value", pa.list_(pa.int8()))])
        ).read_all()


def test_value_that_does_not_become_the_type_is_an_error(tmp_path: Path) -> None:
    """No row is left out, and none becomes null."""
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t")[0]
        p.append_many([b"good", b"\xaf"])
        with pytest.raises(pa.ArrowInvalid, match="UTF"):
            pa.RecordBatchReader.from_stream(
                p, schema=pa.schema([("value", pa.string())])
            ).read_all()


# ---------------------------------------------------------------- read_arrow


@few_formats
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_topic_read_arrow_is_what_its_partitions_have(
    tmp_path: Path, magic: int, codec: str, threads: int, small_pieces: None
) -> None:
    """All columns of all records come in order, with any number of threads."""
    write_store(tmp_path, 150, magic, codec, segment_bytes=700)
    topic = logstore.open(tmp_path, read_only=True).topic("orders")
    names = (*ALL, "headers")
    table = topic.read_arrow(
        columns=names, batch_records=13, threads=threads
    ).read_all()
    want = expected(magic, 0, 150)
    assert table.column("offset").to_pylist() == [r.offset for r in want]
    assert table.column("value").to_pylist() == [r.value for r in want]
    assert set(table.column("topic").to_pylist()) == {"orders"}
    assert set(table.column("partition").to_pylist()) == {0}
    whole = topic[0].read_arrow(columns=names[2:]).read_all()
    assert table.drop_columns(["topic", "partition"]).equals(whole)


@pytest.mark.parametrize("threads", [1, 3])
def test_bounds_mean_the_same_in_each_partition(
    tmp_path: Path, threads: int, small_pieces: None
) -> None:
    """Offsets, half open; an offset that a partition does not have is an error."""
    topic = topic_of(tmp_path)
    table = topic.read_arrow(35, 78, columns=["offset"], threads=threads).read_all()
    assert table.column(0).to_pylist() == [*range(35, 78)] * 3
    part = topic[1].read_arrow(35, 78, columns=["offset"], threads=threads).read_all()
    assert part.column(0).to_pylist() == [*range(35, 78)]
    with pytest.raises(logstore.OffsetOutOfRangeError):
        topic.read_arrow(201, threads=threads)


def test_each_partition_may_have_its_own_bounds(tmp_path: Path) -> None:
    """A mapping works as in `Topic.read`; partitions that it leaves out are read
    whole."""
    topic = topic_of(tmp_path)
    table = topic.read_arrow(
        {0: 190, 2: 5}, {1: 3, 2: 7}, columns=["partition", "offset"]
    ).read_all()
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        *((0, offset) for offset in range(190, 200)),
        *((1, offset) for offset in range(3)),
        *((2, offset) for offset in range(5, 7)),
    ]
    with pytest.raises(logstore.errors.PartitionNotFoundError):
        topic.read_arrow({7: 0})


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("limit", [0, 1, 7, 199, 200, 201, 450, 600, 10_000])
def test_limit_counts_over_all_partitions(
    tmp_path: Path, threads: int, limit: int, small_pieces: None
) -> None:
    """The limit takes the first records, from any start of a read; no more, and in no
    larger batches."""
    topic = topic_of(tmp_path)
    for start in (None, 150):
        reader = topic.read_arrow(start, batch_records=50, threads=threads, limit=limit)
        batches = list(reader)
        assert all(0 < batch.num_rows <= 50 for batch in batches)
        found = [v for b in batches for v in b.column("value").to_pylist()]
        whole = topic.read_arrow(start).read_all().column("value").to_pylist()
        assert found == whole[:limit]
    part = topic[1].read_arrow(threads=threads, limit=limit).read_all()
    assert part.equals(topic[1].read_arrow().read_all().slice(0, limit))


@pytest.mark.parametrize("limit", [-1, "5", 2.5])
def test_limit_that_cannot_be_is_refused(tmp_path: Path, limit: Any) -> None:
    topic = topic_of(tmp_path, count=10)
    for source in (topic, topic[0]):
        with pytest.raises((logstore.ConfigError, TypeError), match="limit"):
            source.read_arrow(limit=limit)


def test_damage_behind_the_limit_is_none_of_its_business(tmp_path: Path) -> None:
    topic_of(tmp_path, partitions=1)
    damaged = logs_in(tmp_path / "orders-0")[1]
    first = int(damaged.stem)
    flip_bit(damaged, 8 * (damaged.stat().st_size - 1))
    topic = logstore.open(tmp_path, read_only=True).topic("orders")
    for source in (topic, topic[0]):
        assert source.read_arrow(limit=first).read_all().num_rows == first
        with pytest.raises(logstore.CorruptRecordError):
            source.read_arrow(limit=200).read_all()


def test_columns_alone_of_topic_and_partition_count_rows(tmp_path: Path) -> None:
    """They are no columns of the log, and there is one row for each record."""
    topic = topic_of(tmp_path, count=50)
    table = topic.read_arrow(columns=["partition"], batch_records=7).read_all()
    assert table.column(0).to_pylist() == [0] * 50 + [1] * 50 + [2] * 50
    assert topic[0].read_arrow(columns=["offset"], threads=2).read_all().num_rows == 50


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"columns": ["colour"]}, "colour"),
        ({"columns": []}, "one name"),
        ({"columns": ["offset", "offset"]}, "once"),
        ({"threads": 0}, "threads"),
        ({"threads": 65}, "threads"),
        ({"threads": 2.0}, "threads"),
        ({"batch_records": 0}, "batch_records"),
        ({"isolation": "none"}, "isolation"),
        ({"on_corruption": "ignore"}, "on_corruption"),
    ],
    ids=str,
)
def test_wrong_argument_is_named(
    tmp_path: Path, options: dict[str, Any], word: str
) -> None:
    """The error comes at the call."""
    topic = topic_of(tmp_path, partitions=1, count=10)
    with pytest.raises(logstore.ConfigError, match=word):
        topic.read_arrow(**options)
    if word in ("isolation", "on_corruption"):
        with pytest.raises(logstore.ConfigError, match=word):
            topic.to_dataset(**options)
    if "threads" in options:
        with pytest.raises(logstore.ConfigError, match=word):
            topic[0].to_dataset(**options)


def test_columns_as_a_text_are_refused(tmp_path: Path) -> None:
    """`columns="value"` would be the columns v, a, l, u and e."""
    with pytest.raises(TypeError, match="value"):
        topic_of(tmp_path, count=10).read_arrow(columns="value")


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_damage_comes_after_every_record_before_it(
    tmp_path: Path, threads: int, small_pieces: None
) -> None:
    """In order with several threads, too; skipped on request."""
    topic_of(tmp_path, count=200)
    damaged = logs_in(tmp_path / "orders-1")[3]
    flip_bit(damaged, 8 * (damaged.stat().st_size - 1))
    topic = logstore.open(tmp_path, read_only=True).topic("orders")
    found: list[bytes] = []
    reader = topic.read_arrow(batch_records=5, threads=threads)
    with pytest.raises(logstore.CorruptRecordError) as error:
        for batch in reader:
            found += batch.column("value").to_pylist()
    assert error.value.path == str(damaged)
    lost = error.value.offset
    assert lost is not None
    assert found == in_order(1, 200) + [b"1@%d" % o for o in range(lost)]
    with pytest.raises(logstore.CorruptRecordError):
        reader.read_next_batch()  # and not the end
    rest = topic.read_arrow(threads=threads, on_corruption="skip").read_all()
    assert rest.num_rows == 590
    assert topic.to_dataset(on_corruption="skip", threads=threads).count_rows() == 590


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("start", [0, 20])
def test_damage_is_skipped_with_read_committed_too(
    tmp_path: Path, threads: int, start: int, small_pieces: None
) -> None:
    """The read may begin anywhere: to find the end of a transaction, the damage is read
    past."""
    topic_of(tmp_path, partitions=1)
    damaged = logs_in(tmp_path / "orders-0")[1]
    flip_bit(damaged, 8 * (damaged.stat().st_size - 1))
    topic = logstore.open(tmp_path, read_only=True).topic("orders")
    options: dict[str, Any] = {"isolation": "read_committed", "on_corruption": "skip"}
    for source in (topic, topic[0]):
        table = source.read_arrow(start, threads=threads, **options).read_all()
        assert table.num_rows == 190 - start
        assert source.to_dataset(threads=threads, **options).count_rows() == 190
        with pytest.raises(logstore.CorruptRecordError):
            source.read_arrow(
                start, threads=threads, isolation="read_committed"
            ).read_all()


def test_damage_reaches_each_consumer_as_an_error(tmp_path: Path) -> None:
    """No consumer takes a part for the whole; the text of the error is ours."""
    pl, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    topic_of(tmp_path, partitions=1)
    damaged = logs_in(tmp_path / "orders-0")[2]
    flip_bit(damaged, 8 * (damaged.stat().st_size - 1))
    p = logstore.open(tmp_path, read_only=True).topic("orders")[0]
    d = p.to_dataset()
    for read in (
        lambda: pa.table(p),
        lambda: pl.DataFrame(p),
        lambda p=p: duckdb.sql("select count(*) from p").fetchall(),
        lambda d=d: duckdb.sql("select count(*) from d").fetchall(),
        lambda: d.to_table(),
        lambda: d.count_rows(),
        lambda: pl.scan_pyarrow_dataset(d).select("value").collect(),
    ):
        with pytest.raises(Exception, match="checksum"):
            read()


def test_log_that_is_cut_meanwhile_is_never_mixed(
    tmp_path: Path, small_pieces: None
) -> None:
    """Rows that threads have read ahead of a cut are not delivered after it."""
    config = logstore.TopicConfig(message_format=2, segment_bytes=700)
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t", config=config)[0]
        for first in range(0, 500, 10):
            p.append_many([b"old%d" % o for o in range(first, first + 10)])
        reader = p.read_arrow(batch_records=10, threads=2)
        found = reader.read_next_batch().column("value").to_pylist()
        p.truncate_to(250)
        for first in range(250, 500, 10):
            p.append_many([b"new%d" % o for o in range(first, first + 10)])
        with pytest.raises(logstore.OffsetOutOfRangeError):
            for batch in reader:
                found += batch.column("value").to_pylist()
        assert found == [b"old%d" % o for o in range(len(found))]
        assert len(found) <= 500
        assert not [value for value in found if value.startswith(b"new")]


def test_stream_that_is_dropped_lets_its_threads_go(
    tmp_path: Path, small_pieces: None
) -> None:
    """A process that wanted three rows ends, also when DuckDB asked for them."""
    topic_of(tmp_path)
    code = f"""
import logstore, pyarrow as pa
topic = logstore.open({str(tmp_path)!r}, read_only=True).topic("orders")
d = topic.to_dataset(threads=3)
assert d.head(3).num_rows == 3
reader = topic.read_arrow(threads=3, batch_records=2)
reader.read_next_batch()
kept = d.scanner(batch_size=1).to_reader()
kept.read_next_batch()
try:
    import duckdb
except ImportError:
    pass
else:
    assert len(duckdb.sql("select value from d limit 3").fetchall()) == 3
    assert len(duckdb.sql("select value from topic limit 3").fetchall()) == 3
print("done")
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_import_of_logstore_brings_no_pyarrow() -> None:
    """None of the frame libraries is imported, either."""
    code = (
        "import sys, logstore; "
        "print([m for m in ('pyarrow', 'pandas', 'polars', 'duckdb', "
        "'logstore.record.arrow') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n"


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry point raises it."""
    topic = topic_of(tmp_path, count=10)
    for name in list(sys.modules):
        if name.startswith(("logstore.log.frames.", "logstore.record.arrow")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (
        topic.to_dataset,
        topic.read_arrow,
        topic.__arrow_c_stream__,
        topic.__arrow_c_schema__,
        topic[0].to_dataset,
        topic[0].__arrow_c_stream__,
        topic[0].__arrow_c_schema__,
    ):
        with pytest.raises(logstore.errors.UnsupportedError, match="pyarrow"):
            use()


def test_pyarrow_that_cannot_be_opened_is_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lack a descriptor for its files, for example; the next call may have
    one."""
    topic, expected = topic_of(tmp_path, count=10), logstore.StorageError
    monkeypatch.delitem(sys.modules, "logstore.record.arrow_batches", raising=False)

    def refuse(name: str) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(expected, match="cannot import logstore") as caught:
        topic[0].read_arrow()
    assert caught.value.errno == errno.EMFILE
    monkeypatch.undo()
    assert topic[0].read_arrow().read_all().num_rows == 10


def test_import_that_python_has_lost_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 loses one in which a finalizer or signal handler imports something
    (gh-106176)."""
    topic = topic_of(tmp_path, count=10)
    monkeypatch.delitem(sys.modules, "logstore.record.arrow_batches", raising=False)
    real, lost = importlib.import_module, [KeyError(140_258_431_810_432)]

    def import_module(name: str) -> Any:
        if lost:
            raise lost.pop()
        return real(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert topic[0].read_arrow().read_all().num_rows == 10
    assert not lost


# ---------------------------------------------------------------- compaction


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_log_that_is_compacted_during_a_scan_gives_the_last_record_of_each_key(
    tmp_path: Path, small_pieces: None, threads: int, isolation: str
) -> None:
    """Records that the scan has not read yet are superseded by records after the end
    that the log had when it began."""
    config = logstore.TopicConfig(
        message_format=2,
        segment_bytes=800,
        cleanup_policy="compact",
        file_delete_delay_ms=0,
    )
    keys = [b"k%d" % n for n in range(60)]
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t", config=config)[0]
        for key in keys:
            p.append_many([b"." * 100] * 5, keys=[key] * 5)
        p.flush()
        with logstore.open(tmp_path, read_only=True) as other:
            scan = other.topic("t")[0].read_arrow(
                batch_records=2, threads=threads, isolation=isolation
            )
            last = {}
            offsets = []

            def take(batch: Any) -> None:
                rows = batch.to_pydict()
                offsets.extend(rows["offset"])
                last.update(zip(rows["key"], rows["value"], strict=True))

            take(scan.read_next_batch())
            p.append_many([b"new %s" % key for key in keys], keys=keys)
            p.roll()
            p.append(b"newest", keys[3])
            assert p.compact(force=True).removed > 200
            for _ in range(500):
                if not list((tmp_path / "t-0").glob("*.deleted")):
                    break
                time.sleep(0.01)
            for batch in scan:
                take(batch)
        assert offsets == sorted(set(offsets))
        assert last == {r.key: r.value for r in p.read()}
