"""Pieces of logs as one stream of record batches, in order; several threads read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from logstore.config import check_int
from logstore.io.parallel import Task, Workers
from logstore.log.frames.columns import SourceColumns, schema_of
from logstore.log.frames.log import Log
from logstore.log.frames.payloads import Payloads
from logstore.log.frames.pieces import Piece, segments_of
from logstore.log.read import reader
from logstore.record.arrow_batches import BatchMaker, Memory, stream_of
from logstore.record.decoder import ChunkReader

__all__ = ["THREADS_MAX", "batches_of", "reader_over", "usable_threads"]

THREADS_MAX: Final = 64
# Decoded bytes that a thread makes before it waits for its turn. The first steps are
# short, because a query with a limit may end there.
STEP_BYTES_MIN: Final = 1 << 20
STEP_BYTES_MAX: Final = 8 << 20


def usable_threads(threads: int | None) -> int:
    """`threads`, checked; None: one for each processor of this process, at most 8.

    Raises:
        ConfigError, TypeError: it is not in [1, 64].
    """
    if threads is None:
        return min(len(os.sched_getaffinity(0)), 8)
    check_int("threads", threads, 1, THREADS_MAX)
    return threads


def reader_over(
    pieces: Iterable[Piece],
    payloads: Payloads,
    batch_records: int,
    threads: int,
    limit: int | None = None,
    view: bool = False,
) -> Any:
    """A `pyarrow.RecordBatchReader` over pieces; it reads nothing before it is used.

    Args:
        payloads: the columns, and the conversion of keys and values.
        view: keys and values as views of the bytes that were read.
        limit: the most records to return from all pieces; None: all. With a limit one
            thread reads, and no further than the batch with the last of them.
    """
    if limit is not None:
        batch_records, threads = max(1, min(batch_records, limit)), 1
    shape = None if payloads.changes_nothing else payloads.apply
    batches = batches_of(
        pieces, payloads.columns, batch_records, threads, shape, view=view
    )
    if limit is not None:
        batches = _first(batches, limit)
    return stream_of(payloads.schema, batches)


def _first(batches: Iterator[Any], limit: int) -> Iterator[Any]:
    """The first `limit` rows of the batches."""
    while limit > 0:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows


def batches_of(
    pieces: Iterable[Piece],
    columns: Sequence[str],
    batch_records: int,
    threads: int,
    shape: Callable[[Any], Any] | None = None,
    *,
    view: bool = False,
) -> Iterator[Any]:
    """Record batches of the pieces in their order.

    If a log was compacted meanwhile, and a piece had to continue in the new segments,
    the last records of some keys may lie after its former end: the records there follow
    after all pieces.

    Args:
        columns: of `logstore.log.frames.columns.SCHEMA`, at least one.
        batch_records: records in a batch, at most.
        threads: how many read at the same time; each holds at most `STEP_BYTES_MAX` of
            decoded records, and a batch.
        shape: applied to each batch; called in those threads.
        view: keys and values as views of the bytes that were read.

    Raises: as `Partition.read`, after every record before the damage.
    """
    # With several threads, one more is fed than there are.
    memory = Memory(1 if threads == 1 else threads + 1, view=view)
    ends = _Ends()
    todo = iter(pieces)
    try:
        while True:
            feeds = (_Feed(p, columns, batch_records, shape, memory) for p in todo)
            if threads == 1:
                has_ended = yield from _one_by_one(feeds, ends)
            else:
                has_ended = yield from _side_by_side(feeds, threads, ends)
            rest = ends.rest()
            if has_ended or not rest:
                return
            todo = iter(rest)
    finally:
        memory.close()


class _Ends:
    """The ends of reads of logs that were compacted meanwhile."""

    def __init__(self) -> None:
        # By id of a log: the log, the end of its last piece, the end of the log when a
        # piece continued in compacted segments.
        self._found: dict[int, tuple[Log, int, int]] = {}

    def note(self, feed: _Feed) -> None:
        """A piece was read to its end."""
        log, end = feed.piece.log, feed.compacted_end
        if end and log.go_on is not None:
            _, reached, wanted = self._found.get(id(log), (log, log.stop, 0))
            if feed.piece.stop >= log.view.end_offset:
                reached = max(reached, end)  # this read has continued up to there
            self._found[id(log)] = log, reached, max(wanted, end)

    def rest(self) -> list[Piece]:
        """The pieces of these logs that are not yet read; the next call is about the
        reads that follow."""
        ends, self._found = self._found, {}
        return [
            piece
            for log, reached, wanted in ends.values()
            if log.go_on is not None and reached < wanted
            for piece in segments_of(log.go_on(reached))
        ]


class _Step(NamedTuple):
    """The batches that a thread has read from a piece since the last step."""

    batches: list[Any]
    error: BaseException | None
    is_last: bool


class _Feed:
    """The batches of one piece; used by one thread at a time."""

    def __init__(
        self,
        piece: Piece,
        columns: Sequence[str],
        batch_records: int,
        shape: Callable[[Any], Any] | None,
        memory: Memory,
    ) -> None:
        self._memory = memory
        self.piece = piece
        self._shape = shape
        own = [name for name in columns if name not in ("topic", "partition")]
        # Rows can only be counted if there is a column.
        self._own = tuple(own) or ("offset",)
        self._source = (
            SourceColumns(
                schema_of(columns, memory.view), piece.log.topic, piece.log.number
            )
            if len(own) < len(columns)
            else None
        )
        self._batch_records = batch_records
        self._reader: ChunkReader | None = None
        self.batches = self._make()

    @property
    def has_ended(self) -> bool:
        """Whether the log must not be read any further: a transaction is open there."""
        return self._reader is not None and self._reader.ended

    @property
    def compacted_end(self) -> int:
        """Value of `ChunkReader.compacted_end`."""
        return 0 if self._reader is None else self._reader.compacted_end

    def _make(self) -> Iterator[Any]:
        log, start, stop = self.piece.log, self.piece.start, self.piece.stop
        self._reader = log.make_reader(start, "headers" in self._own)
        runs = reader.read_columns(
            log.view,
            start,
            stop,
            self._reader,
            policy=log.policy,
            pool=self._memory.reads,
            keeps=self._memory.view,
        )
        maker = BatchMaker(self._own, self._batch_records, self._memory)
        for batch in maker.batches(runs):
            if self._source is not None:
                batch = self._source.add(batch)
            if self._shape is not None:
                batch = self._shape(batch)
            if batch.num_rows:
                yield batch

    def step(self, size: int) -> _Step:
        """Decode until there are `size` bytes, or an error, or nothing is left."""
        batches: list[Any] = []
        used = 0
        try:
            for batch in self.batches:
                batches.append(batch)
                used += batch.nbytes
                if used >= size:
                    return _Step(batches, None, False)
        except BaseException as error:
            return _Step(batches, error, True)
        return _Step(batches, None, True)


class _Active(NamedTuple):
    feed: _Feed
    task: Task[_Step]


def _one_by_one(feeds: Iterator[_Feed], ends: _Ends) -> Generator[Any, None, bool]:
    """The batches of some feeds. Returns whether the last one must not be read any
    further."""
    for feed in feeds:
        yield from feed.batches
        if feed.has_ended:
            return True
        ends.note(feed)
    return False


def _side_by_side(
    waiting: Iterator[_Feed], threads: int, ends: _Ends
) -> Generator[Any, None, bool]:
    """The same; several threads read."""
    active: deque[_Active] = deque()
    size = STEP_BYTES_MIN
    with Workers(threads) as workers:

        def work_on(feed: _Feed, size: int) -> Task[_Step]:
            return workers.submit(lambda: feed.step(size))

        def begin_more() -> None:
            # One more than threads: the next piece begins while the consumer takes the
            # first.
            while len(active) <= threads:
                feed = next(waiting, None)
                if feed is None:
                    return
                active.append(_Active(feed, work_on(feed, size)))

        begin_more()
        while active:
            feed, task = active[0]
            while not workers.wait(task):
                pass
            step = task.result()
            size = min(2 * size, STEP_BYTES_MAX)
            has_ended = step.is_last and feed.has_ended
            if not step.is_last:
                active[0] = _Active(feed, work_on(feed, size))
            else:
                active.popleft()
                if step.error is None and not has_ended:
                    ends.note(feed)
                    begin_more()
            yield from step.batches
            if step.error is not None:
                raise step.error
            if has_ended:
                return True
    return False
