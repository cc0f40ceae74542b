"""Kafka's murmur2 and the partition of a key."""

import random

import pytest
from unit._native.kafka_bytes import Guarded, Records

from logstore._native._ls import ffi, lib

# From Kafka's own UtilsTest.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2(data):
    """The same function, written again."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    for i in range(0, len(data) & ~3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    rest = data[len(data) & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


@pytest.mark.parametrize(("key", "expected"), KNOWN.items())
def test_murmur2_of_known_keys_is_kafkas(key, expected):
    """Kafka's own test values."""
    assert lib.ls_murmur2(key, len(key)) == expected
    assert murmur2(key) == expected


def test_murmur2_of_every_short_length_equals_the_reference():
    """All tail lengths, with bytes above 127."""
    memory = Guarded(64)
    rng = random.Random(1)
    for size in range(64):
        key = rng.randbytes(size)
        assert lib.ls_murmur2(memory.at_end(key), size) == murmur2(key)


@pytest.mark.parametrize("spread", [False, True])
def test_partition_keys_follow_the_hash_and_leave_nulls_out(spread):
    """The positive part of the hash modulo the partitions; -1 for a null key."""
    keys = [b"a", None, b"", b"foobar", b"21", None]
    records = Records([(key, None) for key in keys], spread=spread)
    out = ffi.new("int32_t[6]")
    key_slices = ffi.addressof(records.raw, "key")
    lib.ls_partition_keys(key_slices, len(keys), 7, out)
    assert list(out) == [
        -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys
    ]


def test_partition_keys_without_partitions_gives_none():
    """The core does not divide by zero."""
    records = Records([(b"a", None)])
    out = ffi.new("int32_t[1]")
    lib.ls_partition_keys(ffi.addressof(records.raw, "key"), 1, 0, out)
    assert out[0] == -1
