"""Reading: every way to read, from every offset, whole and damaged logs."""

from __future__ import annotations

import datetime
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

import logstore
from logstore import Record
from logstore.log.write.appender import Appender
from logstore.log.write.segment_writer import SegmentWriter
from logstore.store.opening import open_store
from support import transactions
from support.damage import Unsynced, flip_bit, frames, logs_in
from support.orders import COUNT, open_orders
from support.values import (
    FIRST_TIMESTAMP,
    append_one,
    config_of,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    timestamp_of,
    write_store,
)


@every_format
def test_read_from_every_offset_delivers_all_from_there(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The first record of a read has exactly the start offset."""
    write_store(tmp_path, COUNT, magic, codec, segment_bytes=600)
    partition = open_orders(tmp_path)
    for start in range(COUNT + 1):
        assert list(partition.read(start)) == expected(magic, start, COUNT)


@every_format
def test_read_with_every_stop_delivers_all_below_it(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """`stop` is exclusive, even inside a batch; at or before the start the result is
    empty."""
    write_store(tmp_path, COUNT, magic, codec, segment_bytes=600, call=7)
    partition = open_orders(tmp_path)
    for start in (0, 3, 20):
        for stop in range(COUNT + 3):
            want = expected(magic, start, min(stop, COUNT))
            assert list(partition.read(start, stop)) == want


@every_format
def test_fetch_from_every_offset_walks_the_whole_log(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Fetching on from `next_offset` yields every record once, whatever the buffer."""
    write_store(tmp_path, COUNT, magic, codec, segment_bytes=900, call=6)
    partition = open_orders(tmp_path)
    for max_bytes in (1, 100, 500, 1 << 20):
        for start in (0, 1, COUNT // 2, COUNT - 1):
            found, offset = [], start
            while offset < COUNT:
                chunk = partition.fetch(offset, max_bytes)
                assert chunk.next_offset > offset
                found += list(chunk)
                offset = chunk.next_offset
            assert found == expected(magic, start, COUNT)
            assert offset == COUNT


@every_format
def test_read_batches_from_every_offset_begins_with_its_batch(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The first batch holds `start`; all together are the bytes of the files."""
    directory = write_store(tmp_path, COUNT, magic, codec, segment_bytes=600)
    partition = open_orders(tmp_path)
    whole = list(partition.read_batches())
    assert b"".join(bytes(b.buffer) for b in whole) == b"".join(
        log.read_bytes() for log in logs_in(directory)
    )
    assert [r for b in whole for r in b] == expected(magic, 0, COUNT)
    for start in range(COUNT):
        batches = list(partition.read_batches(start))
        assert batches[0].base_offset <= start <= batches[0].last_offset
        bases = [b.base_offset for b in batches]
        assert bases == [b.base_offset for b in whole if b.last_offset >= start]
    assert list(partition.read_batches(COUNT)) == []


@every_format
def test_read_batches_with_stop_ends_with_its_batch(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Batches that begin below `stop` are delivered, no others."""
    write_store(tmp_path, COUNT, magic, codec, segment_bytes=600)
    partition = open_orders(tmp_path)
    whole = [b.base_offset for b in partition.read_batches()]
    for stop in range(COUNT + 1):
        found = [b.base_offset for b in partition.read_batches(0, stop)]
        assert found == [base for base in whole if base < stop]


@every_format
def test_record_batch_tells_what_is_on_disk(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The attributes of a batch agree with its records and its place."""
    write_store(tmp_path, COUNT, magic, codec)
    for batch in open_orders(tmp_path).read_batches():
        records = list(batch)
        assert len(batch) == len(records) == batch.record_count
        assert batch.base_offset == records[0].offset
        assert batch.last_offset == records[-1].offset
        assert batch.next_offset == batch.last_offset + 1
        assert batch.magic == magic
        assert batch.compression == codec
        assert batch.size_bytes == len(batch.buffer)
        assert batch.max_timestamp_ms == max(r.timestamp_ms for r in records)
        assert batch.timestamp_type == records[0].timestamp_type
        assert batch.leader_epoch == (0 if magic == 2 else -1)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (
            -1, -1, -1,
        )  # fmt: skip
        assert not batch.is_control
        assert not batch.is_transactional
        path = tmp_path / "orders-0" / f"{0:020d}.log"
        at = batch.position
        assert path.read_bytes()[at : at + batch.size_bytes] == bytes(batch.buffer)
    if codec == "none" and magic < 2:
        assert batch.record_count == 1


def test_fetch_doubles_the_buffer_until_a_record_fits(tmp_path: Path) -> None:
    """A record larger than the buffer is delivered whole."""
    values = [b"a" * 10, b"b" * 5000, b"c" * 10]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for value in values:
            partition.append(value)
        assert next(iter(partition.fetch(1, max_bytes=64))).value == values[1]
        chunk = partition.fetch(0, max_bytes=64)
        assert [r.value for r in chunk] == [values[0]]
        assert chunk.next_offset == 1
        assert len(chunk.buffer) == 34 + 10


def test_fetch_leaves_a_partial_batch_for_the_next_call(tmp_path: Path) -> None:
    """The buffer holds whole batches only: the 100-byte messages that fit into 250."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append_many([bytes(66)] * 5)
        for start, room, count in ((0, 250, 2), (0, 300, 3), (2, 299, 2), (4, 1000, 1)):
            chunk = partition.fetch(start, room)
            assert len(chunk.buffer) == 100 * count
            assert chunk.next_offset == start + count
            assert isinstance(chunk.buffer, memoryview)
            assert [r.offset for r in chunk] == list(range(start, start + count))


def test_fetch_inside_a_batch_holds_the_batch_and_iterates_from_the_offset(
    tmp_path: Path,
) -> None:
    """The buffer begins at a batch; iterating begins at the offset."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        fill(partition, 10, call=10)
        chunk = partition.fetch(7)
        assert [r.offset for r in chunk] == [7, 8, 9]
        assert list(chunk) == list(chunk)
        assert bytes(chunk.buffer) == logs_in(tmp_path / "orders-0")[0].read_bytes()


def test_fetch_at_the_end_is_empty(tmp_path: Path) -> None:
    """At the end there is no record yet, which is no error."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for end in range(3):
            chunk = partition.fetch(end)
            assert (list(chunk), chunk.next_offset, len(chunk.buffer)) == ([], end, 0)
            append_one(partition)


@pytest.mark.parametrize("bad", [0, -1])
def test_fetch_of_no_bytes_raises_config_error(tmp_path: Path, bad: int) -> None:
    """A buffer has at least one byte."""
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.ConfigError):
            new_partition(store).fetch(0, max_bytes=bad)


@pytest.mark.parametrize("offset", [-1, 4, 31, 1 << 62, -(1 << 63)])
def test_offset_out_of_range_raises_at_the_call(tmp_path: Path, offset: int) -> None:
    """An offset outside [start, end] is an error before the first record is asked for,
    and the error contains the range."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 30)
        partition.delete_before(5)
        for call in (
            lambda: partition.read(offset),
            lambda: partition.fetch(offset),
            lambda: partition.read_batches(offset),
            lambda: partition.read_arrow(offset),
        ):
            with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
                call()
            assert (caught.value.requested, caught.value.start, caught.value.end) == (
                offset, 5, 30,
            )  # fmt: skip
            assert isinstance(caught.value, IndexError)
            assert all(str(n) in str(caught.value) for n in (offset, 5, 30))


def test_follow_out_of_range_raises_at_the_call(tmp_path: Path) -> None:
    """Every other way to read does the same."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            partition.follow(1, timeout=0)


@pytest.mark.parametrize("bad", [1.5, b"0", [0]])
def test_start_of_another_type_raises_type_error(tmp_path: Path, bad: object) -> None:
    """A start is an offset, a time or None."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        with pytest.raises(TypeError):
            partition.read(bad)
        with pytest.raises(TypeError):
            partition.fetch(bad)


@pytest.mark.parametrize(
    "options", [{"isolation": "serializable"}, {"on_corruption": "ignore"}], ids=str
)
def test_unknown_option_value_raises_config_error(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """An option has one of the values that are documented."""
    ((name, value),) = options.items()
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for read in (partition.read, partition.read_arrow, partition.follow):
            with pytest.raises(logstore.ConfigError) as caught:
                read(**options)
            assert caught.value.name == name
            assert caught.value.value == value


def test_every_read_takes_the_common_keywords(tmp_path: Path) -> None:
    """durable_only, isolation and on_corruption work in every way to read."""
    options = {
        "durable_only": True,
        "isolation": "read_committed",
        "on_corruption": "skip",
    }
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        fill(partition, 5)
        partition.flush()
        fill(partition, 5)
        want = expected(2, 0, 5)
        assert list(partition.read(**options)) == want
        assert list(partition.follow(timeout=0, **options)) == want
        assert partition.read_arrow(**options).read_all().num_rows == 5
        assert [r for b in partition.read_batches(**options) for r in b] == want
        assert list(partition.fetch(0, **options)) == want


def test_read_ends_at_the_end_as_it_stood_at_the_call(tmp_path: Path) -> None:
    """Records appended during a read are not part of it."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=500)
        fill(partition, 20)
        records = partition.read()
        fill(partition, 20)
        found = [next(records)]
        fill(partition, 20)
        found += records
        assert found == expected(1, 0, 20)


def test_read_of_an_empty_log_is_empty(tmp_path: Path) -> None:
    """No records, no error, in every way to read."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        assert list(partition.read()) == []
        assert list(partition.read(0, 0)) == []
        assert list(partition.read_batches()) == []
        assert partition.read_arrow().read_all().num_rows == 0
        assert partition.offset_for_time(0) is None
        assert list(partition.follow(timeout=0)) == []


# ---------------------------------------------------------------- time


def naive_offset_for_time(records: list[Record], timestamp: int) -> int | None:
    return next((r.offset for r in records if r.timestamp_ms >= timestamp), None)


@every_format
def test_offset_for_time_is_the_first_offset_by_a_naive_search(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The result is the first by offset, not by time: at, between, before and after
    all timestamps."""
    write_store(
        tmp_path, COUNT, magic, codec, segment_bytes=700, index_interval_bytes=50
    )
    partition = open_orders(tmp_path)
    records = list(partition.read())
    stamps = {r.timestamp_ms + d for r in records for d in (-1, 0, 1)}
    for timestamp in sorted(stamps | {0, 1 << 62}):
        want = naive_offset_for_time(records, timestamp)
        assert partition.offset_for_time(timestamp) == want, timestamp


def test_offset_for_time_with_timestamps_out_of_order(tmp_path: Path) -> None:
    """The example of Kafka's documentation: 100, 50, 200, 150, 200, 300."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for stamp in (100, 50, 200, 150, 200, 300):
            partition.append(b"v", timestamp_ms=stamp)
        found = [partition.offset_for_time(t) for t in (0, 50, 51, 150, 201, 300, 301)]
        assert found == [0, 0, 0, 2, 5, 5, None]


def test_offset_for_time_looks_past_the_log_start(tmp_path: Path) -> None:
    """Records below the start offset are not found, even inside its segment."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for stamp in (500, 100, 200, 600):
            partition.append(b"v", timestamp_ms=stamp)
        partition.delete_before(1)
        assert partition.offset_for_time(0) == 1
        assert partition.offset_for_time(150) == 2
        assert partition.offset_for_time(300) == 3
        assert partition.offset_for_time(601) is None


@every_magic
def test_read_from_a_datetime_begins_at_the_first_record_then(
    tmp_path: Path, magic: int
) -> None:
    """A datetime starts at the first record at or after it, or else at the end."""
    write_store(tmp_path, COUNT, magic)
    partition = open_orders(tmp_path)
    zone = datetime.timezone(datetime.timedelta(hours=5))
    for offset in (0, 7, 39):
        stamp = timestamp_of(offset)
        want = naive_offset_for_time(list(partition.read()), stamp)
        start = COUNT if want is None else want
        for when in (
            datetime.datetime.fromtimestamp(stamp / 1000, datetime.timezone.utc),
            datetime.datetime.fromtimestamp(stamp / 1000, zone),
            datetime.datetime.fromtimestamp(stamp / 1000),
        ):
            assert list(partition.read(when)) == expected(magic, start, COUNT)
            assert list(partition.read(stop=when)) == expected(magic, 0, start)
            assert partition.read_arrow(when).read_all().num_rows == COUNT - start
    late = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)
    assert list(partition.read(late)) == []


def test_datetime_between_milliseconds_is_rounded_up(tmp_path: Path) -> None:
    """A record of a millisecond is not at or after a time within it."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for stamp in (1000, 1001):
            partition.append(b"v", timestamp_ms=stamp)
        when = datetime.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=datetime.timezone.utc)
        assert [r.offset for r in partition.read(when)] == [1]


# ---------------------------------------------------------------- deletion meanwhile


def test_read_that_has_begun_survives_deletion(tmp_path: Path) -> None:
    """A reader that holds the old list of segments finishes on the old files."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=300, file_delete_delay_ms=0)
        fill(partition, 60)
        readers = [
            partition.read(), partition.read_batches(), partition.read_arrow(),
        ]  # fmt: skip
        first = next(readers[0])
        partition.delete_before(50)
        assert len(logs_in(tmp_path / "orders-0")) < 8
        assert [first, *readers[0]] == expected(1, 0, 60)
        assert [r for b in readers[1] for r in b] == expected(1, 0, 60)
        assert readers[2].read_all().num_rows == 60
        with pytest.raises(logstore.OffsetOutOfRangeError):
            partition.read(49)


def test_read_that_has_begun_survives_deletion_of_more_segments_than_may_be_open(
    tmp_path: Path,
) -> None:
    """Their files wait for the read, however many there are, and are removed when it is
    over."""
    write_store(tmp_path, 400, segment_bytes=100, file_delete_delay_ms=0, call=100)
    config = logstore.StoreConfig(max_open_files=8)
    with open_store(tmp_path, config=config, _files=Unsynced()) as store:
        partition = store.topic("orders")[0]
        assert len(partition.segments) > 3 * 64
        readers = [
            partition.read(), partition.read_batches(), partition.read_arrow(),
        ]  # fmt: skip
        first = next(readers[0])
        assert partition.delete_before(400) == 400
        assert [first, *readers[0]] == expected(1, 0, 400)
        assert [r for b in readers[1] for r in b] == expected(1, 0, 400)
        assert readers[2].read_all().num_rows == 400
        del readers
        directory, deadline = tmp_path / "orders-0", time.monotonic() + 20
        while list(directory.glob("*.deleted")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(directory.glob("*.deleted")) == []


@pytest.mark.parametrize("reopened", [False, True])
def test_read_that_has_begun_survives_deletion_of_the_topic(
    tmp_path: Path, reopened: bool
) -> None:
    """The same for a whole topic, and with segments that were there at opening."""
    store = open_store(tmp_path, _files=Unsynced())
    fill(new_partition(store, segment_bytes=300, file_delete_delay_ms=0), 60)
    if reopened:
        store.close()
        store = open_store(tmp_path, _files=Unsynced())
    partition = store.topic("orders")[0]
    readers = [partition.read(), partition.read_batches(), partition.read_arrow()]
    first = next(readers[0])
    store.delete_topic("orders")
    assert [first, *readers[0]] == expected(1, 0, 60)
    assert [r for b in readers[1] for r in b] == expected(1, 0, 60)
    assert readers[2].read_all().num_rows == 60
    store.close()


def test_offset_for_time_in_a_damaged_segment_raises(tmp_path: Path) -> None:
    """A time lookup that would have to cross damage raises an error, and does not
    guess."""
    directory = write_store(tmp_path, COUNT)
    log = logs_in(directory)[0]
    flip_bit(log, 8 * (frames(log)[10].pos + 30))
    for index in directory.glob("*.timeindex"):
        index.unlink()
    partition = open_orders(tmp_path)
    try:
        found = partition.offset_for_time(FIRST_TIMESTAMP + 10 * 30)
    except logstore.CorruptRecordError:
        return
    assert found == naive_offset_for_time(
        expected(1, 0, COUNT), FIRST_TIMESTAMP + 10 * 30
    )


# ---------------------------------------------------------------- times


def test_times_beyond_what_a_record_can_have_are_answered(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for time_ms in (5, 6, 7):
            partition.append(b"x", timestamp_ms=time_ms)
        partition.roll()
        partition.append(b"x", timestamp_ms=8)
        for low in (-(1 << 63), -(1 << 63) - 1, -(10**40), -1, 0, 5):
            assert partition.offset_for_time(low) == 0
        for high in (9, (1 << 63) - 1, 1 << 63, 10**40):
            assert partition.offset_for_time(high) is None
        for odd in (b"5", 5.0, None):
            with pytest.raises(TypeError, match="timestamp_ms"):
                partition.offset_for_time(odd)  # type: ignore[arg-type]


def test_ends_of_the_calendar_are_times_to_start_at(tmp_path: Path) -> None:
    """They may have a time zone or not."""
    zones = [None, datetime.timezone.utc]
    zones += [datetime.timezone(datetime.timedelta(hours=h)) for h in (-23, 14)]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append_many([b"x"] * 3)
        for zone in zones:
            first = datetime.datetime.min.replace(tzinfo=zone)
            last = datetime.datetime.max.replace(tzinfo=zone)
            assert len(list(partition.read(first, last))) == 3
            assert list(partition.read(last)) == []


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_read_while_an_append_is_shown_is_no_damage(
    tmp_path: Path, magic: int, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer, or another thread, may read at each of its lines."""
    # An append in one step has no lines.
    monkeypatch.setattr(Appender, "_append_step", lambda *_: False)
    lines: list[int] = []
    errors: list[BaseException] = []

    def at_line(frame: FrameType, event: str, argument: object) -> object:
        if frame.f_code is not SegmentWriter.show.__code__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            sys.settrace(None)
            try:
                assert list(p.read()) == expected(magic, 0, 2)
            except BaseException as error:
                errors.append(error)
            sys.settrace(at_line)
        return at_line

    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(magic, codec))[0]
        for _ in range(2):
            append_one(p)
        with p._writer.lock:  # type: ignore[union-attr]
            pass  # the prepared state ends
        sys.settrace(at_line)
        try:
            append_one(p)
        finally:
            sys.settrace(None)
        assert len(lines) >= 3
        assert not errors
        assert list(p.read()) == expected(magic, 0, 3)


@pytest.mark.parametrize("max_bytes", [1 << 40, (1 << 63) - 1, 1 << 64])
def test_fetch_of_more_bytes_than_there_is_memory_gives_what_is_there(
    tmp_path: Path, max_bytes: int
) -> None:
    """This also works in a gap at the end of a segment, from which it continues in the
    next one."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base, size in ((0, 1), (10, 400_000)):
        rows = transactions.batch(base, [(b"k", b"v" * size)], -1, control=False)
        (directory / f"{base:020d}.log").write_bytes(rows)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("t")[0]
        for offset, found in ((0, [0]), (5, [10]), (10, [10])):
            chunk = partition.fetch(offset, max_bytes)
            assert [record.offset for record in chunk] == found
