"""CRC-32 and CRC-32C on each path against zlib and the crc32c package."""

import random
import zlib

import crc32c
import pytest
from unit._native.kafka_bytes import Guarded

from logstore._native._ls import ffi, lib

KINDS = {
    "crc32": (lib.ls_crc32_path, lib.ls_crc32, zlib.crc32),
    "crc32c": (lib.ls_crc32c_path, lib.ls_crc32c, crc32c.crc32c),
}
PATHS = {
    "portable": lib.LS_CRC_PORTABLE,
    "hardware": lib.LS_CRC_HARDWARE,
    "narrow": lib.LS_CRC_NARROW,
    "sse42": lib.LS_CRC_SSE42,
    "double": lib.LS_CRC_DOUBLE,
}
ONLY_CRC32C = "sse42"
CASES = [(k, p) for k in KINDS for p in PATHS if (k, p) != ("crc32", ONLY_CRC32C)]


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    """A checksum and a path; skipped if the machine does not have it."""
    name, path = request.param
    ok = ffi.new("int32_t *")
    KINDS[name][0](PATHS[path], 0, b"", 0, ok)
    if not ok[0]:
        pytest.skip(f"this machine has no {path} path")
    return KINDS[name], PATHS[path]


@pytest.fixture
def crc(case):
    """crc(data, size, start value) on one path."""
    kind, path = case
    ok = ffi.new("int32_t *")

    def call(data, size, begin=0):
        return kind[0](path, begin, data, size, ok)

    return call


@pytest.fixture
def reference(case):
    """crc(data, start value) of zlib or the crc32c package."""
    return case[0][2]


def test_crc_of_the_check_string_is_known():
    """The check values of both polynomials."""
    assert lib.ls_crc32(0, b"123456789", 9) == 0xCBF43926
    assert lib.ls_crc32c(0, b"123456789", 9) == 0xE3069283


def test_crc_of_every_short_length_equals_the_reference(crc, reference):
    """Lengths are 0 to 700 bytes, from zero and from an earlier checksum."""
    data = random.Random(1).randbytes(700)
    for size in range(len(data) + 1):
        part = data[:size]
        assert crc(part, size) == reference(part)
        begin = zlib.crc32(b"%d" % size)
        assert crc(part, size, begin) == reference(part, begin)


def test_crc_at_every_alignment_equals_the_reference(crc, reference):
    """Starts at 0 to 63 bytes past an aligned address."""
    data = random.Random(2).randbytes(500)
    memory = ffi.from_buffer(data)
    for start in range(64):
        for size in (1, 3, 4, 15, 16, 17, 63, 64, 65, 118, 192, 193, 300):
            expected = reference(data[start : start + size])
            assert crc(memory + start, size) == expected


@pytest.mark.parametrize("seed", range(4))
def test_crc_continued_at_random_splits_equals_one_go(crc, reference, seed):
    """crc(a + b) is crc(b) begun with crc(a)."""
    rng = random.Random(seed)
    data = rng.randbytes(5000)
    pos = value = 0
    while pos < len(data):
        part = data[pos : pos + rng.choice((1, 2, 7, 16, 50, 118, 900))]
        value = crc(part, len(part), value)
        pos += len(part)
    assert value == reference(data)


@pytest.mark.parametrize("size", [1023, 1024, 4096, 65_537, 1_048_576, 3_000_001])
def test_crc_of_large_blocks_equals_the_reference(crc, reference, size):
    """Sizes for which the long loops run."""
    data = random.Random(size).randbytes(size)
    assert crc(data, size) == reference(data)
    assert crc(data, size, 0x89ABCDEF) == reference(data, 0x89ABCDEF)


