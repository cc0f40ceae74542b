"""A walk over a file: its reads, its buffer size, and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from logstore import TopicConfig
from logstore import _native as native
from logstore.errors import CorruptRecordError
from logstore.record.decoder import Damage
from logstore.record.encoder import Encoder, pack_rows
from logstore.record.file_walk import FileWalk, larger_buffer


def batch(offset: int, value: bytes = b"value") -> bytes:
    encoder = Encoder(TopicConfig())
    rows = pack_rows([value], [b"key"], None, None, now_ms=7, magic=2)
    return b"".join(
        bytes(native.buffer_of(data, size))
        for data, size in encoder.encode(rows, offset, 7, 0)
    )


@dataclasses.dataclass
class MemoryFile:
    """A file of batches in memory, which records the (position, bytes) of each read."""

    data: bytes
    reads: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        self.size = self.size or len(self.data)

    def read(self, view: memoryview, pos: int) -> int:
        self.reads.append((pos, len(view)))
        part = self.data[pos : min(pos + len(view), self.size)]
        view[: len(part)] = part
        return len(part)

    def error_of(self, damage: Damage, file_pos: int, offset: int) -> Exception:
        position = file_pos + damage.pos
        return CorruptRecordError(
            damage.reason, path="", position=position, offset=offset
        )

    def missing(self, position: int, offset: int) -> Exception:
        return CorruptRecordError("missing", path="", position=position, offset=offset)


def walk_of(file: MemoryFile, capacity: int, *, end: int | None = None) -> FileWalk:
    return FileWalk(file, (0, -1), native.Buffer(capacity), end=end)


def places(walk: FileWalk) -> Iterator[tuple[int, int]]:
    """(position in the file, offset) of the batches."""
    while walk.read():
        headers = walk.headers(native.CHECK_ALL)
        for header in headers:
            yield walk.pos + header.pos, header.base_offset
        walk.take(headers)


def log_of(*sizes: int) -> tuple[bytes, list[tuple[int, int]]]:
    """A log of batches with values of these sizes, and their places."""
    data, expected = b"", []
    for offset, size in enumerate(sizes):
        expected.append((len(data), offset))
        data += batch(offset, bytes(size))
    return data, expected


@pytest.mark.parametrize("capacity", [17, 80, 100, 333, 10_000])
def test_walk_finds_each_batch_with_any_buffer(capacity: int) -> None:
    """This includes batches that are larger than the buffer."""
    data, expected = log_of(10, 500, 0, 0, 900, 3, 3, 3, 700)
    walk = walk_of(MemoryFile(data), capacity)
    assert list(places(walk)) == expected
    assert (walk.pos, walk.last_offset) == (len(data), len(expected) - 1)


def test_walk_begins_at_its_place_and_ends_at_its_end() -> None:
    """It reads nothing outside; a batch that continues past the end is missing."""
    data, expected = log_of(10, 10, 10, 10)
    second, fourth = expected[1][0], expected[3][0]
    file = MemoryFile(data)
    walk = FileWalk(file, (second, 0), native.Buffer(1000), end=fourth)
    assert list(places(walk)) == expected[1:3]
    assert file.reads == [(second, fourth - second)]
    walk = walk_of(MemoryFile(data), 1000, end=fourth + 20)
    with pytest.raises(CorruptRecordError, match="missing") as caught:
        list(places(walk))
    assert (caught.value.position, caught.value.offset) == (fourth, 3)


def test_file_that_is_cut_meanwhile_ends_the_walk() -> None:
    """There is no error: the size of the file is the end of the log."""
    data, expected = log_of(50, 50, 50, 50)
    file = MemoryFile(data)
    walk = walk_of(file, 2 * expected[1][0])
    found = []
    for place in places(walk):
        found.append(place)
        file.size = expected[2][0]
    assert found == expected[:2]


def test_damage_is_an_error_after_the_batches_before_it() -> None:
    """The error has its position in the file; the first offset not delivered is the one
    after them, or the caller's."""
    data, expected = log_of(50, 50, 50, 50)
    bad = expected[2][0]
    content = bytearray(data)
    content[bad + 70] ^= 1
    for capacity in (17, 150, 10_000):
        found = []
        with pytest.raises(CorruptRecordError, match="checksum") as caught:
            found.extend(places(walk_of(MemoryFile(bytes(content)), capacity)))
        assert (caught.value.position, caught.value.offset) == (bad, 2)
    walk = walk_of(MemoryFile(bytes(content)), 10_000)
    assert walk.read()
    with pytest.raises(CorruptRecordError) as caught:
        walk.take(native.walk_batches(walk.buffer.c, walk.n), 77)
    assert caught.value.offset == 77


@pytest.mark.parametrize(
    "rest", [bytes(100), batch(1)[:-1], batch(1)[:10], b"\0" * 11], ids=len
)
def test_rest_that_is_no_batch_is_missing(rest: bytes) -> None:
    """Zeros, and a batch that continues past the end of the file."""
    data = batch(0)
    for capacity in (17, 90, 1000):
        with pytest.raises(CorruptRecordError, match="missing") as caught:
            list(places(walk_of(MemoryFile(data + rest), capacity)))
        assert (caught.value.position, caught.value.offset) == (len(data), 1)


