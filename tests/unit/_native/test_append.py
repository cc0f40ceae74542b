"""Records encoded and planned in one step, compared with separate encoding and
planning."""

import random
import struct

import pytest
from unit._native.kafka_bytes import (
    FREE,
    Guarded,
    Records,
    T,
    Writer,
    as_dict,
    batch,
    message,
    new_state,
    plan,
    record,
)

from logstore._native._ls import ffi, lib

EPOCH = 3  # of the leader

# ------------------------------------------------------------------ one record


class OneRecord:
    """ls_append_records of single records for one segment."""

    def __init__(self, state, limits=None):
        self.state = state
        self.limits = ffi.new("ls_roll_limits *", FREE | (limits or {}))
        self.plan = ffi.new("ls_plan *")
        self.index = ffi.new("uint8_t[8]")
        self.times = ffi.new("uint8_t[12]")

    def append(
        self,
        key,
        value,
        *,
        magic=1,
        capacity=500,
        max_bytes=500,
        timestamp=T,
        attributes=0,
    ):
        memory = Guarded(capacity)
        out = memory.at_end(bytes(capacity))
        records = Records([(key, value)], timestamp_all=timestamp)
        size = lib.ls_append_records(
            records.raw, magic, attributes, EPOCH, max_bytes, max_bytes, self.limits,
            self.state, out, capacity, self.index, self.times, 1, self.plan,
            ffi.new("ls_error *"),
        )  # fmt: skip
        return size, bytes(ffi.buffer(out, max(size, 0)))


def one_record(magic, offset, key, value):
    """A message, or a batch of one record."""
    if magic < 2:
        return message(offset, key, value, magic=magic)
    return batch(offset, record(0, key, value), 1, epoch=EPOCH)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_append_record_equals_encoding_and_planning(magic):
    """Bytes, state and entries agree, for one record after the other."""
    rng = random.Random(magic)
    one = OneRecord(new_state(50), {"index_interval_bytes": 100})
    data = b""
    pairs = []
    for i in range(60):
        key, value = rng.choice(((None, b"v"), (b"k", None), (b"", b"v" * i)))
        size, written = one.append(key, value, magic=magic)
        assert written == one_record(magic, 50 + i, key, value)
        assert size == len(written)
        data += written
        if one.plan.index_count:
            pairs.append(struct.unpack(">ii", ffi.buffer(one.index)))
    state = new_state(50)
    assert plan(data, state, None, interval=100)[2] == pairs
    assert as_dict(state) == as_dict(one.state)


def test_append_record_that_does_not_fit_gives_nothing():
    """The space or the limit is too small by a single byte."""
    one = OneRecord(new_state(0))
    size = len(message(0, b"key", b"value"))
    assert one.append(b"key", b"value", capacity=size - 1)[0] == 0
    assert one.append(b"key", b"value", max_bytes=size - 1)[0] == 0
    assert one.append(b"key", b"value", capacity=size, max_bytes=size)[0] == size


def test_append_record_of_a_batch_that_does_not_fit_gives_nothing():
    """The space has no room for its header, or for its last byte."""
    one = OneRecord(new_state(0))
    size = len(one_record(2, 0, b"key", b"value"))
    for room in (0, 1, 60, 61, 62, size - 1):
        assert one.append(b"key", b"value", magic=2, capacity=room)[0] == 0
        assert one.append(b"key", b"value", magic=2, max_bytes=room)[0] == 0
    assert one.append(b"key", b"value", magic=2, max_bytes=size)[0] == size


def test_append_record_that_needs_a_new_segment_gives_nothing():
    """The caller rolls and begins again."""
    one = OneRecord(new_state(0), {"segment_bytes": 60})
    assert one.append(b"key", b"value")[0] > 0
    assert one.append(b"key", b"value")[0] == 0
    assert one.plan.stop == lib.LS_STOP_ROLL_SIZE


