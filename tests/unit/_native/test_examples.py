"""The worked examples of the format's description, byte for byte, both ways."""

import gzip

import pytest
from unit._native.kafka_bytes import (
    Record,
    Records,
    T,
    Writer,
    decode,
    decode_payload,
    fix_crc,
    header_of,
    patched,
    record,
    scan,
)

from logstore._native._ls import ffi, lib


def unhex(text):
    return bytes.fromhex("".join(text.split()))


V0_KV = unhex("0000000000000005 00000010 1fecd70a 00 00 00000001 6b 00000001 76")
V0_NULL = unhex("0000000000000005 0000000e a7ec6803 00 00 ffffffff ffffffff")
V1_KV = unhex(
    "0000000000000005 00000018 39268c33 01 00 0000018bcfe56800 00000001 6b 00000001 76"
)
V1_APPEND_TIME = unhex(
    "0000000000000005 00000018 9f728f17 01 08 0000018bcfe58f0f 00000001 6b 00000001 76"
)
V1_TWO = unhex(
    "000000000000000a 00000018 70057b66 01 00 0000018bcfe56800 00000001 61 00000001 31"
    "000000000000000b 00000018 1ecff430 01 00 0000018bcfe56805 00000001 62 00000001 32"
)
V1_GZIP = unhex(
    """000000000000000c 00000064 dc5d2e0c 01 01 0000018bcfe56805 ffffffff 0000004e
    1f8b08000000000000ff636080038902d6ea34462083b1fbfcd30c90086322883084ca83a424e4ce7f
    3180ab61053192408411540d13488d97e25d07b81a6610231944180300fe2b64f66c000000"""
)
V0_LZ4 = unhex(
    """000000000000000c 00000064 ee06110a 00 03 ffffffff 00000056
    04224d18 60 40 1a 47000000 12000100910a0000001056cf205f0f0071016100000001310c003000
    000b1c00404952034b0d0030000162050011320c003000000c1c0040f509e0780d00800001630000
    000133 00000000"""
)
V2_PLAIN = unhex(
    """000000000000000a 0000004c ffffffff 02 745ae989 0000 00000002 0000018bcfe56800
    0000018bcfe56805 ffffffffffffffff ffff ffffffff 00000003
    10 00 00 00 02 61 02 31 00
    10 00 0a 02 02 62 02 32 00
    10 00 06 04 02 63 02 33 00"""
)
V2_GZIP_AREA = unhex(
    """1f8b08000000000000ff13606060604a6432641060e062624a62320232d8589892998c19000f21af16
    1b000000"""
)
V2_APPEND_TIME = unhex(
    """000000000000000a 00000043 ffffffff 02 ce30c904 0008 00000001 0000018bcfe56800
    0000018bcfe58f0f ffffffffffffffff ffff ffffffff 00000002
    10000000026102310010000a020262023200"""
)
V2_TRANSACTIONAL = unhex(
    """0000000000000000 0000003a ffffffff 02 a9c71024 0010 00000000 0000018bcfe56800
    0000018bcfe56800 0000000000000fa0 0001 00000003 00000001 1000000002610231 00"""
)
V2_HEADER_ONLY = unhex(
    """000000000000000a 00000031 00000005 02 7dd5ac4b 0000 00000002 ffffffffffffffff
    0000018bcfe56805 0000000000000fa0 0001 00000003 00000000"""
)
V2_COMMIT = unhex(
    """0000000000000000 00000042 ffffffff 02 9511fa90 0030 00000000 0000018bcfe56800
    0000018bcfe56800 0000000000000fa0 0001 ffffffff 00000001
    20 00 00 00 08 0000 0001 0c 0000 00000007 00"""
)
V2_BEFORE_HORIZON = unhex(
    """000000000000000a 00000042 ffffffff 02 54c5b11c 0000 00000001 0000018bcfe56800
    0000018bcfe56805 ffffffffffffffff ffff ffffffff 00000002
    0e00000002610100 10000a020262023200"""
)
V2_AFTER_HORIZON = unhex(
    """000000000000000a 00000048 ffffffff 02 afd3855e 0040 00000001 0000018bd50d4aa0
    0000018bcfe56805 ffffffffffffffff ffff ffffffff 00000002
    1400bf8abf52000261 0100 1600b58abf52020262023200"""
)

