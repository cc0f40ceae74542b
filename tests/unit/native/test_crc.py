"""CRC-32 and CRC-32C on each path against zlib and the crc32c package."""

import random
import zlib

import crc32c
import pytest
from unit.native.kafka_bytes import Guarded

from logstore._native._ls import ffi, lib

KINDS = {
    "crc32": (lib.ls_crc32_path, lib.ls_crc32, zlib.crc32),
    "crc32c": (lib.ls_crc32c_path, lib.ls_crc32c, crc32c.crc32c),
}
PATHS = {
    "portable": lib.LS_CRC_PORTABLE,
    "hardware": lib.LS_CRC_HARDWARE,
    "narrow": lib.LS_CRC_NARROW,
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=PATHS)
def crc(request, kind):
    """crc(data, size, start value) on one path; skipped where there is none."""
    ok = ffi.new("int32_t *")
    path = PATHS[request.param]
    kind[0](path, 0, b"", 0, ok)
    if not ok[0]:
        pytest.skip(f"this machine has no {request.param} path")

    def call(data, size, begin=0):
        return kind[0](path, begin, data, size, ok)

    return call


def test_crc_of_the_check_string_is_known():
    """The check values of both polynomials."""
    assert lib.ls_crc32(0, b"123456789", 9) == 0xCBF43926
    assert lib.ls_crc32c(0, b"123456789", 9) == 0xE3069283


def test_crc_of_every_short_length_equals_the_reference(crc, kind):
    """0 to 700 bytes, from zero and from a checksum so far."""
    data = random.Random(1).randbytes(700)
    for size in range(len(data) + 1):
        part = data[:size]
        assert crc(part, size) == kind[2](part)
        begin = zlib.crc32(b"%d" % size)
        assert crc(part, size, begin) == kind[2](part, begin)


def test_crc_at_every_alignment_equals_the_reference(crc, kind):
    """Starts at 0 to 63 bytes past an aligned address."""
    data = random.Random(2).randbytes(500)
    memory = ffi.from_buffer(data)
    for start in range(64):
        for size in (1, 3, 4, 15, 16, 17, 63, 64, 65, 118, 300):
            expected = kind[2](data[start : start + size])
            assert crc(memory + start, size) == expected


@pytest.mark.parametrize("seed", range(4))
def test_crc_continued_at_random_splits_equals_one_go(crc, kind, seed):
    """crc(a + b) is crc(b) begun with crc(a)."""
    rng = random.Random(seed)
    data = rng.randbytes(5000)
    pos = value = 0
    while pos < len(data):
        part = data[pos : pos + rng.choice((1, 2, 7, 16, 50, 118, 900))]
        value = crc(part, len(part), value)
        pos += len(part)
    assert value == kind[2](data)


@pytest.mark.parametrize("size", [1023, 1024, 4096, 65_537, 1_048_576, 3_000_001])
def test_crc_of_large_blocks_equals_the_reference(crc, kind, size):
    """Sizes for which the long loops run."""
    data = random.Random(size).randbytes(size)
    assert crc(data, size) == kind[2](data)


def test_crc_reads_nothing_outside_its_input(crc, kind):
    """Pages before and behind the input cannot be read."""
    memory = Guarded(4096)
    data = random.Random(3).randbytes(1100)
    for size in (*range(1, 300), 511, 512, 513, 1024, 1100):
        expected = kind[2](data[:size])
        assert crc(memory.at_end(data[:size]), size) == expected
        assert crc(memory.at_begin(data[:size]), size) == expected


def test_crc_without_a_path_is_the_best_one(kind):
    """The plain functions choose by themselves."""
    data = random.Random(4).randbytes(777)
    assert kind[1](5, data, len(data)) == kind[2](data, 5)
    assert kind[1](5, ffi.NULL, 0) == 5


def test_crc_on_an_unknown_path_is_refused(kind):
    """*ok is 0 and the checksum so far comes back."""
    ok = ffi.new("int32_t *", 1)
    assert kind[0](99, 17, b"abc", 3, ok) == 17
    assert ok[0] == 0


def test_crc_hardware_agrees_with_the_paths():
    """A bit is set exactly where the hardware path answers."""
    ok = ffi.new("int32_t *")
    for bit, name in ((1, "crc32"), (2, "crc32c")):
        KINDS[name][0](lib.LS_CRC_HARDWARE, 0, b"", 0, ok)
        assert bool(lib.ls_crc_hardware() & bit) == bool(ok[0])
