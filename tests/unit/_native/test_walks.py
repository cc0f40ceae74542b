"""Stops of walks over batches, and how they continue and report damage."""

import pytest
from unit._native.kafka_bytes import (
    ALL,
    CRC,
    GAPLESS,
    OFFSET_MAX,
    ORDER,
    UNKNOWN,
    Columns,
    Guarded,
    T,
    batch,
    count_batches,
    count_records,
    decode,
    fix_crc,
    header_of,
    message,
    new_walk,
    patched,
    plain_batch,
    record,
    scan,
    sized,
)

from logstore import _native as native
from logstore._native import batches, core
from logstore._native._ls import ffi, lib

V0 = message(3, b"key", b"value", magic=0)
V1 = message(4, b"key", b"value")
V2 = plain_batch(5, 3)
WRAPPER = message(9, None, b"compressed", attributes=2)
V2_GZIP = fix_crc(patched(plain_batch(10, 3), 21, b"\0\1"))
WALKS = {
    "scan": scan,
    "count": count_batches,
    "decode": decode,
    "verify": count_records,
}


@pytest.fixture(params=WALKS)
def walk(request):
    return WALKS[request.param]


# ------------------------------------------------------------------ stops


def test_walk_over_nothing_ends(walk):
    """The buffer is empty."""
    found = walk(b"")
    assert (found.status, found.stop, found.pos) == (0, lib.LS_STOP_END, 0)


@pytest.mark.parametrize("entry", [V0, V1, V2], ids=["v0", "v1", "v2"])
def test_walk_into_a_partial_batch_stops_in_front_of_it(walk, entry):
    """The rest has every length that a torn write can leave."""
    memory = Guarded(2 * len(entry))
    whole = patched(entry, 0, (0).to_bytes(8, "big"))
    second = patched(entry, 0, (100).to_bytes(8, "big"))
    for cut in range(1, len(entry)):
        data = whole + second[:cut]
        found = walk(memory.at_end(data), len(data))
        # Seven zero bytes of the offset look like zeros.
        stop = lib.LS_STOP_PARTIAL if cut > 7 else lib.LS_STOP_ZEROS
        assert (found.status, found.stop, found.pos) == (0, stop, len(entry))


@pytest.mark.parametrize("zeros", [1, 16, 17, 18, 61, 4096])
def test_walk_into_zeros_stops_in_front_of_them(walk, zeros):
    """Zeros are preallocated space, or a file that grew before its data was written."""
    data = V1 + bytes(zeros)
    memory = Guarded(len(data))
    found = walk(memory.at_end(data), len(data))
    assert (found.status, found.stop, found.pos) == (0, lib.LS_STOP_ZEROS, len(V1))


def test_walk_into_zeros_with_a_foot_is_damage(walk):
    """A zero header with a length that is not zero is no preallocated space."""
    found = walk(V1 + bytes(11) + b"\1" + bytes(40))
    assert (found.status, found.pos) == (lib.LS_E_LENGTH, len(V1))
    assert (found.error.expected, found.error.found) == (14, 1)


def test_scan_into_full_output_goes_on_from_there():
    """The output takes one header at a time."""
    data = V0 + V1 + V2
    walk = new_walk()
    out = ffi.new("ls_batch *")
    seen = []
    while True:
        status = lib.ls_scan_batches(data, len(data), ALL, out, 1, walk)
        assert status == 0
        seen += [out.last_offset] * walk.count
        if walk.stop != lib.LS_STOP_FULL:
            break
    assert (walk.stop, seen) == (lib.LS_STOP_END, [3, 4, 7])


def test_decode_into_full_columns_goes_on_from_there():
    """Entries are messages and batches; a batch is never split."""
    data = V0 + V1 + V2 + plain_batch(8, 2)
    walk = new_walk()
    seen = []
    while True:
        found = decode(data, walk=walk, capacity=4)
        assert found.status == 0
        seen.append([r.offset for r in found.items])
        if found.stop != lib.LS_STOP_FULL:
            break
    assert found.stop == lib.LS_STOP_END
    assert seen == [[3, 4], [5, 6, 7], [8, 9]]


