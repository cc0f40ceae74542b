"""Index files that are damaged, missing, or do not belong to their log."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

import logstore
from logstore import _native as native
from support import verifying
from support.damage import cut, flip_bit, logs_in, overwrite
from support.values import write_store
from support.verifying import forget_state, golden_with, kinds, note_kinds, the_problem

# Fixtures.
partition = verifying.partition


def index_of(partition: Path, slot: int = 0, suffix: str = ".index") -> Path:
    """The index of a segment."""
    return logs_in(partition)[slot].with_suffix(suffix)


def entry_bytes(path: Path) -> int:
    return 8 if path.suffix == ".index" else 12


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", ["odd-size", "zero-tail", "swapped", "beyond", "changed"]
)
def test_a_bad_index_is_a_problem_in_a_sealed_segment(
    partition: Path, suffix: str, damage: str
) -> None:
    """One problem a file, with the position of the first bad entry."""
    path = index_of(partition, 0, suffix)
    data, size = path.read_bytes(), entry_bytes(path)
    count = len(data) // size
    entries = [data[slot * size : (slot + 1) * size] for slot in range(count)]
    expected = len(data)
    if damage == "odd-size":
        data += b"\1"
    elif damage == "zero-tail":
        data += bytes(4 * size)
    elif damage == "swapped":
        entries[1], entries[2] = entries[2], entries[1]
        data, expected = b"".join(entries), None
    elif damage == "beyond":
        extra = (1 << 20, 1 << 20) if size == 8 else (1 << 60, 1 << 20)
        data += struct.pack(">ii" if size == 8 else ">qi", *extra)
    else:
        number = int.from_bytes(entries[1], "big") ^ (1 if size == 8 else 1 << 40)
        entries[1] = number.to_bytes(size, "big")
        data, expected = b"".join(entries), size
    path.write_bytes(data)
    problem = the_problem(logstore.verify(partition))
    kind = "offset-index" if suffix == ".index" else "time-index"
    assert (problem.kind, problem.path) == (kind, str(path))
    if expected is not None:
        assert problem.position == expected
    assert the_problem(logstore.verify(path)).position == problem.position


def test_an_entry_whose_offset_lies_before_its_position_is_a_problem(
    partition: Path,
) -> None:
    """A search for that offset would begin after it."""
    path = index_of(partition)
    offset, pos = struct.unpack_from(">ii", path.read_bytes(), 8)
    overwrite(path, 8, struct.pack(">ii", offset - 1, pos))
    assert the_problem(logstore.verify(partition)).kind == "offset-index"


def test_bad_indexes_of_an_active_segment_after_a_crash_are_notes(
    partition: Path,
) -> None:
    """Opening rebuilds them: zeros after the entries, or entries past the log."""
    forget_state(partition)
    index, times = index_of(partition, -1), index_of(partition, -1, ".timeindex")
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 5000, 1 << 20))
    times.write_bytes(times.read_bytes() + bytes(120))
    report = logstore.verify(partition)
    assert report.ok
    assert sorted(note_kinds(report)) == ["offset-index", "zero-tail"]


def test_a_missing_offset_index_is_a_note(partition: Path) -> None:
    """Readers work without it until it is built; a missing time index is a note,
    too."""
    index_of(partition).unlink()
    index_of(partition, 1, ".timeindex").unlink()
    report = logstore.verify(partition)
    assert report.ok
    assert set(note_kinds(report)) == {"missing-index"}
    assert len(report.notes) == 2


def test_a_time_index_without_its_largest_timestamp_is_a_problem(
    partition: Path,
) -> None:
    """Retention by time would use an older one."""
    path = index_of(partition, 0, ".timeindex")
    path.write_bytes(path.read_bytes()[:-12])
    assert the_problem(logstore.verify(partition)).kind == "time-index"


def test_times_of_a_log_without_times_are_a_note(tmp_path: Path) -> None:
    """Kafka 0.10 writes the producer's times for records that it converts to magic 0;
    they mislead no search."""
    partition = write_store(tmp_path, 30, 0, call=3, segment_bytes=500)
    forget_state(partition)
    path = index_of(partition, 0, ".timeindex")
    entries = [(1_700_000_000_000, 2), (1_700_000_000_500, 5)]
    path.write_bytes(b"".join(struct.pack(">qi", *one) for one in entries))
    report = logstore.verify(partition)
    assert report.ok
    assert note_kinds(report) == ["time-index"]
    with logstore.open(tmp_path, read_only=True) as store:
        topic = store.topic(partition.name.rpartition("-")[0])
        assert topic[0].offset_for_time(1_700_000_000_000) is None
        assert len(list(topic[0].read())) == 30


@pytest.mark.parametrize(
    "entries",
    [
        [(1_700_000_000_500, 2), (1_700_000_000_000, 5)],
        [(1_700_000_000_000, 2), (1_700_000_000_500, 900)],
    ],
)
def test_bad_times_of_a_log_without_times_are_a_problem(
    tmp_path: Path, entries: list[tuple[int, int]]
) -> None:
    """They are out of order, or belong to an offset after the log."""
    partition = write_store(tmp_path, 30, 0, call=3, segment_bytes=500)
    forget_state(partition)
    path = index_of(partition, 0, ".timeindex")
    path.write_bytes(b"".join(struct.pack(">qi", *one) for one in entries))
    assert the_problem(logstore.verify(partition)).kind == "time-index"


@pytest.mark.parametrize("damage", ["cut", "version", "offset"])
def test_a_bad_transaction_index_is_a_problem(tmp_path: Path, damage: str) -> None:
    """Size, version, or an ABORT marker that is not there (`deep`)."""
    path = golden_with(".txnindex", tmp_path)
    size = path.stat().st_size
    if damage == "cut":
        cut(path, size - 1)
    elif damage == "version":
        overwrite(path, 0, b"\x00\x07")
    else:
        flip_bit(path, 8 * (size - 34 + 9))  # its producer id
    report = logstore.verify(path.parent, deep=True)
    assert kinds(report) == ["transaction-index"]
    assert report.problems[0].path == str(path)


@pytest.mark.parametrize("seed", range(24))
def test_findings_are_those_of_a_comparison_entry_by_entry(
    partition: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """C checks the entries that are plainly right, and leaves the rest to Python. Here
    Python checks everything, too."""
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        path = index_of(partition, rng.randrange(3), rng.choice(SUFFIXES))
        damage_index(path, rng)
    if rng.randrange(3) == 0:
        log = logs_in(partition)[rng.randrange(3)]
        flip_bit(log, rng.randrange(8 * log.stat().st_size))
    deep = bool(rng.randrange(2))
    found = logstore.verify(partition, deep=deep)
    monkeypatch.setattr(native.IndexCheck, "commit", lambda self, size: -1)
    assert logstore.verify(partition, deep=deep) == found


SUFFIXES = (".index", ".timeindex")


def damage_index(path: Path, rng: random.Random) -> None:
    """One entry changed, left out, doubled, or exchanged with the next."""
    data, size = path.read_bytes(), entry_bytes(path)
    entries = [data[at : at + size] for at in range(0, len(data), size)]
    slot = rng.randrange(len(entries))
    how = rng.randrange(5)
    if how < 2:
        number = int.from_bytes(entries[slot], "big") ^ 1 << rng.randrange(8 * size)
        entries[slot] = number.to_bytes(size, "big")
    elif how == 2:
        del entries[slot]
    elif how == 3:
        entries.insert(slot, entries[slot])
    else:
        entries[slot : slot + 2] = reversed(entries[slot : slot + 2])
    path.write_bytes(b"".join(entries))