@pytest.mark.parametrize("seed", range(20))
def test_append_record_equals_the_long_way(seed):
    """ls_encode_messages and ls_plan_append, or 0 if one of them refuses."""
    rng = random.Random(seed)
    limits = {
        "segment_bytes": rng.choice((200, 3000, 2**31 - 1)),
        "segment_ms": rng.choice((0, 400, 2**62)),
        "now_ms": T + rng.choice((0, 500)),
        "index_interval_bytes": rng.choice((0, 100, 1000)),
        "index_entries_max": rng.choice((2, 2**31)),
        "time_entries_max": rng.choice((3, 2**31)),
    }
    base = rng.choice((0, 50, 2**40))
    one = OneRecord(new_state(base), limits)
    state = new_state(base)
    for _ in range(150):
        magic = rng.randrange(2)
        lengths = rng.choices((None, 0, 1, 7, 8, 9, 60, 200), k=2)
        key, value = (None if n is None else rng.randbytes(n) for n in lengths)
        timestamp = T + rng.choice((0, 0, rng.randrange(1000), -5, -T - 1))
        attributes = rng.choice((0, 8))
        capacity, max_bytes = rng.choice(((500, 500), (500, 100), (90, 500)))
        writer = Writer(
            Records([(key, value)], timestamp_all=timestamp), min(capacity, max_bytes)
        )
        before = as_dict(state)
        status, data = writer.messages(
            magic, base_offset=state.last_offset + 1, attributes=attributes
        )
        size, written = one.append(
            key,
            value,
            magic=magic,
            capacity=capacity,
            max_bytes=max_bytes,
            timestamp=timestamp,
            attributes=attributes,
        )
        if status == lib.LS_E_NO_SPACE:
            assert size == 0
        else:
            assert status == 0
            status, out, index, times = plan(data, state, limits, capacity=1)
            assert status == 0
            assert written == data[: out.bytes]
            assert (size, one.plan.stop) == (out.bytes, out.stop)
            counts = one.plan.index_count, one.plan.time_count
            assert counts == (len(index), len(times))
            assert max(counts) <= 1
            assert (
                list(struct.iter_unpack(">ii", ffi.buffer(one.index)))[: counts[0]]
                == index
            )
            assert (
                list(struct.iter_unpack(">qi", ffi.buffer(one.times)))[: counts[1]]
                == times
            )
        assert as_dict(one.state) == as_dict(state)
        if size == 0:
            assert as_dict(state) == before


@pytest.mark.parametrize(
    ("limits", "fields", "stop"),
    [
        ({"segment_ms": 99}, {"first_timestamp": T - 100}, lib.LS_STOP_ROLL_TIME),
        ({"index_entries_max": 3}, {"index_entries": 3}, lib.LS_STOP_ROLL_INDEX),
        ({"time_entries_max": 4}, {"time_entries": 3}, lib.LS_STOP_ROLL_INDEX),
        ({}, {"last_offset": 2**31 - 1}, lib.LS_STOP_ROLL_OFFSET),
    ],
)
def test_append_record_tells_why_it_needs_a_new_segment(limits, fields, stop):
    """The state stays unchanged."""
    one = OneRecord(new_state(0, size=100, **fields), limits)
    before = as_dict(one.state)
    assert one.append(b"key", b"value")[0] == 0
    assert one.plan.stop == stop
    assert as_dict(one.state) == before


def test_append_record_at_the_last_offset_of_all_is_refused():
    """The next offset would not fit its type; every other offset does."""
    for base in (2**63 - 1, 5):
        one = OneRecord(new_state(base, last_offset=2**63 - 1))
        before = as_dict(one.state)
        assert one.append(b"key", b"value")[0] == lib.LS_E_ARGUMENT
        assert as_dict(one.state) == before
    one = OneRecord(new_state(2**63 - 2))
    for offset in (2**63 - 2, 2**63 - 1):
        assert one.append(b"key", b"v")[1] == message(offset, b"key", b"v")
    assert one.append(b"key", b"v")[0] == lib.LS_E_ARGUMENT


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_append_record_of_another_magic_is_refused(magic):
    """A state of a size below 0 is refused, too; into a limit below 0 nothing fits."""
    one = OneRecord(new_state(0))
    assert one.append(b"key", b"value", magic=magic)[0] == lib.LS_E_ARGUMENT
    for known in (1, 2):
        assert one.append(b"key", b"value", magic=known, max_bytes=-1)[0] == 0
    broken = OneRecord(new_state(0, size=-1))
    assert broken.append(b"key", b"value")[0] == lib.LS_E_ARGUMENT


