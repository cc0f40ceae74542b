"""Damaged batches of a log: `verify` lists each, and continues after it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import logstore
from support import verifying
from support.damage import (
    append_garbage,
    cut,
    fix_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    zero,
)
from support.levels import some
from support.values import every_format, write_store
from support.verifying import (
    RECORDS,
    SMALL,
    forget_state,
    kinds,
    the_problem,
)

# Fixtures.
partition = verifying.partition


@every_format
def test_damaged_batches_are_all_listed(tmp_path: Path, magic: int, codec: str) -> None:
    """Two bad checksums in one segment and one in the last: three problems, and the
    intact batches between them are counted."""
    directory = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    logs = logs_in(directory)
    sound = logstore.verify(directory).batches
    damaged = []
    for path, slot in ((logs[0], 1), (logs[0], -1), (logs[-1], 0)):
        frame = frames(path)[slot]
        damaged.append((str(path), frame.pos))
        flip_bit(path, 8 * (frame.pos + frame.size - 1))
    report = logstore.verify(directory)
    found = [(p.path, p.position) for p in report.problems if p.kind == "damaged-batch"]
    assert found == damaged
    assert report.batches == sound - 3
    assert kinds(report) == ["damaged-batch"] * 3


def test_damage_tells_the_offsets_that_are_lost(partition: Path) -> None:
    """The first and the last unreadable offset."""
    path = logs_in(partition)[1]
    frame = frames(path)[3]
    flip_bit(path, 8 * (frame.pos + 20))
    problem = the_problem(logstore.verify(partition))
    assert (problem.first_offset, problem.last_offset) == (frame.offset, frame.offset)
    assert str(path) in problem.message


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "foreign"])
@pytest.mark.parametrize(("magic", "codec"), [(1, "gzip"), (2, "none")])
def test_damage_at_the_end_of_a_sealed_segment_ends_with_it(
    tmp_path: Path, magic: int, codec: str, is_own: bool
) -> None:
    """The next segment begins with the first readable offset."""
    partition = write_store(tmp_path / "store", RECORDS, magic, codec, call=5, **SMALL)
    if not is_own:
        forget_state(partition)
    path, after = logs_in(partition)[:2]
    frame = frames(path)[-1]
    flip_bit(path, 8 * (frame.pos + frame.size - 1))
    problem = the_problem(logstore.verify(partition))
    last = int(after.stem) - 1
    assert (problem.first_offset, problem.last_offset) == (last - 4, last)
    assert f"offsets from {last - 4} to {last}, cannot be read" in problem.message


def test_damage_before_a_wrapper_ends_with_its_first_message(tmp_path: Path) -> None:
    """A wrapper's head has only its last offset; its content has the first."""
    partition = write_store(tmp_path / "store", RECORDS, 1, "gzip", call=5, **SMALL)
    path = logs_in(partition)[0]
    frame = frames(path)[1]
    flip_bit(path, 8 * (frame.pos + frame.size - 1))
    problem = the_problem(logstore.verify(partition))
    assert (problem.first_offset, problem.last_offset) == (5, 9)


def test_bytes_behind_a_sealed_segment_lose_no_offset(partition: Path) -> None:
    """All offsets up to the next segment can be read."""
    append_garbage(logs_in(partition)[0])
    report = logstore.verify(partition)
    behind = next(p for p in report.problems if p.kind != "extra-bytes")
    assert (behind.first_offset, behind.last_offset) == (None, None)
    assert "between offsets cannot be read" in behind.message


def test_a_damaged_length_hides_no_other_batch(partition: Path) -> None:
    """Later batches are found at their own bytes."""
    path = logs_in(partition)[0]
    before = logstore.verify(path).batches
    overwrite(path, frames(path)[2].pos + 8, struct.pack(">i", 1 << 20))
    report = logstore.verify(path)
    assert the_problem(report).kind in ("damaged-batch", "partial-batch")
    assert report.batches == before - 1


def test_zeros_in_a_sealed_segment_are_a_problem(partition: Path) -> None:
    """The zeros replace whole batches."""
    path = logs_in(partition)[0]
    found = frames(path)
    zero(path, found[2].pos, found[5].pos)
    problem = the_problem(logstore.verify(path))
    assert (problem.kind, problem.position) == ("zeros", found[2].pos)
    assert (problem.first_offset, problem.last_offset) == (2, 4)


def test_a_partial_batch_in_a_sealed_segment_is_a_problem(partition: Path) -> None:
    """The file was cut inside its last batch; logstore knows of the bytes, too."""
    path = logs_in(partition)[0]
    last = frames(path)[-1]
    cut(path, last.pos + last.size - 3)
    report = logstore.verify(partition)
    assert {"partial-batch", "lost-bytes"} <= set(kinds(report))
    partial = next(p for p in report.problems if p.kind == "partial-batch")
    assert (partial.position, partial.first_offset) == (last.pos, last.offset)


