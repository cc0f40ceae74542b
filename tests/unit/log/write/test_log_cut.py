"""The later names of the files of a segment of a cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.log.write.log_cut import names_beside
from logstore.segment import Segment


@pytest.fixture
def segments(tmp_path: Path) -> list[Segment]:
    """Three segments of a log, which have no files."""
    files = Files()
    directory, descriptors = Directory(files, str(tmp_path)), Descriptors(files, 1)
    return [Segment(directory, descriptors, base, 0, base + 10) for base in (0, 10, 20)]


INDEX = "00000000000000000010.index"


def test_file_of_a_segment_of_the_log_has_its_usual_name(
    segments: list[Segment],
) -> None:
    """No other file may be taken for it."""
    assert names_beside(segments[1], INDEX, segments) == (INDEX,)


def test_file_of_a_deleted_segment_has_the_suffix_of_deletion(
    segments: list[Segment],
) -> None:
    """If the renaming has failed, it has its usual name: no other segment gets that."""
    names = names_beside(segments[1], INDEX, segments[2:])
    assert names == (INDEX + ".deleted", INDEX)
    assert names_beside(segments[1], INDEX, ()) == names


def test_file_of_a_compacted_segment_has_the_number_of_its_log(
    segments: list[Segment],
) -> None:
    """Its usual name belongs to the compacted one."""
    segments[1].file.moved_to = "00000000000000000010.log.2.deleted"
    names = names_beside(segments[1], INDEX, [segments[0], segments[2]])
    assert names == (INDEX + ".2.deleted",)
    assert names_beside(segments[1], INDEX, segments[2:]) == names
