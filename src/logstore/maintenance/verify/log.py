"""One `.log` file, walked over from its first byte to its last, also after damage."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.index import INDEX_ENTRY_BYTES
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.directory import Directory
from logstore.log.recover.facts import LastBatch
from logstore.log.recover.plan import UnservedTail
from logstore.log.resync import (
    Sound,
    first_at,
    have_changed_places,
    next_valid,
    passed_over,
)
from logstore.maintenance.finding import (
    DAMAGED_BATCH,
    IN_USE,
    OFFSETS,
    PARTIAL_BATCH,
    PROBLEM,
    UNSUPPORTED,
    ZEROS,
)
from logstore.maintenance.verify.contents import Contents
from logstore.maintenance.verify.frames import FRAME
from logstore.maintenance.verify.indexes import (
    OffsetIndexCheck,
    Table,
    TimeIndexCheck,
    numbers,
)
from logstore.maintenance.verify.log_facts import (
    FarOffsets,
    Gap,
    LogFacts,
    Misplaced,
    Moved,
    NotInPlace,
    NotLookedInto,
    SoundRun,
    TornEnd,
    judged,
    overlap,
)
from logstore.maintenance.verify.report import Run
from logstore.record.file_walk import larger_buffer
from logstore.segment import OffsetPosition, Segment

BUFFER_BYTES: Final = 1 << 20
_RELATIVE_MAX: Final = (1 << 31) - 1
# The head of a batch: offset, magic, and in magic 2 how far its last offset is.
_HEAD: Final = struct.Struct(">q8xb6xi")


class EndVerdict(NamedTuple):
    """The decision about the end of the last segment.

    Attributes:
        tail: the bytes after the end of the log; None if no bytes follow, or they are
            damage.
        size: bytes of the file when it was decided.
        moved: as in `Walk`.
    """

    tail: UnservedTail | None = None
    size: int = native.OFFSET_MAX
    moved: LastBatch | None = None


class LogWalk:
    """One pass over a `.log` file, also after damage, with its indexes.

    Attributes:
        facts: the facts seen so far.
        run_of: receives the findings (`conclude`).
        last_before: last offset of the segments before.
        index_names: the index files to be compared with it; "" for none.
    """

    def __init__(
        self,
        run: Run,
        directory: Directory,
        name: str,
        base: int,
        context: PartitionMetadata,
        following: int | None,
        *,
        end: EndVerdict | None = None,
        aborted: set[tuple[int, int]] | None = None,
    ) -> None:
        self._checks = native.CHECK_ALL
        if context.state is not None and context.state.is_contiguous:
            self._checks |= native.CHECK_OWN
        self.run_of = run
        self._directory = directory
        self._context = context
        self._decided = EndVerdict() if end is None else end
        is_last = following is None
        self.facts = LogFacts(
            directory.path_of(name),
            name,
            base,
            context.closed_end if is_last else following,
            is_last,
            # Opening does not use the present index files.
            is_last and not context.clean,
            native.SegmentState(base),
            last_offset=base - 1,
            last_good=base - 1,
        )
        # As if a batch were before the first one: so the planner reports it, too.
        self.facts.state.raw.bytes_since = 1
        self._contents = Contents(run, self.facts, self._checks, aborted)
        self.last_before = -1
        self.index_names = "", ""
        self._index: OffsetIndexCheck | None = None
        self._times: TimeIndexCheck | None = None
        self._forgiven = self._beyond = -1
        self._is_broken = True  # whether the next batch begins a new run

    def run(self) -> None:
        self.walk()
        self.conclude()

    def walk(self) -> None:
        """Collect what needs no other segment: segments may be walked in parallel."""
        run, log = self.run_of, self.facts
        run.segments += 1
        index, times = self.index_names
        if index:
            self._index = OffsetIndexCheck(run, self._directory, log, index)
        if times:
            self._times = TimeIndexCheck(run, self._directory, log, times)
        try:
            with self._directory.opened(log.name) as fd:
                size = self._directory.files.size(fd)
                # Appends since the end was decided are not part of it.
                log.size = min(size, self._decided.size)
                log.is_deep = run.deep or self._is_other_size()
                tail = self._decided.tail
                self._walk_all(fd, log.size if tail is None else tail.pos)
                if tail is not None:
                    self._walk_tail(fd, tail)
                if self._decided.moved is not None:
                    self._moved(self._decided.moved)
                grown = self._directory.files.size(fd) != log.size
        except FileNotFoundError:
            run.note(IN_USE, log.path, f"{log.path} was removed during the check")
            log.is_deleted = True
            return
        except OSError as error:
            run.unreadable(log.path, error)
            log.is_intact, log.is_unreadable = False, True
            return
        run.bytes += log.size
        run.batches += log.batches
        if grown:
            run.note(IN_USE, log.path, f"{log.path} is being written to")

    def _is_other_size(self) -> bool:
        """Whether the file's size differs from the one that logstore recorded. Then all
        faults are searched for, also inside compressed batches."""
        log = self.facts
        size = log.size
        state, row = self._context.state, self._context.row(log.base)
        if row is not None:
            return size != row[1]
        if state is None or log.base != state.active["base_offset"]:
            return False
        recorded = state.active["size"]
        return size < recorded or (self._context.clean and size > recorded)

    def conclude(self) -> None:
        """Judge, when `last_before` is known. Releases the indexes."""
        log = self.facts
        self.run_of.findings += judged(log)
        if not log.is_deleted and not log.is_unreadable:
            if self.last_before >= log.base:
                self.run_of.findings.append(overlap(log, self.last_before))
            for companion in (self._index, self._times):
                if companion is not None:
                    companion.finish()
        self._index = self._times = None

    # -- walking

    def _walk_all(self, fd: int, size: int) -> None:
        """Walk over the first `size` bytes. If a batch ends with the bytes that the
        state of logstore knows, but with another offset, the rest is checked from the
        offset on that the state knows, as opening does."""
        log = self.facts
        state = self._context.state
        recorded_size = size
        if state is not None and state.active["base_offset"] == log.base:
            recorded_size = min(size, state.active["size"])
        pos = self._walk(fd, 0, size, recorded_size)
        if pos >= size:
            return
        assert state is not None  # it has fewer bytes
        if pos == recorded_size and log.last_offset != state.durable_offset - 1:
            log.last_offset = state.durable_offset - 1
            self._is_broken = True
        self._walk(fd, pos, size)

    def _walk(self, fd: int, pos: int, size: int, pause: int | None = None) -> int:
        """Walk from `pos` to `size`; or to `pause`, if a batch or damage ends there:
        damage may have moved the batches. Returns the end of the walk."""
        end = size if pause is None else pause
        log = self.facts
        files, run = self._directory.files, self.run_of
        buffer = native.Buffer(max(min(BUFFER_BYTES, size - pos), 1))
        check = native.IndexCheck(
            log.state,
            native.IndexCursor() if self._index is None else self._index.cursor,
            native.IndexCursor() if self._times is None else self._times.cursor,
        )
        run.decoder.last_offset = log.last_offset
        while pos < end:
            n = files.read(fd, buffer.view[: min(buffer.capacity, end - pos)], pos)
            if n == 0:
                run.note(
                    IN_USE, log.path, f"{log.path} became shorter during the check"
                )
                break
            intact, error, stop = self._decode(buffer, n, pos, check)
            if intact:
                self._record_run(buffer, n, pos, pos + intact)
                self._tabulate(buffer, intact, pos, check)
                run.meter.advance(intact)
                pos = log.end = pos + intact
                continue
            if error is None and stop == native.STOP_PARTIAL:
                if n == end - pos < size - pos:  # it reaches past the pause
                    end = size
                    continue
                larger = larger_buffer(buffer, n, end - pos)
                if larger is not None:
                    buffer = larger
                    continue
            after = min(self._damage(buffer, pos, size, error, stop), size)
            run.meter.advance(after - pos)
            pos = after
        return pos

    def _walk_tail(self, fd: int, tail: UnservedTail) -> None:
        """Record the bytes past the end of the log. There may be intact batches among
        them: opening cuts these, too, but `repair` may keep them."""
        log = self.facts
        rest = LogWalk(
            self.run_of.child(),
            self._directory,
            log.name,
            log.base,
            self._context,
            None if log.is_last else log.next_offset,
        )
        rest.facts.size, rest.facts.is_deep = log.size, log.is_deep
        rest.facts.last_offset = tail.first_offset - 1
        rest._walk(fd, tail.pos, log.size)
        log.runs += rest.facts.runs
        log.bad_ranges += rest.facts.bad_ranges
        log.bad_offsets += rest.facts.bad_offsets
        log.jumps |= rest.facts.jumps
        log.is_foreign |= rest.facts.is_foreign
        log.gaps.append((tail.pos, log.size))
        last = max((run.last for run in rest.facts.runs), default=-1)
        log.faults.append(TornEnd(tail, last))

    def _record_run(self, buffer: native.Buffer, n: int, pos: int, end: int) -> None:
        """Record the intact batches of [pos, end)."""
        log = self.facts
        last = self.run_of.decoder.last_offset
        self._look_for_hidden(buffer, pos, end)
        if not self._is_broken:
            run = log.runs[-1]
            log.runs[-1] = run._replace(end=end, last=last)
            return
        self._is_broken = False
        header = native.first_header(buffer.c, n, checks=0).headers[0]
        first = max(header.base_offset, -1)
        log.runs.append(
            SoundRun(pos, end, first, last, header.size, header.last_offset)
        )

    def _look_for_hidden(self, buffer: native.Buffer, pos: int, end: int) -> None:
        """Note the first of the intact batches of [pos, end) that ends after the
        recorded end of a sealed segment, or of a log that was closed."""
        log, row, state = self.facts, self._context.row(self.facts.base), None
        if row is None and self._context.clean:
            state = self._context.state
        recorded = None if row is None else row[1]
        if state is not None and log.base == state.active["base_offset"]:
            recorded = state.active["size"]
        if recorded is None or log.hidden is not None or end <= recorded:
            return
        for header in native.Headers(buffer.c, end - pos, checks=0):
            if pos + header.pos + header.size > recorded:
                first = Sound(pos + header.pos, header, buffer).least_offset()
                # Else it has offsets that were read, and is out of order.
                log.hidden = first if first > log.last_good else None
                return

    def _decode(
        self, buffer: native.Buffer, n: int, file_pos: int, check: native.IndexCheck
    ) -> tuple[int, native.NativeError | None, int]:
        """Check the batches at the start of a buffer, and compare the indexes with
        them: (end of the intact ones, error or None, native.STOP_*)."""
        log = self.facts
        run, decoder = self.run_of, self.run_of.decoder
        log.state.raw.size = file_pos
        check.begin()
        pos, records, before = 0, 0, decoder.last_offset
        error: native.NativeError | None = None
        while True:
            stop = decoder.verify(
                buffer.c, n, pos, self._checks, check, with_columns=log.is_deep
            )
            records += decoder.count
            pos, error = decoder.pos, decoder.error
            if log.is_deep and decoder.count:
                self._contents.headers(native.Columns(decoder, buffer.c, buffer.raw, n))
            if error is not None or stop not in (
                native.STOP_FULL,
                native.STOP_COMPRESSED,
            ):
                break
            if stop == native.STOP_COMPRESSED:
                before_them = pos
                pos, more, error = self._contents.compressed(buffer, n, pos, file_pos)
                check.walk_over(buffer.c + before_them, pos - before_them)
                records += more
                if error is not None:
                    break
        run.records += records
        if log.is_deep and pos and decoder.last_offset - before != records:
            self._contents.control(buffer, pos, file_pos)
        return pos, error, stop

    # -- derived files

    def _tabulate(
        self, buffer: native.Buffer, end: int, file_pos: int, check: native.IndexCheck
    ) -> None:
        """Count the intact batches of a buffer; find out what is wrong with an index,
        if the comparison has left a doubt."""
        batches = check.commit(file_pos + end)
        if batches < 0:
            self._compare(buffer, end, file_pos)
        else:
            self.facts.batches += batches
            if self._times is not None:
                self._times.follow()
        self.facts.last_offset = self.run_of.decoder.last_offset

    def _compare(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Count the intact batches, and check each index entry on its own."""
        log = self.facts
        state, planner = log.state, native.Planner(0, None)
        done = 0
        while done < end:
            before = int(state.raw.last_offset) - log.base
            size, _ = planner.plan(state, buffer.c + done, end - done)
            if not size:
                self._beyond_relative(buffer, done, end, file_pos)
                break
            index, times = planner.entries()
            planner.commit(state)
            done += size
            log.batches += len(index) // INDEX_ENTRY_BYTES
            if index and (self._index is not None or self._times is not None):
                table = numbers(index)
                run = Table(table[0::2], table[1::2], times, before)
                for companion in (self._index, self._times):
                    if companion is not None:
                        companion.hold(run)

    def _beyond_relative(
        self, buffer: native.Buffer, done: int, end: int, file_pos: int
    ) -> None:
        """Batches whose offsets do not fit into an index of this segment."""
        log = self.facts
        _, last, batches, *_ = native.walk_batches(
            buffer.c, end, pos=done, last_offset=-1, checks=0
        )
        log.batches += batches
        log.is_skipped = True
        if last > log.base + _RELATIVE_MAX:
            log.bad_ranges.append((file_pos + done, file_pos + end))
        if log.is_intact and self._decided.moved is None:
            # Else they lie below the base, which is a fault, or `_moved` reports them.
            log.faults.append(FarOffsets(file_pos + done, last, _RELATIVE_MAX))

    # -- damage

    def _moved(self, last: LastBatch) -> None:
        """Record that the last batch has other offsets than when the log was closed."""
        log = self.facts
        log.is_intact = False
        log.bad_ranges.append((last.pos, last.end))
        log.faults.append(Moved(last))

    def _damage(
        self,
        buffer: native.Buffer,
        pos: int,
        size: int,
        error: native.NativeError | None,
        stop: int,
    ) -> int:
        """Record the fault at `pos` and return where to continue: `size` at most."""
        log = self.facts
        decoder = self.run_of.decoder
        self._is_broken = True
        last = max(decoder.last_offset, log.last_offset)
        segment = Segment.of_file(
            self._directory, self.run_of.descriptors, log.name, log.base, size
        )
        batch = segment.first_header(pos)
        if error is not None and error.status == native.E_OFFSET and batch is not None:
            is_known = batch[0].base_offset >= 0
            stored = batch[0].base_offset if is_known else batch[0].last_offset
            if self._forgiven != pos and stored >= 0:
                # An intact batch in the wrong place: report it, and continue from it.
                self._forgiven = pos
                if self._beyond != pos:
                    self._out_of_order(segment, last, Sound(pos, *batch[:2]))
                # The first offset of a wrapper is inside of it.
                decoder.last_offset = stored - 1 if is_known else native.OFFSET_UNKNOWN
                return pos
        if error is not None and error.status == native.E_CODEC:
            return self._step_over(buffer, pos, last, error)
        next_batch = self._next_batch(segment, pos, last)
        is_contradicted = False
        if next_batch is None and self._forgiven >= 0:
            # A batch before may have claimed an offset that is far too large.
            next_batch = self._next_batch(segment, pos, log.base - 1)
            is_contradicted = next_batch is not None
        if next_batch is None:
            # So may the last one, and the batches after it may contradict it.
            jumped = self._before_last(segment, last)
            if jumped is not None:
                next_batch = self._next_batch(segment, pos, jumped[0])
                is_contradicted = next_batch is not None
                last = jumped[0] if is_contradicted else last
        fault = _fault_of(error, stop)
        end = size if next_batch is None else next_batch.pos
        log.is_skipped = True
        log.gaps.append((pos, end))
        log.state.raw.bytes_since = 1
        following = self._following(next_batch)
        if fault[0] == UNSUPPORTED:
            log.is_foreign |= self._is_framed(segment, pos, last)
        log.is_intact = False
        first = max(last, log.last_good) + 1
        gap = Gap(pos, end, *fault, first, following, is_contradicted)
        log.faults.append(gap)
        self._look_inside(segment, (pos, end), last)
        if next_batch is not None:
            base = next_batch.header.base_offset
            is_in_order = base > decoder.last_offset
            decoder.last_offset = base - 1 if is_in_order else native.OFFSET_UNKNOWN
        return end

    def _look_inside(
        self, segment: Segment, damaged: tuple[int, int], last: int
    ) -> None:
        """Record an intact batch among damaged bytes that is not in its place. If the
        log has no gaps, the batch that it does not follow was recorded."""
        if self._checks & native.CHECK_OWN:
            return
        hidden = passed_over(segment, *damaged, last)
        if hidden is not None:
            before, batch = hidden
            offsets = batch.least_offset(), batch.header.last_offset
            missing = NotInPlace(batch.pos, *offsets, last, before + 1)
            self.facts.faults.append(missing)

    def _next_batch(self, segment: Segment, pos: int, last: int) -> Sound | None:
        """The next intact batch after damage at `pos`, with offsets after `last`: one
        that readers see, if there is one."""
        log = self.facts
        # A compressed batch may contain bytes that look like a message after an invalid
        # offset: reject an offset that no segment can have.
        furthest = min(log.base + _RELATIVE_MAX + 1, native.OFFSET_MAX)
        for limit in sorted({min(self._next_segment(), furthest), furthest}):
            segment.next_offset = limit
            batch = next_valid(segment, pos, last, log.next_offset)
            if batch is not None:
                return batch
        return None

    def _next_segment(self) -> int:
        """Where the next segment begins, if there is one: readers see no offsets from
        there on in this one."""
        log = self.facts
        if log.is_last or log.next_offset is None:
            return native.OFFSET_MAX
        return log.next_offset

    def _following(self, next_batch: Sound | None) -> int | None:
        """The first offset after a damaged part: that of the next intact batch, else
        that after the segment. None: unknown."""
        if next_batch is not None:
            first = next_batch.first_offset()
            if first < 0:
                return None
            return min(first, self._next_segment())
        row = self._context.row(self.facts.base)
        return self.facts.next_offset if row is None else row[2]

    def _before_last(self, segment: Segment, last: int) -> tuple[int, Sound] | None:
        """The last offset before the last intact batch, and that batch, if it jumps
        ahead: no checksum covers its offset. None if it does not."""
        log = self.facts
        if not log.runs or log.runs[-1].last != last:
            return None
        run = log.runs[-1]
        before = log.runs[-2].last if len(log.runs) > 1 else log.base - 1
        place = OffsetPosition(run.begin, native.OFFSET_UNKNOWN)
        for header, buffer, position in segment.headers(place, checks=0):
            batch = Sound(position, header, buffer)
            if batch.end >= run.end:
                first = batch.first_offset()
                is_next = 0 <= first <= before + 1 and batch.ends_with_its_content()
                return None if is_next else (before, batch)
            before = header.last_offset
        return None

    def _out_of_order(self, segment: Segment, last: int, batch: Sound) -> None:
        """Record an intact batch whose offsets are not the expected ones."""
        log, end = self.facts, batch.header.last_offset
        log.is_intact, log.is_skipped = False, True
        first = batch.header.base_offset if batch.header.base_offset >= 0 else end
        is_end = batch.end >= log.size
        beyond = log.next_offset if is_end else first_at(segment, batch.end)
        before: int | None = None
        swapped_with: int | None = None
        is_contradicted = False
        jumped = self._before_last(segment, last)
        if jumped is not None and first <= last:
            before, ahead = jumped
            after = end + 1 if is_end and beyond is None else beyond
            if have_changed_places(before, ahead.offsets, batch.offsets, after):
                self._beyond = batch.end
                swapped_with = ahead.pos
                beyond = last + 1 if after is None else after
            else:
                is_contradicted, beyond = True, None
        log.last_good = max(log.last_good, last if before is None else before)
        log.faults.append(
            Misplaced(
                batch.pos,
                first,
                end,
                last,
                log.last_good,
                before,
                beyond,
                swapped_with,
                is_contradicted,
            )
        )

    def _step_over(
        self, buffer: native.Buffer, pos: int, last: int, error: native.NativeError
    ) -> int:
        """Step over a batch with a valid checksum and an unknown codec."""
        log = self.facts
        length: int = FRAME.unpack_from(buffer.raw)[1]
        size = length + FRAME.size
        log.is_skipped = log.is_foreign = True
        log.gaps.append((pos, pos + size))
        log.state.raw.bytes_since = 1
        self.run_of.decoder.last_offset = native.OFFSET_UNKNOWN
        place = pos, last + 1, _last_offset_of(buffer)
        log.faults.append(NotLookedInto(PROBLEM, *place, error.reason))
        return pos + size

    def _is_framed(self, segment: Segment, pos: int, last: int) -> bool:
        """Whether bytes that are not understood may still be a batch. They have an
        offset and length as a batch has, and end at the end of the file or at the next
        batch; and they do not lie past the durable point of a log that logstore wrote
        last, since logstore writes no magic above 2. Random bytes hardly ever match."""
        log = self.facts
        state = self._context.state
        if state is not None:
            row = self._context.row(log.base)
            durable = log.size if row is None else row[1]
            if log.base == state.active["base_offset"]:
                durable = state.active["size"]
            if pos >= durable:
                return False
        scratch = native.Buffer(FRAME.size)
        for _ in range(2):
            if segment.read(scratch.view, pos) < FRAME.size:
                return False
            offset, length = FRAME.unpack_from(scratch.raw)
            pos += length + FRAME.size
            if offset <= last or length < 14 or pos > log.size:
                return False
            if pos == log.size:
                return True
            last = offset
        return True


def _last_offset_of(buffer: native.Buffer) -> int:
    """The last offset of a batch from its head: below magic 2 that of a wrapper is its
    last message's."""
    offset: int
    offset, magic, last_delta = _HEAD.unpack_from(buffer.raw)
    return offset if magic < 2 else offset + int(last_delta)


def _fault_of(error: native.NativeError | None, stop: int) -> tuple[str, str]:
    """The kind of a `Problem`, and its reason, for the end of a walk."""
    if error is not None:
        kind = OFFSETS if error.status == native.E_OFFSET else DAMAGED_BATCH
        return (UNSUPPORTED if error.is_unsupported else kind), error.reason
    if stop == native.STOP_ZEROS:
        return ZEROS, "zeros instead of a batch"
    if stop == native.STOP_OFFSET:
        return OFFSETS, "its offset is impossible"
    return PARTIAL_BATCH, "a batch extends past the end of the file"
