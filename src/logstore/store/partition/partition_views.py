"""Start of each read of a partition: a view of the log at the call, bounds (offsets or
times) resolved to offsets, and a decoder; and the turns of a follower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from logstore import _native as native
from logstore._native.locks import Signal
from logstore.errors import (
    OffsetOutOfRangeError,
    StorageError,
    again,
)
from logstore.io.checkpoint.cuts import Cuts
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.frames.log import Log
from logstore.log.read import reader
from logstore.log.read import transactions as producers
from logstore.log.read.corruption import RAISE, SKIP, DamagePolicy
from logstore.log.read.options import ReadOptions
from logstore.log.read.proof import disproves
from logstore.log.read.tail import VerifiedTail, tail_columns
from logstore.log.read.time_lookup import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    LargestTimestamps,
    first_offset_at,
)
from logstore.log.read.view import (
    Bounds,
    ChangedError,
    Segments,
    View,
    find_in,
    slot_of,
)
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import (
    Start,
    as_offset,
    is_time,
    to_milliseconds,
)
from logstore.record.decoder import (
    BatchFilter,
    ChunkReader,
    Damage,
)
from logstore.record.record import Record, TopicRecord
from logstore.segment import Segment, SegmentInfo

if TYPE_CHECKING:
    pass

__all__ = ["Latest", "PartitionViews", "Turn", "infos_of", "unchanged"]

_Result = TypeVar("_Result")

# Records that are decoded at a time; with several readers, the least for each.
_DECODED = 16384
_DECODED_MIN = 64


class Turn(NamedTuple):
    """A follower has reached the end of a view.

    Attributes:
        view: the view whose end it has reached.
        has_moved: it has advanced since the turn before; else it may wait.
        offset: of the next record to be read.
    """

    view: View
    has_moved: bool
    offset: int


class Latest:
    """The view that turns read in, None before the first. The reader keeps it when the
    turns end with an error.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view: View | None = None


