"""Writing records: messages, record areas, measuring, sealing, other offsets."""

import random
import zlib

import crc32c
import pytest
from unit._native.kafka_bytes import (
    OFFSET_MAX,
    Guarded,
    Record,
    Records,
    T,
    Writer,
    batch,
    decode,
    decode_payload,
    header_of,
    message,
    new_walk,
    patched,
    plain_batch,
    record,
    scan,
    varint,
)

from logstore._native._ls import ffi, lib

# Null, empty, and lengths at which the short copies change their way.
LENGTHS = (None, 0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129)


def some(rng, length):
    return None if length is None else rng.randbytes(length)


@pytest.fixture(params=[1, 2])
def rows(request):
    rng = random.Random(request.param)
    return [
        (some(rng, key), some(rng, value))
        for key in LENGTHS
        for value in rng.sample(LENGTHS, 5)
    ] + [(None, rng.randbytes(70_000))]


@pytest.fixture(params=[False, True], ids=["packed", "spread"])
def spread(request):
    return request.param


def measure(records, magic, max_bytes=2**31 - 1):
    total = ffi.new("int64_t *")
    error = ffi.new("ls_error *")
    status = lib.ls_measure(records.raw, magic, max_bytes, total, error)
    return status, total[0], error


# ------------------------------------------------------------------ messages


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_equal_the_reference_and_come_back(rows, spread, magic):
    """Keys and values have every length, and go into exactly the measured space."""
    times = [T + (i * 7) % 11 for i in range(len(rows))]
    records = Records(rows, timestamps=times, spread=spread)
    expected = b"".join(
        message(100 + i, key, value, magic=magic, timestamp=times[i])
        for i, (key, value) in enumerate(rows)
    )
    assert measure(records, magic)[:2] == (0, len(expected))
    writer = Writer(records, len(expected))
    assert writer.messages(magic, base_offset=100) == (0, expected)
    assert writer.written.count == len(rows)
    assert writer.written.max_timestamp == (max(times) if magic else -1)
    assert writer.written.base_timestamp == (times[0] if magic else -1)
    found = decode(expected)
    assert found.items == [
        Record(100 + i, times[i] if magic else -1, 0 if magic else -1, key, value)
        for i, (key, value) in enumerate(rows)
    ]


def test_messages_go_on_where_the_space_ended(rows, spread):
    """Several calls with one cursor give the same bytes as one."""
    records = Records(rows, spread=spread)
    whole = b"".join(message(i, k, v) for i, (k, v) in enumerate(rows))
    writer = Writer(records, 70_100)
    parts = []
    done = 0
    while done < len(rows):
        status, part = writer.messages(1, base_offset=done)
        assert status == 0
        parts.append(part)
        done += writer.written.count
        assert writer.cursor.index == done
    assert b"".join(parts) == whole
    assert len(parts) > 1
    assert writer.messages(1) == (0, b"")


def test_messages_stop_at_their_count():
    """The first call stops at count_max, the next one writes the rest."""
    rows = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    writer = Writer(Records(rows), 1000)
    assert writer.messages(1, count_max=2)[1] == b"".join(
        message(i, *rows[i]) for i in range(2)
    )
    assert writer.messages(1, count_max=0) == (0, b"")
    assert writer.messages(1, base_offset=2)[1] == message(2, b"c", b"3")


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_without_space_for_one_write_nothing(magic):
    """The space is one byte too small; the cursor stays."""
    needed = len(message(0, b"key", b"value", magic=magic))
    writer = Writer(Records([(b"key", b"value")]), needed - 1)
    assert writer.messages(magic) == (lib.LS_E_NO_SPACE, b"")
    assert writer.cursor.index == 0


def test_messages_of_another_magic_are_our_own_mistake():
    """Magic 2, and headers, are not possible in messages."""
    assert Writer(Records([(b"a", b"b")]), 99).messages(2)[0] == lib.LS_E_ARGUMENT
    assert Writer(Records([(b"a", b"b")]), 99).messages(-1)[0] == lib.LS_E_ARGUMENT
    headers = Records([(b"a", b"b")], headers=[[(b"h", b"v")]])
    assert Writer(headers, 99).messages(1)[0] == lib.LS_E_ARGUMENT


# ------------------------------------------------------------------ record areas


