"""append_batches: batches as a producer sends them."""

from __future__ import annotations

import gzip
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.record import incoming
from support.damage import fixed_crc, frames_in, logs_in
from support.values import (
    CODECS,
    FORMATS,
    every_format,
    expected,
    few_formats,
    fill,
    new_partition,
    read_all,
    write_store,
)


def batches_of(path: Path, magic: int, codec: str, count: int, call: int = 5) -> bytes:
    """The bytes of some batches, as a log has them."""
    return logs_in(write_store(path, count, magic, codec, call=call))[0].read_bytes()


@every_format
@pytest.mark.parametrize("base", [0, 7])
def test_batches_get_offsets_and_keep_magic_and_codec(
    tmp_path: Path, magic: int, codec: str, base: int
) -> None:
    """Batches are unchanged, whatever the topic's settings; offsets are assigned."""
    data = batches_of(tmp_path / "from", magic, codec, 20)
    for other in (0, 1, 2):
        with logstore.open(tmp_path / f"to{other}") as store:
            partition = new_partition(store, other)
            fill(partition, base)
            assert partition.append_batches(data) == range(base, base + 20)
            assert list(partition.read(0, base)) == expected(other, 0, base)
            for record, want in zip(
                partition.read(base), expected(magic, 0, 20), strict=True
            ):
                assert record[1:] == want[1:]
                assert record.offset == want.offset + base
            for batch in partition.read_batches(base):
                assert (batch.magic, batch.compression) == (magic, codec)
        assert len(read_all(tmp_path / f"to{other}")) == base + 20


@every_format
def test_batches_of_any_base_offset_are_taken(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Producers count from 0 in each batch; brokers copy from any offset."""
    data = batches_of(tmp_path / "from", magic, codec, 20)
    frames = frames_in(data)
    later = data[frames[-1].pos :]
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        count = len(partition.append_batches(later))
        again = partition.append_batches(later + later)
        assert again == range(count, 3 * count)
        values = [r.value for r in partition.read()]
        assert values == [r.value for r in expected(magic, 20 - count, 20)] * 3


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batches_in_any_buffer_are_taken_and_left_alone(
    tmp_path: Path, kind: type
) -> None:
    """The caller's buffer is not changed."""
    data = batches_of(tmp_path / "from", 2, "none", 10)
    buffer = kind(data)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        partition.append(b"x")
        assert partition.append_batches(buffer) == range(1, 11)
    assert bytes(buffer) == data


def test_mixed_batches_are_one_range(tmp_path: Path) -> None:
    """Batches of every magic and codec in one call."""
    data = b""
    want = []
    for i, (magic, codec) in enumerate(FORMATS):
        data += batches_of(tmp_path / f"from{i}", magic, codec, 7)
        want += [r[1:] for r in expected(magic, 0, 7)]
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, segment_bytes=1000)
        assert partition.append_batches(data) == range(7 * len(FORMATS))
        assert [r[1:] for r in partition.read()] == want
        assert [r.offset for r in partition.read()] == list(range(7 * len(FORMATS)))


def test_no_batches_append_nothing(tmp_path: Path) -> None:
    """An empty buffer is an empty range."""
    with logstore.open(tmp_path) as store:
        assert new_partition(store).append_batches(b"") == range(0)