def test_decode_appends_behind_what_the_columns_hold():
    """`count` is the position at which the call begins."""
    columns = Columns(5)
    columns.raw.count = 2
    columns.raw.offset[1] = 99
    walk = new_walk()
    assert lib.ls_decode(V2, len(V2), ALL, 0, 100, columns.raw, walk) == 0
    assert columns.raw.count == 5
    assert list(columns.raw.offset[1:5]) == [99, 5, 6, 7]
    assert walk.count == 3


@pytest.mark.parametrize(
    ("entry", "capacity", "needed"), [(V1, 0, 1), (V2, 2, 3)], ids=["v1", "v2"]
)
def test_decode_into_too_small_columns_tells_what_is_needed(entry, capacity, needed):
    """The columns are otherwise empty."""
    found = decode(entry, capacity=capacity)
    assert (found.status, found.pos) == (lib.LS_E_NO_SPACE, 0)
    assert found.error.expected == needed
    assert decode(entry, capacity=needed).status == 0


@pytest.mark.parametrize("entry", [WRAPPER, V2_GZIP], ids=["wrapper", "v2"])
def test_decode_stops_in_front_of_a_compressed_batch(entry):
    """The caller decompresses it."""
    data = V1 + entry + plain_batch(20, 1)
    found = decode(data)
    assert (found.status, found.stop) == (0, lib.LS_STOP_COMPRESSED)
    assert (found.pos, found.last_offset, len(found.items)) == (len(V1), 4, 1)


@pytest.mark.parametrize("entry", [WRAPPER, V2_GZIP], ids=["wrapper", "v2"])
def test_decode_walks_over_a_compressed_batch_before_the_start(entry):
    """Its checksum was right."""
    data = V1 + entry + plain_batch(20, 1)
    found = decode(data, start=13)
    assert (found.stop, [r.offset for r in found.items]) == (lib.LS_STOP_END, [20])
    data = V1 + patched(entry, len(entry) - 1, b"\x7f") + plain_batch(20, 1)
    assert decode(data, start=13).status == lib.LS_E_CRC
    assert decode(data, start=13, checks=ORDER).status == 0


def test_decode_stops_at_the_stop_offset():
    """A message, a batch, and a wrapper that can only come after it."""
    data = V0 + V1 + V2
    for stop, expected in ((3, []), (4, [3]), (5, [3, 4])):
        found = decode(data, stop=stop)
        assert found.stop == lib.LS_STOP_OFFSET
        assert [r.offset for r in found.items] == expected
    found = decode(data, stop=6)
    assert [r.offset for r in found.items] == [3, 4, 5]
    assert found.stop == lib.LS_STOP_END
    assert decode(V1 + WRAPPER, stop=5).stop == lib.LS_STOP_OFFSET
    assert decode(V1 + WRAPPER, stop=6).stop == lib.LS_STOP_COMPRESSED
    assert decode(V1 + V2_GZIP, stop=10).stop == lib.LS_STOP_OFFSET


def test_decode_from_a_start_offset_leaves_the_rest_out():
    """Whole entries before the start are walked over; inside a batch the walk cuts."""
    data = V0 + V1 + V2
    found = decode(data, start=6, stop=7, capacity=3)
    assert [r.offset for r in found.items] == [6]
    assert decode(data, start=8, capacity=0).stop == lib.LS_STOP_END
    bad = patched(V0, len(V0) - 1, b"?") + V1
    assert decode(bad, start=4).status == lib.LS_E_CRC


def test_decode_without_optional_columns_gives_the_same():
    """NULL stands for headers and timestamp type."""
    data = V0 + V1 + plain_batch(5, 2)
    with_all = decode(data)
    without = decode(data, optional=False)
    assert [r[3:5] for r in with_all.items] == [r[3:5] for r in without.items]


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("magic", [3, 127, 0x80, 0xFF])
def test_walk_over_an_unknown_magic_is_an_error(walk, magic):
    """The length may be wrong, too. A negative magic is of no version at all."""
    status = lib.LS_E_MAGIC if magic < 128 else lib.LS_E_NO_MAGIC
    for entry in (V2, patched(V2, 8, bytes(4))):
        found = walk(V1 + patched(entry, 16, bytes([magic])))
        assert (found.status, found.pos) == (status, len(V1))
        wanted = (2, magic) if magic < 128 else (0, magic - 256)
        assert (found.error.expected, found.error.found) == wanted
        assert found.error.status == status
        assert found.error.offset == 5
        assert len(found.items) == 1