def test_area_and_measure_without_headers_are_those_with_none(rows, spread):
    """There is a shorter way if no record has any; lengths take 1 to 4 bytes."""
    rows = [
        *rows,
        *((None, bytes(n)) for n in (62, 8191, 8192, (1 << 20) - 1, 1 << 20)),
    ]
    times = [T + i * (i % 7 - 3) * 10**7 for i in range(len(rows))]
    plain, empty = (
        Records(rows, timestamps=times, headers=headers, spread=spread)
        for headers in (None, [[]] * len(rows))
    )
    status, total, _ = measure(plain, 2)
    assert (status, total) == measure(empty, 2)[:2]
    largest = len(batch(0, record(0, *rows[-1]), 1))
    assert measure(plain, 2, largest)[:2] == (0, total)
    status, _, error = measure(plain, 2, largest - 1)
    assert (status, error.offset) == (lib.LS_E_TOO_LARGE, len(rows) - 1)
    for room in (total, 70_100, 9_000):
        found = []
        for records in (plain, empty):
            writer = Writer(records, room)
            status, data = writer.area()
            written = writer.written
            found.append((status, data, written.count, written.max_timestamp))
        assert found[0] == found[1]
        assert found[0][0] == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("which", ["key", "value"])
def test_measure_refuses_a_length_below_null(magic, which):
    records = Records([(b"a", b"b"), (b"c", b"d")])
    getattr(records.raw, which).len[1] = -2
    status, _, error = measure(records, magic)
    assert (status, error.offset) == (lib.LS_E_LENGTH, 1)


@pytest.mark.parametrize("seed", range(3))
def test_area_equals_the_reference_and_comes_back(rows, spread, seed):
    """Keys, values and headers have every length, timestamps go back and forth."""
    rng = random.Random(seed)
    times = [T + rng.randrange(-(10**9), 10**9) for _ in rows]
    headers = [
        [
            (b"h" * rng.randrange(80), some(rng, rng.choice(LENGTHS)))
            for _ in range(rng.choice((0, 0, 1, 2, 70)))
        ]
        for _ in rows
    ]
    records = Records(rows, timestamps=times, headers=headers, spread=spread)
    expected = b"".join(
        record(i, k, v, timestamp_delta=times[i] - times[0], headers=headers[i])
        for i, (k, v) in enumerate(rows)
    )
    status, total, _ = measure(records, 2)
    assert status == 0
    assert len(expected) <= total <= len(expected) + 10 * len(rows)
    writer = Writer(records, len(expected))
    assert writer.area() == (0, expected)
    assert writer.written.base_timestamp == times[0]
    assert writer.written.max_timestamp == max(times)
    entry = batch(50, expected, len(rows), base_timestamp=times[0])
    assert decode(entry).items == [
        Record(50 + i, times[i], 0, key, value, tuple(headers[i]))
        for i, (key, value) in enumerate(rows)
    ]


def test_area_goes_on_where_the_space_ended(rows, spread):
    """Several areas with one cursor, each with deltas from 0."""
    headers = [[(b"n", b"%d" % i)] * (i % 3) for i in range(len(rows))]
    records = Records(rows, headers=headers, spread=spread)
    writer = Writer(records, 70_100)
    found = []
    areas = 0
    while len(found) < len(rows):
        status, area = writer.area(count_max=17)
        assert status == 0
        count = writer.written.count
        assert 1 <= count <= 17
        entry = batch(len(found), area, count)
        found += decode(entry).items
        areas += 1
    assert [r[3:] for r in found] == [
        (*row, tuple(h)) for row, h in zip(rows, headers, strict=True)
    ]
    assert areas >= len(rows) / 17
    assert writer.area() == (0, b"")


def test_area_without_space_for_one_writes_nothing():
    """The space is one byte too small; the cursor stays, also in the headers."""
    records = Records([(b"key", b"value")], headers=[[(b"h", b"v")]])
    needed = len(record(0, b"key", b"value", headers=[(b"h", b"v")]))
    writer = Writer(records, needed - 1)
    assert writer.area() == (lib.LS_E_NO_SPACE, b"")
    assert (writer.cursor.index, writer.cursor.header) == (0, 0)
    assert writer.area(count_max=0) == (0, b"")


