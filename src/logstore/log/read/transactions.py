"""Transactions in a log: which are open, which were aborted.

Control batches of magic 2 record this (docs/format.md, "Control records"). The log
itself is authoritative; a producer snapshot only reduces how much of it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    UnsupportedError,
    storage_error,
)
from logstore.io.checkpoint.producer_snapshot import (
    ProducerEntry,
    read_snapshot,
    snapshot_offsets,
)
from logstore.io.directory import Directory
from logstore.log.read.corruption import RAISE, SKIP, Damaged, DamagePolicy
from logstore.log.read.cursor import Cursor
from logstore.log.read.damage import make_batch
from logstore.log.read.reader import headers_in
from logstore.log.read.resume import Resume
from logstore.log.read.view import View
from logstore.record.batch import ABORT
from logstore.record.decoder import StopReading

__all__ = [
    "AbortedRange",
    "CommittedFilter",
    "EndedTransactions",
    "StableOffset",
    "ended_transactions",
]


class _Marker(NamedTuple):
    offset: int
    aborted: bool


class CommittedFilter:
    """Decides whether a transactional batch was committed, for ``read_committed``.

    Reads ahead of the reader, headers only, as far as necessary: to the marker that
    ends the transaction of the batch in question. It must be called with the batches in
    order. Damage that it meets is raised, or left out, by the read that comes there;
    but a transaction is undecided if the damage may be its end.
    """

    def __init__(self, view: View, start: int) -> None:
        self._markers: dict[int, deque[_Marker]] = {}
        # Damage that may have been the end of a transaction, in order.
        self._hidden: deque[Damaged] = deque()
        self.undecided: CorruptRecordError | UnsupportedError | None = None
        self.begin_again(view, start)

    def begin_again(self, view: View, offset: int) -> None:
        """Read the markers again from an offset on: the log was changed."""
        self._ahead = _transaction_batches(view, offset, view.end_offset, SKIP, offset)
        self._markers.clear()
        self._hidden.clear()
        self._done = False

    def __call__(self, header: native.BatchHeader) -> bool:
        """True: committed; False: aborted. Raises `StopReading` if it is still open, or
        if damage may hide its end."""
        while True:
            last = header.last_offset
            markers = self._markers.get(header.producer_id, _NO_MARKERS)
            while markers and markers[0].offset <= last:
                markers.popleft()
            if markers or self._done:
                break
            self._read_on()
        hidden = self._hidden
        while hidden and hidden[0].first <= last:
            hidden.popleft()
        is_hidden = hidden and not (markers and markers[0].offset < hidden[0].first)
        self.undecided = hidden[0].error if is_hidden else None
        if is_hidden or not markers:
            raise StopReading
        return not markers[0].aborted

    def _read_on(self) -> None:
        for item, marker in self._ahead:
            if isinstance(item, Resume):
                if item.left_out is not None and item.hides_end:
                    self._hidden.append(item.left_out)
            elif marker is not None:
                waiting = self._markers.setdefault(item.producer_id, deque())
                waiting.append(marker)
                return
        self._done = True


_NO_MARKERS: Final[deque[_Marker]] = deque()


def _transaction_batches(
    view: View, start: int, stop: int, policy: DamagePolicy, since: int
) -> Iterator[tuple[native.BatchHeader | Resume, _Marker | None]]:
    """Headers of transactional batches with offsets from `start` to below `stop`, in
    order, each with its marker if it is one; in the place of damage that was passed,
    how the read continued. `since`: as in `Cursor`.

    Raises:
        ChangedError: the log was changed; what was found so far may be wrong.
    """
    resumed: list[Resume] = []
    cursor = Cursor(
        view, start, stop, policy, since=since, follows=False, resumed=resumed
    )
    for header, chunk, before in headers_in(cursor):
        while resumed:
            yield resumed.pop(0), None
        if header.last_offset >= cursor.stop:
            cursor.advance(header.pos, native.STOP_OFFSET, before)
            return
        marker = None
        if header.is_control and header.is_transactional:
            pos = chunk.pos + header.pos
            try:
                control = make_batch(
                    chunk.segment,
                    header,
                    chunk.buffer,
                    pos,
                    cursor.view.decompressed_max,
                ).control_record()
            except (CorruptRecordError, UnsupportedError) as error:
                cursor.on_damage(error, pos, before)
                continue
            if control is not None:
                marker = _Marker(control.offset, control.type == ABORT)
        cursor.offset = header.last_offset + 1
        is_data = header.is_transactional and not header.is_control
        if is_data or marker is not None:
            yield header, marker
    for passed in resumed:
        yield passed, None


def _read_on(
    view: View, start: int, policy: DamagePolicy, since: int
) -> Iterator[tuple[native.BatchHeader | Resume, _Marker | None]]:
    """`_transaction_batches` from `start` to the end of a view, without reading the
    offsets known to be free of transactions."""
    free, end = view.transaction_free, view.end_offset
    parts = (start, min(free.start, end)), (max(start, free.stop), end)
    for first, stop in parts if free else ((start, end),):
        yield from _transaction_batches(view, first, stop, policy, since)


class AbortedRange(NamedTuple):
    """The batches of one producer that an aborted transaction has.

    Attributes:
        producer_id: of the transactional batches.
        first_offset: of the first of these batches in the requested range.
        last_offset: of the marker that ends them, inclusive.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class EndedTransactions(NamedTuple):
    """Results of the transactions in a range of offsets, all of which have ended.

    Attributes:
        aborted: by offset; every other transaction was committed.
        upto: the markers lie below it: valid until the log is cut below.
    """

    aborted: tuple[AbortedRange, ...]
    upto: int


