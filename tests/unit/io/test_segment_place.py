"""Places of segments: the file of this machine, and the errors of any place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.errors import StorageError
from logstore.io.directory import Directory
from logstore.io.segment_place import FollowingSegments, LocalFile, Placed
from logstore.segment import Segment, SegmentGoneError, SegmentReplacedError


class BrokenPlace(LocalFile):
    """A place whose reads fail."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def read(
        self,
        segment: Placed,
        view: memoryview,
        pos: int,
        rest: FollowingSegments,
        stop: int,
    ) -> int:
        raise self.error


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        partition.append(b"value")
        yield partition._log.segments[0]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOENT, SegmentGoneError), (errno.ESTALE, SegmentReplacedError)],
)
def test_place_without_the_log_is_told_from_a_failure(
    segment: Segment, number: int, kind: type[Exception]
) -> None:
    """The log may have been deleted or replaced correctly: the view decides."""
    segment.place = BrokenPlace(OSError(number, os.strerror(number)))
    with pytest.raises(kind):
        segment.read(memoryview(bytearray(1)), 0)


def test_failure_of_a_place_is_a_storage_error_of_the_path(segment: Segment) -> None:
    """A place need not know how errors are reported."""
    segment.place = BrokenPlace(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StorageError, match="read") as caught:
        segment.read(memoryview(bytearray(1)), 0)
    assert (caught.value.filename, caught.value.errno) == (segment.path, errno.EIO)


def test_storage_error_of_a_place_stays_as_it_is(segment: Segment) -> None:
    """A place whose error says more than its system's number."""
    error = StorageError("no answer", path="far", action="fetch")
    segment.place = BrokenPlace(error)
    with pytest.raises(StorageError, match="no answer") as caught:
        segment.read(memoryview(bytearray(1)), 0)
    assert caught.value is error


@pytest.fixture
def closed(segment: Segment) -> Segment:
    """A segment that is not open yet."""
    segment.file.forget()
    return Segment(
        segment.file.directory,
        segment.file.descriptors,
        0,
        segment.size,
        segment.next_offset,
    )


def test_file_in_the_place_of_another_one_is_not_read(closed: Segment) -> None:
    """This holds even if it has the same name and the same bytes: another process has
    put it there. The inode number identifies the segment's own file."""
    path = Path(closed.path)
    closed.file.inode = path.stat().st_ino
    kept = path.with_suffix(".kept")
    path.rename(kept)
    path.write_bytes(kept.read_bytes())
    with pytest.raises(SegmentReplacedError):
        closed.read(memoryview(bytearray(1)), 0)
    kept.rename(path)
    assert closed.read(memoryview(bytearray(1)), 0) == 1


def test_sealed_file_of_another_size_is_not_read(closed: Segment) -> None:
    """An inode number may be given to another file."""
    path = Path(closed.path)
    closed.file.inode, closed.file.sealed_size = path.stat().st_ino, closed.size
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(SegmentReplacedError):
        closed.read(memoryview(bytearray(1)), 0)


def test_file_that_does_not_exist_is_not_read(closed: Segment) -> None:
    """Its writer may have deleted it."""
    Path(closed.path).unlink()
    with pytest.raises(SegmentGoneError):
        closed.read(memoryview(bytearray(1)), 0)
    assert closed.place.open_file(closed) is None


def test_file_that_cannot_be_opened_is_not_taken_for_a_replaced_one(
    closed: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the failed call."""

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Directory, "open", refused)
    with pytest.raises(StorageError, match="open") as caught:
        closed.read(memoryview(bytearray(1)), 0)
    assert (caught.value.filename, caught.value.errno) == (closed.path, errno.EMFILE)


def test_index_that_cannot_be_read_is_empty(closed: Segment) -> None:
    """Readers then walk over the log."""
    assert closed.index_bytes(".nothing") == b""