def test_area_of_timestamps_far_apart_comes_back():
    """Deltas have up to 64 bits, and wrap."""
    times = [-(2**63), 2**63 - 1, 0, -1]
    records = Records([(b"k", b"v")] * 4, timestamps=times)
    status, total, _ = measure(records, 2)
    assert status == 0
    status, area = Writer(records, total).area()
    assert status == 0
    entry = batch(0, area, 4, base_timestamp=times[0])
    assert [r.timestamp for r in decode(entry).items] == times


# ------------------------------------------------------------------ measuring


def test_measure_of_nothing_is_nothing():
    """The measure of no records is 0."""
    for magic in range(3):
        assert measure(Records([]), magic)[:2] == (0, 0)


def test_measure_names_the_first_record_beyond_the_limit():
    """Exactly the limit is allowed; a batch of one counts for magic 2."""
    rows = [(b"k", b"v" * 10), (b"k", b"v" * 100), (b"k", b"v" * 200)]
    sizes = {
        0: len(message(0, *rows[1], magic=0)),
        1: len(message(0, *rows[1])),
        2: len(batch(0, record(0, *rows[1]), 1)),
    }
    for magic, size in sizes.items():
        assert measure(Records(rows[:2]), magic, size)[0] == 0
        status, _, error = measure(Records(rows), magic, size - 1)
        assert status == lib.LS_E_TOO_LARGE
        assert (error.offset, error.expected, error.found) == (1, size - 1, size)


@pytest.mark.parametrize(
    "key",
    [None, b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"a\xe2\x82"],
)
def test_measure_refuses_a_header_key_that_is_no_text(key):
    """The key is null, or bytes that are not UTF-8."""
    records = Records([(b"a", b"b")] * 2, headers=[[(b"h", None)], [(key, b"v")]])
    status, _, error = measure(records, 2)
    assert (status, error.offset) == (lib.LS_E_HEADER_KEY, 1)


def test_measure_accepts_header_keys_of_all_utf8_lengths():
    """Characters have one to four bytes."""
    for text in ("", "a", "é", "ࠀ", "€", "\ud7ff", "\ue000", "𝄞", "\U0010ffff"):
        records = Records([(b"a", b"b")], headers=[[(text.encode(), b"v")]])
        assert measure(records, 2)[0] == 0, text


def test_measure_refuses_what_no_caller_may_pass():
    """Arguments are a wrong magic, lengths below -1, negative counts."""
    assert measure(Records([]), 3)[0] == lib.LS_E_ARGUMENT
    headers = Records([(b"a", b"b")], headers=[[(b"h", b"v")]])
    assert measure(headers, 1)[0] == lib.LS_E_ARGUMENT
    records = Records([(b"a", b"b")])
    records.raw.key.len = ffi.NULL
    assert measure(records, 1)[0] == 0
    lengths = ffi.new("int32_t[]", [-2])
    records.raw.value.len = lengths
    assert measure(records, 1)[0] == lib.LS_E_LENGTH
    counts = ffi.new("int32_t[]", [-1])
    records = Records([(b"a", b"b")])
    records.raw.header_count = counts
    status, _, error = measure(records, 2)
    assert (status, error.found) == (lib.LS_E_COUNT, -1)


# ------------------------------------------------------------------ sealing


def sealed(capacity=200, **fields):
    raw = ffi.new("ls_batch *")
    raw.magic = 2
    raw.payload_size = 7
    raw.record_count = 1
    for name, value in fields.items():
        setattr(raw, name, value)
    out = ffi.new("uint8_t[]", capacity)
    return lib.ls_seal_batch(out, capacity, raw), raw, out


