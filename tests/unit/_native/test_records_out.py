"""Record areas, wrappers and headers that contradict themselves."""

import pytest
from unit._native.kafka_bytes import (
    ORDER,
    Guarded,
    Record,
    T,
    batch,
    decode,
    decode_payload,
    header_of,
    message,
    patched,
    record,
    varint,
)

from logstore._native._ls import ffi, lib


def area_of(area, count=1, last_delta=None):
    """Decode an area whose batch is as it should be; both ways must agree."""
    entry = batch(10, area, count, last_delta=last_delta)
    found = decode(entry)
    direct = decode_payload(header_of(entry), area)
    assert direct.status == found.status
    if found.status < 0:
        assert found.items == []
        assert found.error.pos == 0
        assert 0 <= direct.error.pos <= len(area)
        assert (found.error.offset, direct.error.offset) == (10, 10)
    return found


def raw_record(body):
    return varint(len(body)) + body


GOOD = record(0, b"k", b"v")
BAD_AREAS = {
    "length-zero": (b"\0" + GOOD[1:], lib.LS_E_LENGTH),
    "length-negative": (varint(-5) + GOOD[1:], lib.LS_E_LENGTH),
    "length-too-small": (varint(5) + bytes(8), lib.LS_E_LENGTH),
    "length-beyond-the-area": (varint(9) + GOOD[1:], lib.LS_E_LENGTH),
    "length-varint-too-long": (b"\xff" * 5 + GOOD[1:], lib.LS_E_VARINT),
    "area-ends-in-a-varint": (b"\xff" * 4 + b"\xff\xff\xff", lib.LS_E_VARINT),
    "bytes-after-the-last": (GOOD + b"\0", lib.LS_E_RECORD),
    "key-beyond-the-record": (raw_record(b"\0\0\0\x08k\2v\0"), lib.LS_E_RECORD),
    "key-length-below-null": (raw_record(b"\0\0\0\3\2v\0\0"), lib.LS_E_RECORD),
    "value-beyond-the-record": (raw_record(b"\0\0\0\2k\x0cv\0"), lib.LS_E_RECORD),
    "value-length-below-null": (raw_record(b"\0\0\0\2k\3v\0"), lib.LS_E_RECORD),
    "record-goes-on": (raw_record(b"\0\0\0\2k\2v\0\0"), lib.LS_E_RECORD),
    "no-header-count": (raw_record(b"\0\0\0\2k\4vv"), lib.LS_E_RECORD),
    "timestamp-varint-too-long": (
        raw_record(b"\0" + b"\xff" * 10 + b"\0\0\0\0"),
        lib.LS_E_VARINT,
    ),
    "timestamp-cut-by-the-record": (raw_record(b"\0" + b"\xff" * 6), lib.LS_E_RECORD),
    "offset-varint-too-long": (
        raw_record(b"\0\0" + b"\xff" * 5 + b"\0\0\0"),
        lib.LS_E_VARINT,
    ),
    "key-length-varint-too-long": (
        raw_record(b"\0\0\0" + b"\xff" * 5 + b"\0\0"),
        lib.LS_E_VARINT,
    ),
    "header-count-varint-too-long": (
        raw_record(b"\0\0\0\1\1" + b"\xff" * 5),
        lib.LS_E_VARINT,
    ),
    "header-count-negative": (raw_record(b"\0\0\0\1\1\1"), lib.LS_E_COUNT),
    "header-count-too-large": (raw_record(b"\0\0\0\1\1\4\0\0\0"), lib.LS_E_COUNT),
    "header-key-null": (raw_record(b"\0\0\0\1\1\2\1\0"), lib.LS_E_HEADER_KEY),
    "header-key-beyond": (raw_record(b"\0\0\0\1\1\2\x08a\0"), lib.LS_E_RECORD),
    "header-value-beyond": (raw_record(b"\0\0\0\1\1\2\2a\x08"), lib.LS_E_RECORD),
    "header-value-below-null": (raw_record(b"\0\0\0\1\1\2\2a\3"), lib.LS_E_RECORD),
    "offset-delta-negative": (record(-1, b"k", b"v"), lib.LS_E_OFFSET),
    "offset-delta-beyond-the-batch": (record(1, b"k", b"v"), lib.LS_E_OFFSET),
    "no-record": (b"", lib.LS_E_COUNT),
}


@pytest.mark.parametrize(("area", "status"), BAD_AREAS.values(), ids=BAD_AREAS)
def test_area_that_contradicts_itself_is_an_error(area, status):
    """One record is promised; the checksum is right."""
    assert area_of(area).status == status


def test_area_with_fewer_records_than_promised_is_an_error():
    """The second record would begin where the area ends."""
    area = record(0, b"k" * 20, b"v")
    found = area_of(area, count=2)
    assert (found.status, found.error.found) == (lib.LS_E_RECORD, 1)