# ------------------------------------------------------------------ many records


class ManyRecords:
    """ls_append_records for one segment."""

    def __init__(self, state, limits=None, entries_max=1000):
        self.state = state
        self.limits = ffi.new("ls_roll_limits *", FREE | (limits or {}))
        self.plan = ffi.new("ls_plan *")
        self.entries_max = entries_max
        self.index = ffi.new("uint8_t[]", 8 * entries_max)
        self.times = ffi.new("uint8_t[]", 12 * entries_max)

    def append(self, records, *, magic=1, capacity=5000, max_bytes=2000, target=900):
        memory = Guarded(capacity)
        out = memory.at_end(bytes(capacity))
        size = lib.ls_append_records(
            records.raw, magic, 0, EPOCH, max_bytes, target, self.limits, self.state,
            out, capacity, self.index, self.times, self.entries_max, self.plan,
            ffi.new("ls_error *"),
        )  # fmt: skip
        return size, bytes(ffi.buffer(out, max(size, 0)))

    def entries(self):
        index = ffi.buffer(self.index, 8 * self.plan.index_count)
        times = ffi.buffer(self.times, 12 * self.plan.time_count)
        return (
            list(struct.iter_unpack(">ii", index)),
            list(struct.iter_unpack(">qi", times)),
        )


def encoded(rows, magic, base, timestamps, target):
    """One batch after the other, each of at most `target` bytes."""
    if magic < 2:
        return b"".join(
            message(base + i, key, value, magic=magic, timestamp=time)
            for i, ((key, value), time) in enumerate(zip(rows, timestamps, strict=True))
        )
    records = Records(rows, timestamps=timestamps)
    cursor = ffi.new("ls_cursor *")
    written = ffi.new("ls_written *")
    out = ffi.new("uint8_t[]", target)
    data = b""
    while cursor.index < len(rows):
        first = cursor.index
        status = lib.ls_encode_area(
            records.raw, cursor, len(rows), out + 61, target - 61, written
        )
        assert status == 0
        times = timestamps[first : cursor.index]
        data += batch(
            base + first,
            bytes(ffi.buffer(out + 61, written.bytes)),
            cursor.index - first,
            epoch=EPOCH,
            base_timestamp=times[0],
            max_timestamp=max(times),
        )
    return data


def some_rows(rng, count):
    lengths = [rng.choices((None, 0, 1, 7, 60, 200), k=2) for _ in range(count)]
    rows = [
        tuple(None if n is None else rng.randbytes(n) for n in pair) for pair in lengths
    ]
    return rows, [T + rng.randrange(1000) for _ in rows]