def test_seal_sets_size_and_crc():
    """The result passes all checks."""
    area = record(0, b"", b"")
    out = ffi.new("uint8_t[]", 61 + len(area))
    ffi.memmove(out + 61, area, len(area))
    raw = ffi.new(
        "ls_batch *",
        {
            "magic": 2,
            "payload_size": len(area),
            "record_count": 1,
            "base_offset": 7,
            "last_offset": 9,
            "attributes": 0x18,
            "producer_id": 1 << 40,
            "producer_epoch": -1,
            "base_sequence": 5,
            "leader_epoch": 3,
            "base_timestamp": T,
            "max_timestamp": T + 1,
        },
    )
    assert lib.ls_seal_batch(out, len(out), raw) == 0
    header = header_of(bytes(ffi.buffer(out)))
    for name in dir(raw):
        if name not in ("payload_pos", "timestamp_type"):
            assert getattr(header, name) == getattr(raw, name), name


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"capacity": 67}, lib.LS_E_NO_SPACE),
        ({"payload_size": -1}, lib.LS_E_ARGUMENT),
        ({"payload_size": 2**31 - 61}, lib.LS_E_ARGUMENT),
        ({"magic": 1}, lib.LS_E_ARGUMENT),
        ({"base_offset": -1}, lib.LS_E_OFFSET),
        ({"base_offset": 5, "last_offset": 4}, lib.LS_E_OFFSET),
        ({"last_offset": 2**31}, lib.LS_E_OFFSET),
        ({"record_count": -1}, lib.LS_E_COUNT),
        ({"record_count": 2}, lib.LS_E_COUNT),
        ({"attributes": 5}, lib.LS_E_CODEC),
    ],
)
def test_seal_of_a_header_that_cannot_be_is_refused(fields, status):
    """No header is written that the reader would call damage."""
    assert sealed(**fields)[0] == status


@pytest.mark.parametrize(
    "entry",
    [message(1, b"k", b"v", magic=0), message(1, b"k", b"v"), plain_batch(1, 3)],
    ids=["v0", "v1", "v2"],
)
def test_assign_offset_changes_nothing_under_the_crc(entry):
    """Offsets change, and the epoch in magic 2; the entry is after another one."""
    data = bytearray(message(0, b"x", b"y") + entry)
    header = scan(bytes(data)).items[1]
    address = ffi.from_buffer("uint8_t[]", data, require_writable=True)
    assert lib.ls_assign_offset(address, header, 1000, 9) == 0
    found = scan(bytes(data))
    assert found.status == 0
    again = found.items[1]
    span = 2 if again.magic == 2 else 0
    assert (again.base_offset, again.last_offset) == (1000, 1000 + span)
    assert again.leader_epoch == (9 if again.magic == 2 else -1)
    assert lib.ls_assign_offset(address, again, -1, 9) < 0


def shifted(data, shift, last_offset=-1, epoch=9, **other):
    """(status, walk, bytes) of moving the offsets in a copy."""
    how = {"max_bytes": OFFSET_MAX, "timestamp": -1, "magic": -1, **other}
    how |= {"offsets": shift, "leader_epoch": epoch}
    copy = bytearray(data)
    walk = new_walk(0, last_offset)
    address = ffi.from_buffer("uint8_t[]", copy, require_writable=True)
    status = lib.ls_shift_offsets(address, len(copy), ffi.new("ls_shift *", how), walk)
    return status, walk, bytes(copy)


def test_shift_moves_the_offsets_of_all_batches():
    """It moves the offsets of messages, a wrapper (one offset) and batches of magic 2;
    nothing else changes."""
    entries = [
        message(0, b"k", b"v", magic=0),
        message(1, b"k", b"v"),
        message(4, None, b"three messages", attributes=1),
        plain_batch(5, 3),
    ]
    status, walk, moved = shifted(b"".join(entries), 1000)
    assert (status, walk.stop, walk.count) == (0, lib.LS_STOP_END, 4)
    found = scan(moved, walk=new_walk(0, 999))
    assert [b.last_offset for b in found.items] == [1000, 1001, 1004, 1007]
    assert [b.crc for b in found.items] == [
        b.crc for b in scan(b"".join(entries)).items
    ]
    assert found.items[3].leader_epoch == 9
    assert shifted(moved, -1000, 999, -1)[2] == b"".join(entries)


@pytest.mark.parametrize(
    ("data", "last_offset", "shift", "status"),
    [
        (patched(message(0, b"k", b"v"), 30, b"!"), -1, 5, lib.LS_E_CRC),
        (message(1, b"k", b"v"), -1, 5, lib.LS_E_OFFSET),
        (plain_batch(0, 2), 0, 5, lib.LS_E_OFFSET),
        (message(0, None, b"x", magic=0, attributes=1), -1, 5, lib.LS_E_MAGIC),
        (message(0, b"k", b"v"), -1, OFFSET_MAX, lib.LS_E_OFFSET),
        (message(0, b"k", b"v"), -1, -1, lib.LS_E_OFFSET),
        (plain_batch(0, 2), -1, -1, lib.LS_E_ARGUMENT),
    ],
)
def test_shift_of_what_is_damaged_or_does_not_follow_is_refused(
    data, last_offset, shift, status
):
    """The existing bytes stay."""
    found, walk, after = shifted(data, shift, last_offset)
    assert (found, walk.pos, after) == (status, 0, data)


