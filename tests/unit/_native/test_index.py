"""Index lookups, checks, and the plan of an append, against plain Python."""

import random
import struct

import pytest
from unit._native.kafka_bytes import (
    FREE,
    Guarded,
    T,
    as_dict,
    batch,
    fix_crc,
    message,
    new_state,
    patched,
    plain_batch,
    plan,
    record,
)

from logstore._native._ls import ffi, lib

# ------------------------------------------------------------------ lookup


def offset_index(pairs):
    return b"".join(struct.pack(">ii", *pair) for pair in pairs)


def time_index(pairs):
    return b"".join(struct.pack(">qi", *pair) for pair in pairs)


def floor(function, memory, data, count, target):
    a = ffi.new("int64_t *", 99)
    b = ffi.new("int64_t *", 99)
    slot = function(memory.at_end(data), count, target, a, b)
    return slot, a[0], b[0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 301])
def test_floor_equals_the_naive_search(count):
    """Targets are near every entry, below the first and beyond the last."""
    rng = random.Random(count)
    offsets = sorted(rng.sample(range(5, 5 + 4 * count), count))
    pairs = [(o, i * 100) for i, o in enumerate(offsets)]
    times = [(T + o * 3, o) for o in offsets]
    memory = Guarded(12 * count)
    for target in (-1, 0, 2**31, 2**60, *(o + d for o in offsets for d in (-1, 0, 1))):
        slot = max((i for i, p in enumerate(pairs) if p[0] <= target), default=-1)
        expected = (slot, *(pairs[slot] if slot >= 0 else (-1, 0)))
        data = offset_index(pairs)
        assert floor(lib.ls_offset_index_floor, memory, data, count, target) == expected
        expected = (slot, *(times[slot] if slot >= 0 else (-1, 0)))
        data = time_index(times)
        found = floor(lib.ls_time_index_floor, memory, data, count, T + target * 3)
        assert found == expected


def test_floor_in_an_index_without_order_stays_inside():
    """A damaged index gives some slot, and no access outside."""
    rng = random.Random(1)
    memory = Guarded(12 * 50)
    for _ in range(200):
        data = rng.randbytes(8 * 50)
        target = rng.getrandbits(31)
        assert -1 <= floor(lib.ls_offset_index_floor, memory, data, 50, target)[0] < 50
        data = rng.randbytes(12 * 50)
        target = rng.getrandbits(62)
        assert -1 <= floor(lib.ls_time_index_floor, memory, data, 50, target)[0] < 50


# ------------------------------------------------------------------ checks


@pytest.mark.parametrize(
    ("pairs", "bad"),
    [
        ([], 0),
        ([(0, 0)], 1),
        ([(2, 178), (4, 356), (6, 534)], 3),
        ([(2, 178), (2, 356)], 1),
        ([(2, 178), (1, 356)], 1),
        ([(2, 178), (4, 178)], 2),
        ([(2, 178), (4, 177)], 1),
        ([(-1, 0)], 0),
        ([(1, -1)], 0),
        ([(1, 999)], 1),
        ([(1, 1000)], 0),
        ([(1, 10), (2, 20), (0, 0), (0, 0)], 2),
    ],
)
def test_offset_index_check_finds_the_first_bad_slot(pairs, bad):
    """Offsets rise, positions do not fall and are within the file (1000 bytes)."""
    memory = Guarded(100)
    data = memory.at_end(offset_index(pairs))
    assert lib.ls_offset_index_check(data, len(pairs), 1000) == bad


@pytest.mark.parametrize(
    ("pairs", "bad"),
    [
        ([], 0),
        ([(T, 2), (T + 1, 4)], 2),
        ([(T, 2), (T + 1, 2)], 2),
        ([(T, 2), (T, 4)], 1),
        ([(T, 2), (T - 1, 4)], 1),
        ([(T, 2), (T + 1, 1)], 1),
        ([(-1, 2)], 0),
        ([(T, -1)], 0),
        ([(T, 2), (0, 0)], 1),
    ],
)
def test_time_index_check_finds_the_first_bad_slot(pairs, bad):
    """Timestamps rise, offsets do not fall."""
    memory = Guarded(100)
    data = memory.at_end(time_index(pairs))
    assert lib.ls_time_index_check(data, len(pairs)) == bad


