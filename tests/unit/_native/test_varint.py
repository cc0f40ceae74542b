"""Zigzag varints."""

import random

import pytest
from unit._native.kafka_bytes import Guarded, varint

from logstore._native._ls import ffi, lib

SAMPLES = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    150: "ac02",
    300: "d804",
    8192: "808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


def put(value):
    out = ffi.new("uint8_t[10]")
    written = lib.ls_varint_put(out, 10, value)
    return bytes(ffi.buffer(out, written))


def get(function, kind, data):
    memory = Guarded(16)
    value = ffi.new(f"{kind} *", 12345)
    return function(memory.at_end(data), len(data), value), value[0]


def get32(data):
    return get(lib.ls_varint_get32, "int32_t", data)


def get64(data):
    return get(lib.ls_varint_get64, "int64_t", data)


@pytest.mark.parametrize(("value", "text"), SAMPLES.items())
def test_varint_sample_goes_both_ways(value, text):
    """The samples of the format's description."""
    data = bytes.fromhex(text)
    assert put(value) == data
    assert get64(data) == (len(data), value)
    if -(2**31) <= value < 2**31:
        assert get32(data) == (len(data), value)


def test_varint_of_every_length_equals_the_reference():
    """Both sides of each power of two."""
    for bit in range(63):
        for value in (1 << bit) - 1, 1 << bit, -(1 << bit), -(1 << bit) - 1:
            data = put(value)
            assert data == varint(value)
            assert get64(data) == (len(data), value)


@pytest.mark.parametrize("seed", range(2))
def test_varint_of_random_values_comes_back(seed):
    """Values of all widths."""
    rng = random.Random(seed)
    for _ in range(500):
        value = rng.getrandbits(rng.randrange(64)) * rng.choice((1, -1))
        data = put(value)
        assert data == varint(value)
        assert get64(data + b"\xff") == (len(data), value)


@pytest.mark.parametrize(("get_one", "longest"), [(get32, 5), (get64, 10)])
def test_varint_too_long_is_an_error(get_one, longest):
    """A continuation bit in the last byte that the type has."""
    assert get_one(b"\x80" * longest + b"\0")[0] == lib.LS_E_VARINT
    assert get_one(b"\x80" * (longest - 1) + b"\0") == (longest, 0)


@pytest.mark.parametrize(("get_one", "longest"), [(get32, 5), (get64, 10)])
def test_varint_cut_short_has_no_space(get_one, longest):
    """The input ends inside, at every place."""
    for size in range(longest):
        assert get_one(b"\x80" * size)[0] == lib.LS_E_NO_SPACE


@pytest.mark.parametrize("value", SAMPLES)
def test_varint_put_without_room_writes_nothing(value):
    """One byte too few."""
    memory = Guarded(16)
    needed = len(put(value))
    out = memory.at_end(b"\xee" * (needed - 1))
    assert lib.ls_varint_put(out, needed - 1, value) == lib.LS_E_NO_SPACE
    assert bytes(ffi.buffer(out, needed - 1)) == b"\xee" * (needed - 1)


def test_varint_longer_than_needed_is_accepted():
    """Kafka's readers accept it, too."""
    assert get32(b"\x82\x80\x00") == (3, 1)
    assert get64(b"\x82\x80\x00") == (3, 1)