def ended_transactions(view: View, start: int, stop: int) -> EndedTransactions | None:
    """The transactions of the batches with start <= offset < stop, by the rules of
    `CommittedFilter`. Reads headers, as far as the marker of the last transaction
    there. None: one is open.

    Raises:
        ChangedError: the log was changed; the result may be wrong.
        CorruptRecordError: damage in the bytes that were read.
    """
    open_since: dict[int, int] = {}
    aborted = []
    upto = stop
    for header, marker in _read_on(view, start, RAISE, start):
        if isinstance(header, Resume):
            continue  # it lies below the range
        if header.base_offset >= stop and not open_since:
            break
        if marker is not None:
            first = open_since.pop(header.producer_id, None)
            if first is not None:
                upto = max(upto, marker.offset + 1)
                if marker.aborted:
                    aborted.append(
                        AbortedRange(header.producer_id, first, marker.offset)
                    )
        elif header.base_offset < stop:
            open_since.setdefault(header.producer_id, header.base_offset)
    return None if open_since else EndedTransactions(tuple(aborted), upto)


def _newest_snapshot(
    directory: Directory, start: int, end: int
) -> tuple[int, list[ProducerEntry]] | None:
    """(offset, entries) of the newest usable snapshot between `start` and `end`."""
    for offset in reversed(snapshot_offsets(directory)):
        if not start < offset <= end:
            continue
        try:
            return offset, read_snapshot(directory, offset)
        except (OSError, CorruptCheckpointError):
            continue
    return None


class _Point(NamedTuple):
    """The open transactions of a log that was read up to an offset.

    Attributes:
        life, serial: of the view that was read.
        upto: one past the last offset that was read.
        open_since: the first offset of each transaction open there, by producer.
        since: the point is valid for reads that begin here or above; damage lies below.
    """

    life: int
    serial: int
    upto: int
    open_since: dict[int, int]
    since: int = 0


class StableOffset:
    """The last stable offset of one log.

    Results are kept until they are cut off: if the log has grown, only the new part is
    read. Any thread may call it. It takes no lock: two threads may read the same part
    without harm.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._points: tuple[_Point, ...] = ()

    def of(self, view: View, first: int = 0, policy: DamagePolicy = RAISE) -> int:
        """First offset of the oldest transaction that is open at the end of a view, or
        the end of the view if none is open (Kafka's LSO, with everything taken as
        replicated).

        Damage that lies wholly below `first` (or anywhere, if it may be left out) may
        have contained the end of transactions that were open before it: they are taken
        as ended. No record of an open transaction is delivered because of this:
        `CommittedFilter` looks for the end of each transaction.

        Raises:
            ChangedError: the log was changed; the result may be wrong.
            CorruptRecordError: damage elsewhere.
        """
        # The caller is not asked: this looks at all of the log before the read begins.
        policy = SKIP if policy.skips else RAISE
        since = view.end_offset if policy.skips else first
        open_since = self._open_at_end(view, since, policy)
        oldest = min(open_since.values(), default=view.end_offset)
        return max(min(oldest, view.end_offset), view.start_offset)

    def _open_at_end(
        self, view: View, first: int, policy: DamagePolicy
    ) -> dict[int, int]:
        point = self._newest_point(view, first) or self._first_point(view)
        if point.upto == view.end_offset:
            return point.open_since
        open_since, since = dict(point.open_since), point.since
        for header, marker in _read_on(view, point.upto, policy, first):
            if isinstance(header, Resume):
                open_since.clear()
                since = first
            elif marker is None:
                open_since.setdefault(header.producer_id, header.base_offset)
            else:
                open_since.pop(header.producer_id, None)
        serial = view.cuts.serial
        new = _Point(view.life, serial, view.end_offset, open_since, since)
        self._keep(new, view)
        return open_since

    def _newest_point(self, view: View, first: int) -> _Point | None:
        """The valid point nearest to the end of a view."""
        points = [
            point
            for point in self._points
            if point.upto <= view.end_offset
            and point.since <= first
            and self._stands(point, view)
        ]
        return max(points, key=lambda point: point.upto, default=None)

    @staticmethod
    def _stands(point: _Point, view: View) -> bool:
        return (
            point.life == view.life
            and point.upto >= view.start_offset
            and view.cuts.lowest_since(point.serial) >= point.upto
        )

    def _keep(self, new: _Point, view: View) -> None:
        points = [p for p in self._points if p.upto != new.upto or p.since < new.since]
        points = [p for p in points if self._stands(p, view)]
        self._points = (*points[1 - _POINTS_MAX :], new)

    def _first_point(self, view: View) -> _Point:
        """Where to begin: the newest snapshot, or the start of the log."""
        life, serial = view.life, view.cuts.serial
        if view.start_offset in view.transaction_free:
            return _Point(life, serial, view.start_offset, {})
        try:
            snapshot = _newest_snapshot(
                self._directory, view.start_offset, view.end_offset
            )
        except OSError as error:
            raise storage_error(error, "read", self._directory.path) from error
        if snapshot is None:
            return _Point(life, serial, view.start_offset, {})
        upto, entries = snapshot
        open_since = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in entries
            if entry.current_txn_first_offset >= 0
        }
        return _Point(life, serial, upto, open_since)


# How many points are kept per log: the end of the durable part is a separate one.
_POINTS_MAX: Final = 4
