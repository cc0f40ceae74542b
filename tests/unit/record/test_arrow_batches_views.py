"""`read_arrow(view=True)`: keys and values that point into the bytes that were read."""

from __future__ import annotations

import datetime
import gc
import io
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.log.read import cursor
from support.arrow import batches as arrow_batches
from support.arrow import pa
from support.damage import flip_bit, frames, logs_in
from support.orders import open_orders
from support.values import (
    FIRST_TIMESTAMP,
    every_format,
    every_magic,
    few_formats,
    new_partition,
    write_store,
)

UTC = datetime.timezone.utc
COLUMNS = ("offset", "timestamp", "key", "value", "timestampType", "headers")
# Sizes around 12 bytes, which a view holds itself, and no value at all.
SIZES = (0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 100, 5000)
VALUES = [None, *((bytes(range(1, 251)) * 20)[:n] for n in SIZES)]


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of few batches, so that a log has many."""
    monkeypatch.setattr(cursor, "READ_BYTES", 300)
    monkeypatch.setattr(arrow_batches, "READ_BYTES", 500)
    monkeypatch.setattr(arrow_batches, "_PINNED_BYTES_MAX", 700)


def plain(table: Any) -> Any:
    """The same with binary columns."""
    schema = table.schema
    for at, field in enumerate(schema):
        if field.type == pa.binary_view():
            schema = schema.set(at, field.with_type(pa.binary()))
    return table.cast(schema)


def checked(source: Any, **options: Any) -> Any:
    """The table of views, which equals the plain one."""
    views = source.read_arrow(view=True, **options)
    for name in ("key", "value"):
        if name in views.schema.names:
            assert views.schema.field(name).type == pa.binary_view()
    table = views.read_all()
    table.validate(full=True)
    assert plain(table).equals(source.read_arrow(**options).read_all())
    return table


@every_format
@pytest.mark.parametrize("size", [1, 7, 65536])
@pytest.mark.usefixtures("small_reads")
def test_views_are_what_plain_columns_are(
    tmp_path: Path, magic: int, codec: str, size: int
) -> None:
    """All columns agree, over many reads and segments, compressed or not."""
    write_store(tmp_path, 120, magic, codec, segment_bytes=1500)
    partition = open_orders(tmp_path)
    table = checked(partition, columns=COLUMNS, batch_records=size)
    assert table.num_rows == 120
    assert table["value"].to_pylist() == [r.value for r in partition.read()]
    assert max(b.num_rows for b in table.to_batches()) <= size


@few_formats
@pytest.mark.usefixtures("small_reads")
def test_views_of_every_length_have_their_bytes(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Null, empty, and lengths that fit into a view (12 bytes), that do not (13), and
    that are larger than a read."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        partition.append_many(VALUES, VALUES[::-1])
        partition.append_many(VALUES[::-1], VALUES)
        table = checked(partition)
        assert table["value"].to_pylist() == VALUES + VALUES[::-1]
        assert table["key"].to_pylist() == VALUES[::-1] + VALUES


def test_views_of_nothing(tmp_path: Path) -> None:
    """The schema is that of views."""
    with logstore.open(tmp_path) as store:
        assert checked(new_partition(store)).num_rows == 0


@every_magic
@pytest.mark.parametrize("limit", [None, 0, 1, 30])
@pytest.mark.usefixtures("small_reads")
def test_views_have_the_bounds_of_plain_columns(
    tmp_path: Path, magic: int, limit: int | None
) -> None:
    """The bounds are offsets, times, and a number of records."""
    write_store(tmp_path, 60, magic, "none", call=7, segment_bytes=900)
    partition = open_orders(tmp_path)
    checked(partition, start=10, stop=50, limit=limit)
    checked(partition, start=17, stop=18, limit=limit)
    if magic:
        since = datetime.datetime.fromtimestamp(FIRST_TIMESTAMP / 1000 + 0.3, UTC)
        assert checked(partition, start=since, limit=limit).num_rows <= 40
        checked(partition, stop=since, limit=limit)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.usefixtures("small_reads")
def test_views_of_a_topic(tmp_path: Path, threads: int) -> None:
    """They have the columns topic and partition, in several threads."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2, segment_bytes=2000)
        topic = store.create_topic("orders", partitions=3, config=config)
        for number in range(40):
            topic.append_many([b"%d" % number * 9] * 10, [b"k%d" % number] * 10)
        names = ("topic", "partition", "offset", "key", "value", "headers")
        table = checked(topic, columns=names, threads=threads)
        assert table.num_rows == 400
        assert checked(topic[1], threads=threads).num_rows > 0
        assert checked(topic, columns=("partition", "value"), limit=33).num_rows == 33


@few_formats
@pytest.mark.usefixtures("small_reads")
def test_views_before_and_after_damage(tmp_path: Path, magic: int, codec: str) -> None:
    """Views from earlier reads stay correct while later reads search after the
    damage."""
    directory = write_store(tmp_path, 60, magic, codec, call=5)
    log = logs_in(directory)[0]
    bad = frames(log)[4]
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    partition = open_orders(tmp_path)
    rest = checked(partition, on_corruption="skip")
    assert 0 < rest.num_rows < 60
    views, wanted = (partition.read_arrow(view=v) for v in (True, False))
    found: list[list[Any]] = [[], []]
    for which, batches in zip(found, (views, wanted), strict=True):
        with pytest.raises(logstore.CorruptRecordError):
            for batch in batches:
                batch.validate(full=True)
                which += batch.to_pylist()
    assert found[0] == found[1]
    assert found[0] == rest.slice(0, len(found[0])).to_pylist()