@pytest.mark.parametrize(
    ("data", "other", "status"),
    [
        (message(0, b"k", b"v"), {"magic": 2}, lib.LS_E_MAGIC),
        (plain_batch(0, 2), {"magic": 1}, lib.LS_E_MAGIC),
        (plain_batch(0, 2), {"max_bytes": 70}, lib.LS_E_TOO_LARGE),
        (plain_batch(0, 2, attributes=0x10), {}, lib.LS_E_CODEC),
        (plain_batch(0, 2, attributes=0x20), {}, lib.LS_E_CODEC),
        (plain_batch(0, 2, attributes=0x80), {}, lib.LS_E_CODEC),
        (plain_batch(0, 2, last_delta=4), {}, lib.LS_E_COUNT),
    ],
    ids=["v1-as-2", "v2-as-1", "large", "transaction", "control", "unknown", "gap"],
)
def test_shift_of_what_nobody_stages_is_refused(data, other, status):
    """These are another magic, a batch beyond the limit, one of a transaction, one with
    a gap."""
    found, walk, after = shifted(data, 5, **other)
    assert (found, walk.pos, after) == (status, 0, data)
    assert walk.error.status == status


@pytest.mark.parametrize("stamps_all", [0, 1])
def test_shift_stamps_the_time_of_the_append(stamps_all):
    """The time goes to all batches, or only to batches with the flag of such a time."""
    data = b"".join(
        [
            message(0, b"k", b"v"),
            message(1, b"k", b"v", attributes=8),
            plain_batch(2, 2),
            plain_batch(4, 2, attributes=8),
        ]
    )
    status, _, moved = shifted(data, 10, timestamp=77, stamps_all=stamps_all)
    assert status == 0
    found = scan(moved, walk=new_walk(0, 9)).items
    assert [b.last_offset for b in found] == [10, 11, 13, 15]
    for index, one in enumerate(found):
        is_stamped = bool(stamps_all or index % 2)
        assert one.timestamp_type == int(is_stamped)
        assert (one.max_timestamp == 77) == is_stamped


def test_shift_stops_at_what_is_not_whole():
    data = message(0, b"k", b"v") + message(1, b"k", b"v")[:-1]
    status, walk, _ = shifted(data, 5)
    assert (status, walk.stop, walk.count) == (0, lib.LS_STOP_PARTIAL, 1)


# ------------------------------------------------------------------ the time of append


def restamped(entry, timestamp=T + 7, **fields):
    """ls_restamp of an entry after another; (status, the entry afterwards).

    The memory ends with the entry, so that a write after it is found.
    """
    front = message(0, b"x", b"y")
    memory = Guarded(len(front) + len(entry))
    out = memory.at_end(front + entry)
    header = scan(front + entry).items[1]
    for name, value in fields.items():
        setattr(header, name, value)
    status = lib.ls_restamp(out, header, timestamp)
    written = bytes(ffi.buffer(out, len(front) + len(entry)))
    assert written[: len(front)] == front
    return status, written[len(front) :]