class PartitionViews:
    """The views of one partition. Any thread may ask for one.

    Attributes:
        topic, number, name: of the partition.
        log: whose views they are; `writer` is the same if this store writes it.
        guard: raises if the store is closed.
        decompressed_max: limit of the decompressed size of a batch, in bytes.
    """

    def __init__(
        self,
        topic: str,
        number: int,
        log: PartitionWriter | ReadOnlyLog,
        guard: Callable[[], None],
        decompressed_max: int,
    ) -> None:
        self.topic = topic
        self.number = number
        self.name = f"{topic}-{number}"
        self.log = log
        self.writer = log if isinstance(log, PartitionWriter) else None
        self.guard = guard
        self.decompressed_max = decompressed_max
        self._times = LargestTimestamps()
        self._stable = producers.StableOffset(log.directory)

    def find(self, offset: int, durable_only: bool) -> Record | None:
        """The record at an offset, if the current view of the log finds it at once;
        None: a reader must look for it."""
        self.guard()
        return self.log.at_once(find_in, durable_only, offset)

    def find_since(self, timestamp: int) -> int | None:
        """The first offset whose record has this timestamp or more; see `find`."""
        self.guard()
        return self.log.at_once(self._find_since, False, timestamp)

    def _find_since(
        self, segments: Segments, start: int, end: int, timestamp: int
    ) -> int | None:
        """`Segment.find_since` of the first segment that may have it, if it is before
        an end."""
        if not segments:
            return None
        number = max(slot_of(segments, start), self._times.older(segments, timestamp))
        segment = segments[number]
        version = segment.version
        offset = segment.find_since(max(start, segment.base_offset), timestamp)
        is_there = offset is not None and offset < end and segment.version == version
        return offset if is_there else None

    def history(self) -> tuple[str, Cuts] | None:
        """The id of the log, and how it was cut."""
        self.guard()
        self.check_alive()
        log = self.log
        if isinstance(log, ReadOnlyLog):
            return log.history()
        return log.context.log_id, log.cuts

    def refreshed(self) -> Bounds:
        """The current bounds of the log.

        Raises: the reason why the log was closed, if it was: its topic was deleted.
        """
        self.check_alive()
        return self.log.refreshed()

    def check_alive(self) -> None:
        writer = self.writer
        if writer is not None and writer.health.closed is not None:
            self.guard()
            raise again(writer.health.closed)

    def now(self, durable_only: bool) -> View:
        """The current view of the log, for a new call. Raises: as `refreshed`."""
        return self.view_of(self.refreshed(), durable_only)

    def durable_offset(self) -> int:
        """The durable offset now."""
        return self._durable_of(self.refreshed())

    def _durable_of(self, seen: Bounds) -> int:
        """The durable offset of these bounds. A log opened read-only may know of more:
        its writer, another process, reports it."""
        log = self.log
        return (
            log.durable_of(seen)
            if isinstance(log, ReadOnlyLog)
            else seen.durable_offset
        )

    def view_of(self, seen: Bounds, durable_only: bool) -> View:
        end = self._durable_of(seen) if durable_only else seen.end_offset
        return View(
            self.name,
            seen.segments,
            seen.start_offset,
            max(seen.start_offset, end),
            seen.end_offset,
            self.decompressed_max,
            seen.cuts,
            seen.life,
            self.log,
            seen.transaction_free,
            seen.compactions,
        )

    def disproves(self, position: int, proof: int) -> bool:
        """Whether the current log disproves that a position belongs to it."""
        view, log = self.now(False), self.log
        is_foreign = isinstance(log, ReadOnlyLog) and log.is_foreign
        may_be_compacted = is_foreign or view.compactions > 0
        return disproves(view, position, proof, may_be_compacted=may_be_compacted)

    def _stable_end(self, view: View, first: int) -> int:
        """Where a read that begins at `first` must end. The read itself meets damage,
        after the records before it; so damage is left out here."""
        return self.stable_of(view, first, SKIP)

    def stable_of(self, view: View, first: int, policy: DamagePolicy = RAISE) -> int:
        """The last stable offset of a view, for a read that begins at `first`.

        Raises:
            ChangedError: the log was changed meanwhile.
            CorruptRecordError: damage that is not left out.
        """
        try:
            return self._stable.of(view, first, policy)
        except StorageError:
            self.refreshed()  # raises if it was deleted meanwhile
            raise

    def _resolve(
        self, view: View, name: str, bound: Start, policy: DamagePolicy
    ) -> int:
        """The offset of a bound, which may be a time."""
        if type(bound) is int:
            return bound
        if is_time(bound):
            return self._at_time(view, to_milliseconds(name, bound), policy)
        return as_offset(name, bound, or_time=True)

    def _at_time(self, view: View, timestamp_ms: int, policy: DamagePolicy) -> int:
        offset = first_offset_at(view, timestamp_ms, self._times, policy)
        return view.end_offset if offset is None else offset

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The first offset whose record has this timestamp or a later one, if any."""
        if TIMESTAMP_MIN < timestamp_ms <= TIMESTAMP_MAX:
            offset = self.find_since(timestamp_ms)
            if offset is not None:
                return offset
        return unchanged(
            lambda: first_offset_at(self.now(False), timestamp_ms, self._times)
        )

    def bounds(
        self,
        start: Start,
        stop: Start,
        options: ReadOptions,
        *,
        to_stable: bool = False,
    ) -> tuple[View, int, int]:
        """(current view of the log, offset to begin at, offset to stop at).

        Args:
            to_stable: stop at the last stable offset also if the reader's filter would
                find the first open transaction by itself.
        """
        policy = options.policy

        def bounds() -> tuple[View, int, int]:
            view = self.now(options.durable_only)
            first, end = view.start_offset, view.end_offset
            if start is not None:
                first = self._resolve(view, "start", start, policy)
                view.check(first)
            if stop is not None:
                # The read that follows asks the caller, in the order of offsets.
                quiet = SKIP if policy.skips else RAISE
                end = min(self._resolve(view, "stop", stop, quiet), end)
            is_limited = to_stable or first > view.start_offset
            if options.is_committed and is_limited:
                end = min(end, self._stable_end(view, first))
            return view, first, end

        return unchanged(bounds)

    def filtered(
        self,
        start: Start,
        stop: Start,
        options: ReadOptions,
        *,
        to_stable: bool = False,
    ) -> tuple[View, int, int, BatchFilter | None]:
        """Same as `bounds`, with the `batch_filter` for the range."""
        view, first, end = self.bounds(start, stop, options, to_stable=to_stable)
        return view, first, end, self.batch_filter(view, first, options)

    def reading(
        self,
        start: Start,
        stop: Start,
        options: ReadOptions,
        *,
        to_stable: bool = False,
        with_headers: bool = True,
        share: int = 1,
    ) -> tuple[View, int, int, ChunkReader]:
        """Same as `bounds`, with the `decoder` for the range."""
        view, first, end = self.bounds(start, stop, options, to_stable=to_stable)
        decoder = self.decoder(
            view, first, options, with_headers=with_headers, share=share
        )
        return view, first, end, decoder

    def decoder(
        self,
        view: View,
        first: int,
        options: ReadOptions,
        *,
        with_headers: bool = True,
        share: int = 1,
    ) -> ChunkReader:
        """The decoder. It decodes not many more records at a time than are wanted, or
        than its share if several partitions are read at the same time."""
        capacity, limit = _DECODED // share, options.limit
        if limit is not None:
            capacity = min(capacity, limit)
        return ChunkReader(
            self.decompressed_max,
            with_headers=with_headers,
            batch_filter=self.batch_filter(view, first, options),
            capacity=max(capacity, _DECODED_MIN),
        )

    def batch_filter(
        self, view: View, first: int, options: ReadOptions
    ) -> BatchFilter | None:
        """Which batches a read from `first` on delivers; None: all."""
        if not options.is_committed:
            return None
        free = view.transaction_free
        if view.end_offset <= first or (first in free and view.end_offset <= free.stop):
            return None  # no batch of a transaction is in the way
        return producers.CommittedFilter(view, first)

    def log_of(self, start: Start, stop: Start, options: ReadOptions) -> Log:
        """This partition as a scan of data frames sees it, as of now."""
        view, first, end = self.bounds(start, stop, options, to_stable=True)

        def make_reader(offset: int, with_headers: bool) -> ChunkReader:
            return self.decoder(view, offset, options, with_headers=with_headers)

        def go_on(offset: int) -> Log:
            return self.log_of(offset, None, options)

        is_to_end = stop is None or end >= view.end_offset
        return Log(
            self.topic,
            self.number,
            view,
            first,
            end,
            make_reader,
            options.policy,
            go_on if is_to_end else None,
        )

    def refreshed_bounds(self) -> Bounds:
        """The current bounds of the log, even if it was closed."""
        return self.log.refreshed()

    def turns(
        self,
        start: Start,
        options: ReadOptions,
        look: Callable[[], Bounds] | None = None,
    ) -> Iterator[Iterator[Record] | Turn]:
        """The records from `start` on, in runs, up to the end of the log at the call;
        then a `Turn`, then the records appended since, and so on without end. A run
        must be used up before the next is requested.

        Args:
            look: returns the bounds of the log at this call, or later; None:
                `refreshed_bounds`.
        """
        items = self._column_turns(start, options, look, Latest())
        return (
            item if isinstance(item, Turn) else native.decoded_records(item)
            for item in items
        )

    def topic_turns(
        self, start: Start, options: ReadOptions, latest: Latest
    ) -> Iterator[Iterator[TopicRecord] | Turn]:
        """Same as `turns`, with the topic and the partition in each record.

        Args:
            latest: gets each view before it is read.
        """
        name, number = self.topic, self.number
        items = self._column_turns(start, options, None, latest)
        return (
            item
            if isinstance(item, Turn)
            else native.decoded_records(item, name, number)
            for item in items
        )

    def _column_turns(
        self,
        start: Start,
        options: ReadOptions,
        look: Callable[[], Bounds] | None,
        latest: Latest,
    ) -> Iterator[native.Columns | Turn]:
        view, first, end = self.bounds(start, None, options, to_stable=True)
        latest.view = view
        look = look or self.log.refreshed
        return self._turn_after_turn(view, first, end, options, look, latest)

    def _turn_after_turn(
        self,
        view: View,
        offset: int,
        end: int,
        options: ReadOptions,
        look: Callable[[], Bounds],
        latest: Latest,
    ) -> Iterator[native.Columns | Turn]:
        """Reads from `offset` to `end` of a view, then in later ones of the same
        log."""
        closed: Exception | None = None
        tail: VerifiedTail | None = None
        decoder = self.decoder(view, offset, options)
        while True:
            if options.is_committed:
                # It belongs to a view.
                decoder.batch_filter = self.batch_filter(view, offset, options)
            before = offset
            cut: OffsetOutOfRangeError | None = None
            try:
                for run in _runs(view, tail, offset, end, decoder, options.policy):
                    offset = int(run.decoder.arrays.offset[run.decoder.count - 1]) + 1
                    yield run
                if not decoder.ended:
                    offset = max(offset, end)
            except OffsetOutOfRangeError as error:
                cut = error
            has_moved = cut is not None or offset > before
            if closed is not None and not has_moved:
                raise again(closed)
            yield Turn(view, has_moved, offset)
            # Before the refresh, which then sees everything that the log had when it
            # was closed.
            closed = None if self.writer is None else self.writer.health.closed
            now = look()
            if closed is not None and not now.segments and view.segments:
                # Its writer has released the files; this view's files still exist, and
                # hold the log up to the lowest cut since.
                low = now.cuts.lowest_since(view.cuts.serial)
                end = min(now.end_offset, view.segments[-1].next_offset, low)
                durable = min(end, now.durable_offset)
                now = now._replace(
                    segments=view.segments, end_offset=end, durable_offset=durable
                )
            if cut is not None and (now.life, now.cuts.serial) == (
                view.life,
                view.cuts.serial,
            ):
                raise cut  # it was deleted
            view.check_same(offset, now)
            view, tail = self.view_of(now, options.durable_only), now.tail
            view.check(offset)
            latest.view = view
            end = view.end_offset
            if options.is_committed:
                try:
                    end = min(end, self._stable_end(view, offset))
                except ChangedError:
                    end = offset  # the next refresh sees it

    @property
    def appended(self) -> Signal | None:
        """Set when there may be more to read; None if another process writes."""
        return None if self.writer is None else self.writer.appended

    def has_more(self, view: View, durable_only: bool) -> bool:
        """Whether the log may have more than a view, in the store that writes it."""
        writer = self.writer
        if writer is None or writer.health.closed is not None:
            return True
        seen = writer.seen()
        end = seen.durable if durable_only else seen.end
        is_cut = seen.cuts.serial != view.cuts.serial
        return is_cut or max(seen.start, end) != view.end_offset


def _runs(
    view: View,
    tail: VerifiedTail | None,
    start: int,
    stop: int,
    decoder: ChunkReader,
    policy: DamagePolicy,
) -> Iterator[native.Columns]:
    """The records of a view with start <= offset < stop, from memory if the refresh has
    read them."""
    offset = start
    if start >= stop:
        return  # most turns of a follower find nothing new
    if tail is not None and decoder.batch_filter is None and tail.has(start, stop):
        with contextlib.suppress(Damage):
            for run in tail_columns(tail, start, stop, decoder):
                offset = int(run.decoder.arrays.offset[run.decoder.count - 1]) + 1
                yield run
            return
        # The reader finds it again, and raises the error of the file.
    yield from reader.read_columns(view, offset, stop, decoder, policy=policy)


def unchanged(ask: Callable[[], _Result]) -> _Result:
    """Result of a call that returns everything at once. If the log is changed
    during the call, nothing is lost: the call is repeated on the changed log."""
    while True:
        with contextlib.suppress(ChangedError):
            return ask()


def infos_of(segments: Sequence[Segment], end: int) -> tuple[SegmentInfo, ...]:
    # Without the segments of a publication in progress.
    shown = [s for s in segments[1:] if s.base_offset <= end]
    segments = [*segments[:1], *shown]
    last = len(segments) - 1
    return tuple(
        segment.info(
            end if index == last else segments[index + 1].base_offset,
            is_active=index == last,
        )
        for index, segment in enumerate(segments)
    )