@pytest.mark.parametrize(("magic", "codec"), [(0, "gzip"), (1, "lz4"), (2, "gzip")])
@pytest.mark.parametrize("at", [0, -1], ids=["sealed", "active"])
def test_a_segment_of_another_size_is_looked_into(
    tmp_path: Path, magic: int, codec: str, at: int
) -> None:
    """This holds even without `deep`: a truncated stream under a right checksum
    explains why it is shorter."""
    partition = write_store(
        tmp_path / "store", 60, magic, codec, call=5, segment_bytes=1500
    )
    path = logs_in(partition)[at]
    frame, data = frames(path)[0], bytearray(path.read_bytes())
    short = data[: frame.size - 8]
    struct.pack_into(">i", short, 8, len(short) - 12)
    if magic < 2:
        (size,) = struct.unpack_from(">i", short, 22 + 8 * magic)
        struct.pack_into(">i", short, 22 + 8 * magic, size - 8)
    path.write_bytes(short + data[frame.size :])
    fix_crc(path, frames(path)[0])
    for deep in (False, True):
        report = logstore.verify(partition, deep=deep)
        assert sorted(kinds(report)) == ["damaged-batch", "lost-bytes"], report


def test_a_sealed_segment_cut_between_batches_is_a_problem(partition: Path) -> None:
    """Nothing in the file shows it; logstore's state does."""
    path = logs_in(partition)[0]
    last = frames(path)[-1]
    cut(path, last.pos)
    report = logstore.verify(partition)
    assert "lost-bytes" in kinds(report)


def test_a_magic_above_two_is_a_problem(partition: Path) -> None:
    """It may be a newer format or damage."""
    path = logs_in(partition)[0]
    overwrite(path, frames(path)[1].pos + 16, b"\x03")
    problem = the_problem(logstore.verify(path))
    assert problem.kind == "unsupported"


def test_an_unknown_codec_with_a_right_checksum_is_a_problem(tmp_path: Path) -> None:
    """No reader gets its records, as with an unknown magic."""
    directory = write_store(tmp_path / "store", 20, magic=2)
    path = logs_in(directory)[0]
    frame = frames(path)[1]
    overwrite(path, frame.pos + 22, b"\x06")
    fix_crc(path, frame)
    problem = the_problem(logstore.verify(path, deep=True))
    assert problem.kind == "unsupported"
    after = frames(path)[2].offset
    assert (problem.first_offset, problem.last_offset) == (frame.offset, after - 1)


@pytest.mark.parametrize(("magic", "codec"), [(1, "gzip"), (2, "lz4"), (2, "zstd")])
def test_damage_inside_a_compressed_batch_needs_deep(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Only `deep` finds a damaged stream under a right checksum; without it, the report
    has the number of batches whose contents were not checked."""
    directory = write_store(tmp_path / "store", 50, magic, codec, call=25)
    path = logs_in(directory)[0]
    frame = frames(path)[0]
    overwrite(path, frame.pos + frame.size - 12, b"\xff" * 8)
    fix_crc(path, frame)
    shallow, deep = logstore.verify(path), logstore.verify(path, deep=True)
    assert shallow.ok
    assert (shallow.unopened, deep.unopened) == (len(frames(path)), 0)
    problem = the_problem(deep)
    assert (problem.kind, problem.position) == ("damaged-batch", 0)
    assert problem.first_offset == 0


def test_a_wrong_record_count_is_found(tmp_path: Path) -> None:
    """Records are decoded, even if the checksum is right."""
    directory = write_store(tmp_path / "store", 20, magic=2)
    path = logs_in(directory)[0]
    frame = frames(path)[1]
    overwrite(path, frame.pos + 57, struct.pack(">i", 4))
    fix_crc(path, frame)
    assert "damaged-batch" in kinds(logstore.verify(path))


def test_what_looks_like_a_message_in_a_damaged_wrapper_is_not_believed(
    tmp_path: Path,
) -> None:
    """After a damaged length the search continues at every byte; an offset that no
    segment can have does not end it, and does not overlap with later ones."""
    partition = write_store(
        tmp_path, 90, 0, "snappy", call=3, segment_bytes=900, index_interval_bytes=100
    )
    for log in logs_in(partition):
        for frame in frames(log)[:-1]:
            flip_bit(log, 8 * (frame.pos + 8) + 1)
            report = logstore.verify(partition, deep=True)
            assert kinds(report) == ["partial-batch"], (log, frame)
            flip_bit(log, 8 * (frame.pos + 8) + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("magic", "codec"), [(0, "none"), (1, "gzip"), (2, "lz4")])
def test_every_flipped_bit_of_a_log_is_found(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """This includes bits outside the checksums: offset, length, leader epoch."""
    directory = write_store(
        tmp_path / "store", 12, magic, codec, segment_bytes=400, call=3
    )
    assert logstore.verify(directory, deep=True).ok
    for path in logs_in(directory):
        for bit in some(range(8 * path.stat().st_size), 120, path.name):
            flip_bit(path, bit)
            report = logstore.verify(directory, deep=True)
            assert not report.ok, (path.name, bit)
            flip_bit(path, bit)