def test_area_with_offsets_that_do_not_increase_is_an_error():
    """Deltas are equal or fall."""
    for first, second in ((0, 0), (2, 1)):
        area = record(first, b"k", b"v") + record(second, b"k", b"v")
        assert area_of(area, 2, last_delta=5).status == lib.LS_E_OFFSET


def test_area_with_gaps_keeps_its_offsets():
    """Compaction leaves such areas."""
    area = record(2, b"k", b"v") + record(7, b"k", b"v")
    found = area_of(area, 2, last_delta=9)
    assert [r.offset for r in found.items] == [12, 17]
    assert found.last_offset == 19


def test_area_into_too_small_columns_tells_what_is_needed():
    """ls_decode_payload too puts out all or nothing."""
    area = GOOD + record(1, b"k", b"v")
    header = header_of(batch(10, area, 2))
    found = decode_payload(header, area, capacity=1)
    assert (found.status, found.error.expected) == (lib.LS_E_NO_SPACE, 2)
    assert found.items == []
    assert len(decode_payload(header, area, capacity=2).items) == 2


def test_area_reads_nothing_outside_itself():
    """Every cut of an area in memory that ends with the area."""
    area = record(0, b"k", b"v" * 100, headers=[(b"h", None)], timestamp_delta=-(2**40))
    memory = Guarded(4096)
    header = header_of(batch(10, area, 1))
    for size in range(len(area)):
        found = decode_payload(header, memory.at_end(area[:size]), size)
        assert found.status < 0


def test_payload_of_a_plain_message_is_our_own_mistake():
    """There is nothing to decompress."""
    header = header_of(message(1, b"k", b"v"))
    assert decode_payload(header, b"v").status == lib.LS_E_ARGUMENT
    header = header_of(batch(0, GOOD, 1))
    assert decode_payload(header, GOOD, -1).status == lib.LS_E_ARGUMENT
    header.magic = 3
    assert decode_payload(header, GOOD).status == lib.LS_E_ARGUMENT


# ------------------------------------------------------------------ wrappers


def wrapper(offset, magic=1, **kwargs):
    return header_of(message(offset, None, b"zip", magic=magic, attributes=1, **kwargs))


def inner(*offsets, magic=1, **kwargs):
    return b"".join(message(o, b"k", b"v", magic=magic, **kwargs) for o in offsets)


def test_wrapper_with_gaps_counts_back_from_its_last():
    """Relative offsets are 0, 3, 5 below wrapper offset 105."""
    found = decode_payload(wrapper(105), inner(0, 3, 5))
    assert [r.offset for r in found.items] == [100, 103, 105]
    assert found.last_offset == 100


def test_wrapper_with_offset_0_takes_inner_offsets_as_they_are():
    """Clients write it so, before a broker has seen it."""
    for magic in (0, 1):
        found = decode_payload(wrapper(0, magic), inner(0, 1, 2, magic=magic))
        assert [r.offset for r in found.items] == [0, 1, 2]


def test_wrapper_with_log_append_time_gives_it_to_all():
    """All records get the time and type of the wrapper."""
    entry = message(9, None, b"zip", attributes=1 | 8, timestamp=T + 50)
    found = decode_payload(header_of(entry), inner(0, 1))
    assert found.items == [
        Record(8, T + 50, 1, b"k", b"v"),
        Record(9, T + 50, 1, b"k", b"v"),
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_before_its_last_record_is_an_error(magic):
    """The wrapper's offset is that of its last record, or unknown (0)."""
    found = decode_payload(wrapper(4, magic), inner(3, 5, magic=magic))
    assert (found.status, found.error.found) == (lib.LS_E_OFFSET, 5)


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (-1, 0), (0, 5, 3), (7, 3)])
def test_wrapper_with_offsets_that_do_not_increase_is_an_error(offsets):
    """Inner offsets rise from 0."""
    for outer in (0, 50):
        assert decode_payload(wrapper(outer), inner(*offsets)).status == lib.LS_E_OFFSET


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_without_records_is_an_error(magic):
    """The payload is empty, or the value null."""
    assert decode_payload(wrapper(4, magic), b"").status == lib.LS_E_EMPTY
    entry = message(4, None, None, magic=magic, attributes=1)
    header = header_of(entry)
    assert header.payload_size == -1
    assert decode_payload(header, ffi.NULL, 0).status == lib.LS_E_EMPTY


def test_wrapper_in_a_wrapper_is_an_error():
    """The inner message is compressed, or of no magic of messages."""
    nested = message(1, None, b"zip", attributes=2)
    assert decode_payload(wrapper(9), inner(0) + nested).status == lib.LS_E_NESTED
    two = batch(0, GOOD, 1)
    assert decode_payload(wrapper(9), two).status == lib.LS_E_NESTED
    unknown = patched(inner(0), 16, b"\x09")
    assert decode_payload(wrapper(9), unknown).status == lib.LS_E_NESTED