@every_format
def test_partial_last_batch_raises_and_writes_nothing(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Cut anywhere but between batches, the buffer is refused whole."""
    data = batches_of(tmp_path / "from", magic, codec, 10)
    bounds = {f.pos for f in frames_in(data)} | {len(data)}
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        fill(partition, 3)
        for size in sorted(random.Random(1).sample(range(1, len(data)), 60)):
            if size in bounds:
                continue
            with pytest.raises(logstore.CorruptRecordError) as caught:
                partition.append_batches(data[:size])
            assert caught.value.position is not None
        assert list(partition.read()) == expected(1, 0, 3)


def _flips(data: bytes) -> Iterator[bytes]:
    rng = random.Random(2)
    for _ in range(200):
        bit = rng.randrange(8 * len(data))
        if frame_byte(data, bit // 8) >= 8:
            yield (
                data[: bit // 8]
                + bytes([data[bit // 8] ^ 1 << bit % 8])
                + (data[bit // 8 + 1 :])
            )


def frame_byte(data: bytes, pos: int) -> int:
    """Which byte of its batch a byte is, for parameters."""
    return next(pos - f.pos for f in frames_in(data) if pos < f.pos + f.size)


@every_format
def test_flipped_bit_raises_and_writes_nothing(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """No damaged batch gets into the log; the leader epoch is rewritten anyway."""
    data = batches_of(tmp_path / "from", magic, codec, 10)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        for bad in _flips(data):
            end = partition.end_offset
            try:
                partition.append_batches(bad)
            except (logstore.CorruptRecordError, logstore.errors.UnsupportedError):
                assert partition.end_offset == end
                continue
            found = [r[1:] for r in partition.read(end)]
            assert found == [r[1:] for r in expected(magic, 0, 10)]
            assert magic == 2


def _with_attributes(batch: bytes, bits: int) -> bytes:
    attributes = int.from_bytes(batch[21:23], "big") | bits
    return fixed_crc(batch[:21] + attributes.to_bytes(2, "big") + batch[23:])


@pytest.mark.parametrize("bits", [0x10, 0x20, 0x30], ids=hex)
def test_control_and_transactional_batches_raise_unsupported(
    tmp_path: Path, bits: int
) -> None:
    """Only a broker may write transactions; intact batches in the same call are not
    appended."""
    data = batches_of(tmp_path / "from", 2, "none", 5)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.errors.UnsupportedError):
            partition.append_batches(data + _with_attributes(data, bits))
        assert partition.end_offset == 0


def test_unknown_magic_raises_unsupported(tmp_path: Path) -> None:
    """A magic above 2 is not damage."""
    data = bytearray(batches_of(tmp_path / "from", 2, "none", 5))
    data[16] = 3
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.errors.UnsupportedError):
            partition.append_batches(data)
        assert partition.end_offset == 0


@pytest.mark.parametrize("count", [0, 4, 6, -1, (1 << 31) - 1])
def test_wrong_record_count_raises_corrupt_record(tmp_path: Path, count: int) -> None:
    """The count of the header is compared with the records, after a correct
    checksum."""
    data = batches_of(tmp_path / "from", 2, "none", 5)
    bad = fixed_crc(data[:57] + count.to_bytes(4, "big", signed=True) + data[61:])
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.CorruptRecordError):
            partition.append_batches(bad)
        assert partition.end_offset == 0


@pytest.mark.parametrize("delta", [0, 3, 5, -1, (1 << 31) - 1])
def test_wrong_last_offset_delta_raises_corrupt_record(
    tmp_path: Path, delta: int
) -> None:
    """A batch has as many offsets as it has records."""
    data = batches_of(tmp_path / "from", 2, "none", 5)
    bad = fixed_crc(data[:23] + delta.to_bytes(4, "big", signed=True) + data[27:])
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.CorruptRecordError):
            partition.append_batches(bad)
        assert partition.end_offset == 0


@every_format
def test_batch_beyond_max_message_bytes_raises_record_too_large(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The limit is on the unchanged batch, to the byte."""
    data = batches_of(tmp_path / "from", magic, codec, 10, call=10)
    largest = max(f.size for f in frames_in(data))
    for limit, fits in ((largest, True), (largest - 1, False)):
        with logstore.open(tmp_path / f"to{limit}") as store:
            partition = new_partition(store, max_message_bytes=limit)
            if fits:
                assert partition.append_batches(data) == range(10)
                continue
            with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
                partition.append_batches(data)
            assert caught.value.limit_name == "max_message_bytes"
            assert caught.value.limit == limit
            assert partition.end_offset == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_bomb_raises_record_too_large_and_writes_nothing(
    tmp_path: Path, codec: str
) -> None:
    """A batch that would decompress beyond the limit is not taken."""
    with logstore.open(tmp_path / "from") as store:
        new_partition(store, 2, codec).append(bytes(1_000_000))
    data = logs_in(tmp_path / "from" / "orders-0")[0].read_bytes()
    config = logstore.StoreConfig(max_batch_decompressed_bytes=10_000)
    with logstore.open(tmp_path / "to", config=config) as store:
        partition = new_partition(store)
        with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
            partition.append_batches(data)
        assert caught.value.limit_name == "max_batch_decompressed_bytes"
        assert partition.end_offset == 0


def test_batch_with_its_own_producer_keeps_it(tmp_path: Path) -> None:
    """Producer id, epoch and sequence are kept; the leader epoch is ours."""
    data = batches_of(tmp_path / "from", 2, "none", 5)
    mark = (77).to_bytes(8, "big") + (3).to_bytes(2, "big") + (1234).to_bytes(4, "big")
    data = fixed_crc(
        data[:12] + (9).to_bytes(4, "big") + data[16:43] + mark + data[57:]
    )
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        partition.append_batches(data)
        batch = next(partition.read_batches())
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (
            77, 3, 1234,
        )  # fmt: skip
        assert batch.leader_epoch == 0


@pytest.mark.parametrize("bad", ["text", 5, None, [b"x"]])
def test_buffer_of_another_type_raises_type_error(tmp_path: Path, bad: object) -> None:
    """Batches must be in a buffer."""
    with logstore.open(tmp_path) as store:
        with pytest.raises(TypeError):
            new_partition(store).append_batches(bad)


# ---------------------------------------------------------------- headers that lie


TIMES = [1_700_000_000_000 + 10 * n for n in (3, 1, 4, 1, 5)]


def one_batch(path: Path, magic: int, codec: str, kind: str = "CreateTime") -> bytes:
    """The batch, or the messages, of five records with `TIMES`."""
    with logstore.open(path) as store:
        partition = new_partition(store, magic, codec, message_timestamp_type=kind)
        values = [b"value %d" % n * 20 for n in range(5)]
        partition.append_many(values, timestamps_ms=TIMES)
    return logs_in(path / "orders-0")[0].read_bytes()


def with_field(batch: bytes, kind: str, pos: int, value: int) -> bytes:
    """A batch with another value in its header, and the checksum that belongs to it."""
    data = bytearray(batch)
    struct.pack_into(kind, data, pos, value)
    return fixed_crc(bytes(data))


MAX_TIMESTAMP = ">q", 35
BASE_TIMESTAMP = ">q", 27
ATTRIBUTES = ">H", 21


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "said",
    [0, -1, -(1 << 63), (1 << 63) - 1, max(TIMES) - 1, max(TIMES) + 1, 10**15],
)
def test_largest_timestamp_of_a_header_is_that_of_the_records(
    tmp_path: Path, codec: str, said: int
) -> None:
    """Lookups by time, retention and rolls go by it; a broker puts it right, too."""
    batch = one_batch(tmp_path / "from", 2, codec)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        before = batch + with_field(batch, *MAX_TIMESTAMP, said) + batch
        assert partition.append_batches(before) == range(15)
        assert [b.max_timestamp_ms for b in partition.read_batches()] == [
            max(TIMES)
        ] * 3
        assert partition.segments[-1].max_timestamp_ms == max(TIMES)
        assert partition.offset_for_time(max(TIMES)) == 4
        assert partition.offset_for_time(max(TIMES) + 1) is None
        assert [r.timestamp_ms for r in partition.read()] == TIMES * 3
    assert logstore.verify(tmp_path / "to", deep=True).ok