# ------------------------------------------------------------------ plans


class Model:
    """Kafka's rules, written for readers: one batch after the other."""

    def __init__(self, base_offset, limits):
        self.limits = limits
        self.f = as_dict(new_state(base_offset))
        self.index = []
        self.times = []

    def roll(self, size, last, ts, is_behind_others):
        f, limits = self.f, self.limits
        if f["size"] > 0:
            if f["first_timestamp"] >= 0:
                waited = ts - f["first_timestamp"]
            else:
                waited = limits["now_ms"] - f["created_ms"]
            if f["size"] > limits["segment_bytes"] - size:
                return lib.LS_STOP_ROLL_SIZE
            if is_behind_others and waited > limits["segment_ms"]:
                return lib.LS_STOP_ROLL_TIME
            if (
                f["index_entries"] >= limits["index_entries_max"]
                or f["time_entries"] >= limits["time_entries_max"] - 1
            ):
                return lib.LS_STOP_ROLL_INDEX
        if not 0 <= last - f["base_offset"] <= 2**31 - 1:
            return lib.LS_STOP_ROLL_OFFSET
        return 0

    def append(self, size, last, ts):
        f = self.f
        if f["size"] == 0:
            f["first_timestamp"] = ts
        if ts > f["max_timestamp"]:
            f["max_timestamp"], f["max_timestamp_offset"] = ts, last
        if f["bytes_since"] > self.limits["index_interval_bytes"]:
            self.index.append((last - f["base_offset"], f["size"]))
            f["index_entries"] += 1
            if f["max_timestamp"] > f["time_last"]:
                at = f["max_timestamp_offset"] - f["base_offset"]
                self.times.append((f["max_timestamp"], at))
                f["time_entries"] += 1
                f["time_last"] = f["max_timestamp"]
            f["bytes_since"] = 0
        f["bytes_since"] += size
        f["size"] += size
        f["last_offset"] = last


def some_batches(rng, count, first=1000):
    """(bytes, last offset, max timestamp) of entries of all magics."""
    offset = first
    for _ in range(count):
        magic = rng.choice((0, 1, 2, 2))
        ts = rng.choice((T + rng.randrange(-1000, 5000), -1, T))
        offset += rng.choice((0, 0, 3))
        value = b"v" * rng.randrange(200)
        if magic == 2:
            n = rng.randrange(1, 4)
            area = b"".join(record(i, None, value) for i in range(n))
            yield batch(offset, area, n, max_timestamp=ts), offset + n - 1, ts
            offset += n
        else:
            entry = message(offset, None, value, magic=magic, timestamp=ts)
            yield entry, offset, ts if magic else -1
            offset += 1


@pytest.mark.parametrize("seed", range(40))
def test_plan_equals_the_model(seed):
    """Random batches and limits; a roll begins a new segment in both."""
    rng = random.Random(seed)
    limits = FREE | {
        "segment_bytes": rng.choice((300, 2000, 10**6)),
        "segment_ms": rng.choice((0, 500, 10**9)),
        "now_ms": T + rng.choice((0, 10**6)),
        "index_interval_bytes": rng.choice((0, 150, 1000, 4096)),
        "index_entries_max": rng.choice((1, 3, 1000)),
        "time_entries_max": rng.choice((2, 4, 1000)),
    }
    entries = list(some_batches(rng, 120))
    data = b"".join(e for e, _, _ in entries)
    done = 0
    pos = 0
    while pos < len(data):
        base = entries[done][1] - rng.randrange(3)
        model = Model(base, limits)
        state = new_state(base)
        stop = 0
        while done < len(entries) and not stop:
            together = entries[done : done + rng.choice((1, 2, 30))]
            is_behind, before = model.f["size"] > 0, as_dict(state)
            model.index, model.times = [], []
            begin, size = done, 0
            for entry, last, ts in together:
                stop = model.roll(len(entry), last, ts, is_behind)
                if stop:
                    break
                model.append(len(entry), last, ts)
                done += 1
                size += len(entry)
            whole = b"".join(entry for entry, _, _ in together)
            status, out, index, times = plan(whole, state, limits)
            assert status == 0
            assert out.stop == (stop or lib.LS_STOP_END)
            if stop == lib.LS_STOP_ROLL_TIME:
                assert (out.bytes, out.batches, index, times) == (0, 0, [], [])
                assert as_dict(state) == before
                done = begin
                break
            assert (out.bytes, out.batches) == (size, done - begin)
            assert (index, times) == (model.index, model.times)
            assert as_dict(state) == model.f
            pos += size
        assert model.f["size"] > 0


