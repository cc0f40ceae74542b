"""Records that are read as far as their structure is intact."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest

from logstore import _native as native
from logstore.maintenance.verify.unchecked import messages, records
from logstore.record.decoder import Damage
from support.transactions import batch

LIMIT = 1 << 20


def message(offset: int, magic: int, value: bytes, codec: int = 0) -> bytes:
    """A message with a key, and with its time in magic 1: its offset, and a second."""
    time = struct.pack(">q", 1000 + offset) if magic else b""
    rest = struct.pack(">bb", magic, codec) + time + struct.pack(">i", 1) + b"k"
    rest += struct.pack(">i", len(value)) + value
    data = struct.pack(">I", zlib.crc32(rest)) + rest
    return struct.pack(">qi", offset, len(data)) + data


def wrapper(offset: int, magic: int, inner: list[int]) -> bytes:
    body = b"".join(message(at, magic, b"%d" % at) for at in inner)
    return message(offset, magic, gzip.compress(body), codec=1)


@pytest.mark.parametrize(
    ("magic", "offset", "inner", "expected"),
    [
        (0, 12, [10, 11, 12], [10, 11, 12]),  # they are absolute
        (0, 15, [10, 11, 12], [10, 11, 12]),  # also if they contradict the wrapper
        (1, 12, [0, 1, 2], [10, 11, 12]),
        (1, 12, [0, 2], [10, 12]),
        (1, 0, [0, 1, 2], [0, 1, 2]),  # as a producer sends it
    ],
)
def test_messages_of_a_wrapper_have_the_offsets_that_a_reader_gives_them(
    magic: int, offset: int, inner: list[int], expected: list[int]
) -> None:
    found = messages(wrapper(offset, magic, inner), LIMIT)
    assert [one.record.offset for one in found] == expected
    assert [one.record.value for one in found] == [b"%d" % at for at in inner]
    assert all(one.is_valid for one in found)
    times = [1000 + at if magic else -1 for at in inner]
    assert [one.record.timestamp_ms for one in found] == times


def test_message_with_a_wrong_checksum_is_of_use() -> None:
    data = bytearray(message(5, 1, b"value"))
    data[-1] ^= 1
    (found,) = messages(bytes(data), LIMIT)
    assert not found.is_valid
    assert found.record.offset == 5


WRONG_WRAPPERS = {
    "last-message-has-offset-minus-1": wrapper(1, 1, [0, 1, 2]),
    "empty": message(5, 1, gzip.compress(b""), codec=1),
    "no-gzip": message(5, 1, b"no gzip", codec=1),
    "other-magic": message(5, 1, gzip.compress(message(0, 0, b"x")), codec=1),
    "nested": message(5, 1, gzip.compress(message(0, 1, b"x", codec=1)), codec=1),
    "zeros": message(
        5, 1, gzip.compress(struct.pack(">qi", 0, 13) + bytes(13)), codec=1
    ),
}


@pytest.mark.parametrize("data", WRONG_WRAPPERS.values(), ids=WRONG_WRAPPERS)
def test_wrapper_with_wrong_contents_is_damage(data: bytes) -> None:
    with pytest.raises(Damage):
        messages(data, LIMIT)


def test_records_before_damage_come_first() -> None:
    data = bytearray(batch(7, [(b"k", b"%d" % n) for n in range(4)], -1, control=False))
    header = native.first_header(native.pointer(data), len(data), checks=0).headers[0]
    assert [r.offset for r in records(header, bytes(data), LIMIT)] == [7, 8, 9, 10]
    data[-5] = 0x7F  # the length of the value of the last one
    found = []
    with pytest.raises(Damage):
        for record in records(header, bytes(data), LIMIT):
            found.append(record.value)
    assert found == [b"0", b"1", b"2"]
