"""Appends to a log: records are encoded, and batches written, all of a call or none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import (
    ConfigError,
    CorruptionError,
    OffsetConflictError,
    ReentrantCallError,
    UnsupportedError,
    storage_error,
)
from logstore.index import TxnEntry
from logstore.log.producers import SEQUENCES, Identity, SentBatch, sent_batch
from logstore.log.write.log_writer import LogWriter, Savepoint
from logstore.log.write.segment_writer import Mark, SegmentWriter
from logstore.log.write.syncs import Syncs
from logstore.log.write.transaction_index import add_aborted
from logstore.record.encoder import Encoder, check_headers
from logstore.record.incoming import headers_of, number_batches

__all__ = ["Appender"]

# Bytes that a roll may need in addition to records: a step of reserved space, indexes,
# state, names.
_ROLL_BYTES: Final = 256 * 1024
# A call that waits for nothing encodes no more than this: to compress 16 KiB takes some
# 100 µs, about as long as to hand them to another thread and back.
_AT_ONCE_BYTES: Final = 16 * 1024
# Up to this many threads can compress at once without allocating memory for it.
_SPARES_MAX: Final = 4


class _Encoded(NamedTuple):
    data: bytes
    config: TopicConfig


class Appender:
    """Appends to one log. Any thread may call the methods that append rows, a record or
    batches; they take the lock. The others need it.

    Attributes:
        encoder: makes batches according to the settings of the log.
    """

    __slots__ = ("_log", "_spares", "_syncs", "encoder")

    def __init__(self, log: LogWriter, syncs: Syncs) -> None:
        self._log = log
        self._syncs = syncs
        self.encoder = Encoder(log.context.config)
        # Encoders for calls that compress before they take the lock.
        self._spares: deque[Encoder] = deque(maxlen=_SPARES_MAX)

    # ------------------------------------------------------------ records

    def append_rows(
        self,
        groups: Sequence[native.EncodedColumns],
        *,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int, int]:
        """Append rows, all or none. No code of the caller runs in here: the caller has
        packed lists already.

        Returns (first offset, one past the last, time of the append in ms).
        """
        log, context = self._log, self._log.context
        self._syncs.check_may_sync(durable)
        count = sum(rows.count for rows in groups)
        now_ms = context.files.now_ms()
        for rows in groups:
            rows.set_time(now_ms)
        compressed = self._compress(groups) if expected_offset is None else None
        prepared, offsets = log.active.prepared, None
        if compressed is not None:
            offsets = prepared.append_encoded(compressed.data, count)
        elif len(groups) == 1 and expected_offset in (None, log.bounds.end):
            base = -1 if expected_offset is None else expected_offset
            offsets = prepared.append_rows(groups[0].address, base, False)
        if offsets is not None:
            if durable:
                self._syncs.sync_appended(offsets.stop, durable)
            return offsets.start, offsets.stop, now_ms
        with log.lock:
            log.get_ready()
            base = log.bounds.end
            self.check_expected(expected_offset, count)
            if compressed is not None and compressed.config is self.encoder.config:
                self._append_compressed(compressed.data, base, now_ms)
                self._prepare()
            else:
                now_ms = context.files.now_ms()
                self._append_rows(groups, base, now_ms)
            bounds = log.bounds
            end = bounds.end
            lagging = end - bounds.durable >= context.config.flush_messages
        if durable or lagging:
            self._syncs.sync_appended(end, durable)
        return base, end, now_ms

    def append_at_once(self, rows: native.EncodedColumns) -> range | None:
        """Append like `append_rows`, but only without waiting: no lock, no sync, no new
        segment, no encoding of more than 16 KiB. None: nothing was done."""
        encoder, prepared = self.encoder, self._log.active.prepared
        if not rows.count:
            return None
        rows.set_time(self._log.context.files.now_ms())
        has_headers = rows.first_with_headers >= 0
        if encoder.is_plain and not has_headers:
            return prepared.append_rows(rows.address, -1, False)
        if encoder.magic < 2 or encoder.log_append_time:
            return None
        if encoder.measure(rows) > _AT_ONCE_BYTES:
            return None
        data = self._encode_all((rows,)).data
        rows.rewind()
        return prepared.append_encoded(data, rows.count)

    def _append_rows(
        self, groups: Sequence[native.EncodedColumns], base: int, now_ms: int
    ) -> None:
        for rows in groups:
            check_headers(rows, self.encoder.magic)
            rows.set_time(now_ms)
            rows.rewind()
        filled = [rows for rows in groups if rows.count]
        if not filled or (len(filled) == 1 and self._append_step(filled[0], base)):
            return
        self._append(filled, base, now_ms)
        self._prepare()

    def _append_step(self, rows: native.EncodedColumns, base: int) -> bool:
        """Append rows in one step of C; False, with nothing done, if that is not
        possible, or if other files must be written too, as by the first append."""
        log, encoder, writer = self._log, self.encoder, self._log.active.writer
        is_begun = encoder.magic < 2 or log.epochs.known >= 0
        if writer is None or not (is_begun and encoder.is_plain):
            return False
        size = encoder.measure(rows)
        size += native.BATCH_HEADER_BYTES if encoder.magic == 2 else 0
        if not self.prepare_step(writer, size):
            return False
        if log.active.prepared.append_rows(rows.address, base, True) is None:
            return False
        if log.appended.waiters:
            log.appended.set()
        return True

    def prepare_step(self, writer: SegmentWriter, size: int) -> bool:
        """Prepare an append of `size` bytes to the active segment in one step of C,
        with the lock held; False: they do not fit into it."""
        if writer.state.size + size > self._log.context.config.segment_bytes:
            return False
        self.begin()
        writer.reserve(size)
        self._prepare()
        return True

    def check_append(
        self, groups: Sequence[native.EncodedColumns], durable: bool
    ) -> None:
        """Raise now what `append_rows` would raise, as far as it can be known: for
        calls that append to several logs, one after the other. It may be called with no
        lock held. It does not foresee a failing or full disk."""
        log = self._log
        self._syncs.check_may_sync(durable)
        if not log.lock.may_wait:
            raise ReentrantCallError(
                f"an append to several partitions, {log.context.name} among them, came "
                f"in from inside another call of this thread; nothing was written"
            )
        with log.lock:
            log.check()
        encoder = self.encoder
        for rows in groups:
            check_headers(rows, encoder.magic)
            encoder.check_sizes(rows)

    @property
    def prepared(self) -> native.PreparedAppend:
        """Appends in one step of C, with the same result as the other methods. Its
        methods do nothing, and say so, if the caller must use one of these."""
        return self._log.active.prepared

    def append_encoded(
        self,
        make_runs: Callable[[int, int], tuple[list[memoryview], int]],
        *,
        sent: Sequence[SentBatch] = (),
        is_checked: bool = True,
        expected_offset: int | None,
        durable: bool,
    ) -> range:
        """Append whole batches, or find them in the log.

        Args:
            make_runs: called with (base offset, leader epoch), returns them with their
                offsets, and the number of offsets they take.
            sent: the same batches, if some are of producers that number their records.
            is_checked: check those sequences.

        Returns the offsets; of batches that a producer has sent before, the old ones.
        """
        log = self._log
        self._syncs.check_may_sync(durable)
        with log.lock:
            log.get_ready()
            known = None
            if sent and is_checked:
                known = log.idempotence.check(log.bounds, sent)
            if known is None:
                self.check_expected(expected_offset, 0)
                known = self._append_encoded(make_runs, sent)
            lagging = self._is_lagging()
        if durable or lagging:
            self._syncs.sync_appended(known.stop, durable)
        return known

    def append_numbered(
        self,
        groups: Sequence[native.EncodedColumns],
        identity: Identity,
        sequence: int | None,
        *,
        check: Callable[[], None],
        durable: bool,
    ) -> range:
        """Append rows as batches of a named producer, or find them in the log. The log
        has batches of magic 2.

        Args:
            sequence: of the first row; None: the next one of the producer.
            check: called when no other append can come between; may raise.

        Returns the offsets: the old ones if the log has these sequences already.

        Raises: as `Idempotence.find`.
        """
        log, idempotence = self._log, self._log.idempotence
        self._syncs.check_may_sync(durable)
        self._check_numberable()
        count = sum(rows.count for rows in groups)
        now_ms = log.context.files.now_ms()
        for rows in groups:
            rows.set_time(now_ms)
        encoded = self._encode_all(groups)
        with log.lock:
            log.get_ready()
            check()
            if encoded.config is not self.encoder.config:
                # The settings have changed since, which is rare: encode under the lock.
                self._check_numberable()
                for rows in groups:
                    rows.rewind()
                encoded = self._encode_all(groups)
            first = sequence
            if first is None:
                last = idempotence.last_sequence(log.bounds, identity)
                first = 0 if last is None else (last + 1) % SEQUENCES
            data = bytearray(encoded.data)
            headers = number_batches(data, identity.producer_id, identity.epoch, first)
            sent = [sent_batch(header) for header in headers]
            base = log.bounds.end
            known = range(base, base)
            if count:
                call = SentBatch(*identity[:2], first, count, -1)
                known = idempotence.find(log.bounds, identity, call) or known
            if count and not known:
                known = self._append_encoded(
                    self._placing(data, count), sent, is_named=True
                )
            lagging = self._is_lagging()
        if durable or lagging:
            self._syncs.sync_appended(known.stop, durable)
        return known

    def last_sequence(
        self, identity: Identity, check: Callable[[], None]
    ) -> int | None:
        """The last sequence of a named producer; None if it has appended nothing.

        Raises: as `Idempotence.last_sequence`; what `check` raises.
        """
        log = self._log
        with log.lock:
            log.get_ready()
            check()
            return log.idempotence.last_sequence(log.bounds, identity)

    def _check_numberable(self) -> None:
        if self.encoder.magic != 2:
            raise UnsupportedError(
                f"a producer needs message_format=2, and {self._log.context.name} has "
                f"{self.encoder.magic}: only batches of that format have sequences. "
                f"Nothing was written"
            )

    def _placing(
        self, data: bytearray, count: int
    ) -> Callable[[int, int], tuple[list[memoryview], int]]:
        def make(base: int, epoch: int) -> tuple[list[memoryview], int]:
            time_ms = self.append_time()
            stamp = -1 if time_ms is None else time_ms
            native.place_batches(native.pointer(data), len(data), base, epoch, stamp)
            return [memoryview(data)], count

        return make

    def _is_lagging(self) -> bool:
        """Whether `flush_messages` asks for a sync."""
        bounds = self._log.bounds
        return bounds.end - bounds.durable >= self._log.context.config.flush_messages

    def _append_encoded(
        self,
        make_runs: Callable[[int, int], tuple[list[memoryview], int]],
        sent: Sequence[SentBatch],
        *,
        is_named: bool = False,
    ) -> range:
        log = self._log
        base = log.bounds.end
        runs, count = make_runs(base, self.leader_epoch(base))
        if count:
            self.check_expected(None, count)
            aborted: Sequence[TxnEntry] = ()
            if sent:
                log.active.writer or log.writable()
                if any(batch.is_transactional for batch in sent):
                    log.admit_transactions()
                    aborted = log.idempotence.aborted_by(log.bounds, sent)
                log.idempotence.begin_adding(log.bounds, sent, is_named=is_named)
                if self.encoder.log_append_time:
                    # The batches now have the time of the append.
                    sent = _with_times(sent, runs)
            self.write_runs(
                [(native.pointer(run), len(run)) for run in runs],
                sum(map(len, runs)),
                log.context.files.now_ms(),
                aborted,
            )
            if sent:
                log.idempotence.add(sent, base, log.bounds.end)
            self._prepare()
        return range(base, base + count)

    def append_time(self) -> int | None:
        """The time of an append if it replaces the producers' timestamps, else None."""
        return (
            self._log.context.files.now_ms() if self.encoder.log_append_time else None
        )

    def _prepare(self) -> None:
        """Prepare the next appends, after the one that has ended."""
        log = self._log
        writer = log.active.writer
        if writer is not None:
            log.active.prepare(
                self.encoder,
                log.epochs.known,
                log.bounds.durable,
                log.point.quiet_size,
                self._syncs.steps_end(writer),
            )

    def leader_epoch(self, base: int) -> int:
        """The epoch to stamp on batches of magic 2, which begin at `base`."""
        return self._log.epochs.at(base, self._log.bounds.segments)

    def check_expected(self, expected_offset: int | None, count: int) -> None:
        """Raise unless the log ends at the expected offset, and has room for `count`
        more."""
        base = self._log.bounds.end
        if expected_offset is not None and expected_offset != base:
            name = self._log.context.name
            raise OffsetConflictError(expected_offset, base, partition=name)
        if count > native.OFFSET_MAX - base:
            name = self._log.context.name
            raise ConfigError(
                f"{name} has no room for {count} more offsets after {base}",
                name="count",
                value=count,
            )

    def _append(
        self, groups: Sequence[native.EncodedColumns], base: int, now_ms: int
    ) -> None:
        encoder = self.encoder
        total = sum(encoder.measure(rows) for rows in groups)
        epoch = self.leader_epoch(base) if encoder.magic == 2 else 0
        runs = self._encode(groups, base, now_ms, epoch)
        if encoder.buffers_whole_call:
            copies = [bytes(native.buffer_of(data, size)) for data, size in runs]
            total = sum(map(len, copies))
            runs = iter([(native.pointer(copy), len(copy)) for copy in copies])
        self.write_runs(runs, total, now_ms)

    def _compress(self, groups: Sequence[native.EncodedColumns]) -> _Encoded | None:
        """Batches of rows for offsets that begin at 0, before the lock is taken: other
        threads append meanwhile. None: this topic has no such batches, or there are no
        rows."""
        encoder = self.encoder  # another thread may replace it
        if encoder.is_plain or encoder.magic < 2 or encoder.log_append_time:
            return None
        return self._encode_all(groups) if any(rows.count for rows in groups) else None

    def _encode_all(self, groups: Sequence[native.EncodedColumns]) -> _Encoded:
        """Batches of rows for offsets that begin at 0, with or without the lock."""
        config = self.encoder.config  # another thread may replace it
        try:
            spare = self._spares.pop()
        except IndexError:
            spare = Encoder(config)
        if spare.config is not config:
            spare = Encoder(config)
        parts = []
        for rows in groups:
            spare.measure(rows)
            runs = spare.encode(rows, 0, 0, 0)
            parts += [bytes(native.buffer_of(data, size)) for data, size in runs]
        self._spares.append(spare)
        return _Encoded(parts[0] if len(parts) == 1 else b"".join(parts), config)

    def _append_compressed(self, data: bytes, base: int, now_ms: int) -> None:
        """Append what `_compress` has made."""
        placed = bytearray(data)
        address, size = native.pointer(placed), len(placed)
        native.place_batches(address, size, base, self.leader_epoch(base), -1)
        self.write_runs([(address, size)], size, now_ms)

    def _encode(
        self,
        groups: Sequence[native.EncodedColumns],
        base: int,
        now_ms: int,
        epoch: int,
    ) -> Iterator[tuple[Any, int]]:
        for rows in groups:
            yield from self.encoder.encode(rows, base, now_ms, epoch)
            base += rows.count

    # ------------------------------------------------------------ batches

    def begin(self) -> SegmentWriter:
        """The active segment, before records are added: its end is that of the log, and
        their sync is planned."""
        log = self._log
        writer = log.active.writer or log.writable()
        if writer.next_offset != log.bounds.end:
            raise log.health.poison()
        self._syncs.plan(writer)
        return writer

    def write_runs(
        self,
        runs: Iterable[tuple[Any, int]],
        total: int,
        now_ms: int,
        aborted: Sequence[TxnEntry] = (),
        *,
        is_in_parts: bool = False,
    ) -> None:
        """Write runs of whole batches; all of them or none.

        Readers in other processes see no part of it before the end. If the runs fit
        into one segment they go into one, as in Kafka: a roll is over before the first
        byte. In that case the frame of the first batch is written last: until then
        zeros in its place end the log for readers. Runs that need several segments are
        protected by a bar (`_bar`). Space is reserved first, so that a full disk shows
        before the first byte.

        Args:
            aborted: the transactions that they abort: in the index before the last
                write, which makes the runs visible.
            is_in_parts: they come of several appends, and roll by the time of each
                batch; else by the latest of each run, as in Kafka.
        """
        log, point = self._log, self._log.point
        writer = self.begin()
        segment_bytes = log.context.config.segment_bytes
        room = max(segment_bytes - writer.state.size, 0)
        if room < total <= segment_bytes:
            writer, room = log.roll_or_undo(writer), segment_bytes
        base = log.bounds.end
        saved = Savepoint(log.bounds, writer, is_indexed=bool(aborted))
        # With an index to write, even a single frame is held back until then.
        held = total + bool(aborted)
        # No reader looks at the records of a publication before its commit anyway.
        is_hidden = not log.visibility.barrier.is_open
        try:
            writer.reserve(min(total, room))
            if total > room:
                rolls = total // segment_bytes + 1
                if not writer.has_room(total + rolls * _ROLL_BYTES):
                    raise writer.disk_full(total)
                if not is_hidden:
                    self._bar(writer, saved.mark)
            is_begun, bar = False, saved.mark
            for data, size in runs:
                done = 0
                while done < size:
                    is_bare = not (is_hidden or point.is_barred)
                    holds_back = is_bare and not is_begun
                    written, stop = writer.append(
                        data + done,
                        size - done,
                        now_ms,
                        held if holds_back else 0,
                        is_in_parts=is_in_parts,
                    )
                    done += written
                    is_begun = is_begun or written > 0
                    if done < size and stop != native.STOP_FULL:
                        if not written and not writer.state.size:
                            raise _misplaced(log.context.name, writer)
                        if is_bare and is_begun:
                            self._bar(writer, bar)
                        writer.write_first_frame()
                        writer = log.roll(writer)
                        if not is_begun:
                            bar = writer.mark()
            if aborted:
                add_aborted(log.context.directory, log.bounds.segments, aborted)
            writer.write_first_frame()
            if point.is_barred:
                self._unbar(writer)
            log.show(writer)
        except BaseException as error:
            if log.bounds.end != base:
                raise  # all of it is in, and shown
            # This comes first and makes no call that could be interrupted.
            log.pending, log.health.is_blocked, log.health.is_torn = saved, True, True
            log.roll_back(error)
            # A caller that keeps the error keeps this frame, which would keep the files
            # open.
            del saved
            raise

    def _bar(self, writer: SegmentWriter, mark: Mark) -> None:
        """Set a bar at a mark, which is the end: readers do not look after it, and
        after a crash the next opening removes what follows it. All records before it
        are made durable first."""
        log = self._log
        log.active.sync(writer, log.bounds.durable)
        log.set_durable(max(log.bounds.durable, mark.next_offset))
        log.point.is_barred = True
        self._write_bar(writer, mark.state, is_truncating=True)

    def _unbar(self, writer: SegmentWriter) -> None:
        """Commit an append that is protected by a bar."""
        self._log.sync_all()
        self._write_bar(writer, writer.state, is_truncating=False)
        self._log.point.is_barred = False

    def _write_bar(
        self, writer: SegmentWriter, state: native.SegmentState, *, is_truncating: bool
    ) -> None:
        try:
            self._log.point.write(self._log.bounds, state, is_truncating=is_truncating)
        except OSError as error:
            raise storage_error(
                error, "append to", writer.path, "Nothing was written."
            ) from error


def _misplaced(name: str, writer: SegmentWriter) -> CorruptionError:
    """The error for a batch that does not fit into an empty segment."""
    return CorruptionError(
        f"a batch for {name} does not continue at the next offset, "
        f"{writer.next_offset}; nothing was appended",
        path=writer.path,
    )


def _with_times(
    sent: Sequence[SentBatch], runs: Iterable[memoryview]
) -> list[SentBatch]:
    """The batches of runs, with the times that these have."""
    headers = (header for run in runs for header in headers_of(run, 0, len(run)))
    return [
        batch._replace(timestamp_ms=header.max_timestamp)
        for batch, header in zip(sent, headers, strict=True)
    ]