def encode(rows, times, target, *, magic, capacity=5000, max_bytes=2000):
    """ls_encode_records from offset 7 on."""
    memory = Guarded(capacity)
    out = memory.at_end(bytes(capacity))
    records = Records(rows, timestamps=times)
    size = lib.ls_encode_records(
        records.raw, magic, 0, 7, EPOCH, max_bytes, target, out, capacity
    )
    return size, bytes(ffi.buffer(out, max(size, 0)))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_encode_records_writes_what_an_append_would(magic):
    """Nothing if they are too many or too large; a status for arguments that cannot
    be."""
    rng = random.Random(magic)
    for target in (500, 900):
        rows, times = some_rows(rng, 12)
        right = encoded(rows, magic, 7, times, target)
        size = len(right)
        given = (rows, times, target)
        assert encode(*given, magic=magic) == (size, right)
        if magic < 2:
            assert encode(*given, magic=magic, capacity=size) == (size, right)
        assert encode(*given, magic=magic, capacity=size - 1) == (0, b"")
        assert encode(*given, magic=magic, max_bytes=90) == (0, b"")
        for wrong in (3, -1):
            assert encode(*given, magic=wrong) == (lib.LS_E_ARGUMENT, b"")
        assert encode([], [], target, magic=magic) == (lib.LS_E_ARGUMENT, b"")


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_append_records_equals_encoding_and_planning(magic):
    """Bytes, state and entries agree, for one call after the other."""
    rng = random.Random(magic)
    limits = {"index_interval_bytes": 300}
    many, state = ManyRecords(new_state(50), limits), new_state(50)
    for _ in range(60):
        rows, times = some_rows(rng, rng.randrange(1, 20))
        base = state.last_offset + 1
        size, written = many.append(
            Records(rows, timestamps=times, spread=rng.random() < 0.5),
            magic=magic,
            capacity=20_000,
        )
        assert written == encoded(rows, magic, base, times, 900)
        assert size == len(written)
        status, out, index, stamps = plan(written, state, limits)
        assert status == 0
        assert many.entries() == (index, stamps)
        assert as_dict(many.state) == as_dict(state)
        assert many.plan.batches == out.batches


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_append_records_that_do_not_fit_give_nothing(magic):
    """The space for all, or the limit of one record is too small, even by a single
    byte."""
    rows = [(b"key", b"value"), (None, b"v" * 100), (b"", None)]
    data = encoded(rows, magic, 0, [T] * 3, 900)
    many = ManyRecords(new_state(0))
    before = as_dict(many.state)
    for room in (0, 1, 60, len(data) - 1):
        assert many.append(Records(rows), magic=magic, capacity=room)[0] == 0
    largest = len(encoded(rows[1:2], magic, 0, [T], 900))
    for limit in (0, 10, largest - 1):
        assert many.append(Records(rows), magic=magic, max_bytes=limit)[0] == 0
    if magic == 2:
        assert many.append(Records(rows), magic=2, target=largest - 1)[0] == 0
    assert as_dict(many.state) == before
    size, written = many.append(Records(rows), magic=magic, capacity=len(data))
    assert (size, written) == (len(data), data)
    many = ManyRecords(new_state(0))
    assert many.append(Records(rows), magic=magic, max_bytes=largest)[0] > 0


def test_append_records_that_need_a_new_segment_give_nothing():
    """The new segment would begin at any of them."""
    rows = [(b"key", b"value")] * 5
    size = len(message(0, b"key", b"value"))
    for fitting in range(1, 5):
        many = ManyRecords(new_state(0), {"segment_bytes": fitting * size})
        assert many.append(Records(rows))[0] == 0
        assert many.plan.stop == lib.LS_STOP_ROLL_SIZE
    many = ManyRecords(new_state(0), {"segment_bytes": 5 * size})
    assert many.append(Records(rows))[0] == 5 * size


def test_append_records_that_need_more_entries_give_nothing():
    rows = [(b"key", b"value")] * 20
    for entries_max, fits in ((5, False), (30, True)):
        many = ManyRecords(new_state(0), {"index_interval_bytes": 1}, entries_max)
        assert (many.append(Records(rows))[0] > 0) == fits
        assert many.plan.index_count <= entries_max


def test_append_records_with_headers_or_none_at_all():
    """Headers take another way; a call without records is our own mistake."""
    many = ManyRecords(new_state(0))
    with_headers = Records([(b"k", b"v")], headers=[[(b"name", b"value")]])
    assert many.append(with_headers, magic=2)[0] == 0
    assert many.append(Records([]))[0] == lib.LS_E_ARGUMENT
    for magic in (-1, 3):
        assert many.append(Records([(b"k", b"v")]), magic=magic)[0] == lib.LS_E_ARGUMENT


def test_append_records_up_to_the_last_offset_of_all():
    """At most as many records fit as there are offsets."""
    rows = [(None, b"v")] * 3
    assert ManyRecords(new_state(2**63 - 3)).append(Records(rows))[0] > 0
    assert ManyRecords(new_state(2**63 - 2)).append(Records(rows))[0] == 0
    last = ManyRecords(new_state(5, last_offset=2**63 - 1))
    assert last.append(Records(rows))[0] == lib.LS_E_ARGUMENT
