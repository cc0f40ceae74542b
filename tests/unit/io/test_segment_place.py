"""Places of segments: the file of this machine, and the errors of any place."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.errors import StorageError
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.segment_place import LocalFile, Placed, Rest
from logstore.segment import Segment, SegmentGoneError, SegmentReplacedError
from support.damage import CountedReads


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
    put it there. The place of the segment's own file is found by its inode number."""
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
    """The error says what failed."""

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Directory, "open", refused)
    with pytest.raises(StorageError, match="open") as caught:
        closed.read(memoryview(bytearray(1)), 0)
    assert (caught.value.filename, caught.value.errno) == (closed.path, errno.EMFILE)


def test_index_that_cannot_be_read_is_empty(closed: Segment) -> None:
    """Readers then walk over the log."""
    assert closed.index_bytes(".nothing") == b""


def index_of(path: Path, suffix: str, data: bytes) -> tuple[bytes, int]:
    """The part of an index file with these bytes that is read, and how much is read
    for it."""
    (path / f"{0:020}{suffix}").write_bytes(data)
    files = CountedReads()
    directory = Directory.open_root(files, str(path))
    segment = Segment(directory, Descriptors(files, 4), 0, 1 << 30, 1 << 30)
    try:
        return segment.index_bytes(suffix), files.read_bytes
    finally:
        directory.close()


def entries(suffix: str, count: int) -> bytes:
    form = {".index": ">ii", ".timeindex": ">qi"}[suffix]
    return b"".join(struct.pack(form, n + 1, n + 1) for n in range(count))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 1536, 1537, 70_000])
@pytest.mark.parametrize("size", [12_288, 36_864, 36_866, 1_000_000, 10 << 20])
def test_index_that_a_broker_has_preallocated_has_the_same_entries(
    tmp_path: Path, suffix: str, count: int, size: int
) -> None:
    """The zeros are not read: a broker has them in each of its active segments."""
    kind = {".index": OffsetEntries, ".timeindex": TimeEntries}[suffix]
    used = entries(suffix, count)
    whole = used.ljust(size, b"\0")
    found, read_bytes = index_of(tmp_path, suffix, whole)
    loaded = [
        OffsetEntries.load(data, 1 << 30) if kind is OffsetEntries else kind.load(data)
        for data in (found, whole)
    ]
    assert loaded[0].data() == loaded[1].data()
    if len(whole) > len(used) + 24_576:
        assert len(found) <= len(used) + 24_576
        assert read_bytes <= len(found) + 12 * 12


@pytest.mark.parametrize("gap", [0, 4096, 40_000])
def test_index_with_a_hole_has_the_same_entries(tmp_path: Path, gap: int) -> None:
    """A page that was lost: what is behind it counts as little as before."""
    data = bytearray(entries(".index", 10_000).ljust(1 << 20, b"\0"))
    data[gap : gap + 30_000] = bytes(30_000)
    found, _ = index_of(tmp_path, ".index", bytes(data))
    kept = [OffsetEntries.load(one, 1 << 30).data() for one in (found, bytes(data))]
    assert kept[0] == kept[1]


def test_index_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    """Nothing is allocated for a length that something else has written."""
    path = tmp_path / f"{0:020}.index"
    path.touch()
    os.truncate(path, (64 << 20) + 12)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"entry...")
        file.seek(5461 * 12_288 - 8)  # the end of its last block
        file.write(b"entry...")
    files = CountedReads()
    directory = Directory.open_root(files, str(tmp_path))
    segment = Segment(directory, Descriptors(files, 4), 0, 1 << 30, 1 << 30)
    assert segment.index_bytes(".index") == b""
    directory.close()
    assert files.read_bytes < 100
