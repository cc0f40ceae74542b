"""Compaction in C: the map of keys, and the remaining records of batches."""

from __future__ import annotations

import errno
import mmap
import random

import pytest

from logstore import _native as native
from logstore._native import compaction
from logstore._native._ls import ffi, lib
from support.compacting import (
    ABORT,
    COMMIT,
    TIME_MS,
    Batch,
    Item,
    batch2,
    marker,
    messages,
)

SECRET = bytes(range(16))
CHECKS = native.CHECK_CRC | native.CHECK_ORDER
# Functions of the core; the tests below reach all of it through `native.Compaction`.
CALLED = (
    lib.ls_hash_key,
    lib.ls_map_batches,
    lib.ls_map_payload,
    lib.ls_scan_producers,
    lib.ls_compact_batches,
    lib.ls_compact_payload,
    lib.ls_first_null,
)


def items(*pairs: tuple[bytes | None, bytes | None], first: int = 0) -> list[Item]:
    return [
        Item(first + at, key, value, TIME_MS + at)
        for at, (key, value) in enumerate(pairs)
    ]


def core(keys: int = 100, **options: object) -> native.Compaction:
    outcomes = options.pop("outcomes", native.Outcomes())
    made = native.OffsetMap(0, keys, 1 << 20, SECRET, **options)
    return native.Compaction(made, outcomes, now_ms=TIME_MS, horizon_ms=TIME_MS + 100)