def test_file_that_is_shorter_than_it_says_is_missing() -> None:
    """The end is not read again and again."""
    data = batch(0)
    file = MemoryFile(data, size=len(data) + 500)
    with pytest.raises(CorruptRecordError, match="missing"):
        list(places(walk_of(file, 1000)))
    assert len(file.reads) == 2


def test_call_that_stops_in_the_buffer_goes_on_there() -> None:
    """The caller's output may be full; nothing is read again."""
    data, expected = log_of(1, 1, 1, 1)
    file = MemoryFile(data)
    walk = walk_of(file, 1000)
    assert walk.read()
    for _, offset in expected:
        scan = native.scan_batches(
            walk.buffer.c,
            walk.n,
            pos=walk.at,
            last_offset=walk.last_offset,
            count_max=1,
        )
        assert scan.headers[0].base_offset == offset
        walk.take(scan)
    walk.take(native.walk_batches(walk.buffer.c, walk.n, pos=walk.at, last_offset=3))
    assert not walk.read()
    assert file.reads == [(0, 1000)]


def test_batch_that_the_caller_handled_is_behind_the_walk() -> None:
    """The caller handles a compressed batch, for example."""
    data, expected = log_of(1, 1, 1)
    walk = walk_of(MemoryFile(data), 1000)
    assert walk.read()
    walk.take_batch(next(iter(walk.headers(native.CHECK_ALL))))
    assert (walk.at, walk.last_offset) == (expected[1][0], 0)
    headers = walk.headers(native.CHECK_ALL)
    assert [header.base_offset for header in headers] == [1, 2]


# ------------------------------------------------------------ how much is read at once


def frame(length: int) -> bytes:
    """The beginning of a batch of `length` bytes."""
    return bytes(8) + (length - 12).to_bytes(4, "big", signed=True) + bytes(28)


def after(length: int, *, end: int = 100, n: int = 600) -> FileWalk:
    """A walk whose first `n` bytes ended in a batch of `length` bytes."""
    head = frame(length)[: 1000 - end]
    walk = walk_of(MemoryFile(bytes(end) + head + bytes(10_000)), 1000)
    assert walk.read()
    walk.n = n
    walk.advance(end, native.STOP_PARTIAL, 0, 1)
    assert walk.pos == end
    return walk


def test_first_read_fills_the_buffer() -> None:
    """Nothing is known of the batches before the first read."""
    assert len(walk_of(MemoryFile(b""), 1000).into) == 1000


@pytest.mark.parametrize(
    ("length", "room"),
    [(501, 501), (400, 800), (1000, 1000), (1001, 1000), (1 << 31, 1000)],
)
def test_read_after_a_cut_batch_ends_with_a_batch(length: int, room: int) -> None:
    """The next read is of as many batches of that length as fit."""
    assert len(after(min(length, (1 << 31) - 1)).into) == room


@pytest.mark.parametrize("length", [0, 12, -1, -(1 << 30)])
def test_length_that_is_no_length_fills_the_buffer(length: int) -> None:
    """A length is not trusted: an impossible one has no effect that matters."""
    assert len(after(length).into) > 900


def test_little_that_is_read_again_fills_the_buffer() -> None:
    """A small saving (less than 1/32, or part of a frame) does not shorten the read."""
    assert len(after(400, end=982, n=1000).into) == 1000
    assert len(after(400, end=100, n=110).into) == 1000


def test_read_that_has_no_batch_is_made_again_in_a_whole_buffer() -> None:
    """The second read finds a batch that is longer than expected; if it is longer than
    that, too, the buffer grows to its size."""
    walk = after(400)
    assert walk.read()
    walk.buffer.view[:40] = frame(2000)
    walk.advance(0, native.STOP_PARTIAL, 0, 1)
    assert (walk.pos, len(walk.into), walk.buffer.capacity) == (100, 1000, 1000)
    assert walk.read()
    walk.buffer.view[:40] = frame(2000)
    walk.advance(0, native.STOP_PARTIAL, 0, 1)
    assert (walk.pos, len(walk.into), walk.buffer.capacity) == (100, 2000, 2000)


def test_walk_that_ends_with_its_read_keeps_the_length() -> None:
    """Later reads end with a batch of the same length."""
    walk = after(400)
    assert walk.read()
    walk.advance(800, native.STOP_END, 0, 1)
    assert len(walk.into) == 800
    walk.advance(10, native.STOP_ZEROS, 0, 1)
    assert len(walk.into) == 1000


def test_larger_buffer_is_as_large_as_the_batch() -> None:
    """No larger buffer exists for a batch that fits, that the file has no room for, or
    without a whole frame."""
    buffer = native.Buffer(100)
    buffer.view[:40] = frame(200)
    larger = larger_buffer(buffer, 100, 200)
    assert larger is not None
    assert larger.capacity == 200
    assert larger_buffer(buffer, 100, 199) is None
    assert larger_buffer(buffer, 16, 200) is None
    buffer.view[:40] = frame(100)
    assert larger_buffer(buffer, 100, 200) is None
