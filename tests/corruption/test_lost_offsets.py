"""Offsets lost by batches in the wrong order: a reader that skips damage, the error
that it would raise, and verify name the same offsets, and all others are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import logstore
from support.damage import logs_in
from support.values import write_store

VALUES = 120
T = 1_700_000_000_000
FORMATS = [(2, "none"), (2, "gzip"), (1, "none"), (1, "gzip"), (0, "gzip")]


class Log(NamedTuple):
    """A log and its batches.

    Attributes:
        values: of the records, by their offsets.
        places: of the batches with one record each, by their offsets.
        has_wrappers: verify names all offsets that a wrapper claims.
    """

    path: Path
    values: dict[int, bytes | None]
    places: dict[int, tuple[int, int]]
    has_wrappers: bool


def log_of(path: Path, magic: int, codec: str, *, has_gaps: bool) -> Log:
    """A log in one segment; or in two, the first one compacted, without record 0 and
    without keys that the second segment has again."""
    config = logstore.TopicConfig(
        message_format=magic,
        compression_type=codec,
        cleanup_policy="compact" if has_gaps else "delete",
        index_interval_bytes=500,
    )
    with logstore.open(path) as store:
        partition = store.create_topic("t", config=config)[0]
        for number in range(VALUES):
            key = b"k%03d" % number
            time = None if magic == 0 else T  # compressed to the same size
            partition.append(b"value %03d" % number, key=key, timestamp_ms=time)
        if has_gaps:
            partition.roll()
            for number in (0, 55, 99):
                partition.append(b"newer", key=b"k%03d" % number)
            partition.roll()
            partition.append(b"end", key=b"end")
            partition.compact(force=True)
        values = {record.offset: record.value for record in partition.read()}
        places = {
            batch.base_offset: (batch.position, batch.position + batch.size_bytes)
            for batch in partition.read_batches(None, VALUES)
        }
    return Log(path, values, places, magic < 2 and codec != "none")


@pytest.fixture(scope="module", params=[False, True], ids=["contiguous", "gaps"])
def has_gaps(request):
    return request.param


@pytest.fixture(scope="module", params=FORMATS, ids=str)
def log(tmp_path_factory, request, has_gaps):
    return log_of(tmp_path_factory.mktemp("log"), *request.param, has_gaps=has_gaps)


def moved(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def other_offset(number: int, offset: int):
    """A batch has another offset."""

    def change(parts: dict[int, bytes]) -> None:
        parts[number] = moved(parts[number], offset)

    return change


def in_place_of(number: int, other: int):
    """A block of the disk has the batch that belongs to another block."""

    def change(parts: dict[int, bytes]) -> None:
        parts[number] = parts[other]

    return change


def swapped(*numbers: int):
    """Batches are rotated: each has the place of another one."""

    def change(parts: dict[int, bytes]) -> None:
        before = [parts[number] for number in numbers]
        for number, batch in zip(numbers, [*before[1:], before[0]], strict=True):
            parts[number] = batch

    return change


def both(*changes):
    def change(parts: dict[int, bytes]) -> None:
        for each in changes:
            each(parts)

    return change


CASES = {
    **{f"51 says {51 ^ bit}": other_offset(51, 51 ^ bit) for bit in (4, 8, 32, 64)},
    "60 says 28": other_offset(60, 28),
    "the first says 65": other_offset(1, 65),
    "the last says more": other_offset(119, 119 ^ 8),
    "changed places": swapped(51, 52),
    "changed places behind a gap": swapped(56, 57),
    "changed places before a gap": swapped(53, 54),
    "first two": swapped(1, 2),
    "last two": swapped(118, 119),
    "the next one": in_place_of(51, 52),
    "the one before": in_place_of(51, 50),
    "an older one": in_place_of(51, 30),
    "a later one": in_place_of(51, 90),
    "two faults": both(other_offset(51, 115), other_offset(70, 6)),
    "two pairs": both(swapped(51, 52), swapped(60, 61)),
}


@pytest.fixture
def damaged(log, request):
    change = CASES[request.param]
    path = log.path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    parts = {number: data[begin:end] for number, (begin, end) in log.places.items()}
    change(parts)
    body = b"".join(parts.values())
    if len(body) != log.places[VALUES - 1][1]:
        pytest.skip("the batches that this needs are not compressed to the same size")
    path.write_bytes(body + data[len(body) :])
    yield log
    path.write_bytes(data)


@pytest.mark.parametrize("damaged", CASES, indirect=True)
def test_what_is_lost_is_told_and_all_else_is_read(damaged: Log) -> None:
    told: list[logstore.types.Damaged] = []
    with logstore.open(damaged.path, read_only=True) as store:
        partition = store.topic("t")[0]
        found = {
            record.offset: record.value
            for record in partition.read(on_corruption=lambda one: not told.append(one))
        }
        delivered: list[int] = []
        with pytest.raises(logstore.CorruptRecordError) as caught:
            delivered += [record.offset for record in partition.read()]
    lost: set[int] = set()
    for each in told:
        end = VALUES if each.next_offset is None else each.next_offset
        assert max(lost, default=-1) < each.first < end
        lost.update(range(each.first, end))
        assert (each.error.offset, each.error.next_offset) == each[:2]
    assert found.items() <= damaged.values.items()
    assert damaged.values.keys() - found.keys() == damaged.values.keys() & lost
    assert caught.value.offset == told[0].first
    # If no intact batch follows, the error gives the end of the log.
    assert caught.value.next_offset == (told[0].next_offset or VALUES)
    named: set[int] = set()
    for problem in logstore.verify(damaged.path, deep=True).problems:
        if problem.last_offset is not None:
            named.update(range(problem.first_offset, problem.last_offset + 1))
    assert named == lost or (damaged.has_wrappers and named > lost)


@pytest.mark.parametrize("damaged", CASES, indirect=True)
def test_what_is_not_lost_is_found(damaged: Log) -> None:
    """A read that begins there finds the record. A lookup of it may raise: the batch
    after it may show that its offset is wrong."""
    with logstore.open(damaged.path, read_only=True) as store:
        partition = store.topic("t")[0]
        found = {record.offset for record in partition.read(on_corruption="skip")}
        for offset, value in damaged.values.items():
            for look in (partition.get, lambda at: next(partition.read(at))):
                try:
                    record = look(offset)
                except logstore.CorruptRecordError:
                    assert look == partition.get or offset not in found
                else:
                    assert (record.offset, record.value) == (offset, value)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
@pytest.mark.parametrize("behind", [2, 3])
def test_segment_of_a_lower_name_hides_no_records_of_the_one_before(
    tmp_path: Path, magic: int, codec: str, behind: int
) -> None:
    """The log of another program: a batch beyond the base offset of the next segment
    is damage, even if only the records in it show that."""
    partition = write_store(tmp_path, 24, magic, codec, call=3, segment_bytes=500)
    for file in (
        *tmp_path.glob(".*"),
        *partition.glob(".*"),
        *partition.glob("*index"),
    ):
        file.unlink()
    *_, last = logs_in(partition)
    base = int(last.name[:20])
    lower = last.with_name(f"{base - behind:020d}.log")
    assert not lower.exists()
    last.rename(lower)
    found = []
    with logstore.open(tmp_path, read_only=True) as store:
        with pytest.raises(logstore.CorruptRecordError) as caught:
            for record in store.topic("orders")[0].read():
                found.append(record.offset)
    assert found == list(range(caught.value.offset))
    assert base - 3 <= caught.value.offset < base
