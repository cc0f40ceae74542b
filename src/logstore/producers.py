"""Transactions in a log: which are open, which were aborted.

Control batches of magic 2 tell (docs/format.md, "Control records"). The log itself is
the authority; a producer snapshot only shortens the way to it.
"""

from __future__ import annotations

import bisect
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from logstore import _binding as native
from logstore._files import Directory
from logstore.batches import ABORT
from logstore.decoding import StopReading
from logstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    UnsupportedError,
    storage_error,
)
from logstore.layout import SNAPSHOT, parse_segment_file
from logstore.reader import View, make_batch, place_behind
from logstore.segment import Place

__all__ = [
    "CommittedFilter",
    "ProducerEntry",
    "last_stable_offset",
    "parse_snapshot",
]

_SNAPSHOT_HEADER: Final = struct.Struct(">hIi")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_END: Final = 6


class ProducerEntry(NamedTuple):
    """One producer in a `.snapshot`."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def parse_snapshot(data: bytes, path: str) -> list[ProducerEntry]:
    """The entries of a producer snapshot.

    Raises:
        CorruptCheckpointError: wrong version, checksum or length.
    """
    reason = ""
    if len(data) < _SNAPSHOT_HEADER.size:
        reason = f"it has {len(data)} bytes"
    else:
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
        if version != 1:
            reason = f"its version is {version}, not 1"
        elif native.crc32c(memoryview(data)[_CRC_END:]) != crc:
            reason = "its checksum differs"
        elif len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            reason = f"it has {len(data)} bytes for {count} entries"
    if reason:
        raise CorruptCheckpointError(
            f"producer snapshot {path} cannot be used: {reason}",
            path=path,
            reason=reason,
        )
    body = data[_SNAPSHOT_HEADER.size :]
    return [ProducerEntry(*fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(body)]


class _Marker(NamedTuple):
    offset: int
    aborted: bool


class CommittedFilter:
    """Tells whether a transactional batch was committed, for ``read_committed``.

    Reads ahead of the reader, headers only, as far as it must: to the marker that ends
    the transaction of the batch in question.
    """

    def __init__(self, view: View, start: int, *, skip: bool = False) -> None:
        self._ahead = _transaction_batches(view, start, skip=skip)
        self._markers: dict[int, list[_Marker]] = {}
        self._done = False

    def __call__(self, header: native.BatchHeader) -> bool:
        """True: committed; False: aborted. `StopReading`: still open."""
        while True:
            markers = self._markers.get(header.producer_id, [])
            at = bisect.bisect_right(
                markers, header.last_offset, key=lambda marker: marker.offset
            )
            if at < len(markers):
                del markers[:at]
                return not markers[0].aborted
            if self._done:
                raise StopReading
            self._read_on()

    def _read_on(self) -> None:
        for found, marker in self._ahead:
            if marker is not None:
                self._markers.setdefault(found.producer_id, []).append(marker)
                return
        self._done = True


def _transaction_batches(
    view: View, start: int, *, skip: bool = False
) -> Iterator[tuple[native.BatchHeader, _Marker | None]]:
    """Headers of transactional batches from `start` to the end of a view, in order,
    with what the marker says where it is one; with `skip`, without what is damaged."""
    offset = start
    segments = deque(view.from_offset(start))
    place: Place | None = None
    while segments:
        segment = segments[0]
        try:
            place = place or segment.locate(offset)
            for header, buffer, file_pos in segment.headers(place):
                if header.last_offset >= view.end_offset:
                    return
                if header.last_offset < offset:
                    continue
                marker = None
                if header.is_control and header.is_transactional:
                    control = make_batch(
                        segment, header, buffer, file_pos, view.decompressed_max
                    ).control_record()
                    if control is not None:
                        marker = _Marker(control.offset, control.type == ABORT)
                offset = header.last_offset + 1
                is_data = header.is_transactional and not header.is_control
                if is_data or marker is not None:
                    yield header, marker
            place = None
            segments.popleft()
        except (CorruptRecordError, UnsupportedError) as error:
            again = view.anew()
            if again is not None:
                view, place = again, None
                segments = deque(view.from_offset(offset))
                continue
            if not skip or isinstance(error, UnsupportedError):
                raise
            place = place_behind(segment, error, offset)
            if place is None:
                segments.popleft()


def _newest_snapshot(
    directory: Directory, start: int, end: int
) -> tuple[int, list[ProducerEntry]] | None:
    """(offset, entries) of the newest usable snapshot between `start` and `end`."""
    offsets = sorted(
        parsed.base_offset
        for name in directory.names()
        if (parsed := parse_segment_file(name))
        and parsed.suffix == SNAPSHOT
        and not parsed.transition
        and start < parsed.base_offset <= end
    )
    for offset in reversed(offsets):
        name = f"{offset:020d}{SNAPSHOT}"
        try:
            data = directory.read_file(name)
            return offset, parse_snapshot(data, directory.path_of(name))
        except (OSError, CorruptCheckpointError):
            continue
    return None


def last_stable_offset(view: View, directory: Directory) -> int:
    """First offset of the oldest transaction that is open at the end of a view, or its
    end where none is (Kafka's LSO, with everything taken as replicated)."""
    begin = view.start_offset
    open_since: dict[int, int] = {}
    try:
        snapshot = _newest_snapshot(directory, view.start_offset, view.end_offset)
    except OSError as error:
        raise storage_error(error, "read", directory.path) from error
    if snapshot is not None:
        begin = snapshot[0]
        for entry in snapshot[1]:
            if entry.current_txn_first_offset >= 0:
                open_since[entry.producer_id] = entry.current_txn_first_offset
    for header, marker in _transaction_batches(view, begin):
        if marker is None:
            open_since.setdefault(header.producer_id, header.base_offset)
        else:
            open_since.pop(header.producer_id, None)
    oldest = min(open_since.values(), default=view.end_offset)
    return max(min(oldest, view.end_offset), view.start_offset)
