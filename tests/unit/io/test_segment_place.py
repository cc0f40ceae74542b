"""Where the bytes of a segment are."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.errors import StorageError
from logstore.io.segment_place import LocalFile, Placed, Rest
from logstore.segment import Segment, SegmentGoneError, SegmentReplacedError


class BrokenPlace(LocalFile):
    """A place whose reads fail."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def read(
        self, segment: Placed, view: memoryview, pos: int, rest: Rest, stop: int
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
    """The log may have been deleted, or replaced, rightly: the view decides."""
    segment.place = BrokenPlace(OSError(number, os.strerror(number)))
    with pytest.raises(kind):
        segment.read(memoryview(bytearray(1)), 0)


def test_failure_of_a_place_is_a_storage_error_of_the_path(segment: Segment) -> None:
    """A place need not know how errors are told."""
    segment.place = BrokenPlace(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StorageError, match="read") as caught:
        segment.read(memoryview(bytearray(1)), 0)
    assert (caught.value.filename, caught.value.errno) == (segment.path, errno.EIO)


def test_storage_error_of_a_place_stays_as_it_is(segment: Segment) -> None:
    """A place that tells more than its system's number."""
    error = StorageError("no answer", path="far", action="fetch")
    segment.place = BrokenPlace(error)
    with pytest.raises(StorageError, match="no answer") as caught:
        segment.read(memoryview(bytearray(1)), 0)
    assert caught.value is error