@pytest.mark.parametrize(
    ("entry", "least"), [(V0, 14), (V1, 22), (V2, 49)], ids=["v0", "v1", "v2"]
)
def test_walk_over_a_length_below_the_least_is_an_error(walk, entry, least):
    """Lengths are zero, negative, and one too small."""
    for length in (0, -1, -(2**31), least - 1):
        data = patched(entry, 8, length.to_bytes(4, "big", signed=True))
        found = walk(data)
        assert (found.status, found.pos) == (lib.LS_E_LENGTH, 0)
        assert (found.error.expected, found.error.found) == (least, length)


@pytest.mark.parametrize("entry", [V0, V1, V2], ids=["v0", "v1", "v2"])
def test_walk_over_a_wrong_checksum_is_an_error(walk, entry):
    """The error has both checksums; without the check the walk passes."""
    first = patched(V0, 7, b"\0")
    data = first + patched(entry, len(entry) - 1, b"\x7f")
    found = walk(data)
    assert (found.status, found.pos) == (lib.LS_E_CRC, len(first))
    pos = 17 if entry[16] == 2 else 12
    assert found.error.expected == int.from_bytes(entry[pos : pos + 4], "big")
    correct = fix_crc(data[len(first) :])
    assert found.error.found == int.from_bytes(correct[pos : pos + 4], "big")
    assert (found.error.pos, found.error.offset) == (len(first), entry[7])
    assert scan(data, checks=ORDER).status == 0


@pytest.mark.parametrize(
    ("entry", "codec"),
    [
        (patched(V0, 17, b"\x04"), 4),
        (patched(V1, 17, b"\x07"), 7),
        (patched(V2, 21, b"\0\5"), 5),
        (patched(V2, 21, b"\0\7"), 7),
    ],
)
def test_scan_over_an_unknown_codec_is_an_error(entry, codec):
    """The checksum must be right."""
    assert scan(entry).status == lib.LS_E_CRC
    found = scan(fix_crc(entry))
    assert (found.status, found.error.found) == (lib.LS_E_CODEC, codec)
    assert found.error.expected == (4 if entry[16] == 2 else 3)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("key_len", "value_len"),
    [(-2, 5), (4, 5), (2, 5), (2**31 - 1, 5), (3, 4), (3, 6), (3, -1), (3, -2)],
)
def test_walk_over_lengths_that_do_not_fill_a_message_is_an_error(
    walk, magic, key_len, value_len
):
    """The checksum is checked first."""
    entry = message(3, b"key", b"value", magic=magic)
    at = 18 + 8 * magic
    entry = patched(entry, at, key_len.to_bytes(4, "big", signed=True))
    entry = patched(entry, at + 7, value_len.to_bytes(4, "big", signed=True))
    assert walk(entry).status == lib.LS_E_CRC
    found = walk(fix_crc(entry))
    assert (found.status, found.error.pos) == (lib.LS_E_LENGTH, 0)


def test_walk_over_offsets_that_do_not_increase_is_an_error(walk):
    """Offsets of messages, wrappers and batches are equal, smaller, or negative."""
    for second in (
        message(4, b"x", b"y"),
        message(3, b"x", b"y", magic=0),
        message(-1, b"x", b"y"),
        plain_batch(4, 5),
        plain_batch(-5, 50),
    ):
        data = V1 + second
        found = walk(data)
        assert (found.status, found.pos) == (lib.LS_E_OFFSET, len(V1))
        assert found.error.expected == 5
        assert len(found.items) == 1
        assert scan(data, checks=CRC).status == 0
    wrapper = message(4, None, b"zip", attributes=1)
    assert scan(V1 + wrapper).status == lib.LS_E_OFFSET