def test_wrapper_may_hold_messages_of_the_other_magic():
    """The wrapper's magic says what the offsets count from; that of a message, whether
    it has a timestamp."""
    mixed = inner(0) + inner(1, magic=0) + inner(2)
    found = decode_payload(wrapper(9), mixed)
    assert found.status == 0
    assert [r.offset for r in found.items] == [7, 8, 9]
    assert [r.timestamp == -1 for r in found.items] == [False, True, False]
    found = decode_payload(wrapper(9, 0), inner(7, 8, 9))
    assert found.status == 0
    assert [r.offset for r in found.items] == [7, 8, 9]


def test_wrapper_with_a_wrong_inner_checksum_is_an_error():
    """The caller may leave the check out."""
    data = inner(0) + patched(inner(1), len(inner(1)) - 1, b"?")
    found = decode_payload(wrapper(9), data)
    assert (found.status, found.error.pos) == (lib.LS_E_CRC, len(inner(0)))
    assert decode_payload(wrapper(9), data, checks=ORDER).status == 0


def test_wrapper_cut_short_is_an_error_at_every_place():
    """A payload is complete by itself: no partial tail, no zeros."""
    data = inner(0, 1)
    half = len(data) // 2
    memory = Guarded(4096)
    count = ffi.new("int64_t *")
    error = ffi.new("ls_error *")
    for size in range(1, len(data)):
        part = memory.at_end(data[:size])
        expected = 0 if size == half else lib.LS_E_LENGTH
        assert decode_payload(wrapper(9), part, size).status == expected
        assert lib.ls_count_inner(part, size, count, error) == expected
    assert decode_payload(wrapper(9), data + bytes(20)).status == lib.LS_E_LENGTH


def test_wrapper_with_lengths_that_do_not_fit_is_an_error():
    """Key and value must fill the inner message."""
    data = patched(inner(0), 26, b"\0\0\0\2")
    found = decode_payload(wrapper(9), data, checks=ORDER)
    assert found.status == lib.LS_E_LENGTH


def test_wrapper_into_too_small_columns_tells_what_is_needed():
    """The needed number is that of all inner records."""
    found = decode_payload(wrapper(9), inner(0, 1, 2), capacity=2)
    assert (found.status, found.error.expected) == (lib.LS_E_NO_SPACE, 3)


def test_count_inner_counts_both_magics():
    """Checksums are not looked at."""
    count = ffi.new("int64_t *")
    error = ffi.new("ls_error *")
    for magic in (0, 1):
        data = patched(inner(0, 1, 2, magic=magic), 12, b"????")
        assert lib.ls_count_inner(data, len(data), count, error) == 0
        assert count[0] == 3
    assert lib.ls_count_inner(b"", 0, count, error) == 0
    assert count[0] == 0
    data = batch(0, GOOD, 1)
    assert lib.ls_count_inner(data, len(data), count, error) == lib.LS_E_NESTED
    assert lib.ls_count_inner(data, -1, count, error) == lib.LS_E_ARGUMENT


# ------------------------------------------------------------------ headers


def headers_status(data, count, pos=0, size=None):
    memory = Guarded(64)
    arrays = [ffi.new("int32_t[8]") for _ in range(4)]
    error = ffi.new("ls_error *")
    size = len(data) if size is None else size
    status = lib.ls_decode_headers(
        memory.at_end(data), size, pos, count, *arrays, error
    )
    assert error.status == status
    return status


def test_headers_that_contradict_themselves_are_errors():
    """Lengths, counts, null keys and positions contradict each other."""
    assert headers_status(b"\2a\2b", 1) == 0
    assert headers_status(b"\2a\1", 1) == 0
    assert headers_status(b"", 0) == 0
    assert headers_status(b"\2a\2b", 3) == lib.LS_E_COUNT
    assert headers_status(b"\2a\2b", -1) == lib.LS_E_COUNT
    assert headers_status(b"\1\2a\2", 1) == lib.LS_E_HEADER_KEY
    assert headers_status(b"\2a\x08b", 1) == lib.LS_E_RECORD
    assert headers_status(b"\x0ca\2b", 1) == lib.LS_E_RECORD
    assert headers_status(b"\2a\3b", 1) == lib.LS_E_RECORD
    assert headers_status(b"\xff" * 6, 1) == lib.LS_E_VARINT
    assert headers_status(b"\xff" * 4, 1) == lib.LS_E_RECORD
    assert headers_status(b"ab", 0, pos=3) == lib.LS_E_ARGUMENT
    assert headers_status(b"ab", 0, size=-1) == lib.LS_E_ARGUMENT