@pytest.mark.parametrize("codec", CODECS)
def test_time_of_an_append_is_kept_where_a_batch_has_it(
    tmp_path: Path, codec: str
) -> None:
    """Copies from another log keep this time: it applies to all of their records,
    whatever those contain."""
    batch = one_batch(tmp_path / "from", 2, codec, "LogAppendTime")
    batch = with_field(batch, *MAX_TIMESTAMP, 1234)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        partition.append_batches(batch)
        found = {(r.timestamp_ms, r.timestamp_type) for r in partition.read()}
        assert found == {(1234, logstore.TimestampType.LOG_APPEND_TIME)}
        assert partition.offset_for_time(1234) == 0


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize(
    ("magic", "codec"), [(1, "none"), (1, "gzip"), (2, "none"), (2, "zstd")]
)
def test_timestamp_that_no_append_would_store_is_refused(
    tmp_path: Path, magic: int, codec: str, kind: str
) -> None:
    """Timestamps below -1 are refused, even as a base plus a delta beyond 64 bits;
    unless the time of the append replaces them."""
    batch = one_batch(tmp_path / "from", magic, codec)
    if magic == 2:
        bad = [
            with_field(batch, *BASE_TIMESTAMP, time)
            for time in (-(1 << 63), -2, -5_000_000, (1 << 63) - 20)
        ]
    elif codec == "none":
        first = batch[: frames_in(batch)[0].size]
        bad = [with_field(first, ">q", 18, time) for time in (-2, -(1 << 63))]
    else:
        inner = gzip.decompress(batch[34:])
        first = inner[: frames_in(inner)[0].size]
        lying = with_field(first, ">q", 18, -2) + inner[len(first) :]
        packed = gzip.compress(lying)
        length = struct.pack(">i", len(packed))
        bad = [
            fixed_crc(
                batch[:8]
                + struct.pack(">i", 22 + len(packed))
                + batch[12:30]
                + length
                + packed
            )
        ]
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, magic, message_timestamp_type=kind)
        for one in bad:
            end = partition.end_offset
            if kind == "LogAppendTime":
                partition.append_batches(one)
                times = {r.timestamp_ms for r in partition.read(end)}
                assert min(times) > TIMES[0]
                continue
            with pytest.raises(logstore.CorruptRecordError, match="below -1"):
                partition.append_batches(batch + one)
            assert partition.end_offset == 0
    assert logstore.verify(tmp_path / "to", deep=True).ok


