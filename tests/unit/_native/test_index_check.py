"""Indexes that are compared with their log during the walk over it."""

import bisect
import random
import struct

import pytest
from unit._native.kafka_bytes import (
    ALL,
    OFFSET_MAX,
    T,
    fix_crc,
    message,
    new_walk,
    patched,
    plain_batch,
)

from logstore._native._ls import ffi, lib

BASE = 1000
OFFSETS, TIMES = struct.Struct(">ii"), struct.Struct(">qi")


class Check:
    """An ls_index_check of two index files, from the start of a segment on."""

    def __init__(self, offsets=(), times=()):
        files = (
            b"".join(OFFSETS.pack(*entry) for entry in offsets),
            b"".join(TIMES.pack(*entry) for entry in times),
        )
        self.keep = [ffi.from_buffer("uint8_t[]", data) for data in files]
        self.raw = ffi.new("ls_index_check *")
        self.raw.state = new_state()[0]
        self.raw.offsets = {"entries": self.keep[0], "count": len(offsets)}
        self.raw.times = {"entries": self.keep[1], "count": len(times)}

    @property
    def slots(self):
        return self.raw.offsets.slot, self.raw.times.slot

    def walk_over(self, data):
        lib.ls_check_indexes(ffi.from_buffer("uint8_t[]", data), len(data), self.raw)
        return not self.raw.is_doubtful

    def verify(self, data, capacity=OFFSET_MAX):
        """ls_verify without columns."""
        columns = ffi.new("ls_columns *", {"capacity": capacity})
        walk = new_walk(last_offset=BASE - 1)
        status = lib.ls_verify(data, len(data), ALL, columns, self.raw, walk)
        return status, walk


def new_state():
    fields = ("max_timestamp", "max_timestamp_offset", "first_timestamp", "time_last")
    state = ffi.new("ls_segment_state *", dict.fromkeys(fields, -1))
    state.base_offset, state.last_offset = BASE, BASE - 1
    return state


def plan(data, interval):
    """Result of ls_plan_append for a log: (state, offset entries, time entries)."""
    state, out = new_state(), ffi.new("ls_plan *")
    index, times = ffi.new("uint8_t[]", 8000), ffi.new("uint8_t[]", 12000)
    error = ffi.new("ls_error *")
    if not interval:
        state.bytes_since = 1  # as if a batch were before the first one
    status = lib.ls_plan_append(
        data,
        len(data),
        ffi.NULL,
        interval,
        state,
        index,
        1000,
        times,
        1000,
        out,
        error,
    )
    assert (status, out.bytes) == (0, len(data))
    return (
        state,
        list(OFFSETS.iter_unpack(ffi.buffer(index, out.index_count * 8))),
        list(TIMES.iter_unpack(ffi.buffer(times, out.time_count * 12))),
    )


def some_log(rng, count):
    """Batches of all magics, with gaps, and timestamps in no order."""
    entries, offset = [], BASE
    for _ in range(count):
        offset += rng.choice((0, 0, 0, 1, 7))
        time = T + rng.randrange(60)
        kind = rng.randrange(4)
        if kind == 3:
            entry = patched(
                plain_batch(offset, rng.randrange(1, 5)),
                35,
                struct.pack(">q", time),
            )
            entries.append(fix_crc(entry))
            offset += int.from_bytes(entry[23:27], "big")
        else:
            value = bytes(rng.randrange(40))
            entries.append(message(offset, None, value, magic=kind > 0, timestamp=time))
        offset += 1
    return b"".join(entries)


def is_true(batches, times_of, offsets, times):
    """The definition, entry by entry, that ls_check_indexes applies batch by batch.

    Args:
        batches: (last relative offset, position) of each batch.
        times_of: the largest timestamp up to and with each batch.
    """
    lasts, positions = [b[0] for b in batches], [b[1] for b in batches]
    for slot, (offset, pos) in enumerate(offsets):
        if pos > positions[-1]:
            break
        if pos not in positions or (slot and pos < offsets[slot - 1][1]):
            return False
        at = positions.index(pos)
        before = lasts[at - 1] if at else -1
        if offset <= before or (slot and offsets[slot - 1][0] > before):
            return False
    batch = 0
    for time, offset in times:
        if offset > lasts[-1]:
            break
        at = bisect.bisect_left(lasts, offset)
        if at < batch or offset < 0:
            return False
        batch = at
        before = times_of[at - 1] if at else -1
        least = times_of[at] if offset == lasts[at] else before
        if not least <= time <= times_of[at]:
            return False
    return True


def change(rng, entries, steps):
    """One entry changed slightly, left out, doubled or exchanged with the next."""
    entries = [*entries]
    slot = rng.randrange(len(entries))
    how = rng.randrange(6)
    if how < 3:
        field = rng.randrange(2)
        entry = [*entries[slot]]
        entry[field] += rng.choice((1, -1, rng.choice(steps), -rng.choice(steps)))
        entries[slot] = tuple(entry)
    elif how == 3:
        del entries[slot]
    elif how == 4:
        entries.insert(slot, entries[slot])
    elif slot + 1 < len(entries):
        entries[slot : slot + 2] = entries[slot + 1], entries[slot]
    return entries


