"""Files and directories of a store that are missing, strange, or in use meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import logstore
from logstore.io.files import Files
from support import verifying
from support.damage import logs_in
from support.verifying import RECORDS, forget_state, kinds, note_kinds, the_problem

# Fixtures.
partition = verifying.partition


# ---------------------------------------------------------------- gone


def test_a_segment_that_is_gone_is_a_problem(partition: Path) -> None:
    """logstore's state knows of it."""
    path = logs_in(partition)[1]
    path.unlink()
    report = logstore.verify(partition)
    problem = the_problem(report)
    assert (problem.kind, problem.path) == ("lost-segment", str(path))
    assert problem.first_offset == int(path.stem)
    assert note_kinds(report) == ["orphan", "orphan"]


def test_all_segments_gone_is_a_problem(partition: Path) -> None:
    """This holds even if only Kafka's recovery point shows it."""
    for path in [*partition.iterdir(), partition.parent / ".logstore-owner"]:
        path.unlink()
    assert "lost-segment" in kinds(logstore.verify(partition.parent))


def test_a_partition_that_is_gone_is_a_problem(partition: Path) -> None:
    """logstore's list of topics knows of it."""
    shutil.rmtree(partition)
    assert kinds(logstore.verify(partition.parent)) == ["lost-segment"]


# ---------------------------------------------------------------- strange


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
@pytest.mark.parametrize("suffix", [".log", ".index", ".snapshot"])
def test_what_is_no_regular_file_is_a_problem(
    partition: Path, what: str, suffix: str
) -> None:
    """It is not opened, not followed, and the rest is checked."""
    path = partition / f"{5000:020d}{suffix}"
    if what == "link":
        path.symlink_to(logs_in(partition)[0])
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    report = logstore.verify(partition.parent)
    problem = the_problem(report)
    assert (problem.kind, problem.path) == ("not-a-regular-file", str(path))
    assert report.records == RECORDS


def test_a_partition_that_is_a_link_is_a_problem(partition: Path) -> None:
    """It is not followed."""
    link = partition.parent / "orders-1"
    link.symlink_to(partition)
    report = logstore.verify(partition.parent)
    assert the_problem(report).path == str(link)
    assert report.records == RECORDS


def test_a_file_that_cannot_be_read_is_a_problem(partition: Path) -> None:
    """The system refuses one segment; the others are checked."""
    bad = logs_in(partition)[1]

    class Refusing(Files):
        def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
            if name == bad.name:
                raise PermissionError(13, "no", name)
            return super().open(dir_fd, name, write=write)

    report = logstore.verify(partition, _files=Refusing())
    problem = the_problem(report)
    assert (problem.kind, problem.path) == ("unreadable", str(bad))
    assert report.segments == len(logs_in(partition))


def test_leftovers_are_notes(partition: Path) -> None:
    """They come from deletions and compactions; directories in the store, too."""
    (partition / f"{3:020d}.log.deleted").write_bytes(b"?")
    (partition / f"{7:020d}.log.cleaned").write_bytes(b"?")
    (partition.parent / f"gone-0.{'ab' * 16}-delete").mkdir()
    (partition.parent / "lost+found").mkdir()
    report = logstore.verify(partition.parent)
    assert report.ok
    assert note_kinds(report) == ["leftover", "foreign", "leftover", "leftover"]


def test_a_log_that_becomes_longer_meanwhile_is_noted(partition: Path) -> None:
    """Another process writes to it."""
    path = logs_in(partition)[-1]

    class Writing(Files):
        def read(self, fd: int, buffer: object, pos: int) -> int:
            with path.open("ab") as file:
                file.write(b"\0")
            return super().read(fd, buffer, pos)  # type: ignore[arg-type]

    forget_state(partition)
    report = logstore.verify(path, _files=Writing())
    assert "in-use" in note_kinds(report)