def test_map_takes_what_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller map means more passes."""
    real, most = mmap.mmap, 1 << 20

    def limited(fd: int, size: int, flags: int) -> mmap.mmap:
        if size > most:
            raise OSError(errno.ENOMEM, "no memory")
        return real(fd, size, flags)

    monkeypatch.setattr(compaction.mmap, "mmap", limited)
    made = native.OffsetMap(0, 1 << 30, 1 << 40, SECRET)
    assert most // 2 <= made.bytes <= most
    assert made.raw.count_max < made.raw.capacity == made.bytes // 16
    most = 0
    with pytest.raises(MemoryError, match="no memory for a map"):
        native.OffsetMap(0, 9, 1 << 20, SECRET)


def data_of(batches: list[Batch]) -> bytes:
    return b"".join(batch.data for batch in batches)


def mapped(one: native.Compaction, data: bytes) -> native.Compaction:
    walked = one.map_batches(
        native.pointer(data), len(data), pos=0, last_offset=-1, checks=CHECKS
    )
    assert walked.error is None
    assert walked.pos == len(data)
    return one


def filtered(one: native.Compaction, data: bytes, capacity: int = 1 << 16) -> bytes:
    out = native.Buffer(capacity)
    made, pos, last = b"", 0, -1
    while True:
        walked = one.filter_batches(
            native.pointer(data), len(data), out, pos=pos, last_offset=last,
            checks=CHECKS,
        )  # fmt: skip
        assert walked.error is None, walked.error
        made += bytes(out.view[: walked.bytes])
        pos, last = walked.pos, walked.last_offset
        if walked.stop != native.STOP_FULL:
            return made
        if walked.needed > out.capacity:
            out = native.Buffer(walked.needed)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_hash_has_the_published_values(size: int, expected: str) -> None:
    """SipHash-2-4 with 128 bits, of the test vectors of its authors."""
    assert native.hash_key(SECRET, bytes(range(size))).hex() == expected


def test_map_keeps_the_last_record_of_each_key() -> None:
    """The map keeps the last record of messages and of a batch, copied byte for
    byte."""
    old = messages(items((b"a", b"1"), (b"b", b"1"), (b"c", b"1")), 1)
    new = batch2(items((b"a", b"2"), (b"b", None), first=3))
    data = data_of([*old, new])
    one = mapped(core(), data)
    assert one.map.count == 3
    assert one.map.end_offset == 5
    made = filtered(one, data)
    assert made.startswith(old[2].data)
    assert one.counts.removed == 2
    # The tombstone gives its batch a delete horizon: it is written again.
    assert one.counts.batches_changed == 1
    assert len(made) > len(old[2].data) + len(new.data)


def test_record_beyond_the_map_stays() -> None:
    """A full map ends in front of the first batch with a key that does not fit."""
    rng = random.Random(3)
    keys = [b"%d" % rng.randrange(1 << 60) for _ in range(200)]
    batches = [batch2(items((key, b"v"), first=at)) for at, key in enumerate(keys)]
    data = data_of(batches)
    one = core(keys=1)
    walked = one.map_batches(
        native.pointer(data), len(data), pos=0, last_offset=-1, checks=CHECKS
    )
    assert walked.stop == native.STOP_FULL
    assert one.map.end_offset == one.map.count < 200
    assert filtered(one, data) == data


def test_classes_of_keys_partition_them() -> None:
    """Each record is counted once if each class has its map."""
    batch = batch2(items(*[(b"k%d" % (n % 7), b"v") for n in range(50)]))
    removed = 0
    for number in range(3):
        one = mapped(core(classes=3, class_number=number), batch.data)
        filtered(one, batch.data)
        removed += one.counts.removed
    assert removed == 50 - 7


def test_aborted_batches_go_and_needed_headers_stay() -> None:
    """A batch of an aborted transaction keeps no record; a marker stays."""
    first = batch2(items((b"a", b"1")), producer=(5, 0, 0), attributes=0x10)
    second = batch2(items((b"a", b"2"), first=1), producer=(5, 0, 1), attributes=0x10)
    end = marker(2, 5, 0, ABORT)
    data = data_of([first, second, end])
    outcomes = native.Outcomes([(5, 0, 1)], (), [1])
    one = mapped(core(outcomes=outcomes), data)
    assert one.map.count == 0
    made = filtered(one, data)
    scan = native.scan_batches(native.pointer(made), len(made))
    assert [h.record_count for h in scan.headers] == [0, 1]
    assert scan.headers[0].base_sequence == 1
    assert made.endswith(end.data)


def test_spent_marker_gets_a_horizon_and_goes_when_that_is_over() -> None:
    """Records of the marker keep their timestamps."""
    end = marker(0, 5, 0, ABORT)
    outcomes = native.Outcomes((), [0], ())
    once = filtered(mapped(core(outcomes=outcomes), end.data), end.data)
    (header,) = native.scan_batches(native.pointer(once), len(once)).headers
    assert (header.attributes & 0x40, header.base_timestamp) == (0x40, TIME_MS + 100)
    assert header.max_timestamp == TIME_MS
    later = native.Compaction(
        native.OffsetMap(0, 9, 1 << 16, SECRET), outcomes,
        now_ms=TIME_MS + 100, horizon_ms=TIME_MS + 200,
    )  # fmt: skip
    assert filtered(later, once) == b""


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy"])
@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_is_opened_by_the_caller(magic: int, codec: str) -> None:
    """C stops in front of it, and makes the inner messages that stay."""
    (wrapper,) = messages(items((b"a", b"1"), (b"b", b"1"), (b"a", b"2")), magic, codec)
    one = core()
    walked = one.map_batches(
        native.pointer(wrapper.data), len(wrapper.data), pos=0, last_offset=-1,
        checks=CHECKS,
    )  # fmt: skip
    assert walked.stop == native.STOP_COMPRESSED
    (header,) = native.scan_batches(
        native.pointer(wrapper.data), len(wrapper.data)
    ).headers
    plain = data_of(messages(items((b"a", b"1"), (b"b", b"1"), (b"a", b"2")), magic))
    if magic:
        plain = b"".join(
            at.to_bytes(8, "big") + message.data[8:]
            for at, message in enumerate(messages(list(wrapper.items), magic))
        )
    assert one.map_payload(header, plain, CHECKS)
    verdict, inside, made = one.filter_payload(header, plain, CHECKS)
    assert verdict == native.VERDICT_REWRITE
    assert made.last_offset == 2
    assert len(bytes(inside)) < len(plain)
    assert one.counts.removed == 1


def test_batch_that_does_not_fit_the_output_says_what_it_needs() -> None:
    """No bytes are put out before."""
    batch = batch2(items((b"k", b"v" * 500), (b"k", None)))
    one = mapped(core(), batch.data)
    assert len(filtered(one, batch.data, capacity=100)) < len(batch.data)


def test_batch_with_more_records_than_columns_gets_larger_ones() -> None:
    """The columns grow for a map and for a filter."""
    batch = batch2(items(*[(b"%d" % n, b"") for n in range(9000)]))
    one = mapped(core(keys=9000), batch.data)
    assert one.map.count == 9000
    assert filtered(one, batch.data) == batch.data


@pytest.mark.parametrize("at", [20, 61, 70, 90])
def test_damaged_batch_is_an_error(at: int) -> None:
    """Map and filter report it; the batches before it are written."""
    good = batch2(items((b"a", b"1")))
    bad = bytearray(batch2(items((b"b", b"1" * 40), first=1)).data)
    bad[at] ^= 1
    data = good.data + bytes(bad)
    walked = core().map_batches(
        native.pointer(data), len(data), pos=0, last_offset=-1, checks=CHECKS
    )
    assert walked.error is not None
    assert walked.pos == len(good.data)
    out = native.Buffer(1000)
    walked = core().filter_batches(
        native.pointer(data), len(data), out, pos=0, last_offset=-1, checks=CHECKS
    )
    assert walked.error is not None
    assert bytes(out.view[: walked.bytes]) == good.data


def scanned(data: bytes | bytearray) -> native.Scan:
    return native.scan_producers(
        native.pointer(data), len(data), pos=0, last_offset=-1, checks=CHECKS
    )


def test_headers_of_producers_are_found_without_the_others() -> None:
    """The last of successive batches of a producer stands for all of them."""
    plain = batch2(items((b"a", b"1")))
    sent = [
        batch2(items((b"a", b"1"), first=1 + n), producer=(7, 0, n)) for n in range(3)
    ]
    opened = batch2(items((b"a", b"1"), first=4), producer=(7, 0, 3), attributes=0x10)
    data = data_of([plain, *sent, opened, marker(5, 7, 0, ABORT)])
    scan = scanned(data)
    assert [h.last_offset for h in scan.headers] == [3, 4, 5]
    assert (scan.pos, scan.last_offset) == (len(data), 5)
    cut = scanned(data[:-1])
    assert cut.stop == native.STOP_PARTIAL


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_are_not_counted_as_batches_of_producers(magic: int) -> None:
    """Any number of messages may be between these batches and before them."""
    batches: list[Batch] = []
    for first in range(0, 4000, 200):
        rows = [(b"k%d" % n, b"v") for n in range(199)]
        batches += messages(items(*rows, first=first), magic)
        batches.append(marker(first + 199, first, 0, COMMIT))
    data = data_of(batches)
    scan = scanned(data)
    assert (scan.error, scan.pos, scan.last_offset) == (None, len(data), 3999)
    assert [h.last_offset for h in scan.headers] == list(range(199, 4000, 200))
    assert [h.producer_id for h in scan.headers] == list(range(0, 4000, 200))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_damaged_batch_is_one_of_no_producer(magic: int) -> None:
    """Its bits do not count: a marker may have lost its producer, its type, or more."""
    good = data_of([marker(5, 7, 0, ABORT)])
    if magic < 2:
        good = data_of(messages(items((b"a", b"1")), magic))
    whole = scanned(good)
    assert (whole.error, whole.pos) == (None, len(good))
    for at in range(12 if magic < 2 else 16, len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        scan = scanned(bad)
        assert scan.error is not None, at
        assert (scan.headers, scan.pos) == ([], 0)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_scan_of_producers_finds_offsets_that_go_back(magic: int) -> None:
    """Batches without a producer count, too."""
    if magic < 2:
        first, second = messages(items((b"a", b"1"), (b"b", b"2"), first=8), magic)
    else:
        first, second = (batch2(items((b"a", b"1"), first=n)) for n in (8, 9))
    scan = scanned(data_of([first, second]))
    assert (scan.error, scan.last_offset) == (None, 9)
    scan = scanned(data_of([second, first]))
    assert scan.error is not None
    assert (scan.pos, scan.last_offset) == (len(second.data), 9)


def test_first_null_is_the_first_negative_length() -> None:
    """The result is -1 without one."""
    assert native.first_null(native.int32_array([1, 0, -1, -1]), 4) == 2
    assert native.first_null(native.int32_array([1, 0]), 2) == -1
    assert native.first_null(ffi.NULL, 0) == -1
