"""Keeps the producers of one log: refuses their batches, or finds them there already.

The state is read when the first batch of a producer is appended: from a snapshot and
the batches after it. It is the same as if the whole log had been read, but for
producers that have expired.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore._native.locks import logger
from logstore.errors import CorruptCheckpointError, storage_error
from logstore.io.checkpoint.producer_snapshot import (
    ProducerEntry,
    format_snapshot,
    read_snapshot,
    snapshot_offsets,
)
from logstore.io.layout import SNAPSHOT, segment_file
from logstore.log.producers import EXPIRY_MS, Producers, SentBatch, sent_batch
from logstore.log.read.damage import make_batch
from logstore.log.read.view import slot_of
from logstore.log.write.context import LogContext
from logstore.log.write.extent import Extent
from logstore.segment import Segment

__all__ = ["Idempotence"]


class Idempotence:
    """The producers of one log. The log's lock guards it.

    Invariant: `_producers` is None, or has all batches of the log below its `end`,
    which is not beyond the end of the log.
    """

    __slots__ = ("_context", "_producers", "_stray")

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._producers: Producers | None = None
        # The offset of a snapshot inside the active segment, to remove when there is a
        # later one.
        self._stray: int | None = None

    def check(self, extent: Extent, batches: Sequence[SentBatch]) -> range | None:
        """The offsets of batches that are in the log; None: they may be appended.

        Raises: as `Producers.check`; and
            CorruptRecordError: damage in what must be read first.
            StorageError: the system refuses that.
        """
        context = self._context
        producers = self._upto(extent)
        return producers.check(batches, context.files.now_ms(), context.name)

    def add(self, batches: Sequence[SentBatch], base: int, end: int) -> None:
        """Add batches that were appended from an offset on; the log ends at `end`."""
        producers = self._producers
        if not batches or producers is None or producers.end != base:
            return
        for batch in batches:
            base += batch.size
            producers.add(batch, base - 1, transactional=False)
        producers.end = end

    def forget(self) -> None:
        """The log is being cut: read the state again when it is needed."""
        self._producers = None

    def write_snapshot(self, extent: Extent) -> None:
        """Write the producers at the end of the log, if they are known. It never
        raises: the log has them, too."""
        producers, directory = self._producers, self._context.directory
        if producers is None or producers.end != extent.end:
            return
        name = segment_file(extent.end, SNAPSHOT)
        data = format_snapshot(producers.entries(self._context.files.now_ms()))
        try:
            directory.write_file(name, data)
            if self._stray not in (None, extent.end):
                directory.unlink(segment_file(self._stray, SNAPSHOT), missing_ok=True)
        except OSError as error:
            logger.warning("cannot write %s: %s", directory.path_of(name), error)
            return
        is_stray = extent.segments[-1].base_offset != extent.end
        self._stray = extent.end if is_stray else None

    # ------------------------------------------------------------ reading

    def _upto(self, extent: Extent) -> Producers:
        """The producers at the end of the log."""
        producers, self._producers = self._producers, None
        if producers is None:
            producers = self._load(extent)
        elif producers.end < extent.end:
            self._read_on(producers, extent)
        self._producers = producers
        return producers

    def _load(self, extent: Extent) -> Producers:
        """Read the producers from a snapshot at the base of a segment, and the batches
        after it: from the last one that leaves no producer without batches that it had
        before."""
        segments, now_ms = extent.segments, self._context.files.now_ms()
        if not segments:
            return Producers(extent.end)
        bases = {one.base_offset: i for i, one in enumerate(segments)}
        directory = self._context.directory
        try:
            offsets = snapshot_offsets(directory)
        except OSError as error:
            raise storage_error(error, "read", directory.path) from error
        inside = [one for one in offsets if one not in bases and one <= extent.end]
        self._stray = inside[-1] if inside else None
        # Whatever is older has expired.
        oldest = _first_since(segments, now_ms - EXPIRY_MS)
        step = 1
        for offset in reversed([one for one in offsets if one in bases]):
            first = bases[offset]
            if first <= oldest:
                break
            if first > len(segments) - step:
                continue
            entries = self._read_snapshot(offset)
            if entries is None:
                continue
            producers = Producers(offset, entries)
            self._read_on(producers, extent)
            if not producers.is_short(now_ms):
                return producers
            step = 2 * (len(segments) - first)
        base = segments[oldest].base_offset
        producers = Producers(base, self._read_snapshot(base) or ())
        self._read_on(producers, extent)
        return producers

    def _read_snapshot(self, offset: int) -> list[ProducerEntry] | None:
        """The entries of a snapshot; None if there is none that can be used."""
        directory = self._context.directory
        try:
            return read_snapshot(directory, offset)
        except FileNotFoundError:
            return None
        except (CorruptCheckpointError, OSError) as error:
            logger.warning("%s is read without a snapshot: %s", directory.path, error)
            return None

    def _read_on(self, producers: Producers, extent: Extent) -> None:
        """Add what follows, up to the end of the log."""
        segments = extent.segments
        for segment in segments[slot_of(segments, producers.end) :]:
            self._read_segment(producers, segment, extent.end)
        producers.end = extent.end

    def _read_segment(self, producers: Producers, segment: Segment, end: int) -> None:
        limit = self._context.services.store_config.max_batch_decompressed_bytes
        begin = producers.end
        for header, buffer, file_pos in segment.headers(segment.locate(begin)):
            if header.base_offset >= end:
                return
            if header.last_offset < begin or header.producer_id < 0:
                continue
            batch = sent_batch(header)
            if not header.is_control:
                producers.add(
                    batch,
                    header.last_offset,
                    transactional=header.is_transactional,
                )
            elif header.is_transactional:
                control = make_batch(
                    segment, header, buffer, file_pos, limit
                ).control_record()
                if control is not None:
                    producers.add_marker(
                        batch.producer_id,
                        batch.epoch,
                        control.coordinator_epoch,
                        header.max_timestamp,
                    )


def _first_since(segments: Sequence[Segment], time_ms: int) -> int:
    """The number of the first segment that may have records since a time; of the last
    one if none has."""
    for number, segment in enumerate(segments[:-1]):
        largest = segment.max_timestamp
        if largest is None or not 0 <= largest < time_ms:
            return number
    return len(segments) - 1