def test_sequence_number_of_a_producer_is_not_negative(tmp_path: Path) -> None:
    """Brokers require that; without a producer it is -1."""
    batch = one_batch(tmp_path / "from", 2, "none")
    batch = with_field(batch, ">q", 43, 5)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        for sequence in (-1, -(1 << 31)):
            with pytest.raises(logstore.CorruptRecordError, match="sequence number"):
                partition.append_batches(with_field(batch, ">i", 53, sequence))
        partition.append_batches(with_field(batch, ">i", 53, (1 << 31) - 1))
        assert partition.end_offset == 5


@pytest.mark.parametrize("bits", [0x40, *(1 << n for n in range(7, 16))], ids=hex)
def test_attributes_that_nobody_knows_change_nothing(tmp_path: Path, bits: int) -> None:
    """They are kept, as brokers keep them, and the records are read unchanged."""
    batch = _with_attributes(one_batch(tmp_path / "from", 2, "lz4"), bits)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        partition.append_batches(batch)
        assert [r.timestamp_ms for r in partition.read()] == TIMES
        assert bytes(next(partition.read_batches()).buffer)[21:] == batch[21:]
    assert logstore.verify(tmp_path / "to", deep=True).ok


FIELDS = {
    "base_offset": (">q", 0),
    "leader_epoch": (">i", 12),
    "attributes": (">h", 21),
    "last_delta": (">i", 23),
    "base_timestamp": (">q", 27),
    "max_timestamp": (">q", 35),
    "producer_id": (">q", 43),
    "producer_epoch": (">h", 51),
    "base_sequence": (">i", 53),
    "record_count": (">i", 57),
}
NAMED = (
    logstore.CorruptRecordError,
    logstore.errors.UnsupportedError,
    logstore.errors.RecordTooLargeError,
)


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("field", FIELDS)
def test_each_field_at_its_extremes_is_refused_or_read_again(
    tmp_path: Path, field: str, codec: str
) -> None:
    """The result is a named error and nothing written, or the five records and an
    intact log."""
    batch = one_batch(tmp_path / "from", 2, codec)
    kind, pos = FIELDS[field]
    bits = 8 * struct.calcsize(kind)
    edges = (0, 1, 2, 4, 5, -1, -2, 100, 1 << (bits - 2), (1 << (bits - 1)) - 1)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        partition.append(b"before")
        for edge in (*edges, -(1 << (bits - 1)), -(1 << (bits - 1)) + 1):
            end = partition.end_offset
            try:
                partition.append_batches(with_field(batch, kind, pos, edge))
            except NAMED:
                assert partition.end_offset == end
                continue
            found = list(partition.read(end))
            assert [r.value for r in found] == [b"value %d" % n * 20 for n in range(5)]
            newest = max(r.timestamp_ms for r in found)
            (header,) = partition.read_batches(end)
            assert header.max_timestamp_ms == newest
            assert min(r.timestamp_ms for r in found) >= -1
        partition.append(b"behind")
        end = partition.end_offset
    assert logstore.verify(tmp_path / "to", deep=True).ok
    with logstore.open(tmp_path / "to") as store:
        assert not store.recovery_report
        assert len(list(store.topic("orders")[0].read())) == end


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_offset_that_no_record_can_have_loses_none(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The offset of a wrapper is that of its last record: decoding leaves out the
    largest offset."""
    batch = one_batch(tmp_path / "from", magic, codec)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, magic)
        for offset in ((1 << 63) - 1, (1 << 63) - 2):
            end = partition.end_offset
            try:
                partition.append_batches(with_field(batch, ">q", 0, offset))
            except logstore.CorruptRecordError:
                assert partition.end_offset == end
            found = [r.value for r in partition.read(end)]
            assert found in ([], [b"value %d" % n * 20 for n in range(5)])
    assert logstore.verify(tmp_path / "to", deep=True).ok


# ---------------------------------------------------------------- two steps


@pytest.mark.parametrize("window", [200, 1000, 4096])
def test_what_is_larger_than_a_window_is_taken_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The C core takes less than 2 GiB at a time; a buffer may have more."""
    data = b""
    want = []
    for i, (magic, codec) in enumerate(FORMATS):
        data += batches_of(tmp_path / f"from{i}", magic, codec, 7, call=1)
        want += [r[1:] for r in expected(magic, 0, 7)]
    largest = max(frame.size for frame in frames_in(data))
    monkeypatch.setattr(incoming, "_WINDOW_BYTES", window)
    monkeypatch.setattr(incoming, "_RUN_BYTES", window // 2)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        if largest > window:
            with pytest.raises(logstore.errors.RecordTooLargeError):
                partition.append_batches(data)
            assert partition.end_offset == 0
            return
        assert partition.append_batches(data) == range(len(want))
        assert [r[1:] for r in partition.read()] == want
        with pytest.raises(logstore.CorruptRecordError) as caught:
            partition.append_batches(data[:-1])
        assert caught.value.position == frames_in(data)[-1].pos
        assert partition.end_offset == len(want)


def test_checking_and_decompressing_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come before the partition's lock; offsets are assigned by the append."""
    data = batches_of(tmp_path / "from", 2, "gzip", 10)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        opened = incoming.open_payload
        waiting = []

        def opening(*args: Any) -> Any:
            if not waiting:
                waiting.append(threading.Thread(target=partition.append, args=(b"x",)))
                waiting[0].start()
                waiting[0].join(20)
                assert not waiting[0].is_alive()
            return opened(*args)

        monkeypatch.setattr(incoming, "open_payload", opening)
        assert partition.append_batches(data) == range(1, 11)
        assert [r.offset for r in partition.read()] == list(range(11))


@few_formats
def test_prepared_batches_are_the_callers_no_more(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Changes of the buffer between the two steps have no effect."""
    data = bytearray(batches_of(tmp_path / "from", magic, codec, 10))
    prepared = incoming.prepare(
        data,
        max_bytes=1 << 20,
        decompressed_max=1 << 20,
        is_append_time=False,
        where="t-0",
    )
    data[:] = bytes(len(data))
    runs, count = prepared.place(7, 0, None)
    assert (count, prepared.count) == (10, 10)
    other = b"".join(map(bytes, runs))
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        assert partition.append_batches(other) == range(10)
        assert [r[1:] for r in partition.read()] == [
            r[1:] for r in expected(magic, 0, 10)
        ]


@pytest.mark.thorough
@pytest.mark.slow
def test_buffer_beyond_2_gib_is_appended(tmp_path: Path) -> None:
    """All of it is appended, in order."""
    config = {"segment_bytes": (1 << 31) - 1}
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, **config)
        partition.append_many([b"x" * 1000] * 1000)
        one = bytes(partition.fetch(0, 1 << 26).buffer)
        times = (1 << 31) // len(one) + 2
        span = partition.append_batches(one * times)
        assert span == range(1000, 1000 * (times + 1))
        for offset in (span[0], span[-1], span[len(span) // 2]):
            assert next(partition.read(offset)).offset == offset


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("append_time", [None, 1_700_000_000_999])
def test_plain_batches_are_placed_as_those_looked_at_one_by_one(
    tmp_path: Path,
    magic: int,
    append_time: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together with compressed ones and some with headers, in any order: the same
    bytes."""
    rng = random.Random(magic)
    pieces = []
    for codec in ("none", "gzip"):
        with logstore.open(tmp_path / codec) as store:
            config = logstore.TopicConfig(message_format=magic, compression_type=codec)
            partition = store.create_topic("orders", partitions=1, config=config)[0]
            for number in range(30):
                headers = (
                    [[("a", b"b")], []] if magic == 2 and number % 7 == 0 else None
                )
                partition.append_many([b"v" * number] * 2, headers=headers)
            log = tmp_path / codec / "orders-0" / f"{0:020d}.log"
        data = log.read_bytes()
        scan = native.scan_batches(native.pointer(bytearray(data)), len(data))
        pieces += [data[h.pos : h.pos + h.size] for h in scan.headers]
    rng.shuffle(pieces)
    whole = b"".join(pieces)

    def placed() -> tuple[bytes, int]:
        prepared = incoming.prepare(
            whole,
            max_bytes=1 << 20,
            decompressed_max=1 << 20,
            is_append_time=append_time is not None,
            where="orders-0",
        )
        runs, count = prepared.place(500, 3, append_time)
        return b"".join(runs), count

    found = placed()
    assert found[1] == 120
    monkeypatch.setattr(incoming._Check, "take_plain", lambda *_: 0)
    assert placed() == found
