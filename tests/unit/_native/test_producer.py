"""Batches of producers: which of them are plain, and the offsets of these."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore._native._ls import ffi, lib
from support.producing import sent

T = 1_700_000_000_000
ANY_TIME = -(1 << 63)
LARGE = 1 << 20


def batches(path: Path, magic: int, *calls: list[bytes], **settings: Any) -> bytes:
    """The log of a partition with one call for each batch."""
    with logstore.open(path) as store:
        config = logstore.TopicConfig(message_format=magic, **settings)
        partition = store.create_topic("orders", partitions=1, config=config)[0]
        for number, values in enumerate(calls):
            stamps = (
                [T + number * 100 + i for i in range(len(values))] if magic else None
            )
            partition.append_many(values, timestamps_ms=stamps)
    return (path / "orders-0" / f"{0:020d}.log").read_bytes()


def plain(
    data: bytes, max_bytes: int = LARGE, timestamp_min: int = -1, capacity: int = 1024
) -> tuple[int, int]:
    decoder = native.Decoder(capacity)
    return decoder.check_producer(
        ffi.from_buffer(data),
        len(data),
        max_bytes=max_bytes,
        timestamp_min=timestamp_min,
    )


def sealed(data: bytes, changes: dict[int, bytes]) -> bytes:
    """A batch of magic 2 with other bytes, and a right checksum."""
    changed = bytearray(data)
    for pos, new in changes.items():
        changed[pos : pos + len(new)] = new
    changed[17:21] = struct.pack(">I", native.crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_plain_batches_are_taken_up_to_the_first_other_one(
    tmp_path: Path, magic: int
) -> None:
    data = batches(tmp_path, magic, [b"a"] * 5, [b"bc"], [b"d"] * 3)
    assert plain(data) == (len(data), 9)
    assert plain(b"") == (0, 0)
    sizes = [header.size for header in native.scan_batches(
        ffi.from_buffer(data), len(data)).headers]  # fmt: skip
    counts = [5, 1, 3] if magic == 2 else [1] * 9
    for at in range(len(sizes)):
        before = sum(sizes[:at])
        for pos, byte in ((before + sizes[at] - 1, 1), (before + 16, 0x40)):
            broken = bytearray(data)
            broken[pos] ^= byte
            assert plain(bytes(broken)) == (before, sum(counts[:at]))
        assert plain(data[: before + sizes[at] - 1]) == (before, sum(counts[:at]))
    assert plain(data, max_bytes=max(sizes) - 1)[0] < len(data)
    assert plain(data, max_bytes=max(sizes))[0] == len(data)


def message(
    number: int, *, magic: int = 1, stamp: int = T, attributes: int = 0, size: int = 5
) -> bytes:
    """A message as a producer sends it."""
    body = bytes([magic, attributes]) + (struct.pack(">q", stamp) if magic else b"")
    body += struct.pack(">ii", -1, size) + bytes(size)
    crc = struct.pack(">I", zlib.crc32(body))
    return struct.pack(">qi", number, len(body) + 4) + crc + body


OTHERS = {
    "damaged": lambda n: message(n)[:-1] + b"x",
    "old": lambda n: message(n, stamp=-2),
    "large": lambda n: message(n, size=2_000),
    "compressed": lambda n: message(n, attributes=1),
    "of no version": lambda n: message(n, magic=3),
    "short": lambda n: message(n)[:-6],
    "zeros": lambda n: bytes(len(message(n))),
}
PLAIN = {
    "of magic 0": lambda n: message(n, magic=0),
    "of the same offset": lambda n: message(n - 1),
    "with an offset below 0": lambda n: message(-n),
    "with the last offset": lambda n: message((1 << 63) - 1),
    "with the time of an append": lambda n: message(n, attributes=8),
}


@pytest.mark.parametrize("kind", [*OTHERS, *PLAIN])
@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 129, 198])
def test_messages_are_judged_alike_in_blocks_and_one_by_one(kind: str, at: int) -> None:
    """Blocks of 64 messages have their checksums made together; with few columns each
    message is looked at by itself."""
    messages = [message(number) for number in range(200)]
    messages[at] = {**OTHERS, **PLAIN}[kind](at)
    data = b"".join(messages)
    count = at if kind in OTHERS else len(messages)
    expected = len(b"".join(messages[:count])), count
    for capacity in (1024, 64, 8):
        found = plain(data, max_bytes=1_000, timestamp_min=-1, capacity=capacity)
        assert found == expected, capacity
    if kind in PLAIN:
        moved = bytearray(data)
        native.place_batches(native.pointer(moved), len(moved), 1000, 0, -1)
        scan = native.scan_batches(native.pointer(moved), len(moved), last_offset=999)
        assert (scan.error, scan.last_offset) == (None, 1199)


def test_batches_that_need_more_are_not_plain(tmp_path: Path) -> None:
    """The others are compressed, of a transaction, control, or have other numbers,
    another largest timestamp, an old timestamp, a producer without a sequence, headers,
    or many records."""
    data = batches(tmp_path / "plain", 2, [b"value"] * 3)
    assert plain(data) == (len(data), 3)
    assert plain(data, capacity=3) == (len(data), 3)
    assert plain(data, capacity=2) == (0, 0)
    assert plain(data, timestamp_min=T) == (len(data), 3)
    assert plain(data, timestamp_min=T + 1) == (0, 0)
    for changes in (
        {21: b"\x00\x10"},  # of a transaction
        {21: b"\x00\x30"},  # control
        {21: b"\x00\x01"},  # gzip, it says
        {23: b"\x00\x00\x00\x03"},  # the last offset
        {35: struct.pack(">q", T + 3)},  # the largest timestamp
        {27: struct.pack(">q", -5)},
        {43: struct.pack(">q", 7)},  # a producer, sequence -1
        {57: b"\x00\x00\x00\x02"},  # number of records
    ):
        assert plain(sealed(data, changes)) == (0, 0), changes
    with_sequence = {43: struct.pack(">q", 7), 53: b"\x00\x00\x00\x00"}
    assert plain(sealed(data, with_sequence)) == (len(data), 3)
    packed = batches(tmp_path / "gzip", 2, [b"v"] * 50, compression_type="gzip")
    assert plain(packed) == (0, 0)
    with logstore.open(tmp_path / "headers") as store:
        config = logstore.TopicConfig(message_format=2)
        partition = store.create_topic("orders", partitions=1, config=config)[0]
        partition.append(b"v", headers=[("a", b"b")])
    log = tmp_path / "headers" / "orders-0" / f"{0:020d}.log"
    assert plain(log.read_bytes()) == (0, 0)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("stamp", [-1, T + 99])
def test_plain_batches_get_consecutive_offsets(
    tmp_path: Path, magic: int, stamp: int
) -> None:
    data = bytearray(batches(tmp_path, magic, [b"a"] * 5, [b"bc"], [b"d"] * 3))
    native.place_batches(native.pointer(data), len(data), 1000, 7, stamp)
    scan = native.scan_batches(native.pointer(data), len(data), last_offset=999)
    assert scan.error is None
    assert scan.last_offset == 1008
    for header in scan.headers:
        if magic == 2:
            assert header.leader_epoch == 7
        if magic and stamp >= 0:
            assert (header.max_timestamp, header.timestamp_type) == (stamp, 1)


def test_batch_of_a_producer_that_numbers_its_records_is_found(tmp_path: Path) -> None:
    """It may be anywhere among others, of any magic; only whole batches count."""
    old = batches(tmp_path / "1", 1, [b"value"] * 3)
    plain_one = sent(-1, -1, -1, 2)
    numbered = sent(0, 0, 0, 2)
    for data, expected in (
        (b"", False),
        (old, False),
        (plain_one, False),
        (numbered, True),
        (old + plain_one + numbered + old, True),
        (plain_one + old, False),
        (numbered[:60], False),
    ):
        assert lib.ls_has_producer(data, len(data)) == expected
        assert native.has_producer(native.pointer(data), len(data)) is expected


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    data = bytearray(batches(tmp_path, 1, [b"a"] * 2))
    c = native.pointer(data)
    for size, offset in ((-1, 0), (len(data), -1), (len(data) - 1, 0), (20, 0)):
        assert lib.ls_place_batches(c, size, offset, 0, -1) < 0
    none = bytearray(batches(tmp_path / "2", 2, [b"a"] * 2))
    none[57:61] = bytes(4)  # records
    assert lib.ls_place_batches(native.pointer(none), len(none), 0, 0, -1) < 0
    walk, records = ffi.new("ls_walk *"), ffi.new("int64_t *")
    columns = native.Decoder(8).arrays.raw
    bare = native.Decoder(8, with_headers=False).arrays.raw
    assert lib.ls_check_producer(c, -1, LARGE, -1, columns, walk, records) < 0
    assert lib.ls_check_producer(c, len(data), LARGE, -1, bare, walk, records) < 0
    walk.pos = len(data) + 1
    assert lib.ls_check_producer(c, len(data), LARGE, -1, columns, walk, records) < 0
    walk.pos = 0
    status = lib.ls_check_producer(
        c, len(data), LARGE, ANY_TIME, columns, walk, records
    )
    assert (status, walk.count, records[0]) == (0, 2, 2)
