"""Offsets that do not follow each other, within a log and from segment to segment."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import logstore
from support import verifying
from support.damage import frames, logs_in, overwrite
from support.values import write_store
from support.verifying import change_state, forget_state, kinds, the_problem

# Fixtures.
partition = verifying.partition


def test_offsets_that_do_not_increase_are_a_problem(partition: Path) -> None:
    """The batch is intact and in the wrong place; later ones are not reported."""
    path = logs_in(partition)[0]
    frame = frames(path)[4]
    overwrite(path, frame.pos, struct.pack(">q", 1))
    forget_state(partition)
    report = logstore.verify(path)
    problem = the_problem(report)
    assert (problem.kind, problem.position) == ("offsets", frame.pos)
    assert report.batches == len(frames(path))


def test_a_gap_is_a_problem_where_logstore_wrote(tmp_path: Path) -> None:
    """logstore leaves no gaps; in a log of Kafka's, compaction may have made one."""
    directory = write_store(tmp_path / "store", 20)
    path = logs_in(directory)[0]
    found = frames(path)
    data = path.read_bytes()
    path.write_bytes(data[: found[3].pos] + data[found[4].pos :])
    report = logstore.verify(directory)
    gap = next(p for p in report.problems if p.kind == "offsets")
    assert (gap.first_offset, gap.last_offset) == (3, 3)
    forget_state(directory)
    assert logstore.verify(directory).ok


def test_offsets_below_the_base_are_a_problem(partition: Path) -> None:
    """A segment that was renamed to a higher offset."""
    path = logs_in(partition)[0]
    renamed = partition / f"{9:020d}.log"
    shutil.copy(path, renamed)
    problems = logstore.verify(renamed).problems
    assert [(p.kind, p.position) for p in problems] == [("offsets", 0)]


def test_segments_that_overlap_are_a_problem(partition: Path) -> None:
    """The second begins before the first ends."""
    forget_state(partition)
    first, second = logs_in(partition)[:2]
    data = second.read_bytes()
    first.write_bytes(first.read_bytes() + data[: frames(second)[2].pos])
    report = logstore.verify(partition)
    overlap = [p for p in report.problems if p.kind == "offsets"]
    assert [p.path for p in overlap] == [str(second)]


def test_offsets_too_far_from_the_base_are_a_problem(tmp_path: Path) -> None:
    """Index entries cannot represent them."""
    directory = write_store(tmp_path / "store", 5, magic=2)
    path = logs_in(directory)[0]
    overwrite(path, 0, struct.pack(">q", 1 << 40))
    report = logstore.verify(path)
    assert "offsets" in kinds(report)
    assert report.batches == len(frames(path))


def test_a_segment_that_ends_with_another_offset_is_a_problem(partition: Path) -> None:
    """The last offset of a sealed segment was changed, which no checksum covers."""

    def change(value: dict[str, object]) -> None:
        sealed = value["sealed"]
        assert isinstance(sealed, list)
        sealed[0][2] += 1

    change_state(partition, change)
    assert kinds(logstore.verify(partition)) == ["offsets"]
