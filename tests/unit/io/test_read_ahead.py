"""Blocks of far segments: which are requested, which reads use them, when they go."""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.errors import StoreClosedError
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.read_ahead import FarPlace
from logstore.io.segment_place import LocalFile, Placed
from support.interrupts import InterruptAtCall
from support.levels import IS_ALL

KB = 1 << 10
# The smallest number of bytes of a request.
BLOCK = 64 * KB
WAIT_S = 60.0


def content(number: int, pos: int, size: int) -> bytes:
    """The bytes of a segment from a position on."""
    first = (number * 17 + pos) % 251
    return (_BYTES * (size // 251 + 2))[first : first + size]


_BYTES = bytes(range(251))


class FarSegment:
    """A segment as its place sees it."""

    def __init__(self, log: Log, number: int, size: int) -> None:
        self.base_offset = number
        self.file = LocalFile(log.directory, log.descriptors, number)
        self.place: Any = log.place
        self.size = size
        self.version = 0

    def bytes_below(self, stop: int) -> int:
        """Each segment has one offset."""
        return self.size if stop > self.base_offset else 0


class Log(FarPlace):
    """A log of far segments, and their place.

    Attributes:
        asked: the requests, as (segment, position, bytes), in their order.
        answer: may replace the answer to a request.
    """

    block_bytes = BLOCK

    def __init__(self, path: Path, *sizes: int) -> None:
        super().__init__()
        self.directory = Directory.open_root(Files(), os.fspath(path))
        self.descriptors = Descriptors(Files(), 4)
        self.place = self
        self.asked: list[tuple[int, int, int]] = []
        self.answer: Callable[[int, int, int], int] = lambda segment, pos, size: size
        self.segments: list[Any] = [
            FarSegment(self, number, size) for number, size in enumerate(sizes)
        ]

    def request(self, segment: Placed, view: memoryview, pos: int) -> int:
        self.asked.append((segment.base_offset, pos, len(view)))
        view[:] = content(segment.base_offset, pos, len(view))
        return self.answer(segment.base_offset, pos, len(view))

    def request_index(self, segment: Placed, suffix: str) -> bytes:
        raise OSError(errno.EIO, suffix)

    def get(self, number: int, pos: int, size: int, stop: int = 1 << 60) -> int:
        """Read bytes of a segment as a cursor does."""
        segment = self.segments[number]
        rest: Any = self.segments[number + 1 :]
        data = bytearray(min(size, segment.size - pos))
        count = self.read(segment, memoryview(data), pos, rest, stop)
        assert data[:count] == content(number, pos, count)
        return count

    def settled(self) -> list[tuple[int, int, int]]:
        """The requests, sorted, when no more are on their way."""
        wait_for(lambda: not self._workers._asked)
        return sorted(self.asked)


def wait_for(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    logs: list[Log] = []

    def make(*sizes: int) -> Log:
        logs.append(Log(tmp_path, *sizes))
        return logs[-1]

    yield make
    for log in logs:
        log.descriptors.close()


def test_lookup_requests_one_block(make: Callable[..., Log]) -> None:
    """Reading ahead of a lookup is of no use."""
    log = make(10 * BLOCK)
    assert log.get(0, 3 * BLOCK, 16 * KB) == 16 * KB
    assert log.get(0, 3 * BLOCK + 20 * KB, 16 * KB) == 16 * KB
    assert log.settled() == [(0, 3 * BLOCK, BLOCK)]


def test_reads_in_a_row_double_the_blocks_ahead(make: Callable[..., Log]) -> None:
    """The blocks ahead are 1, 2, 4, 8; then one for each block that is read."""
    log = make(30 * BLOCK)
    ahead = []
    for number in range(6):
        log.get(0, number * BLOCK, 32 * KB)
        log.get(0, number * BLOCK + 32 * KB, 32 * KB)
        ahead.append(len(log.settled()) - number - 1)
    assert ahead == [1, 2, 4, 8, 8, 8]


def test_blocks_ahead_go_on_in_the_next_segments(make: Callable[..., Log]) -> None:
    """Small segments continue, too: each is a block."""
    log = make(BLOCK, *[10 * KB] * 12)
    for number in range(5):
        log.get(number, 0, BLOCK)
    assert [segment for segment, _, _ in log.settled()] == list(range(13))


def test_nothing_is_requested_past_the_end_of_the_read(
    make: Callable[..., Log],
) -> None:
    """Neither in the segment of the end nor in the segments after it."""
    log = make(BLOCK, BLOCK, BLOCK, BLOCK)
    for number in range(2):
        log.get(number, 0, BLOCK, stop=2)
    assert log.settled() == [(0, 0, BLOCK), (1, 0, BLOCK)]


def test_local_segment_ends_the_reading_ahead(make: Callable[..., Log]) -> None:
    """The system itself reads ahead in a local file."""
    log = make(BLOCK, BLOCK, BLOCK)
    log.segments[1].place = log.segments[1].file
    log.get(0, 0, BLOCK)
    assert log.settled() == [(0, 0, BLOCK)]


def test_read_of_many_blocks_requests_them_at_once(make: Callable[..., Log]) -> None:
    """The read makes as many requests as may run at once before it waits for the
    first."""
    log = make(30 * BLOCK)
    gate = threading.Barrier(8)

    def answer(segment: int, pos: int, size: int) -> int:
        if pos < 8 * BLOCK:
            gate.wait(WAIT_S)
        return size

    log.answer = answer
    assert log.get(0, 0, 20 * BLOCK) == 20 * BLOCK


def test_failure_is_raised_by_the_read_that_needs_the_block(
    make: Callable[..., Log],
) -> None:
    """Earlier reads do not get the error; each read that needs the block requests it
    again."""
    log = make(10 * BLOCK)

    def failing(segment: int, pos: int, size: int) -> int:
        if pos == 2 * BLOCK:
            raise OSError(errno.EIO, "no answer")
        return size

    log.answer = failing
    for number in range(2):
        assert log.get(0, number * BLOCK, BLOCK) == BLOCK
        log.settled()
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            log.get(0, 2 * BLOCK, BLOCK)
    log.answer = lambda segment, pos, size: size
    assert log.get(0, 2 * BLOCK, BLOCK) == BLOCK


def test_failure_before_the_block_is_needed_is_not_raised(
    make: Callable[..., Log],
) -> None:
    """The failure may be old: the read that needs the block requests it again."""
    log = make(10 * BLOCK)
    failures = [OSError(errno.EIO, "no answer")]

    def failing(segment: int, pos: int, size: int) -> int:
        if pos == 2 * BLOCK and failures:
            raise failures.pop()
        return size

    log.answer = failing
    for number in range(4):
        assert log.get(0, number * BLOCK, BLOCK) == BLOCK
        log.settled()
    assert not failures


def test_short_answer_ends_the_read_and_is_requested_again(
    make: Callable[..., Log],
) -> None:
    """A short answer counts as the end of a file."""
    log = make(4 * BLOCK)
    log.answer = lambda segment, pos, size: min(size, BLOCK + 100 - pos)
    assert log.get(0, 0, 3 * BLOCK) == BLOCK + 100
    log.answer = lambda segment, pos, size: size
    assert log.get(0, 0, 3 * BLOCK) == 3 * BLOCK


def test_changed_segment_is_requested_again(make: Callable[..., Log]) -> None:
    """Its writer has cut it: blocks requested before may be void."""
    log = make(4 * BLOCK)
    log.get(0, 0, 16 * KB)
    log.segments[0].version += 1
    log.get(0, 0, 16 * KB)
    assert log.settled() == [(0, 0, BLOCK)] * 2


def test_reader_behind_another_one_finds_its_blocks(make: Callable[..., Log]) -> None:
    """The reader of the transactions is ahead of the reader of the records."""
    log = make(40 * BLOCK)
    for number in range(40):
        log.get(0, number * BLOCK, BLOCK)
        if number >= 4:
            log.get(0, (number - 4) * BLOCK, BLOCK)
    assert len(log.settled()) == 40


def test_two_readers_far_apart_have_streams_of_their_own(
    make: Callable[..., Log],
) -> None:
    """Neither loses its blocks to the other one."""
    log = make(20 * BLOCK, 20 * BLOCK)
    for number in range(20):
        for segment in range(2):
            log.get(segment, number * BLOCK, BLOCK, stop=segment + 1)
    assert len(log.settled()) == 40


def test_blocks_have_a_bound(make: Callable[..., Log]) -> None:
    """Many streams have fewer blocks, and the ones used last keep theirs."""
    log = make(*[40 * BLOCK] * 30)
    log.bytes_max = 64 * BLOCK
    for number in range(20):
        for segment in range(30):
            log.get(segment, number * BLOCK, 32 * KB, stop=segment + 1)
            log.get(segment, number * BLOCK + 32 * KB, 32 * KB, stop=segment + 1)
            held = sum(stream.bytes for stream in log._streams)
            assert held <= log._bytes <= log.bytes_max
    assert len(log.settled()) < 30 * 22


def test_lookups_do_not_drop_the_blocks_of_a_reader(make: Callable[..., Log]) -> None:
    """Any number of lookups may come; a few of them keep their block."""
    log = make(100 * BLOCK, 100 * BLOCK)
    for number in range(100):
        log.get(0, number * BLOCK, BLOCK, stop=1)
        for lookup in range(20):
            log.get(1, (number * 37 + lookup * 53) % 99 * BLOCK + lookup, KB, stop=2)
    log.settled()
    assert sum(segment == 0 for segment, _, _ in log.asked) == 100
    assert len(log._streams) <= 17


def test_lookups_in_sixteen_places_keep_their_blocks(make: Callable[..., Log]) -> None:
    """The least recently used block makes room for the next."""
    far = 64 << 20
    log = make(*[far] * 17)
    for _ in range(3):
        for number in range(16):
            log.get(number, far // 2, KB)
    assert len(log.settled()) == 16
    log.get(16, far // 2, KB)
    log.get(0, far // 2, KB)
    assert len(log.settled()) == 18


def test_failure_that_another_reader_raises_is_tried_again(
    make: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two wait for one block: one raises its error, the other requests it again."""
    log = make(1 << 20)
    failed: list[int] = []
    met = threading.Barrier(2)

    def answer(segment: int, pos: int, size: int) -> int:
        if not failed:
            failed.append(pos)
            wait_for(lambda: len(waiting) == 2)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return size

    waiting: list[None] = []
    real, real_wait, dropping = log._drop, log._wait, [0]

    def wait(segment: Any, task: Any) -> None:
        waiting.append(None)
        real_wait(segment, task)

    def drop(stream: Any) -> None:
        dropping[0] += 1
        if dropping[0] <= 2:
            met.wait(WAIT_S)  # both have seen the failure
        real(stream)

    log.answer = answer
    monkeypatch.setattr(log, "_drop", drop)
    monkeypatch.setattr(log, "_wait", wait)
    results: list[Any] = []

    def read() -> None:
        try:
            results.append(log.get(0, 0, KB))
        except OSError as error:
            results.append(error.errno)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(results) == sorted([errno.EIO, KB])


def test_stream_without_a_reader_is_dropped(make: Callable[..., Log]) -> None:
    """Another stream drops it."""
    log = make(10 * BLOCK, 10 * BLOCK)
    log.get(0, 0, BLOCK)
    log._streams[0].used -= 100
    log.get(1, 0, KB)
    assert [stream.blocks[0].segment.base_offset for stream in log._streams] == [1]


def test_threads_end_when_there_are_no_requests(make: Callable[..., Log]) -> None:
    """They begin again with the next request."""
    log = make(10 * BLOCK)
    for pos in (0, 5 * BLOCK):
        log.get(0, pos, BLOCK)
        wait_for(lambda: not log._workers._at_work)


def test_reader_makes_the_request_if_no_thread_can_be_started(
    make: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader needs the bytes."""

    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refused)
    log = make(10 * BLOCK)
    assert log.get(0, 0, 2 * BLOCK) == 2 * BLOCK


def test_closed_store_ends_the_wait_and_the_requests(make: Callable[..., Log]) -> None:
    """A request may take for ever; requests that have not begun are not made."""
    log = make(20 * BLOCK)
    log.in_flight = 2
    log._begin()
    gate, begun = threading.Event(), threading.Semaphore(0)

    def waiting(segment: int, pos: int, size: int) -> int:
        begun.release()
        gate.wait(WAIT_S)
        return size

    log.answer = waiting
    errors: list[BaseException] = []

    def read() -> None:
        try:
            log.get(0, 0, 10 * BLOCK)
        except StoreClosedError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(2):
        assert begun.acquire(timeout=WAIT_S)
    log.descriptors.close()
    reader.join(WAIT_S)
    gate.set()
    assert len(errors) == 1
    assert len(log.settled()) == 2
    with pytest.raises(StoreClosedError):
        log.get(0, 0, KB)


def test_closed_place_drops_its_blocks_and_begins_again(
    make: Callable[..., Log],
) -> None:
    """Its owner may close it before the store."""
    log = make(4 * BLOCK)
    log.get(0, 0, KB)
    log.close()
    assert not log._streams
    assert log.get(0, 0, KB) == KB
    assert log.settled() == [(0, 0, BLOCK)] * 2


def test_index_is_a_request_like_others(make: Callable[..., Log]) -> None:
    """The reader raises its failure."""
    log = make(BLOCK)
    with pytest.raises(OSError, match="index"):
        log.index_bytes(log.segments[0], ".index")


def test_read_can_be_interrupted_at_any_call(tmp_path: Path) -> None:
    """Later reads get their bytes, and released memory is no longer counted."""
    for call in range(1, 1 << 20, 1 if IS_ALL else 7):
        log = Log(tmp_path, *[3 * BLOCK] * 4)
        interrupt = InterruptAtCall(call)
        with contextlib.suppress(InterruptAtCall.Interrupt), interrupt:
            for pos in range(0, 3 * BLOCK, 60 * KB):
                log.get(0, pos, 60 * KB)
        for number in range(4):
            for pos in range(0, 3 * BLOCK, 60 * KB):
                log.get(number, pos, 60 * KB)
        assert all(stream.blocks for stream in log._streams)
        assert sum(stream.bytes for stream in log._streams) <= log._bytes
        log.descriptors.close()
        if not interrupt.has_raised:
            break
    assert call > 100


def test_child_of_a_fork_requests_its_own_blocks(make: Callable[..., Log]) -> None:
    """The threads of its parent do not exist in the child, and their requests never
    end."""
    log = make(20 * BLOCK)
    gate = threading.Event()
    parent = os.getpid()

    def waiting(segment: int, pos: int, size: int) -> int:
        if os.getpid() == parent and pos:
            gate.wait(WAIT_S)
        return size

    log.answer = waiting
    assert log.get(0, 0, BLOCK) == BLOCK
    wait_for(lambda: len(log.asked) == 2)
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = int(log.get(0, BLOCK, BLOCK) != BLOCK)
        os._exit(status)
    gate.set()
    assert os.waitpid(pid, 0)[1] == 0