V0_LZ4_INNER = unhex(
    """000000000000000a 00000010 56cf205f 00 00 00000001 61 00000001 31
    000000000000000b 00000010 4952034b 00 00 00000001 62 00000001 32
    000000000000000c 00000010 f509e078 00 00 00000001 63 00000001 33"""
)

WHOLE = {
    "v0": (V0_KV, [Record(5, -1, -1, b"k", b"v")]),
    "v0-null": (V0_NULL, [Record(5, -1, -1, None, None)]),
    "v1": (V1_KV, [Record(5, T, 0, b"k", b"v")]),
    "v1-append-time": (V1_APPEND_TIME, [Record(5, T + 9999, 1, b"k", b"v")]),
    "v1-two": (
        V1_TWO,
        [Record(10, T, 0, b"a", b"1"), Record(11, T + 5, 0, b"b", b"2")],
    ),
    "v2": (
        V2_PLAIN,
        [
            Record(10, T, 0, b"a", b"1"),
            Record(11, T + 5, 0, b"b", b"2"),
            Record(12, T + 3, 0, b"c", b"3"),
        ],
    ),
    "v2-append-time": (
        V2_APPEND_TIME,
        [Record(10, T + 9999, 1, b"a", b"1"), Record(11, T + 9999, 1, b"b", b"2")],
    ),
    "v2-transactional": (V2_TRANSACTIONAL, [Record(0, T, 0, b"a", b"1")]),
    "v2-header-only": (V2_HEADER_ONLY, []),
    "v2-control": (V2_COMMIT, []),
    "v2-tombstone": (
        V2_BEFORE_HORIZON,
        [Record(10, T, 0, b"a", None), Record(11, T + 5, 0, b"b", b"2")],
    ),
    "v2-delete-horizon": (
        V2_AFTER_HORIZON,
        [Record(10, T, 0, b"a", None), Record(11, T + 5, 0, b"b", b"2")],
    ),
}


@pytest.mark.parametrize(("entry", "records"), WHOLE.values(), ids=WHOLE)
def test_example_decodes_to_its_records(entry, records):
    """It passes all checks."""
    found = decode(entry)
    assert (found.status, found.stop) == (0, lib.LS_STOP_END)
    assert found.items == records
    assert found.pos == len(entry)


def test_example_messages_are_written_byte_for_byte():
    """Formats are magic 0 and 1, with create time and log append time."""
    assert Writer(Records([(b"k", b"v")]), 100).messages(0, base_offset=5)[1] == V0_KV
    assert Writer(Records([(None, None)]), 26).messages(0, base_offset=5)[1] == V0_NULL
    assert Writer(Records([(b"k", b"v")]), 36).messages(1, base_offset=5)[1] == V1_KV
    late = Records([(b"k", b"v")], timestamp_all=T + 9999)
    written = Writer(late, 36).messages(1, base_offset=5, attributes=8)
    assert written == (0, V1_APPEND_TIME)
    two = Records([(b"a", b"1"), (b"b", b"2")], timestamps=[T, T + 5])
    writer = Writer(two, len(V1_TWO))
    assert writer.messages(1, base_offset=10) == (0, V1_TWO)
    assert writer.written.base_timestamp == T
    assert writer.written.max_timestamp == T + 5


def seal(area, **fields):
    raw = ffi.new("ls_batch *", {"magic": 2, "payload_size": len(area)})
    for name, value in fields.items():
        setattr(raw, name, value)
    out = ffi.new("uint8_t[]", 61 + len(area))
    ffi.memmove(out + 61, area, len(area))
    assert lib.ls_seal_batch(out, len(out), raw) == 0
    assert raw.size == len(out)
    return bytes(ffi.buffer(out))


FIELDS = (
    "base_offset",
    "last_offset",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "leader_epoch",
    "record_count",
    "attributes",
)


@pytest.mark.parametrize(
    "entry",
    [V2_PLAIN, V2_APPEND_TIME, V2_TRANSACTIONAL, V2_HEADER_ONLY, V2_COMMIT],
    ids=["plain", "append-time", "transactional", "header-only", "control"],
)
def test_example_batch_is_sealed_byte_for_byte(entry):
    """The header that was read is written again before the same records."""
    header = header_of(entry)
    assert header.payload_pos == 61
    assert header.payload_size == len(entry) - 61
    assert seal(entry[61:], **{f: getattr(header, f) for f in FIELDS}) == entry


