"""Every bit flipped and every length cut, in memory without neighbours.

No outcome but a status or a stop is possible: a read outside ends the process.
"""

import pytest
from unit._native.kafka_bytes import (
    ORDER,
    Columns,
    Guarded,
    batch,
    decode,
    decode_payload,
    fix_crc,
    header_of,
    message,
    plain_batch,
    record,
    scan,
)

from logstore._native._ls import ffi, lib

HEADERS = record(1, b"k", None, headers=[(b"h", b"x"), (b"n", None)])
ENTRIES = {
    "v0": message(0, b"key", b"value", magic=0),
    "v1": message(0, None, b"value"),
    "v1-wrapper": message(1, None, message(0, b"k", b"v"), attributes=1),
    "v2": batch(0, record(0, b"k", b"v" * 70) + HEADERS, 2),
}
# Bytes that no checksum covers: the frame, and the epoch of magic 2.
UNCOVERED = {"v0": range(12), "v1": range(12), "v1-wrapper": range(12), "v2": range(17)}


@pytest.fixture(params=ENTRIES)
def name(request):
    return request.param


def walk_all(data, memory, checks):
    """Run every decoder; return the outcomes of scan and decode."""
    at = memory.at_end(data)
    size = len(data)
    scanned = scan(at, size, checks=checks, capacity=4)
    decoded = decode(at, size, checks=checks, capacity=8)
    for outcome in scanned, decoded:
        assert outcome.status < 0 or outcome.stop > 0
        assert 0 <= outcome.pos <= size
        if outcome.status < 0:
            assert outcome.error.status == outcome.status
            assert outcome.error.pos == outcome.pos
    state = ffi.new("ls_segment_state *", {"last_offset": -1})
    out = ffi.new("uint8_t[96]")
    plan = ffi.new("ls_plan *")
    error = ffi.new("ls_error *")
    status = lib.ls_plan_append(
        at, size, ffi.NULL, 0, state, out, 4, out, 4, plan, error
    )
    assert status < 0 or plan.stop > 0
    return scanned, decoded


def test_every_flipped_bit_is_found_where_the_checksum_covers(name):
    """The damage is before an intact entry, which must not be output wrongly."""
    entry = ENTRIES[name]
    follower = plain_batch(5, 1)
    memory = Guarded(4096)
    for bit in range(len(entry) * 8):
        damaged = bytearray(entry)
        damaged[bit // 8] ^= 1 << bit % 8
        scanned, decoded = walk_all(bytes(damaged) + follower, memory, 3)
        if bit // 8 not in UNCOVERED[name]:
            assert scanned.status < 0, bit
            compressed = decoded.stop == lib.LS_STOP_COMPRESSED
            assert decoded.status < 0 or compressed, bit
            assert decoded.items == []


def test_every_flipped_bit_with_a_right_checksum_stays_inside(name):
    """Such damage happened before the checksum was computed."""
    entry = ENTRIES[name]
    memory = Guarded(4096)
    for bit in range(len(entry) * 8):
        damaged = bytearray(entry)
        damaged[bit // 8] ^= 1 << bit % 8
        walk_all(fix_crc(bytes(damaged)), memory, 3)
        walk_all(bytes(damaged), memory, ORDER)
        walk_all(bytes(damaged), memory, 0)


def test_every_cut_stays_inside(name):
    """This holds even if the length field says that the entry is complete."""
    entry = ENTRIES[name]
    memory = Guarded(4096)
    for size in range(len(entry)):
        scanned, decoded = walk_all(entry[:size], memory, 3)
        assert scanned.status == decoded.status == 0
        assert scanned.items == decoded.items == []
        if size >= 18:
            length = (size - 12).to_bytes(4, "big")
            cut = entry[:8] + length + entry[12:size]
            walk_all(cut, memory, 0)
            walk_all(fix_crc(cut), memory, 3)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_flipped_bit_of_a_payload_stays_inside(magic):
    """Payloads are decompressed, with and without the inner checksums."""
    if magic == 2:
        payload = ENTRIES["v2"][61:]
        header = header_of(ENTRIES["v2"])
    else:
        payload = b"".join(message(i, b"k", b"v", magic=magic) for i in range(2))
        header = header_of(message(9, None, b"zip", magic=magic, attributes=1))
    memory = Guarded(4096)
    count = ffi.new("int64_t *")
    error = ffi.new("ls_error *")
    columns = Columns(8)
    for bit in range(len(payload) * 8):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        at = memory.at_end(bytes(damaged))
        for checks in (3, 0):
            found = decode_payload(header, at, len(payload), checks=checks)
            if found.status < 0:
                assert found.items == []
                assert 0 <= found.error.pos <= len(payload)
        lib.ls_count_inner(at, len(payload), count, error)
        lib.ls_decode_headers(
            at,
            len(payload),
            bit // 8,
            3,
            columns.raw.key_pos,
            columns.raw.key_len,
            columns.raw.value_pos,
            columns.raw.value_len,
            error,
        )