@pytest.mark.parametrize("seed", range(20))
def test_indexes_of_the_planner_are_true(seed):
    """One call or several, at any interval; the state equals the planner's."""
    rng = random.Random(seed)
    data = some_log(rng, rng.randrange(1, 150))
    state, offsets, times = plan(data, rng.choice((1, 100, 400, 4096)))
    batches = plan(data, 0)[1]
    check = Check(offsets, times)
    status, walk = check.verify(data)
    assert (status, walk.pos, check.raw.is_doubtful) == (0, len(data), 0)
    assert check.slots == (len(offsets), len(times))
    assert check.raw.batches == walk.batches == len(batches)
    pieces = Check(offsets, times)
    ends = sorted({rng.choice(batches)[1] for _ in range(3)} | {len(data)})
    begin = 0
    for end in ends:
        assert pieces.walk_over(data[begin:end])
        begin = end
    for found in (check.raw, pieces.raw):
        assert found.batches == len(batches)
        for name in (
            "base_offset",
            "size",
            "last_offset",
            "max_timestamp",
            "max_timestamp_offset",
            "first_timestamp",
        ):
            assert getattr(found.state, name) == getattr(state, name), name
        assert found.state.bytes_since > 0
        assert found.state.time_last == state.max_timestamp


@pytest.mark.parametrize("seed", range(12))
def test_an_entry_is_doubtful_exactly_if_it_is_not_true(seed):
    """Changed entries are compared with the definition; then nothing is counted."""
    rng = random.Random(seed)
    for _ in range(25):
        compare_with_the_definition(rng)


def compare_with_the_definition(rng):
    data = some_log(rng, rng.randrange(2, 120))
    _, offsets, times = plan(data, rng.choice((1, 60, 300)))
    _, batches, _ = plan(data, 0)
    ends = [pos for _, pos in batches[1:]] + [len(data)]
    times_of = [plan(data[:end], 4096)[0].max_timestamp for end in ends]
    for _ in range(rng.randrange(1, 3)):
        if offsets and rng.randrange(2):
            offsets = change(rng, offsets, [p for _, p in batches])
        elif times:
            times = change(rng, times, [1, 2, 3, 30])
    expected = is_true(batches, times_of, offsets, times)
    check = Check(offsets, times)
    assert check.walk_over(data) == expected
    followed = Check(offsets, times)
    status, walk = followed.verify(data)
    assert (status, walk.pos) == (0, len(data))
    assert followed.raw.is_doubtful == (not expected)
    if not expected:
        assert check.slots == (0, 0)
        assert (check.raw.batches, check.raw.state.size) == (0, 0)
        assert not check.walk_over(b"")


@pytest.mark.parametrize(
    "tail", [b"\0" * 40, b"\x7f" * 60, message(2000, None, b"v")[:-1], b"\1"]
)
def test_what_is_no_batch_is_doubtful(tail):
    """The caller has checked the bytes another way, and gets the result."""
    data = message(BASE, None, b"value")
    check = Check()
    assert check.walk_over(data)
    assert not check.walk_over(message(BASE + 1, None, b"") + tail)
    assert check.raw.batches == 1


def test_damage_ends_the_comparison_where_the_walk_ends():
    """The batches before it count."""
    data = b"".join(message(BASE + i, None, b"value") for i in range(200))
    size = len(data) // 200
    bad = patched(data, 150 * size + 30, b"\xff")
    check = Check([(100, 100 * size), (160, 160 * size)])
    status, walk = check.verify(bad)
    assert (status, walk.pos) == (lib.LS_E_CRC, 150 * size)
    assert (check.raw.is_doubtful, check.slots) == (0, (1, 0))
    assert (check.raw.batches, check.raw.state.size) == (150, 150 * size)
    assert check.raw.state.last_offset == BASE + 149


def test_offsets_and_positions_that_no_entry_can_have_are_doubtful():
    """Offsets are below the base offset, or more than 31 bits beyond it."""
    for offset, expected in (
        (BASE - 1, False),
        (BASE, True),
        (BASE + 2**31 - 1, True),
        (BASE + 2**31, False),
        (2**63 - 2, False),
    ):
        check = Check()
        assert check.walk_over(message(offset, None, b"")) == expected
    for size, expected in ((2**31 - 200, True), (2**31 - 1, False), (2**40, False)):
        check = Check()
        check.raw.state.size = size
        assert check.walk_over(message(BASE, None, b"")) == expected


def test_verify_with_columns_puts_the_records_out():
    """It stops when they are full; the comparison has come as far."""
    data = b"".join(message(BASE + i, None, b"value") for i in range(100))
    offsets = ffi.new("int64_t[]", 70)
    columns = ffi.new("ls_columns *", {"capacity": 70, "offset": offsets})
    others = {n: ffi.new("int32_t[]", 70) for n in ("key_pos", "key_len")}
    others |= {n: ffi.new("int32_t[]", 70) for n in ("value_pos", "value_len")}
    others["timestamp"] = ffi.new("int64_t[]", 70)
    for name, array in others.items():
        setattr(columns, name, array)
    check, walk = Check(), new_walk(last_offset=BASE - 1)
    status = lib.ls_verify(data, len(data), ALL, columns, check.raw, walk)
    assert (status, walk.stop) == (0, lib.LS_STOP_FULL)
    assert list(offsets) == [BASE + i for i in range(70)]
    assert (check.raw.batches, check.raw.state.size) == (70, walk.pos)