def test_walk_takes_the_last_offset_from_its_caller(walk):
    """A walk may continue in the next buffer."""
    state = new_walk(last_offset=4)
    columns = Columns(9)
    out = ffi.new("ls_batch[9]")
    if walk is scan:
        status = lib.ls_scan_batches(V1, len(V1), ALL, out, 9, state)
    else:
        status = lib.ls_decode(V1, len(V1), ALL, 0, 99, columns.raw, state)
    assert status == lib.LS_E_OFFSET


# ------------------------------------------------------------------ gaps

# Entries at any offset: plain ones, whose first offset is known, and wrappers.
PLAIN = {
    "v0": lambda offset: message(offset, b"key", b"value", magic=0),
    "v1": lambda offset: message(offset, b"key", b"value"),
    "v2": lambda offset: plain_batch(offset, 1),
}
PACKED = {
    "v0": lambda offset: message(offset, None, b"zip", magic=0, attributes=1),
    "v1": lambda offset: message(offset, None, b"zip", attributes=2),
}


@pytest.fixture(params=PLAIN)
def at(request):
    return PLAIN[request.param]


@pytest.fixture(params=PACKED)
def packed_at(request):
    return PACKED[request.param]


def test_gapless_walk_over_entries_that_follow_each_other_is_well(walk, at):
    """The walk begins at the offset of the caller, and magics are mixed."""
    data = at(7) + at(8) + V0[:7] + b"\x09" + V0[8:] + plain_batch(10, 3) + at(13)
    found = walk(data, checks=GAPLESS, walk=new_walk(last_offset=6))
    assert (found.status, found.stop, found.last_offset) == (0, lib.LS_STOP_END, 13)
    assert walk(at(0), checks=GAPLESS).status == 0


@pytest.mark.parametrize("epoch", [1, -1, 2**31 - 1, -(2**31)])
def test_walk_over_a_leader_epoch_that_is_not_ours_is_an_error(walk, epoch):
    """No checksum covers it; without the check it passes."""
    ours = patched(V2, 12, bytes(4))
    data = patched(V2, 12, epoch.to_bytes(4, "big", signed=True))
    assert walk(data).status == 0
    found = walk(ours + patched(data, 7, b"\x08"), checks=ALL | lib.LS_CHECK_EPOCH)
    assert (found.status, found.pos) == (lib.LS_E_EPOCH, len(ours))
    assert (found.error.expected, found.error.found) == (0, epoch)


@pytest.mark.parametrize("second", [0, 4, 5, 7, 8, 2**40, 2**63 - 1, -1, -(2**63)])
def test_gapless_walk_over_a_gap_or_overlap_is_an_error(walk, at, second):
    """Offsets are too high, repeated, or too low; without the check a gap passes."""
    data = at(5) + at(second)
    found = walk(data, checks=GAPLESS, walk=new_walk(last_offset=4))
    assert (found.status, found.pos) == (lib.LS_E_OFFSET, len(at(5)))
    assert (found.error.expected, found.error.found) == (6, second)
    assert (found.error.offset, found.last_offset) == (second, 5)
    assert len(found.items) == 1
    relaxed = walk(data, walk=new_walk(last_offset=4))
    stopped = relaxed.stop == lib.LS_STOP_OFFSET  # of walks that end at an offset
    assert (relaxed.status == 0) == (5 < second < 2**63 - 1 or stopped)


def test_gapless_walk_over_a_batch_that_overlaps_is_an_error(walk):
    """Its last offset is new, but its first one is not; or it leaves one out."""
    for base in (7, 9):
        data = V2 + plain_batch(base, 3)
        found = walk(data, checks=GAPLESS, walk=new_walk(last_offset=4))
        assert (found.status, found.pos) == (lib.LS_E_OFFSET, len(V2))
        assert (found.error.expected, found.error.found) == (8, base)
    data = V2 + plain_batch(8, 3)
    assert walk(data, checks=GAPLESS, walk=new_walk(last_offset=4)).status == 0


