"""Keeps the producers of one log: refuses their batches, or finds them there already.

The state is read when the first batch of a producer is appended: from a snapshot and
the batches after it. It is the same as if the whole log had been read, but for
producers that have expired, and for batches of named ones, and of open transactions,
that are older than a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import CorruptCheckpointError, LogStoreError, storage_error
from logstore.index import TxnEntry
from logstore.io.checkpoint.producer_snapshot import (
    ProducerEntry,
    format_snapshot,
    read_snapshot,
    snapshot_offsets,
)
from logstore.io.layout import SNAPSHOT, segment_file
from logstore.log.producers import (
    EXPIRY_MS,
    SEQUENCES,
    Identity,
    Producers,
    SentBatch,
    sent_batch,
)
from logstore.log.read.producer_state import read_producers
from logstore.log.read.view import slot_of
from logstore.log.write.context import LogContext
from logstore.log.write.log_bounds import LogBounds
from logstore.segment import Segment

__all__ = ["Idempotence"]


class Idempotence:
    """The producers of one log. The log's lock guards it.

    Invariant: once loaded, `_producers` has all batches of producers that are in the
    log, unless a call is adding some (`_is_adding`). All appends of such batches are
    announced and added. Batches that C has appended are in `table`; `_take` adds them
    to `_producers` before each use.

    Attributes:
        table: the producers whose next batches C may append (`PreparedAppend`).
    """

    __slots__ = (
        "_context",
        "_has_snapshot",
        "_is_adding",
        "_producers",
        "_seed",
        "_stray",
        "_written",
        "table",
    )

    def __init__(self, context: LogContext, end: int) -> None:
        """Args:
        end: of the log.
        """
        self._context = context
        self._producers: Producers | None = None
        self._is_adding = False
        self.table = native.ProducerTable()
        # Until the state is read, a snapshot at this offset, if there is one, is the
        # state: no batches of producers were appended since.
        self._seed: int | None = end
        # The offset of a snapshot inside the active segment, to remove when there is a
        # later one.
        self._stray: int | None = None
        # The end of the log at which the last snapshot was written.
        self._written: int | None = None
        # Whether the log is known to have one.
        self._has_snapshot = False

    def check(self, bounds: LogBounds, batches: Sequence[SentBatch]) -> range | None:
        """The offsets of batches that are in the log; None: they may be appended.

        Raises: as `Producers.check`; and
            CorruptRecordError: damage in batches or a snapshot that must be read first.
            StorageError: the system refuses to read them.
        """
        context = self._context
        producers = self._upto(bounds)
        return producers.check(batches, context.files.now_ms(), context.name)

    def last_sequence(self, bounds: LogBounds, identity: Identity) -> int | None:
        """The last one of a named producer; None if it has appended nothing.

        Raises:
            CorruptRecordError, StorageError: as `check`.
        """
        return self._upto(bounds).last_sequence(identity)

    def find(
        self, bounds: LogBounds, identity: Identity, call: SentBatch
    ) -> range | None:
        """The offsets of the records of a call by a named producer, if they are in the
        log, all of them and one after the other, and its last five batches have the
        last of them. None: they may be appended.

        Args:
            call: the records, as if they were one batch.

        Raises: as `Producers.check_named` and `last_sequence`.
        """
        producers = self._upto(bounds)
        last = producers.batch_that_ends(identity, call.last_sequence)
        if last is not None:
            offsets = range(last.stop - call.size, last.stop)
            if offsets == last or self._are_of_call(
                bounds, offsets, identity, call.first_sequence
            ):
                return offsets
        producers.check_named(identity, call, self._context.name)
        return None

    def _are_of_call(
        self, bounds: LogBounds, offsets: range, identity: Identity, sequence: int
    ) -> bool:
        """Whether whole batches of a named producer have these offsets, in the order of
        its sequences. Others may have appended between two of its calls."""
        if offsets.start < bounds.start:
            return False
        ids, offset = (identity.producer_id, *identity.earlier_ids), offsets.start
        segments = bounds.segments
        for segment in segments[slot_of(segments, offset) :]:
            for header, _, _ in segment.headers(segment.locate(offset)):
                if header.last_offset < offset:
                    continue
                is_next = (
                    header.base_offset == offset and header.base_sequence == sequence
                )
                if header.producer_id not in ids or not is_next:
                    return False
                size = header.last_offset - offset + 1
                offset, sequence = offset + size, (sequence + size) % SEQUENCES
                if offset >= offsets.stop:
                    return offset == offsets.stop
        return False

    def begin_adding(
        self, bounds: LogBounds, batches: Iterable[SentBatch], *, is_named: bool = False
    ) -> None:
        """Batches are about to be appended at the end of the log. If the call ends
        before it has added them, the state is read again.

        A log with batches of named producers has a snapshot, so that their state is
        not deleted with those.
        """
        if is_named and not self._has_snapshot:
            self._upto(bounds)
            self.write_snapshot(bounds)
        self._take(bounds)
        for producer_id in {batch.producer_id for batch in batches}:
            self.table.remove(producer_id)
        if self._producers is not None:
            self._producers.end = bounds.end
        self._seed = None
        self._is_adding = True

    def aborted_by(
        self, bounds: LogBounds, batches: Sequence[SentBatch]
    ) -> list[TxnEntry]:
        """Entries of the transaction index for the transactions that these batches will
        abort when they are appended at the end of the log. From here on the producers
        are known, so that the next snapshot has the open transactions.

        Raises:
            CorruptRecordError, StorageError: as `check`.
        """
        return self._upto(bounds).aborted_by(batches, bounds.end)

    def add(self, batches: Sequence[SentBatch], base: int, end: int) -> None:
        """Add batches that were appended from an offset on; the log ends at `end`."""
        producers = self._producers
        if producers is not None:
            for batch in batches:
                base += batch.size
                producers.add(batch, base - 1)
            producers.end = end
            for producer_id in {batch.producer_id for batch in batches}:
                place = producers.next_place(producer_id)
                if place is not None:
                    self.table.set(producer_id, *place)
        self._is_adding = False

    def forget(self) -> None:
        """The log is being cut: read the state again when it is needed."""
        self._producers = self._seed = self._written = None
        self._is_adding = self._has_snapshot = False
        self.table.clear()

    def before_deletion(self, bounds: LogBounds) -> None:
        """Segments are about to be deleted: a snapshot must have the named producers,
        whose batches may all be in them. It never raises."""
        if not self._context.services.state.has_named_producers:
            return
        try:
            if self._snapshots(bounds):
                self._upto(bounds)
        except LogStoreError as error:
            logger.warning(
                "named producers of %s may be forgotten: %s", self._context.name, error
            )
        if self._producers is not None and self._producers.has_named:
            self.write_snapshot(bounds)

    def before_cut(self, bounds: LogBounds, end: int, offset: int) -> Producers | None:
        """The log is about to be cut at an offset: a snapshot at its new end must have
        the named producers whose batches before it were deleted, or compacted away. It
        never raises.

        The snapshot is kept as long as the log has this cut: a later, lower cut needs
        the state from the batches that are removed now.

        Args:
            end: after the last batch that stays; no batch lies between it and `offset`.

        Returns the producers, for `after_gap`; None if no state must be kept.
        """
        if not self._context.services.state.has_named_producers:
            return None
        try:
            snapshots = self._snapshots(bounds)
            if not snapshots and self._context.is_contiguous:
                return None
            known = self._upto(bounds)
            if known.has_named:
                producers = self._load(bounds._replace(end=end))
                # The snapshot at the end may be of an earlier cut in the same gap.
                producers.forget_named_from(offset)
                producers.inherit(known.named_before(offset))
                later = [snapshot for snapshot in snapshots if snapshot >= end]
                self._add_removed(producers, known, bounds, offset, later)
                if producers.has_named:
                    self._write(producers, end)
                    return producers
        except LogStoreError as error:
            logger.warning(
                "named producers of %s may be forgotten: %s", self._context.name, error
            )
        return None

    def after_gap(self, producers: Producers, offset: int) -> None:
        """A segment begins at an offset to which the log was cut, which is in a gap:
        the snapshot that `before_cut` wrote before the gap is also that of the offset.
        It never raises."""
        self._write(producers, offset)

    def _add_removed(
        self,
        producers: Producers,
        known: Producers,
        bounds: LogBounds,
        offset: int,
        snapshots: Iterable[int],
    ) -> None:
        """Set named producers to their last sequences at an offset, although their
        batches before it are gone: the first batch from there on determines the
        sequence, and the last batch of each producer always exists.

        Args:
            producers: the state from the existing batches.
            known: at the end of the log.
            snapshots: offsets of the snapshots that may contain batches after `offset`.
        """
        wanted = known.named_that_differ(producers)
        # A batch of each from the offset on: a known one, unless the log has an earlier
        # one.
        later = known.named_from(offset, wanted)
        for snapshot in snapshots:
            entries = self._read_snapshot(snapshot) or ()
            first_batches = Producers(snapshot, entries).named_from(offset, wanted)
            for key, (base, batch) in first_batches.items():
                if key not in later or base < later[key][0]:
                    later[key] = base, batch
        segments, before = bounds.segments, offset
        for segment in segments[slot_of(segments, offset) :] if wanted else ():
            for header, _, _ in segment.headers(segment.locate(offset)):
                if header.base_offset < offset:
                    continue
                if header.producer_id in wanted:
                    later[header.producer_id] = header.base_offset, sent_batch(header)
                for key, (base, batch) in list(later.items()):
                    if base <= header.base_offset:
                        producers.set_before(batch, base, before, offset)
                        wanted.remove(key)
                        del later[key]
                if not wanted:
                    return
                before = header.last_offset + 1
        for key, (base, batch) in later.items():
            producers.set_before(batch, base, before, offset)
            wanted.remove(key)
        producers.take_named(known, wanted)

    def write_snapshot(self, bounds: LogBounds) -> None:
        """Write the producers at the end of the log, if they are known, or the log may
        have transactions: a broker that finds a clean stop considers only transactions
        in a snapshot, or in the log after it, as open. It never raises: the log has the
        producers, too."""
        if self._written == bounds.end:
            return
        producers = self._known(bounds)
        if producers is None and self._context.foreign_end == native.OFFSET_MAX:
            producers = self._read_all(bounds)
        if producers is not None and self._write(producers, bounds.end):
            is_stray = bounds.segments[-1].base_offset != bounds.end
            is_stray &= bounds.end not in bounds.cuts.offsets
            self._stray = bounds.end if is_stray else None
            self._written = bounds.end

    def _write(self, producers: Producers, offset: int) -> bool:
        """Write a snapshot; returns whether it was possible."""
        directory = self._context.directory
        name = segment_file(offset, SNAPSHOT)
        data = format_snapshot(producers.entries(self._context.files.now_ms()))
        try:
            directory.write_file(name, data)
            if self._stray not in (None, offset):
                directory.unlink(segment_file(self._stray, SNAPSHOT), missing_ok=True)
        except OSError as error:
            logger.warning("cannot write %s: %s", directory.path_of(name), error)
            return False
        self._has_snapshot = True
        return True

    def _known(self, bounds: LogBounds) -> Producers | None:
        """The producers at the end of the log, if known without reading the log."""
        self._take(bounds)
        producers = self._producers
        if producers is None:
            entries = None if self._seed is None else self._read_snapshot(self._seed)
            return Producers(bounds.end, entries) if entries else None
        if self._is_adding and producers.end != bounds.end:
            return None  # a call was interrupted
        return producers

    def _take(self, bounds: LogBounds) -> None:
        """Add the batches that C has appended."""
        producers, table = self._producers, self.table
        if producers is None or not table.has_batches:
            return
        # If this is interrupted, the state is read again.
        self._producers = None
        for batch in table.batches():
            sent = SentBatch(*batch[:-1])
            producers.add(sent, batch.last_offset)
        table.taken()
        producers.end = bounds.end
        self._producers = producers

    # ------------------------------------------------------------ reading

    def _read_all(self, bounds: LogBounds) -> Producers | None:
        """The producers at the end of the log, also in the middle of a call that adds
        batches; None if the log cannot be read."""
        is_adding = self._is_adding
        try:
            return self._upto(bounds)
        except LogStoreError as error:
            name = self._context.name
            logger.warning("cannot snapshot the producers of %s: %s", name, error)
            return None
        finally:
            self._is_adding = is_adding

    def _upto(self, bounds: LogBounds) -> Producers:
        """The producers at the end of the log."""
        self._take(bounds)
        producers = self._producers
        if self._is_adding and producers is not None and producers.end != bounds.end:
            producers = self._producers = None  # a call was interrupted
        self._is_adding = False
        if producers is None:
            self.table.clear()
            producers = self._producers = self._load(bounds)
        return producers

    def _load(self, bounds: LogBounds) -> Producers:
        """Read the producers from a snapshot, and the batches after it: from the last
        one that leaves no producer without batches that it had before.

        Batches of segments that have only records older than a day are of no use, but
        for the last ones of named producers, and the first ones of open transactions:
        any snapshot has those. Without one, a store with named producers needs all
        batches, and so does a log that may have transactions.
        """
        segments, now_ms = bounds.segments, self._context.files.now_ms()
        if not segments:
            return Producers(bounds.end)
        needs_all = (
            self._context.services.state.has_named_producers
            or self._context.foreign_end > bounds.start
        )
        oldest = _first_since(segments, now_ms - EXPIRY_MS)
        latest: Producers | None = None
        step = 1
        for offset in reversed(self._snapshots(bounds)):
            first = slot_of(segments, offset)
            if first <= oldest and (latest is not None or not needs_all):
                break
            if first > len(segments) - step:
                continue
            entries = self._read_snapshot(offset)
            if entries is None:
                continue
            producers = Producers(offset, entries)
            self._read_on(producers, bounds)
            if not producers.is_short(now_ms):
                return producers
            latest = latest or producers
            if first <= oldest:
                break
            step = 2 * (len(segments) - first)
        if latest is None and needs_all:
            oldest = 0
        base = segments[oldest].base_offset
        producers = Producers(base, self._read_snapshot(base) or ())
        self._read_on(producers, bounds)
        if latest is not None:
            producers.inherit(latest)
        return producers

    def _snapshots(self, bounds: LogBounds) -> list[int]:
        """The offsets of the snapshots that may be used, in order."""
        directory, first = self._context.directory, bounds.segments[0].base_offset
        try:
            offsets = snapshot_offsets(directory)
        except OSError as error:
            raise storage_error(error, "read", directory.path) from error
        bases = {
            segment.base_offset for segment in bounds.segments
        } | bounds.cuts.offsets
        usable = [offset for offset in offsets if first <= offset <= bounds.end]
        self._has_snapshot = bool(usable)
        strays = [offset for offset in usable if offset not in bases]
        self._stray = strays[-1] if strays else None
        return usable

    def _read_snapshot(self, offset: int) -> list[ProducerEntry] | None:
        """The entries of a snapshot; None if it is missing or cannot be used."""
        directory = self._context.directory
        try:
            return read_snapshot(directory, offset)
        except FileNotFoundError:
            return None
        except (CorruptCheckpointError, OSError) as error:
            logger.warning("%s is read without a snapshot: %s", directory.path, error)
            return None

    def _read_on(self, producers: Producers, bounds: LogBounds) -> None:
        """Add the producers of the rest of the log."""
        limit = self._context.services.store_config.max_batch_decompressed_bytes
        segments = bounds.segments
        for segment in segments[slot_of(segments, producers.end) :]:
            read_producers(producers, segment, bounds.end, limit)
        producers.end = bounds.end


def _first_since(segments: Sequence[Segment], time_ms: int) -> int:
    """The number of the first segment that may have records since a time; of the last
    one if none has."""
    for number, segment in enumerate(segments[:-1]):
        largest = segment.max_timestamp
        if largest is None or not 0 <= largest < time_ms:
            return number
    return len(segments) - 1