@few_formats
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("small_reads")
def test_views_stay_right_when_all_else_is_gone(
    tmp_path: Path, magic: int, codec: str, threads: int
) -> None:
    """Views stay correct after the reader, the partition and the store are gone, and
    while more of the log is read into memory that other batches have released."""
    write_store(tmp_path, 300, magic, codec, segment_bytes=3000)
    store = logstore.open(tmp_path, read_only=True)
    partition = store.topic("orders")[0]
    wanted = [(r.key, r.value) for r in partition.read()]
    batches = partition.read_arrow(view=True, threads=threads, columns=("key", "value"))
    kept, rows = [], []
    for number, batch in enumerate(batches):
        rows += [(row["key"], row["value"]) for row in batch.to_pylist()]
        if number % 3 == 0:
            last = batch.num_rows - 1
            kept.append((len(rows) - 1, batch.column("value").slice(last)))
        del batch
    store.close()
    del batches, partition, store
    gc.collect()
    trash = [bytearray(b"\xee" * 500) for _ in range(200)]
    assert rows == wanted
    assert len(kept) > 2
    for at, array in kept:
        array.validate(full=True)
        assert array.to_pylist() == [wanted[at][1]]
    del trash


@pytest.mark.usefixtures("small_reads")
def test_views_go_through_ipc(tmp_path: Path) -> None:
    write_store(tmp_path, 100, 1, "none", call=9)
    table = checked(open_orders(tmp_path))
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    read = pa.ipc.open_stream(file.getvalue()).read_all()
    assert read.equals(table)


def test_views_can_be_appended(tmp_path: Path) -> None:
    """Rows read from one partition go into another."""
    write_store(tmp_path / "from", 100, 2, "none", call=9)
    source = open_orders(tmp_path / "from")
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        partition.append_arrow(source.read_arrow(view=True, columns=COLUMNS))
        columns = ("offset", "timestamp", "key", "value", "headers")
        copy = partition.read_arrow(columns=columns).read_all()
        assert copy.equals(source.read_arrow(columns=columns).read_all())


def test_short_values_keep_no_read_alive(tmp_path: Path) -> None:
    """Values of up to 12 bytes are in the views: no other buffer is needed."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append_many([b"v" * 13] * 9, [b"k" * 12] * 9)
        (batch,) = partition.read_arrow(view=True)
        assert len(batch.column("key").buffers()) == 2
        assert len(batch.column("value").buffers()) == 3


def test_batch_of_views_points_into_few_bytes(tmp_path: Path) -> None:
    """A batch ends with the read that brings its buffers to 4 MiB."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for _ in range(12):
            partition.append_many([bytes(50_000)] * 20)
        sizes = []
        for batch in partition.read_arrow(view=True):
            buffers = batch.column("value").buffers()[2:]
            sizes.append(sum(buffer.size for buffer in buffers))
        assert len(sizes) > 2
        assert max(sizes) < 6 << 20


def test_views_of_an_old_pyarrow_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is refused by name and version; plain columns need no views."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        monkeypatch.delattr(pa, "binary_view")
        for source in (partition, store.topic("orders")):
            with pytest.raises(
                logstore.errors.UnsupportedError, match="pyarrow 16 or later"
            ):
                source.read_arrow(view=True)
        assert partition.read_arrow().read_all().num_rows == 0


@pytest.mark.parametrize("view", [1, "yes", None], ids=repr)
def test_view_that_is_no_bool_is_refused(tmp_path: Path, view: Any) -> None:
    with logstore.open(tmp_path) as store:
        topic = new_partition(store) and store.topic("orders")
        for source in (topic, topic[0]):
            with pytest.raises(TypeError, match="view"):
                source.read_arrow(view=view)


def test_memory_is_used_again_when_no_array_has_it(tmp_path: Path) -> None:
    """The blocks of a batch that was dropped are reused; the blocks of a kept one stay
    unchanged, even after the reader has ended."""
    memory = arrow_batches.Memory()
    block = memory.take("value", 1000)
    buffer, address = block.buffer(10), block.address
    del block
    assert memory.take("value", 1000).address != address
    del buffer
    assert memory.take("value", 1000).address == address
    kept = memory.take("value", 1000)
    memory.close()
    assert memory.take("value", 1000).address != kept.address


def test_memory_keeps_no_more_than_its_bound() -> None:
    """Blocks that a consumer has collected and dropped are not all kept."""
    memory = arrow_batches.Memory()
    blocks = [memory.take("value", 4 << 20) for _ in range(9)]
    blocks.clear()
    assert sum(len(free) for free in memory._free.values()) == 4
    large = [memory.take("other", 64 << 20) for _ in range(4)]
    large.clear()
    assert len(memory._free["other"]) == 2