def test_gapless_walk_checks_the_first_entry_against_its_caller(walk, at):
    """Only if the entry before is known."""
    for before, status in ((8, 0), (7, lib.LS_E_OFFSET), (-1, lib.LS_E_OFFSET)):
        found = walk(at(9), checks=GAPLESS, walk=new_walk(last_offset=before))
        assert found.status == status
    for checks in (ALL, GAPLESS):
        found = walk(at(9) + at(10), checks=checks, walk=new_walk(last_offset=UNKNOWN))
        assert (found.status, found.last_offset) == (0, 10)
        nothing = walk(b"", checks=checks, walk=new_walk(last_offset=UNKNOWN))
        assert (nothing.status, nothing.last_offset) == (0, UNKNOWN)


def test_gapless_walk_from_an_unknown_offset_checks_the_second_entry(walk, at):
    """One entry is enough to know what follows; negative offsets never pass."""
    found = walk(at(9) + at(11), checks=GAPLESS, walk=new_walk(last_offset=UNKNOWN))
    assert (found.status, found.pos) == (lib.LS_E_OFFSET, len(at(9)))
    assert (found.error.expected, found.error.found) == (10, 11)
    found = walk(at(-1), checks=GAPLESS, walk=new_walk(last_offset=UNKNOWN))
    assert (found.status, found.error.expected) == (lib.LS_E_OFFSET, 0)


def test_gapless_decode_does_not_stop_at_a_raised_offset(at):
    """No checksum covers it: it must not hide what follows the stop offset."""
    data = at(5) + at(5000) + at(7)
    walk = new_walk(last_offset=4)
    found = decode(data, checks=GAPLESS, stop=100, walk=walk)
    assert (found.status, found.pos) == (lib.LS_E_OFFSET, len(at(5)))
    assert (found.error.expected, found.error.found) == (6, 5000)
    assert [r.offset for r in found.items] == [5]
    relaxed = decode(data, stop=100, walk=new_walk(last_offset=4))
    assert (relaxed.status, relaxed.stop) == (0, lib.LS_STOP_OFFSET)
    # A batch that follows without a gap does stop the walk.
    found = decode(at(5) + at(6), checks=GAPLESS, stop=6, walk=new_walk(last_offset=4))
    assert (found.status, found.stop) == (0, lib.LS_STOP_OFFSET)
    # So does a first entry whose predecessor is unknown.
    walk = new_walk(last_offset=UNKNOWN)
    found = decode(at(5000), checks=GAPLESS, stop=100, walk=walk)
    assert (found.status, found.stop) == (0, lib.LS_STOP_OFFSET)


@pytest.mark.parametrize("offset", [4, 5000])
def test_gapless_decode_finds_a_compressed_batch_out_of_place(offset):
    """Its header shows it, before it is decompressed."""
    entry = fix_crc(patched(plain_batch(offset, 3), 21, b"\0\1"))
    walk = new_walk(last_offset=4)
    found = decode(entry, checks=GAPLESS, stop=100, walk=walk)
    assert (found.status, found.error.expected) == (lib.LS_E_OFFSET, 5)
    walk = new_walk(last_offset=offset - 1)
    found = decode(entry, checks=GAPLESS, walk=walk)
    assert (found.status, found.stop) == (0, lib.LS_STOP_COMPRESSED)


def test_gapless_decode_before_the_start_offset_is_checked_too(at):
    """Entries that are only walked over are checked."""
    data = at(5) + at(7)
    walk = new_walk(last_offset=4)
    assert decode(data, checks=GAPLESS, start=90, walk=walk).status == lib.LS_E_OFFSET
    walk = new_walk(last_offset=4)
    assert decode(data, start=90, walk=walk).status == 0


def test_gapless_scan_takes_a_wrapper_anywhere_behind(packed_at):
    """Its first offset is inside; the entry after it is checked again."""
    v1 = PLAIN["v1"]
    data = v1(5) + packed_at(9) + v1(10)
    found = scan(data, checks=GAPLESS, walk=new_walk(last_offset=4))
    assert (found.status, found.last_offset) == (0, 10)
    assert [b.base_offset for b in found.items] == [5, -1, 10]
    for wrapper, after, pos in ((5, 6, len(v1(5))), (9, 11, None), (9, 9, None)):
        data = v1(5) + packed_at(wrapper) + v1(after)
        found = scan(data, checks=GAPLESS, walk=new_walk(last_offset=4))
        assert found.status == lib.LS_E_OFFSET
        assert found.pos == (len(v1(5) + packed_at(9)) if pos is None else pos)
    walk = new_walk(last_offset=UNKNOWN)
    assert scan(packed_at(9) + v1(10), checks=GAPLESS, walk=walk).status == 0


