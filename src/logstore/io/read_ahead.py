"""Reads ahead in segments whose bytes take a request.

`FarPlace` is a place of segments (`logstore.io.segment_place`); a subclass makes the
requests. It owns the requested blocks, and the threads in which the requests run.
`Segment` calls it for every read. The cursor alone knows what a read needs next: it
passes the segments that follow, and the offset at which the read ends.

A stream is a row of blocks in the order of the log, across segments, for one reader. As
with the read-ahead of a kernel, the first read requests what it needs, and each block
that is read after it doubles the number of blocks requested ahead, up to `in_flight`. A
read finds its stream by the position that it reads: so a stream outlives the cursors,
of which a `fetch` or a poll makes a new one each time.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Final

from logstore import _native as native
from logstore._native import OpenFile
from logstore._native.locks import RANK_LEAF
from logstore.io.directory import Directory
from logstore.io.parallel import Task, Workers
from logstore.io.segment_place import FollowingSegments, Placed

__all__ = ["FarPlace"]

# The least bytes of a request.
_REQUEST_BYTES: Final = 64 << 10
# Bytes before the position of a reader that are kept: it reads the batch again in which
# a read ended, and the reader of its transactions is a little ahead of it.
_BEHIND_BYTES: Final = 1 << 20
# How many lookups keep their block, in case that a read begins there.
_LOOKUPS_MAX: Final = 16
# A stream that was not read for so long has lost its reader.
_IDLE_S: Final = 30.0
# The longest sleep before checking whether the store was closed.
_POLL_S: Final = 0.05


class _Block:
    """Bytes of a segment, requested or there.

    Attributes:
        segment, version: whose bytes; they are void if the segment has another version.
        pos, end: their positions in the log, half open.
        number: how many blocks its stream had before.
        data, size: the bytes, and how many there are; fewer than requested at the end
            of the data. -1: no bytes yet.
        failures: the error of the request, until a reader has raised it.
        is_dropped: no reader wants it.
        task: the request.
    """

    __slots__ = (
        "data",
        "end",
        "failures",
        "is_dropped",
        "number",
        "pos",
        "segment",
        "size",
        "task",
        "version",
    )

    def __init__(self, segment: Placed, pos: int, end: int, number: int) -> None:
        self.segment = segment
        self.version = segment.version
        self.pos = pos
        self.end = end
        self.number = number
        self.data = bytearray()
        self.size = -1
        self.failures: list[BaseException] = []
        self.is_dropped = False
        self.task: Task[None]

    def has(self, segment: Placed, pos: int) -> bool:
        """Whether it has a byte of a segment in its current version."""
        return (
            self.segment is segment
            and self.version == segment.version
            and self.pos <= pos < self.end
            and not (self.is_dropped and self.size < 0)
        )

    def take_failure(self) -> BaseException | None:
        """The error of its request, for one reader; None: another one has it."""
        with contextlib.suppress(IndexError):
            return self.failures.pop()
        return None


class _Stream:
    """Blocks in the order of the log. Each of its states is a valid one.

    Attributes:
        directory: of the log.
        blocks: one at least. The stream continues after the last one.
        furthest: the number of the furthest block that was read.
        window: how many blocks are requested ahead of it; 0: it may be a lookup.
        used: when it was read last, seconds.
    """

    __slots__ = ("blocks", "directory", "furthest", "used", "window")

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.blocks: deque[_Block] = deque()
        self.furthest = 0
        self.window = 0
        self.used = 0.0

    @property
    def bytes(self) -> int:
        """The bytes of its blocks."""
        return sum(block.end - block.pos for block in self.blocks)

    def after(self, block: _Block) -> int:
        """How many blocks it has after one of them."""
        return self.blocks[-1].number - block.number

    def drop(self) -> None:
        """Release all its blocks."""
        for block in self.blocks:
            block.is_dropped = True


class FarPlace(ABC):
    """A place of segments whose bytes take a request.

    Any thread may call the methods. There is no thread while there are no requests. In
    the child of a fork it begins without blocks.

    Attributes:
        in_flight: how many requests may run at once.
        block_bytes: the most bytes of a request.
        bytes_max: the most bytes of all blocks, apart from blocks that a read needs. It
            is enough for four streams with blocks of the full size; more of them have
            smaller blocks, and then fewer.
    """

    in_flight = 8
    block_bytes = 4 << 20
    bytes_max = 4 * (8 + 2) * (4 << 20)

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = native.Mutex(RANK_LEAF, "the blocks of far segments")
        self._forks = native.forks()
        self._workers = Workers(self.in_flight)
        # The least recently used first.
        self._streams: list[_Stream] = []
        # The bytes of their blocks; never too few.
        self._bytes = 0

    @abstractmethod
    def request(self, segment: Placed, view: memoryview, pos: int) -> int:
        """Read as `Place.read`, by one request."""

    @abstractmethod
    def request_index(self, segment: Placed, suffix: str) -> bytes:
        """Read an index as `Place.index_bytes`, by one request."""

    def read(
        self,
        segment: Placed,
        view: memoryview,
        pos: int,
        rest: FollowingSegments = (),
        stop: int = native.OFFSET_MAX,
    ) -> int:
        """Read as `Place.read`."""
        self._check(segment)
        done, size, is_retried = 0, len(view), False
        while done < size:
            stream, block = self._block_at(segment, pos + done, pos + size)
            is_old = block.task.is_done() and not is_retried
            if stream.after(block) < stream.window:
                self._extend(stream, block, self._sources(segment, rest, stop))
            self._wait(segment, block.task)
            if block.failures:
                self._drop(stream)
                failure = block.take_failure()
                if failure is not None and not is_old:
                    try:
                        raise failure
                    finally:
                        del failure  # it has this frame
                is_retried |= is_old  # it failed before it was needed
                continue
            if block.size < 0:
                continue  # it was dropped, or another reader has raised its error
            begin = pos + done - block.pos
            count = max(min(block.size - begin, size - done), 0)
            view[done : done + count] = memoryview(block.data)[begin : begin + count]
            done += count
            if block.size < block.end - block.pos:
                self._drop(stream)  # the next read requests it again
                break
        return done

    def index_bytes(self, segment: Placed, suffix: str) -> bytes:
        """Read an index as `Place.index_bytes`."""
        self._check(segment)
        task = self._workers.submit(lambda: self.request_index(segment, suffix))
        self._wait(segment, task)
        return task.result()

    def open_file(self, segment: Placed) -> OpenFile | None:
        """Return None: a far segment has no local file."""
        return None

    def close(self) -> None:
        """Release all blocks, and cancel the requests that have not begun."""
        with self._lock:
            streams, self._streams, self._bytes = self._streams, [], 0
            for stream in streams:
                stream.drop()

    # -- requests

    def _check(self, segment: Placed) -> None:
        segment.file.check_open()
        if self._forks != native.forks():
            self._begin()

    def _wait(self, segment: Placed, task: Task[Any]) -> None:
        while not self._workers.wait(task, _POLL_S):
            segment.file.check_open()

    def _request(self, block: _Block) -> None:
        if block.is_dropped:
            return
        try:
            data = bytearray(block.end - block.pos)
            block.segment.file.check_open()
            size = self.request(block.segment, memoryview(data), block.pos)
        except BaseException as error:
            # Its traceback would keep the block alive, which has the error.
            block.failures.append(error.with_traceback(None))
        else:
            block.data, block.size = data, size

    def _append(
        self, stream: _Stream, segment: Placed, pos: int, end: int, wanted: int
    ) -> _Block:
        """Request the next block of a stream, from `pos` on and not past `end`, with
        `wanted` bytes if it may have that many."""
        number, before = 0, 0
        if stream.blocks:
            last = stream.blocks[-1]
            number, before = last.number + 1, last.end - last.pos
        size = min(max(wanted, 2 * before, _REQUEST_BYTES), self._block_max())
        block = _Block(segment, pos, min(pos + size, end), number)
        self._make_room(stream, block.end - pos)
        block.task = self._workers.submit(lambda: self._request(block))
        stream.blocks.append(block)
        return block

    # -- streams

    def _block_at(self, segment: Placed, pos: int, end: int) -> tuple[_Stream, _Block]:
        """The block that has a byte, in its stream, after requests for the bytes up to
        `end`, as many as may run at once."""
        with self._lock:
            now = time.monotonic()
            stream, block = self._taken(segment, pos, now)
            stream.used = now
            if block is None:
                block = self._append(stream, segment, pos, segment.size, end - pos)
            self._streams.append(stream)
            while (last := stream.blocks[-1]).segment is segment and last.end < end:
                if stream.after(block) >= self.in_flight:
                    break
                self._append(stream, segment, last.end, segment.size, end - last.end)
            if block.number > stream.furthest:
                stream.furthest = block.number
                stream.window = min(max(2 * stream.window, 1), self.in_flight)
            elif end >= block.end:
                stream.window = max(stream.window, 1)
            self._drop_behind(stream, block, pos)
            return stream, block

    def _taken(
        self, segment: Placed, pos: int, now: float
    ) -> tuple[_Stream, _Block | None]:
        """The stream for a byte, taken out of the list, and the block that has it;
        None: it must be appended to the stream."""
        for stream in reversed(self._streams):
            if stream.directory is not segment.file.directory:
                continue
            blocks = [block for block in stream.blocks if block.has(segment, pos)]
            if blocks or (pos and stream.blocks[-1].has(segment, pos - 1)):
                self._streams.remove(stream)
                return stream, blocks[0] if blocks else None
        self._forget_idle(now)
        return _Stream(segment.file.directory), None

    def _sources(
        self, segment: Placed, rest: FollowingSegments, stop: int
    ) -> list[tuple[Placed, int]]:
        """The segments that may be read ahead, from this one on, each with the end of
        the bytes that a read up to `stop` needs."""
        sources = [(segment, segment.bytes_below(stop))]
        for number in range(min(len(rest), self.in_flight)):
            following = rest[number]
            if following.base_offset >= stop or following.place is not self:
                break
            sources.append((following, following.bytes_below(stop)))
        return sources

    def _extend(
        self, stream: _Stream, block: _Block, sources: list[tuple[Placed, int]]
    ) -> None:
        """Request the blocks of the window after a block."""
        with self._lock:
            last = stream.blocks[-1]
            numbers = [
                n for n, (source, _) in enumerate(sources) if source is last.segment
            ]
            if not numbers:
                return
            pos, window = last.end, min(stream.window, self._window_max())
            for segment, end in sources[numbers[0] :]:
                while pos < end and stream.after(block) < window:
                    pos = self._append(stream, segment, pos, end, 0).end
                pos = 0

    # -- memory

    def _share(self) -> int:
        """The bytes for each stream that is not a lookup."""
        count = sum(stream.window > 0 for stream in self._streams)
        return self.bytes_max // max(count, 1)

    def _block_max(self) -> int:
        size = max(self._share() // (self.in_flight + 2), _REQUEST_BYTES)
        return min(size, self.block_bytes)

    def _window_max(self) -> int:
        return max(self._share() // self._block_max() - 2, 0)

    def _make_room(self, stream: _Stream, size: int) -> None:
        """Count `size` more bytes of a stream; drop the streams that were not used for
        the longest time if there are too many."""
        self._bytes += size
        if self._bytes > self.bytes_max:
            streams = {*self._streams, stream}  # it may be taken out of the list
            self._bytes = size + sum(counted_stream.bytes for counted_stream in streams)
        for other in list(self._streams):
            if self._bytes <= self.bytes_max:
                break
            if other is not stream:
                self._drop_now(other)

    def _drop(self, stream: _Stream) -> None:
        with self._lock:
            self._drop_now(stream)

    def _drop_now(self, stream: _Stream) -> None:
        stream.drop()
        if stream in self._streams:
            self._streams.remove(stream)
            self._bytes -= stream.bytes

    def _drop_behind(self, stream: _Stream, block: _Block, pos: int) -> None:
        """Drop the blocks of a stream that lie far enough before a position."""
        blocks = stream.blocks
        before = [
            earlier_block
            for earlier_block in blocks
            if earlier_block.number < block.number
        ]
        behind = (
            pos
            - block.pos
            + sum(earlier_block.end - earlier_block.pos for earlier_block in before)
        )
        for earlier_block in before:
            behind -= earlier_block.end - earlier_block.pos
            if behind < _BEHIND_BYTES:
                break
            earlier_block.is_dropped = True
            blocks.popleft()
            self._bytes -= earlier_block.end - earlier_block.pos

    def _forget_idle(self, now: float) -> None:
        """Drop what has no reader any more, before there is one more stream."""
        lookups = [stream for stream in self._streams if not stream.window]
        for stream in lookups[: max(len(lookups) - _LOOKUPS_MAX + 1, 0)]:
            self._drop_now(stream)
        for stream in list(self._streams):
            if stream.used > now - _IDLE_S:
                break
            self._drop_now(stream)
