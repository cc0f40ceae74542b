"""append_batches: batches as a producer sends them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from support.damage import fixed_crc, frames_in, logs_in
from support.values import (
    FORMATS,
    every_format,
    expected,
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
    """Whatever the topic's settings, batches stay what they are; offsets are given."""
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
    """Producers count from 0 in each batch, brokers copy from anywhere."""
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
    """Which byte of its batch a byte is."""
    return next(pos - f.pos for f in frames_in(data) if pos < f.pos + f.size)


@every_format
def test_flipped_bit_raises_and_writes_nothing(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """No damaged batch gets into the log; the leader epoch is written anew anyway."""
    data = batches_of(tmp_path / "from", magic, codec, 10)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store)
        for bad in _flips(data):
            end = partition.end_offset
            try:
                partition.append_batches(bad)
            except (logstore.CorruptRecordError, logstore.UnsupportedError):
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
    """Only a broker may write transactions; sound batches beside them go nowhere."""
    data = batches_of(tmp_path / "from", 2, "none", 5)
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.UnsupportedError):
            partition.append_batches(data + _with_attributes(data, bits))
        assert partition.end_offset == 0


def test_unknown_magic_raises_unsupported(tmp_path: Path) -> None:
    """A magic above 2 is not damage."""
    data = bytearray(batches_of(tmp_path / "from", 2, "none", 5))
    data[16] = 3
    with logstore.open(tmp_path / "to") as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.UnsupportedError):
            partition.append_batches(data)
        assert partition.end_offset == 0


@pytest.mark.parametrize("count", [0, 4, 6, -1, (1 << 31) - 1])
def test_wrong_record_count_raises_corrupt_record(tmp_path: Path, count: int) -> None:
    """The header's count is held against the records, behind a right checksum."""
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
    """The limit is on the batch as it is, to the byte."""
    data = batches_of(tmp_path / "from", magic, codec, 10, call=10)
    largest = max(f.size for f in frames_in(data))
    for limit, fits in ((largest, True), (largest - 1, False)):
        with logstore.open(tmp_path / f"to{limit}") as store:
            partition = new_partition(store, max_message_bytes=limit)
            if fits:
                assert partition.append_batches(data) == range(10)
                continue
            with pytest.raises(logstore.RecordTooLargeError) as caught:
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
        with pytest.raises(logstore.RecordTooLargeError) as caught:
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
    """Batches come in a buffer."""
    with logstore.open(tmp_path) as store:
        with pytest.raises(TypeError):
            new_partition(store).append_batches(bad)
