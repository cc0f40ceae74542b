"""Batch headers of a store, all of them or a sample: codecs, producers, sizes, times.

Small segments are read whole. In a large store, a few stretches of each segment are
read, evenly spaced over its offsets, and represent the whole segment: the time a report
takes is bounded for a store of any size, apart from `verify`, which reads all of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.config import CODECS
from logstore.errors import CorruptRecordError, LogStoreError, UnsupportedError
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.segment_info import SegmentInfo, newest_ms
from logstore.log.resync import next_valid
from logstore.record.decoder import Damage, open_payload
from logstore.segment import OffsetPosition, Segment

__all__ = ["Codec", "HeaderFacts", "Interval", "ProducerData", "Sampler", "Sums"]

# A store up to this size is read whole; of a larger one, about this much is read.
_WHOLE_BYTES: Final = 24 << 20
_WHOLE_BATCHES: Final = 60_000
_STRETCH_BYTES: Final = 64 * 1024
# Of all segments together, and at least of one stretch.
_SAMPLED_BATCHES: Final = 16_000
_STRETCH_BATCHES: Final = 16
_STRETCHES_MAX: Final = 16
# Maximum number of times that a walk continues after damage in one segment.
_SKIPS_MAX: Final = 64
# For the ratio: batches that are decompressed, in all and of one segment.
_OPENED_MAX: Final = 400
_OPENED_OF_SEGMENT: Final = 2
_OPENED_BYTES_MAX: Final = 1 << 20


@dataclasses.dataclass(slots=True)
class Codec:
    """Batches with one kind of compression.

    Attributes:
        records, batches, bytes: of it; estimated if the report is sampled.
        sampled_bytes, sampled_raw_bytes: of the batches that were decompressed, on disk
            and decompressed.
    """

    name: str
    records: float = 0
    batches: float = 0
    bytes: float = 0
    sampled_bytes: int = 0
    sampled_raw_bytes: int = 0

    @property
    def ratio(self) -> float | None:
        """Raw bytes for one on disk; None if nothing was decompressed."""
        if not self.sampled_bytes:
            return None
        return self.sampled_raw_bytes / self.sampled_bytes


@dataclasses.dataclass(slots=True)
class ProducerData:
    """The data that one producer id wrote; -1 stands for all data without an id."""

    producer_id: int
    epoch: int = -1
    is_transactional: bool = False
    records: float = 0
    bytes: float = 0
    partitions: list[str] = dataclasses.field(default_factory=list)
    last_time_ms: int = -1


@dataclasses.dataclass(slots=True)
class HeaderFacts:
    """Sums over the batches of one partition; estimates unless `is_counted`.

    Attributes:
        records: without records of control batches.
        is_counted: whether all batches were seen.
        first_time_ms, last_time_ms: of batches that were seen; -1 for none.
        magics: records by magic.
    """

    records: float = 0
    batches: float = 0
    control_batches: float = 0
    is_counted: bool = False
    first_time_ms: int = -1
    last_time_ms: int = -1
    magics: dict[int, float] = dataclasses.field(default_factory=dict)
    has_transactions: bool = False


class Interval(NamedTuple):
    """Records and bytes of log between two times; the same for both: at that time."""

    first_ms: int
    last_ms: int
    records: float
    bytes: float


class _Seen(NamedTuple):
    """A batch that was walked over."""

    header: native.BatchHeader
    records: int


@dataclasses.dataclass(slots=True)
class Sums:
    """Sums over the batches of a store so far; weighted if they are a sample.

    Attributes:
        batch_sizes: batches by the power of two of their size; `record_sizes`: records
            by that of the average size in their batch.
        intervals: records and bytes by time, by topic.
        bytes_read: bytes of logs that were read.
    """

    codecs: dict[str, Codec] = dataclasses.field(default_factory=dict)
    producers: dict[int, ProducerData] = dataclasses.field(default_factory=dict)
    batch_sizes: dict[int, float] = dataclasses.field(default_factory=dict)
    record_sizes: dict[int, float] = dataclasses.field(default_factory=dict)
    intervals: dict[str, list[Interval]] = dataclasses.field(default_factory=dict)
    bytes_read: int = 0
    is_sampled: bool = False

    def codec(self, name: str) -> Codec:
        """The sums of a codec."""
        return self.codecs.setdefault(name, Codec(name))


class Sampler:
    """Walks over the segments of one store.

    Args:
        total_bytes, total_segments: of all that will be walked over.
        limit: most bytes that a batch may decompress to.
    """

    def __init__(
        self,
        descriptors: Descriptors,
        total_bytes: int,
        total_segments: int,
        limit: int,
    ) -> None:
        self.sums = Sums()
        self._descriptors = descriptors
        self._limit = limit
        self._buffer = native.Buffer(256 * 1024)
        self._small = native.Buffer(_STRETCH_BYTES)
        # Maximum size of a segment that is read whole, and batches of a stretch.
        share = _WHOLE_BYTES // max(total_segments, 1)
        is_small = total_bytes <= _WHOLE_BYTES
        self._whole = _WHOLE_BYTES if is_small else max(share, _STRETCH_BYTES)
        self._batches_of_each = max(_WHOLE_BATCHES // max(total_segments, 1), 16)
        self._stretches = max(min(_STRETCHES_MAX, share // _STRETCH_BYTES), 1)
        stretches = max(total_segments, 1) * self._stretches
        self._stretch_batches = max(_SAMPLED_BATCHES // stretches, _STRETCH_BATCHES)
        self._name = ""  # of the partition
        self._opened = 0
        self._every = -(-total_segments * _OPENED_OF_SEGMENT // _OPENED_MAX) or 1
        self._segments = 0

    def walk(
        self, directory: Directory, topic: str, segments: Sequence[SegmentInfo]
    ) -> HeaderFacts:
        """Add the segments of a partition. Damaged parts that cannot be read are left
        out: `verify` has reported them."""
        facts, self._name = HeaderFacts(is_counted=True), directory.name
        intervals = self.sums.intervals.setdefault(topic, [])
        for segment in segments:
            if not segment.size_bytes:
                continue
            self._segments += 1
            raw = Segment.of_file(
                directory,
                self._descriptors,
                os.path.basename(segment.path),
                segment.base_offset,
                segment.size_bytes,
            )
            if segment.next_offset > segment.base_offset:
                raw.next_offset = segment.next_offset
            with contextlib.suppress(OSError, LogStoreError):
                intervals += self._segment(raw, facts, newest_ms(segment))
        return facts

    # -- one segment

    def _segment(
        self, raw: Segment, facts: HeaderFacts, last_ms: int
    ) -> list[Interval]:
        opened_max = 0
        if self._segments % self._every == 0:
            opened_max = _OPENED_OF_SEGMENT
        if raw.size <= self._whole:
            seen, is_whole = self._whole_of(raw, opened_max)
            if is_whole:
                self._add(facts, seen, 1.0)
                return _points(seen)
            stretches = [seen]
        else:
            stretches = self._stretches_of(raw, opened_max)
        facts.is_counted, self.sums.is_sampled = False, True
        seen_bytes = sum(batch.header.size for part in stretches for batch in part)
        if not seen_bytes:
            return []
        weight = raw.size / seen_bytes
        for part in stretches:
            self._add(facts, part, weight)
        return _spread(stretches, weight, last_ms)

    def _whole_of(self, raw: Segment, opened_max: int) -> tuple[list[_Seen], bool]:
        """All batches of a segment, and whether the walk reached its end: there may be
        too many of them."""
        seen: list[_Seen] = []
        for batch in self._headers(raw, raw.start, self._buffer, opened_max):
            seen.append(batch)
            if len(seen) > self._batches_of_each * 64:
                return seen, False
        return seen, True

    def _stretches_of(self, raw: Segment, opened_max: int) -> list[list[_Seen]]:
        """Batches from a few positions of a segment."""
        is_end_known = raw.next_offset < native.OFFSET_MAX
        count = self._stretches if is_end_known else 1
        span = raw.next_offset - raw.base_offset
        parts = []
        end = 0  # of the stretch before
        for number in range(count):
            place = raw.start
            if number:
                place = raw.locate(raw.base_offset + span * number // count)
            if number and place.pos < end:
                continue  # the index is coarse, or missing
            part: list[_Seen] = []
            size = 0
            for batch in self._headers(raw, place, self._small, opened_max):
                part.append(batch)
                size += batch.header.size
                if len(part) >= self._stretch_batches or size >= _STRETCH_BYTES:
                    break
            opened_max = 0
            end = place.pos + size
            parts.append(part)
        return parts

    def _headers(
        self,
        raw: Segment,
        place: OffsetPosition,
        buffer: native.Buffer,
        opened_max: int,
    ) -> Iterator[_Seen]:
        """The intact batches from a place on, also those after damage."""
        last = place.last_offset
        for _ in range(_SKIPS_MAX):
            pos = place.pos
            try:
                for header, used, position in raw.headers(place, buffer=buffer):
                    pos = position + header.size
                    self.sums.bytes_read += header.size
                    count = header.record_count
                    if count < 0:  # a wrapper has only its last offset
                        is_known = last != native.OFFSET_UNKNOWN
                        count = max(header.last_offset - last, 1) if is_known else 1
                    last = header.last_offset
                    if opened_max and header.codec:
                        opened_max -= self._open(header, used)
                    yield _Seen(header, 0 if header.is_control else count)
                return
            except (CorruptRecordError, UnsupportedError) as error:
                position = error.position if error.position is not None else pos
                next_batch = next_valid(raw, max(position, pos), last)
                if next_batch is None:
                    return
                base = next_batch.header.base_offset
                before = base - 1 if base >= 0 else native.OFFSET_UNKNOWN
                place = OffsetPosition(next_batch.pos, before)

    def _open(self, header: native.BatchHeader, buffer: native.Buffer) -> int:
        """Decompress a batch, for the ratio; returns how many that were: 0 or 1."""
        if self._opened >= _OPENED_MAX or header.payload_size > _OPENED_BYTES_MAX:
            return 0
        try:
            payload = open_payload(header, buffer.raw, self._limit)
        except (Damage, UnsupportedError):
            return 0
        codec = self.sums.codec(CODECS[header.codec])
        codec.sampled_bytes += header.size
        codec.sampled_raw_bytes += header.size - header.payload_size + len(payload)
        self._opened += 1
        return 1

    # -- sums

    def _add(self, facts: HeaderFacts, seen: list[_Seen], weight: float) -> None:
        """Add batches; batches of one kind together, as most of a log are."""
        kinds: dict[tuple[int, int, int, int], list[_Seen]] = {}
        for batch in seen:
            header = batch.header
            kind = (
                header.magic,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
            )
            kinds.setdefault(kind, []).append(batch)
        for alike in kinds.values():
            self._add_alike(facts, alike, weight)

    def _add_alike(self, facts: HeaderFacts, alike: list[_Seen], weight: float) -> None:
        sums, header = self.sums, alike[0].header
        batches = len(alike) * weight
        facts.batches += batches
        facts.has_transactions |= header.is_transactional
        if header.is_control:
            facts.control_batches += batches
            return
        records = sum(batch.records for batch in alike) * weight
        size = sum(batch.header.size for batch in alike) * weight
        facts.records += records
        facts.magics[header.magic] = facts.magics.get(header.magic, 0) + records
        times = [batch.header.max_timestamp for batch in alike]
        times = [time_ms for time_ms in times if time_ms >= 0]
        if times:
            first = facts.first_time_ms
            facts.last_time_ms = max(facts.last_time_ms, *times)
            facts.first_time_ms = min(times) if first < 0 else min(first, *times)
        codec = sums.codec(CODECS[header.codec])
        codec.records += records
        codec.batches += batches
        codec.bytes += size
        for batch_header, count in alike:
            bucket = batch_header.size.bit_length()
            sums.batch_sizes[bucket] = sums.batch_sizes.get(bucket, 0) + weight
            bucket = (batch_header.size // max(count, 1)).bit_length()
            more = count * weight
            sums.record_sizes[bucket] = sums.record_sizes.get(bucket, 0) + more
        self._add_producer(header, records, size, max(times, default=-1))

    def _add_producer(
        self, header: native.BatchHeader, records: float, size: float, last_ms: int
    ) -> None:
        producer_id = max(header.producer_id, -1)
        producer = self.sums.producers.setdefault(
            producer_id, ProducerData(producer_id)
        )
        producer.epoch = max(producer.epoch, header.producer_epoch)
        producer.is_transactional |= header.is_transactional
        producer.records += records
        producer.bytes += size
        producer.last_time_ms = max(producer.last_time_ms, last_ms)
        if not producer.partitions or producer.partitions[-1] != self._name:
            producer.partitions.append(self._name)


def _points(seen: list[_Seen]) -> list[Interval]:
    """Records and bytes by time, of batches that have a timestamp."""
    sums: dict[int, tuple[int, int]] = {}
    for header, records in seen:
        time_ms = header.max_timestamp
        if time_ms >= 0:
            before = sums.get(time_ms, (0, 0))
            sums[time_ms] = before[0] + records, before[1] + header.size
    return [Interval(time, time, *counts) for time, counts in sums.items()]


def _spread(
    stretches: list[list[_Seen]], weight: float, last_ms: int
) -> list[Interval]:
    """The interval that each stretch represents: the time from its start to that of the
    next one, or to the last one of the segment."""
    intervals = []
    parts = [part for part in stretches if part]
    times = [
        [
            batch.header.max_timestamp
            for batch in part
            if batch.header.max_timestamp >= 0
        ]
        for part in parts
    ]
    for index, part in enumerate(parts):
        if not times[index]:
            continue
        first, last = min(times[index]), max(times[index])
        if index + 1 == len(parts):
            last = max(last, last_ms)
        elif times[index + 1]:
            last = max(last, min(times[index + 1]))
        records = sum(batch.records for batch in part) * weight
        size = sum(batch.header.size for batch in part) * weight
        intervals.append(Interval(first, last, records, size))
    return intervals