def test_example_record_areas_are_written_byte_for_byte():
    """Areas have three records, headers with a null value, an empty key and value."""
    three = Records(
        [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], timestamps=[T, T + 5, T + 3]
    )
    writer = Writer(three, 27)
    assert writer.area() == (0, V2_PLAIN[61:])
    assert (writer.written.base_timestamp, writer.written.max_timestamp) == (T, T + 5)
    headers = Records([(None, None)], headers=[[(b"h", b"x"), (b"n", None)]])
    assert Writer(headers, 14).area()[1] == unhex("1a00000001010402680278026e01")
    assert Writer(Records([(b"", b"")]), 7).area()[1] == unhex("0c000000000000")


def test_example_batch_header_has_all_fields():
    """The header-only batch that compaction kept."""
    header = header_of(V2_HEADER_ONLY)
    assert {f: getattr(header, f) for f in FIELDS} == {
        "base_offset": 10,
        "last_offset": 12,
        "base_timestamp": -1,
        "max_timestamp": T + 5,
        "producer_id": 4000,
        "producer_epoch": 1,
        "base_sequence": 3,
        "leader_epoch": 5,
        "record_count": 0,
        "attributes": 0,
    }
    assert (header.magic, header.codec, header.timestamp_type) == (2, 0, 0)
    assert (header.size, header.crc) == (61, 0x7DD5AC4B)


def test_example_control_batch_decodes_when_asked_for_itself():
    """ls_decode leaves it out, ls_decode_payload does not."""
    found = decode_payload(header_of(V2_COMMIT), V2_COMMIT[61:])
    assert found.items == [
        Record(0, T, 0, unhex("00000001"), unhex("000000000007")),
    ]


def test_example_gzip_wrapper_resolves_its_offsets():
    """Relative inner offsets, the wrapper has the last one."""
    header = header_of(V1_GZIP)
    assert (header.base_offset, header.last_offset) == (-1, 12)
    assert (header.codec, header.record_count, header.max_timestamp) == (1, -1, T + 5)
    value = V1_GZIP[header.payload_pos :][: header.payload_size]
    found = decode_payload(header, gzip.decompress(value))
    assert found.status == 0
    assert found.last_offset == 10
    assert found.items == [
        Record(10, T, 0, b"a", b"1"),
        Record(11, T + 5, 0, b"b", b"2"),
        Record(12, T + 3, 0, b"c", b"3"),
    ]


def test_example_lz4_wrapper_of_magic_0_has_absolute_offsets():
    """The inner messages of the example, decompressed."""
    header = header_of(V0_LZ4)
    assert (header.codec, header.last_offset, header.timestamp_type) == (3, 12, -1)
    found = decode_payload(header, V0_LZ4_INNER)
    assert found.last_offset == 10
    assert found.items == [
        Record(10, -1, -1, b"a", b"1"),
        Record(11, -1, -1, b"b", b"2"),
        Record(12, -1, -1, b"c", b"3"),
    ]


def test_example_gzip_record_area_decodes_like_the_plain_one():
    """A header that says gzip, and the decompressed area."""
    plain = decode_payload(header_of(V2_PLAIN), V2_PLAIN[61:])
    entry = V2_PLAIN[:61] + V2_GZIP_AREA
    length = (len(entry) - 12).to_bytes(4, "big")
    entry = fix_crc(patched(patched(entry, 8, length), 21, b"\0\1"))
    assert entry[17:21].hex() == "906232e1"
    header = header_of(entry)
    area = gzip.decompress(V2_GZIP_AREA)
    assert area == V2_PLAIN[61:]
    assert decode_payload(header, area).items == plain.items


def test_example_python_twin_writes_the_same_record():
    """The Python reference of the other tests agrees with the example."""
    assert record(0, None, None, headers=[(b"h", b"x"), (b"n", None)]) == unhex(
        "1a00000001010402680278026e01"
    )


def test_examples_in_one_file_are_walked_over_in_order():
    """All magics mixed, as a segment may have them."""
    parts = [
        V0_KV,
        patched(V1_KV, 7, b"\x06"),
        patched(V2_PLAIN, 7, b"\x07"),
        patched(V1_GZIP, 7, b"\x14"),
        patched(V2_HEADER_ONLY, 7, b"\x20"),
    ]
    data = b"".join(parts)
    found = scan(data)
    assert (found.status, found.stop, found.pos) == (0, lib.LS_STOP_END, len(data))
    assert [b.last_offset for b in found.items] == [5, 6, 9, 20, 34]
    assert [b.size for b in found.items] == [len(p) for p in parts]