def test_gapless_decode_leaves_a_wrapper_to_the_caller(packed_at):
    """Its stated offset may be any: its records show the right one, once they are
    decompressed."""
    data = PLAIN["v1"](5) + packed_at(9)
    for stop, expected in ((6, lib.LS_STOP_OFFSET), (7, lib.LS_STOP_COMPRESSED)):
        walk = new_walk(last_offset=4)
        found = decode(data, checks=GAPLESS, stop=stop, walk=walk)
        assert (found.status, found.stop, found.last_offset) == (0, expected, 5)
    walk = new_walk(last_offset=UNKNOWN)
    found = decode(packed_at(9), checks=GAPLESS, walk=walk)
    assert (found.status, found.stop) == (0, lib.LS_STOP_COMPRESSED)


@pytest.mark.parametrize("offset", [-(2**63), -1, 0, 2**63 - 1])
def test_gapless_walk_at_the_ends_of_the_type(walk, at, offset):
    """Nothing overflows, even without the order check, which every caller passes."""
    for before in (2**63 - 1, -(2**63), UNKNOWN, -1):
        for checks in (lib.LS_CHECK_GAPLESS, GAPLESS):
            state = new_walk(last_offset=before)
            found = walk(at(offset), checks=checks, walk=state)
            assert found.status <= 0


def test_walk_over_a_negative_last_offset_delta_is_an_error(walk):
    """The order check finds it; the count contradicts it anyway."""
    empty = batch(5, b"", 0, last_delta=-1)
    found = walk(empty)
    assert (found.status, found.error.pos) == (lib.LS_E_OFFSET, 0)


def test_walk_over_offsets_beyond_the_type_is_an_error(walk):
    """The last offset of the batch would not fit 63 bits."""
    entry = plain_batch(2**63 - 2, 3)
    assert walk(entry).status == lib.LS_E_OFFSET


def test_walk_over_the_last_offset_of_the_type_is_an_error(walk, at):
    """The end of a log is an offset, too: one below it is the last of a record."""
    found = walk(at(2**63 - 1))
    # Walks that end at an offset, here at the largest one, do not come so far.
    assert found.status == lib.LS_E_OFFSET or found.stop == lib.LS_STOP_OFFSET
    assert found.items == []
    found = walk(at(2**63 - 2))
    assert (found.status, found.last_offset) == (0, 2**63 - 2)


@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
def test_walk_over_an_impossible_record_count_is_an_error(walk, count):
    """The count is negative, or more than the offsets allow."""
    entry = fix_crc(patched(V2, 57, count.to_bytes(4, "big", signed=True)))
    found = walk(entry)
    assert (found.status, found.error.found) == (lib.LS_E_COUNT, count)


def test_decode_of_a_huge_record_count_does_not_ask_for_space():
    """More records than bytes are damage, not a call for larger columns."""
    area = record(0, b"a", b"b")
    entry = batch(5, area, 2**31 - 1, last_delta=2**31 - 1)
    found = decode(entry)
    assert (found.status, found.error.found) == (lib.LS_E_COUNT, 2**31 - 1)


def test_decode_keeps_what_came_before_the_damage():
    """Records of the good batches are put out, the walk stays at the bad one."""
    good = V1 + V2
    bad = fix_crc(patched(plain_batch(8, 2), 61, b"\x7f"))
    found = decode(good + bad)
    assert (found.status, found.pos) == (lib.LS_E_LENGTH, len(good))
    assert [r.offset for r in found.items] == [4, 5, 6, 7]
    assert (found.error.pos, found.error.offset) == (len(good), 8)