@pytest.mark.parametrize("timestamp", [0, T + 7, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("attributes", [0, 8])
def test_restamp_of_a_message_gives_it_that_time(attributes, timestamp):
    """Attribute, timestamp and CRC-32 change; no other byte does."""
    entry = message(5, b"key", b"value", attributes=attributes)
    expected = message(5, b"key", b"value", attributes=8, timestamp=timestamp)
    assert restamped(entry, timestamp) == (0, expected)


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_restamp_of_a_wrapper_holds_for_its_records(codec):
    """The inner messages stay unchanged and are read with the new time."""
    inner = b"".join(message(i, None, b"v%d" % i, timestamp=T - 9) for i in range(3))
    status, entry = restamped(message(7, None, b"compressed", attributes=codec))
    assert status == 0
    assert entry == message(
        7, None, b"compressed", attributes=codec | 8, timestamp=T + 7
    )
    assert zlib.crc32(entry[16:]) == int.from_bytes(entry[12:16], "big")
    found = decode_payload(header_of(entry), inner)
    assert [(r.offset, r.timestamp, r.kind) for r in found.items] == [
        (5, T + 7, 1),
        (6, T + 7, 1),
        (7, T + 7, 1),
    ]


@pytest.mark.parametrize("attributes", [0, 8, 16, 4, 0x7F00])
def test_restamp_of_a_batch_holds_for_its_records(attributes):
    """Attribute, max timestamp and CRC-32C change; the other attributes stay."""
    area = b"".join(record(i, None, b"v", timestamp_delta=i) for i in range(3))
    options = {"epoch": 3, "producer": (11, 2, 33)}
    entry = batch(5, area, 3, attributes=attributes, max_timestamp=T + 2, **options)
    status, after = restamped(entry)
    expected = batch(
        5, area, 3, attributes=attributes | 8, max_timestamp=T + 7, **options
    )
    assert (status, after) == (0, expected)
    assert crc32c.crc32c(after[21:]) == int.from_bytes(after[17:21], "big")
    header = header_of(after)
    assert (header.timestamp_type, header.max_timestamp) == (1, T + 7)
    if attributes in (0, 8):
        assert {(r.timestamp, r.kind) for r in decode(after).items} == {(T + 7, 1)}


@pytest.mark.parametrize("attributes", [0, 1])
def test_restamp_of_magic_0_changes_nothing(attributes):
    """Magic 0 has no timestamp to change."""
    entry = message(5, b"key", b"value", magic=0, attributes=attributes)
    assert restamped(entry) == (0, entry)


@pytest.mark.parametrize(
    "entry",
    [message(1, b"k", b"v", magic=0), message(1, b"k", b"v"), plain_batch(1, 3)],
    ids=["v0", "v1", "v2"],
)
@pytest.mark.parametrize(
    "fields",
    [{"pos": -1}, {"size": 0}, {"size": -5}, {"size": 25}, {"magic": -1}, {"magic": 3}],
    ids=str,
)
def test_restamp_of_a_header_that_cannot_be_is_refused(entry, fields):
    """Nothing is written."""
    assert restamped(entry, **fields) == (lib.LS_E_ARGUMENT, entry)


@pytest.mark.parametrize(("magic", "least"), [(0, 26), (1, 34), (2, 61)])
def test_restamp_of_less_than_its_magic_has_is_refused(magic, least):
    """Only the whole fixed part may be written to."""
    out = ffi.new("uint8_t[]", least - 1)
    header = ffi.new("ls_batch *", {"size": least - 1, "magic": magic})
    assert lib.ls_restamp(out, header, T) == lib.LS_E_ARGUMENT
    assert bytes(ffi.buffer(out)) == bytes(least - 1)


# ------------------------------------------------------------------ wrappers


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_of_written_messages_comes_back(rows, magic):
    """Inner offsets are relative in magic 1, absolute in magic 0."""
    base = 0 if magic == 1 else 500
    total = measure(Records(rows), magic)[1]
    inner = Writer(Records(rows), total).messages(magic, base_offset=base)[1]
    last = 500 + len(rows) - 1
    wrapper = header_of(message(last, None, b"zip", magic=magic, attributes=3))
    found = decode_payload(wrapper, inner)
    assert (found.status, found.last_offset) == (0, 500)
    assert [(r.offset, r.key, r.value) for r in found.items] == [
        (500 + i, *row) for i, row in enumerate(rows)
    ]
    some_of = decode_payload(wrapper, inner, start=510, stop=512)
    assert [r.offset for r in some_of.items] == [510, 511]


def test_varint_lengths_change_at_their_powers():
    """Values have around 64 and 8192 bytes, where the length grows by a byte."""
    for size in (62, 63, 64, 65, 8190, 8191, 8192, 8193):
        value = bytes(size)
        area = Writer(Records([(b"", value)]), size + 20).area()[1]
        assert area == record(0, b"", value)
        assert varint(size) in area
        assert decode(batch(0, area, 1), stop=OFFSET_MAX).items[0].value == value