@pytest.mark.parametrize("seed", range(5))
def test_plan_in_pieces_equals_the_plan_in_one_go(seed):
    """`state` holds everything that the next call must know."""
    rng = random.Random(seed)
    entries = [e for e, _, _ in some_batches(rng, 60)]
    whole = new_state(1000)
    _, _, index, times = plan(b"".join(entries), whole, None, interval=500)
    state = new_state(1000)
    found = [], []
    while entries:
        n = rng.randrange(1, 9)
        part, entries = b"".join(entries[:n]), entries[n:]
        _, _, a, b = plan(part, state, None, interval=500)
        found[0].extend(a)
        found[1].extend(b)
    assert found == (index, times)
    assert as_dict(state) == as_dict(whole)


def test_plan_of_the_worked_example():
    """Batches of 89 bytes, interval 150: entries at 178, 356, 534."""
    data = b""
    for i in range(8):
        area = record(0, None, b"v" * 21)
        entry = batch(i, area, 1, max_timestamp=T + 10 * i)
        data += entry
    assert len(data) == 8 * 89
    state = new_state(0)
    _, _, index, times = plan(data, state, None, interval=150)
    assert index == [(2, 178), (4, 356), (6, 534)]
    assert times == [(T + 20, 2), (T + 40, 4), (T + 60, 6)]


def test_plan_rolls_strictly():
    """178 bytes hold two batches of 89, 177 one; the same for time."""
    two = [
        batch(i, record(0, None, b"v" * 21), 1, max_timestamp=T + 100 * i)
        for i in range(2)
    ]
    data = b"".join(two)
    for limits, batches, stop in (
        ({"segment_bytes": 178}, 2, lib.LS_STOP_END),
        ({"segment_bytes": 177}, 1, lib.LS_STOP_ROLL_SIZE),
        ({"segment_bytes": 1}, 1, lib.LS_STOP_ROLL_SIZE),
        ({"index_entries_max": 0}, 1, lib.LS_STOP_ROLL_INDEX),
        ({"time_entries_max": 1}, 1, lib.LS_STOP_ROLL_INDEX),
        ({"time_entries_max": 2}, 2, lib.LS_STOP_END),
    ):
        _, out, _, _ = plan(data, new_state(0), limits)
        assert (out.batches, out.stop) == (batches, stop), limits


def test_plan_rolls_by_the_largest_timestamp_of_all_that_is_appended_at_once():
    """After another batch, all of it or nothing; in an empty segment, nothing."""
    first, *more = [
        batch(i, record(0, None, b"v"), 1, max_timestamp=T + delta)
        for i, delta in enumerate((0, 1, 100, 2))
    ]
    state = new_state(0)
    plan(first, state, {})
    before = as_dict(state)
    _, out, _, _ = plan(b"".join(more), state, {"segment_ms": 99})
    assert (out.bytes, out.batches, out.stop) == (0, 0, lib.LS_STOP_ROLL_TIME)
    assert as_dict(state) == before
    _, out, _, _ = plan(b"".join(more), state, {"segment_ms": 100})
    assert (out.batches, out.stop) == (3, lib.LS_STOP_END)
    whole = b"".join([first, *more])
    _, out, _, _ = plan(whole, new_state(0), {"segment_ms": 0})
    assert (out.batches, out.stop) == (4, lib.LS_STOP_END)
    _, out, _, _ = plan(whole, new_state(0), {"segment_ms": 1, "is_in_parts": 1})
    assert (out.batches, out.stop) == (2, lib.LS_STOP_ROLL_TIME)