def test_walk_with_a_position_outside_is_our_own_mistake():
    """Both walks return LS_E_ARGUMENT."""
    out = ffi.new("ls_batch *")
    columns = Columns(1)
    for pos, size in ((1, 0), (-1, 10), (0, -1)):
        walk = new_walk(pos)
        assert lib.ls_scan_batches(V1, size, ALL, out, 1, walk) == lib.LS_E_ARGUMENT
        walk = new_walk(pos)
        status = lib.ls_decode(V1, size, ALL, 0, 9, columns.raw, walk)
        assert status == lib.LS_E_ARGUMENT
    columns.raw.count = 2
    walk = new_walk()
    status = lib.ls_decode(V1, len(V1), ALL, 0, 9, columns.raw, walk)
    assert status == lib.LS_E_ARGUMENT


# ------------------------------------------------------------------ headers


def test_scan_of_messages_fills_every_field():
    """Fields that a message lacks are -1."""
    header = header_of(V1)
    assert (header.base_offset, header.last_offset, header.record_count) == (4, 4, 1)
    assert (header.base_timestamp, header.max_timestamp) == (T, T)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        -1,
        -1,
        -1,
    )
    assert (header.leader_epoch, header.magic, header.codec) == (-1, 1, 0)
    assert (header.timestamp_type, header.size) == (0, len(V1))
    header = header_of(message(4, b"k", None, attributes=8))
    assert (header.timestamp_type, header.payload_size) == (1, -1)
    header = header_of(V0)
    assert (header.timestamp_type, header.max_timestamp) == (-1, -1)


def test_scan_of_a_wrapper_does_not_know_its_base():
    """The number of its records is unknown, too."""
    header = header_of(WRAPPER)
    assert (header.base_offset, header.last_offset, header.record_count) == (-1, 9, -1)
    assert header.codec == 2
    value = WRAPPER[header.payload_pos :][: header.payload_size]
    assert value == b"compressed"
    assert WRAPPER.endswith(sized(b"compressed"))


# ------------------------------------------------------------------ callers


def test_decoder_that_needs_more_room_goes_on_behind_what_it_has_walked_over():
    """A control batch gives no output, and the batch after it is too large."""
    marker = batch(5, record(0, bytes(4), bytes(6)), 1, attributes=0x20)
    data = marker + plain_batch(6, 40)
    decoder = native.Decoder(8)
    decoder.last_offset = 4
    assert decoder.decode(data, len(data), 0, 0, OFFSET_MAX) == lib.LS_STOP_END
    assert (decoder.count, decoder.pos, decoder.error) == (40, len(data), None)
    state, none = native.SegmentState(5), native.IndexCursor()
    check = native.IndexCheck(state, none, native.IndexCursor())
    check.begin()
    decoder = native.Decoder(8)
    decoder.last_offset = 4
    stop = decoder.verify(data, len(data), 0, ALL, check, with_columns=True)
    assert (stop, decoder.count, decoder.error) == (lib.LS_STOP_END, 40, None)
    assert (check.commit(len(data)), state.last_offset) == (2, 45)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 600])
def test_last_batch_is_the_last_whole_one(count):
    """A torn tail, or damage, may come after it."""
    entry = message(9, None, b"value")
    data = entry * count
    expected = (count - 1) * len(entry) if count else -1
    for tail in (b"", entry[:-1], b"\x7f" * 60):
        found, walk = native.last_batch(data + tail, len(data + tail))
        assert (found, walk.pos) == (expected, len(data))
        assert (walk.error is not None) == (tail[:1] == b"\x7f")


def test_header_goes_back_to_c_as_it_came():
    """Its fields equal the fields of the struct, in that order."""
    names = [name for name, _ in ffi.typeof("ls_batch").fields]
    assert names == [*native.BatchHeader._fields, "pad"]
    header = native.BatchHeader(*range(len(native.BatchHeader._fields)))
    raw = core.raw_header(header)
    assert batches.headers_of(raw) == [header]
    assert {name: getattr(raw, name) for name in header._fields} == header._asdict()
    assert ffi.sizeof("ls_batch") == batches._BATCH.size