@pytest.mark.parametrize("parts", [128, 192, 384, 576, 768, 1536, 1728, 3072, 4608])
def test_crc_around_whole_parts_equals_the_reference(crc, reference, parts):
    """At the transitions from one loop to the next, at odd addresses, from any
    value."""
    rng = random.Random(parts)
    data = rng.randbytes(parts + 80)
    memory = ffi.from_buffer(data)
    for size in range(parts - 9, parts + 73):
        start = rng.randrange(9)
        begin = rng.getrandbits(32)
        expected = reference(data[start : start + size], begin)
        assert crc(memory + start, size, begin) == expected


def test_crc_reads_nothing_outside_its_input(crc, reference):
    """Pages before and after the input cannot be read."""
    memory = Guarded(4096)
    data = random.Random(3).randbytes(1100)
    for size in (*range(1, 300), 511, 512, 513, 1024, 1100):
        expected = reference(data[:size])
        assert crc(memory.at_end(data[:size]), size) == expected
        assert crc(memory.at_begin(data[:size]), size) == expected


def pieces(memory, places):
    """CRC-32 of the pieces of (position, size), in one call."""
    pos, size = (ffi.new("int32_t[]", [p[i] for p in places]) for i in (0, 1))
    out = ffi.new("uint32_t[]", len(places) + 1)
    out[len(places)] = 17
    lib.ls_crc32_pieces(memory, pos, size, len(places), out)
    assert out[len(places)] == 17
    return [out[i] for i in range(len(places))]


def test_crc_of_pieces_of_every_length_equals_the_reference():
    """Pieces have 4 to 700 bytes, at any place, even at the start of the buffer, in any
    number."""
    rng = random.Random(5)
    data = rng.randbytes(1500)
    memory = ffi.from_buffer("uint8_t[]", data)
    sizes = [*range(4, 701), *range(4, 70)]
    rng.shuffle(sizes)
    while sizes:
        part = [sizes.pop() for _ in range(min(rng.randrange(1, 9), len(sizes)))]
        places = [(rng.choice((0, 1, 31, 32, 33, rng.randrange(800))), n) for n in part]
        expected = [zlib.crc32(data[p : p + n]) for p, n in places]
        assert pieces(memory, places) == expected
    assert pieces(memory, []) == []


def test_crc_of_pieces_reads_nothing_outside_the_buffer():
    """Neither bytes before the buffer nor bytes after a piece are read."""
    memory = Guarded(4096)
    data = random.Random(6).randbytes(1100)
    for size in (*range(4, 300), 511, 512, 513, 1024, 1100):
        for start in {0, min(size - 4, 1), min(size - 4, 31), min(size - 4, 40)}:
            expected = [zlib.crc32(data[start:size])]
            for place in (memory.at_begin, memory.at_end):
                at = place(data[:size])
                assert pieces(at, [(start, size - start)]) == expected


def test_crc_without_a_path_is_the_best_one(kind):
    """The plain functions choose by themselves."""
    data = random.Random(4).randbytes(777)
    assert kind[1](5, data, len(data)) == kind[2](data, 5)
    assert kind[1](5, ffi.NULL, 0) == 5


def test_crc_on_an_unknown_path_is_refused(kind):
    """*ok is 0 and the former checksum is returned."""
    ok = ffi.new("int32_t *", 1)
    assert kind[0](99, 17, b"abc", 3, ok) == 17
    assert ok[0] == 0


def test_crc32_has_no_instruction_on_x86():
    """SSE4.2 has one for CRC-32C only."""
    ok = ffi.new("int32_t *", 1)
    assert lib.ls_crc32_path(lib.LS_CRC_SSE42, 17, b"abc", 3, ok) == 17
    assert ok[0] == 0


def test_crc_hardware_agrees_with_the_paths():
    """A bit is set exactly if the hardware path answers."""
    ok = ffi.new("int32_t *")
    for bit, name in ((1, "crc32"), (2, "crc32c")):
        KINDS[name][0](lib.LS_CRC_HARDWARE, 0, b"", 0, ok)
        assert bool(lib.ls_crc_hardware() & bit) == bool(ok[0])