def test_plan_rolls_where_an_offset_does_not_fit():
    """It rolls with and without limits; an empty segment, too."""
    far = plain_batch(2**31 - 1, 1) + plain_batch(2**31, 1)
    for limits in (None, {}):
        _, out, _, _ = plan(far, new_state(0), limits)
        assert (out.batches, out.stop) == (1, lib.LS_STOP_ROLL_OFFSET)
        _, out, _, _ = plan(far, new_state(2**31 - 1), limits)
        assert (out.batches, out.stop) == (2, lib.LS_STOP_END)
        _, out, _, _ = plan(far, new_state(2**31), limits)
        assert (out.batches, out.stop) == (0, lib.LS_STOP_ROLL_OFFSET)
    negative = patched(plain_batch(0, 1), 0, b"\x80" + bytes(7))
    _, out, _, _ = plan(negative, new_state(5), None)
    assert out.stop == lib.LS_STOP_ROLL_OFFSET


def test_plan_has_no_entry_for_a_position_beyond_31_bits():
    """Kafka cannot have written it; no wrong entry gets into the index."""
    state = new_state(0, size=2**31, bytes_since=5000)
    _, out, index, times = plan(plain_batch(0, 1), state, None)
    assert (out.batches, index, times) == (1, [], [])


def test_plan_stops_at_a_full_entry_buffer_and_goes_on():
    """The walk stops before the batch whose entry does not fit."""
    entries = [plain_batch(i, 1, max_timestamp=T + i) for i in range(10)]
    data = b"".join(entries)
    state = new_state(0)
    _, out, index, _ = plan(data, state, None, interval=0, capacity=4)
    assert (out.stop, out.batches, len(index)) == (lib.LS_STOP_FULL, 5, 4)
    _, rest, more, _ = plan(data[out.bytes :], state, None, interval=0)
    assert (rest.stop, rest.batches) == (lib.LS_STOP_END, 5)
    whole = new_state(0)
    assert index + more == plan(data, whole, None, interval=0)[2]
    assert as_dict(state) == as_dict(whole)


@pytest.mark.parametrize(
    ("tail", "stop"),
    [
        (b"", lib.LS_STOP_END),
        (b"\0\0\0", lib.LS_STOP_ZEROS),
        (bytes(100), lib.LS_STOP_ZEROS),
        (plain_batch(9, 1)[:30], lib.LS_STOP_PARTIAL),
        (b"abc", lib.LS_STOP_PARTIAL),
    ],
)
def test_plan_stops_where_the_whole_batches_end(tail, stop):
    """Recovery learns the length of the good part."""
    head = plain_batch(0, 2)
    _, out, _, _ = plan(head + tail, new_state(0), None)
    assert (out.bytes, out.stop) == (len(head), stop)


def test_plan_over_damage_keeps_what_came_before():
    """The error has the place; checksums are not looked at."""
    head = plain_batch(0, 2)
    bad = patched(plain_batch(2, 1), 16, b"\x05")
    state = new_state(0)
    status, out, _, _ = plan(head + bad, state, None)
    assert (status, out.bytes, state.size) == (lib.LS_E_MAGIC, len(head), len(head))
    short = patched(plain_batch(2, 1), 8, b"\0\0\0\1")
    assert plan(head + short, new_state(0), None)[0] == lib.LS_E_LENGTH
    damaged = patched(plain_batch(2, 1), 40, b"?")
    assert damaged != fix_crc(damaged)
    assert plan(head + damaged, new_state(0), None)[1].batches == 2
    assert plan(head, new_state(0), None, size=-1)[0] == lib.LS_E_ARGUMENT
    assert plan(head, new_state(0, size=-1), None)[0] == lib.LS_E_ARGUMENT
