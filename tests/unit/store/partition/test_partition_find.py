"""`Partition.get` by way of `Segment.find`: one call that reads a record, or gives up
and leaves it to a reader. Every result equals a reader's."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import LogStoreError, OffsetOutOfRangeError, Record
from logstore._native import EntriesFields, _records
from logstore.index import OffsetEntries, TimeEntries
from logstore.segment import Segment
from support.damage import flip_bit, frames, logs_in, overwrite
from support.references import counts, growth
from support.values import (
    every_format,
    every_magic,
    fill,
    new_partition,
    record_of,
    write_store,
)

RECORDS = 400
FRAME_PREFIX_BYTES = 12


def found_in(partition: Any, offset: int) -> Record | None:
    """Result of the fast lookup, whichever process writes the log."""
    for segment in reversed(partition._log.segments):
        if segment.base_offset <= offset:
            return segment.find(offset)
    return None


def read_slowly(partition: Any, offset: int) -> Record | LogStoreError:
    """Result or error of a reader."""
    try:
        return next(partition.read(offset, offset + 1))
    except LogStoreError as error:
        return error
    except StopIteration:
        return LogStoreError("no record")


def opened(path: Path) -> Any:
    return logstore.open(path, read_only=True)


@every_format
def test_every_record_is_the_one_that_a_reader_reads(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Uncompressed ones are found at once; compressed ones are left to a reader."""
    write_store(tmp_path, RECORDS, magic, codec, segment_bytes=4096)
    with opened(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert len(partition.segments) > 3 or codec != "none"
        for record in partition.read():
            expected = None if codec != "none" else record
            assert found_in(partition, record.offset) == expected
        assert partition.get(7) == record_of(7, magic)


@every_magic
def test_record_of_a_large_batch_is_found(tmp_path: Path, magic: int) -> None:
    """The batch takes more than one read, and follows others of its kind; a value can
    be larger than any read."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, "none")
        values = [b"%05d" % i * 20 for i in range(1000)]
        for _ in range(5):
            partition.append_many(values)
        partition.append(b"x" * 300_000)
        partition.append_many(values[:3])
        for offset in (0, 1, 999, 1000, 2500, 4999, 5000, 5001, 5003):
            record = found_in(partition, offset)
            assert record is not None
            assert record == read_slowly(partition, offset) == partition.get(offset)


def test_gap_is_left_to_a_reader(tmp_path: Path) -> None:
    """Offsets outside the segment are, too."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, "none")
        fill(partition, 50)
        segment = partition._log.segments[0]
        for offset in (-1, 50, 51, 2**62):
            assert segment.find(offset) is None
        segment.next_offset = 40
        assert segment.find(45) is None
        segment.next_offset = 50
    with pytest.raises(logstore.errors.StoreClosedError):
        partition.get(3)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("what", [".log", ".index"])
def test_damage_is_never_found(tmp_path: Path, magic: int, what: str) -> None:
    """After a flipped bit in the log or in its index, only appended records are
    found."""
    write_store(tmp_path, 120, magic, segment_bytes=6000)
    rng = random.Random(f"{magic}{what}")
    files = [log.with_suffix(what) for log in logs_in(tmp_path / "orders-0")]
    files = [file for file in files if file.stat().st_size]
    found = differing = 0
    for _ in range(60):
        file = rng.choice(files)
        bit = rng.randrange(file.stat().st_size * 8)
        flip_bit(file, bit)
        with opened(tmp_path) as store:
            partition = store.topic("orders")[0]
            for offset in rng.sample(range(120), 12):
                record = found_in(partition, offset)
                if record is not None:
                    found += 1
                    assert record == record_of(offset, magic)
                else:
                    differing += 1
        flip_bit(file, bit)
    assert found > 100
    assert differing or magic == 0


@every_magic
@pytest.mark.parametrize("left", [1, 11, 12, 26, 27])
def test_length_that_leaves_less_than_a_header_ends_the_search(
    tmp_path: Path, magic: int, left: int
) -> None:
    """The length of a batch is damaged, and the next one seems to be some bytes at the
    end of the file, too few for a header."""
    write_store(tmp_path, 3, magic, call=1)
    (log,) = logs_in(tmp_path / "orders-0")
    _, second, third = frames(log)
    length = second.size + third.size - left - FRAME_PREFIX_BYTES
    overwrite(log, second.pos + 8, length.to_bytes(4, "big"))
    with opened(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert found_in(partition, 2) in (None, record_of(2, magic))
        assert partition.get(2) == record_of(2, magic)


def test_short_file_is_left_to_a_reader(tmp_path: Path) -> None:
    """It ends before its segment does."""
    write_store(tmp_path, 60)
    with opened(tmp_path) as store:
        partition = store.topic("orders")[0]
        (log,) = logs_in(tmp_path / "orders-0")
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size // 2)
        assert found_in(partition, 59) is None


def test_record_of_a_log_cut_meanwhile_is_not_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes may belong to another record: `get` reads again."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 20)
        find, calls = Segment.find, []

        def found_before_a_cut(segment: Segment, offset: int) -> Record | None:
            calls.append(offset)
            record = find(segment, offset)
            partition.truncate_to(5)
            return record

        monkeypatch.setattr(Segment, "find", found_before_a_cut)
        with pytest.raises(OffsetOutOfRangeError):
            partition.get(10)
        assert calls == [10]
        assert partition.get(3) == record_of(3, 1)


def test_get_stops_where_readers_stop(tmp_path: Path) -> None:
    """The limits are the durable offset, the end and the start."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 10)
        partition.delete_before(3)
        partition.flush()
        fill(partition, 10)
        assert partition.durable_offset == 10
        assert partition.get(15) == record_of(15, 1)
        assert partition.get(9, durable_only=True) == record_of(9, 1)
        for offset, options in ((15, {"durable_only": True}), (2, {}), (20, {})):
            with pytest.raises(OffsetOutOfRangeError):
                partition.get(offset, **options)


# ------------------------------------------------------------------ another process


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A partition of a writer, and the same one of a reader; several segments."""
    with logstore.open(tmp_path) as store:
        writer = new_partition(store, segment_bytes=1000, file_delete_delay_ms=0)
        fill(writer, 60)
        writer.flush()
        wait_for_settled_times()
        with opened(tmp_path) as other:
            reader = other.topic("orders")[0]
            assert reader.get(30) == record_of(30, 1)
            yield writer, reader


def wait_for_settled_times() -> None:
    """A file that was changed just now may change again with the same time."""
    time.sleep(0.05)


def finds(partition: Any, offset: int) -> Record | None:
    found: Record | None = partition._views.find(offset, False)
    return found


def test_reader_finds_what_is_still_the_same_log(pair: tuple[Any, Any]) -> None:
    """The reader does not refresh its state."""
    _, reader = pair
    for offset in (0, 17, 59):
        assert finds(reader, offset) == record_of(offset, 1)
    assert finds(reader, 60) is None


def test_reader_gets_what_was_appended(pair: tuple[Any, Any]) -> None:
    """The reader does not know the record yet, and searches for it."""
    writer, reader = pair
    fill(writer, 5)
    assert finds(reader, 62) is None
    assert reader.get(62) == record_of(62, 1)


def test_reader_does_not_get_what_was_deleted(pair: tuple[Any, Any]) -> None:
    """It still has the file open."""
    writer, reader = pair
    assert finds(reader, 5) is not None
    writer.delete_before(40)
    assert finds(reader, 5) is None
    with pytest.raises(OffsetOutOfRangeError):
        reader.get(5)
    assert reader.get(45) == record_of(45, 1)


def test_reader_gets_the_record_of_a_log_that_was_cut_and_has_grown(
    pair: tuple[Any, Any],
) -> None:
    """The old record at the offset is not returned."""
    writer, reader = pair
    assert finds(reader, 55) is not None
    writer.truncate_to(50)
    for _ in range(10):
        writer.append(b"another")
    assert finds(reader, 55) is None
    assert reader.get(55).value == b"another"


def test_reader_finds_nothing_of_a_partition_that_is_gone(
    tmp_path: Path, pair: tuple[Any, Any]
) -> None:
    """The error is that of any other read."""
    _, reader = pair
    (tmp_path / "orders-0").rename(tmp_path / "elsewhere")
    assert finds(reader, 30) is None
    with pytest.raises(logstore.errors.PartitionNotFoundError):
        reader.get(30)
    (tmp_path / "elsewhere").rename(tmp_path / "orders-0")


def test_reader_of_a_broker_s_log_looks_for_each_record(
    tmp_path: Path, pair: tuple[Any, Any]
) -> None:
    """It is unknown whether a broker has deleted segments at its start."""
    copy = tmp_path / "copy" / "orders-0"
    shutil.copytree(tmp_path / "orders-0", copy)
    (copy / ".logstore-state").unlink()
    with opened(tmp_path / "copy") as store:
        reader = store.topic("orders")[0]
        assert reader.get(30) == record_of(30, 1)
        assert finds(reader, 30) is None


@pytest.fixture
def values(tmp_path: Path) -> Iterator[list[Any]]:
    """Good arguments of `find` for a record."""
    write_store(tmp_path, 10)
    with opened(tmp_path) as store:
        partition = store.topic("orders")[0]
        segment = partition._log.segments[0]
        limits = [0, 10, segment.size, segment.checks]
        yield [segment.file.borrow().fd, segment.offset_entries(), *limits, 4]


def test_find_with_wrong_arguments_raises(values: list[Any]) -> None:
    """Errors of the caller: other types, more entries than exist."""
    assert _records.find(*values) == record_of(4, 1)
    for place in range(len(values)):
        with pytest.raises(TypeError):
            _records.find(*values[:place], "1", *values[place + 1 :])
    with pytest.raises(TypeError):
        _records.find(*values[:-1])
    assert _records.find(-1, *values[1:]) is None
    entries = values[1].copy()
    for count in (-1, entries.count + 1):
        entries.count = count
        with pytest.raises(ValueError, match="count"):
            _records.find(values[0], entries, *values[2:])
    for empty in (EntriesFields(), TimeEntries(memoryview(b""), 0)):  # type: ignore
        with pytest.raises(TypeError):
            _records.find(values[0], empty, *values[2:])


def test_find_keeps_no_memory(values: list[Any]) -> None:
    """It keeps no reference to the index either."""
    index = bytearray(values[1].data() + b"\0" * 8)
    values[1] = OffsetEntries(index)
    (before,) = counts(index)
    # An object each would be 320,000 bytes; threads of other stores allocate less.
    assert growth(lambda: _records.find(*values), 20_000) < 160_000
    assert counts(index) == [before]
