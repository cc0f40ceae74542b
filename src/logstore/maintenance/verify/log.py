"""One `.log` file, walked over from its first byte to its last, also after damage."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.index import INDEX_ENTRY_BYTES
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.directory import Directory
from logstore.log.recover.plan import Tail
from logstore.log.resync import Sound, first_offset_of, next_valid
from logstore.maintenance.finding import (
    DAMAGED_BATCH,
    IN_USE,
    OFFSETS,
    PARTIAL_BATCH,
    TORN_TAIL,
    UNSUPPORTED,
    ZEROS,
)
from logstore.maintenance.verify.contents import ContentsCheck
from logstore.maintenance.verify.indexes import (
    OffsetIndexCheck,
    Table,
    TimeIndexCheck,
    numbers,
)
from logstore.maintenance.verify.intact import (
    BUFFER_BYTES,
    FRAME,
    LOOKUP_BYTES,
    RawSegment,
)
from logstore.maintenance.verify.report import Run
from logstore.record.decoder import Columns
from logstore.segment import OffsetPosition

_RELATIVE_MAX: Final = (1 << 31) - 1
# The head of a batch: offset, magic, and in magic 2 how far its last offset is.
_HEAD: Final = struct.Struct(">q8xb6xi")


class SoundRun(NamedTuple):
    """Intact batches, one right after the other, with offsets in order.

    Attributes:
        begin, end: bytes of the file.
        first: first offset; -1 if the batch does not have it (a wrapper).
        last: last offset, inclusive.
        head_bytes, head_last: size and last offset of its first batch.
    """

    begin: int
    end: int
    first: int
    last: int
    head_bytes: int
    head_last: int

    @property
    def lowest(self) -> int:
        """The first offset, or if it is unknown the last offset of its first batch."""
        return self.first if self.first >= 0 else self.head_last

    @property
    def is_single(self) -> bool:
        """Whether it is one batch."""
        return self.end - self.begin == self.head_bytes


class LogEnd(NamedTuple):
    """What was decided about the end of the last segment.

    Attributes:
        tail: the bytes after the end of the log; None if there are none, or if they are
            damage.
        size: bytes of the file when it was decided.
    """

    tail: Tail | None = None
    size: int = native.OFFSET_MAX


class LogCheck(ContentsCheck):
    """One pass over a `.log` file, also after damage, with its indexes.

    Attributes:
        next_offset: first offset after it; None: unknown.
        last_before: last offset of the segments before.
        last_offset: last offset seen; ``base - 1`` while there is none.
        end: end of the intact log.
        is_skipped: whether a part before the present run was damaged.
        is_deleted: whether the file was deleted before it could be opened.
        index_names: the index files to be compared with it, if any.
        runs: the intact batches, run by run, also those past the end of the log.
        size: bytes of the file when its end was decided.
        is_index_rebuilt: opening builds its indexes, or does not use all of them.
        is_foreign: whether it holds data that is not understood and must not be cut.
        is_unreadable: whether the system refused to read it.
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
        end: LogEnd | None = None,
        aborted: set[tuple[int, int]] | None = None,
    ) -> None:
        checks = native.CHECK_ALL
        if context.state is not None and context.state.is_contiguous:
            checks |= native.CHECK_OWN
        super().__init__(run, directory.path_of(name), checks, aborted)
        self.directory = directory
        self.name = name
        self.base = base
        self.context = context
        self.is_last = following is None
        self.next_offset = context.closed_end if following is None else following
        self.decided = LogEnd() if end is None else end
        self.index: OffsetIndexCheck | None = None
        self.times: TimeIndexCheck | None = None
        self.last_before = -1
        self.last_offset = self.last_good = base - 1
        self.size = self.end = self.batches = 0
        self.is_skipped, self.is_deleted = False, False
        self._gaps: list[tuple[int, int]] = []
        self._forgiven = -1
        self.index_names: tuple[str, str] | None = None
        self.runs: list[SoundRun] = []
        self.is_foreign = self.is_unreadable = False
        # Opening does not use the index files as they are.
        self.is_index_rebuilt = self.is_last and not context.clean
        self._is_broken = True  # whether the next batch begins a new run
        self.state = native.SegmentState(base)
        # As if a batch were before the first one: so the planner reports it, too.
        self.state.raw.bytes_since = 1

    def is_damaged_at(self, pos: int) -> bool:
        """Whether a position lies in a damaged part."""
        return self.is_damaged_between(pos, pos + 1)

    def is_damaged_between(self, first: int, end: int) -> bool:
        """Whether anything in a range of positions was damaged."""
        return any(low < end and first < high for low, high in self._gaps)

    def run(self) -> None:
        self.walk()
        self.conclude()

    def walk(self) -> None:
        """The checks that need no other segment: segments may be walked in parallel."""
        run = self.run_of
        run.segments += 1
        if self.index_names is not None:
            self.index = OffsetIndexCheck(self, self.index_names[0])
            self.times = TimeIndexCheck(self, self.index_names[1])
        try:
            with self.directory.opened(self.name) as fd:
                size = self.directory.files.size(fd)
                # Appends since the end was decided are not part of it.
                self.size = min(size, self.decided.size)
                self.is_deep = run.deep or self._is_other_size()
                tail = self.decided.tail
                self._walk_all(fd, self.size if tail is None else tail.pos)
                if tail is not None:
                    self._walk_tail(fd, tail)
                grown = self.directory.files.size(fd) != self.size
        except FileNotFoundError:
            run.note(IN_USE, self.path, f"{self.path} went away meanwhile")
            self.is_deleted = True
            return
        except OSError as error:
            run.unreadable(self.path, error)
            self.is_intact, self.is_unreadable = False, True
            return
        run.bytes += self.size
        run.batches += self.batches
        if grown:
            run.note(IN_USE, self.path, f"{self.path} is being written to")

    def _is_other_size(self) -> bool:
        """Whether the file's size differs from the one that logstore recorded. Then all
        faults are searched for, also inside compressed batches."""
        state, row = self.context.state, self.context.row(self.base)
        if row is not None:
            return self.size != row[1]
        if state is None or self.base != state.active["base_offset"]:
            return False
        size = state.active["size"]
        return self.size < size or (self.context.clean and self.size > size)

    def conclude(self) -> None:
        """The other checks, when `last_before` is known. Releases the indexes."""
        if not self.is_deleted and not self.is_unreadable:
            self._check_overlap()
            for companion in (self.index, self.times):
                if companion is not None:
                    companion.finish()
        self.index = self.times = None

    def _check_overlap(self) -> None:
        if self.last_before >= self.base:
            self.run_of.problem(
                OFFSETS,
                self.path,
                f"{self.path} begins at offset {self.base}, which is in the segments "
                f"before: they end with {self.last_before}",
                position=0,
                first_offset=self.last_before + 1,
                last_offset=(
                    self.last_offset if self.last_offset > self.last_before else None
                ),
            )

    # -- walking

    def _walk_all(self, fd: int, size: int) -> None:
        """Walk over the first `size` bytes. If those that logstore's state knows are
        damaged, or end with another offset, the rest is checked from the offset on that
        the state knows, as opening does."""
        state = self.context.state
        recorded_size = size
        if state is not None and state.active["base_offset"] == self.base:
            recorded_size = min(size, state.active["size"])
        self._walk(fd, 0, recorded_size)
        if recorded_size == size:
            return
        assert state is not None  # it has fewer bytes
        if not self.is_intact or self.last_offset != state.durable_offset - 1:
            self.last_offset = state.durable_offset - 1
            self._is_broken = True
        self._walk(fd, recorded_size, size)

    def _walk(self, fd: int, pos: int, size: int) -> None:
        files, run = self.directory.files, self.run_of
        buffer = native.Buffer(max(min(BUFFER_BYTES, size - pos), 1))
        check = native.IndexCheck(
            self.state,
            native.IndexCursor() if self.index is None else self.index.cursor,
            native.IndexCursor() if self.times is None else self.times.cursor,
        )
        run.decoder.begin(self.last_offset)
        while pos < size:
            n = files.read(fd, buffer.view[: min(buffer.capacity, size - pos)], pos)
            if n == 0:
                run.note(IN_USE, self.path, f"{self.path} became shorter meanwhile")
                break
            end, error, stop = self._decode(buffer, n, pos, check)
            if end:
                self._record_run(buffer, n, pos, pos + end)
                self._tabulate(buffer, end, pos, check)
                run.meter.advance(end)
                pos = self.end = pos + end
                continue
            if error is None and stop == native.STOP_PARTIAL and n >= FRAME.size:
                length = FRAME.unpack_from(buffer.raw)[1] + FRAME.size
                if buffer.capacity < length <= size - pos:
                    buffer = native.Buffer(length)
                    continue
            after = min(self._damage(buffer, n, pos, size, error, stop), size)
            run.meter.advance(after - pos)
            pos = after

    def _walk_tail(self, fd: int, tail: Tail) -> None:
        """Report the bytes past the end of the log. There may be intact batches among
        them: opening cuts these, too, but `repair` may keep them."""
        rest = LogCheck(
            self.run_of.child(),
            self.directory,
            self.name,
            self.base,
            self.context,
            None if self.is_last else self.next_offset,
        )
        rest.size, rest.is_deep = self.size, self.is_deep
        rest.last_offset = tail.first_offset - 1
        rest._walk(fd, tail.pos, self.size)
        self.runs += rest.runs
        self.bad_ranges += rest.bad_ranges
        self.bad_offsets += rest.bad_offsets
        self.jumps |= rest.jumps
        self.is_foreign |= rest.is_foreign
        self._gaps.append((tail.pos, self.size))
        last = max((run.last for run in rest.runs), default=-1)
        more = f", with intact batches up to offset {last} among them"
        self.run_of.note(
            TORN_TAIL,
            self.path,
            f"{self.path} ends with {tail.size} torn bytes at byte {tail.pos} "
            f"({tail.reason})" + (more if rest.runs else "") + "; the log ends before "
            f"offset {tail.first_offset}",
            position=tail.pos,
            first_offset=tail.first_offset,
            last_offset=last if last >= tail.first_offset else None,
        )

    def _record_run(self, buffer: native.Buffer, n: int, pos: int, end: int) -> None:
        """Record the intact batches of [pos, end)."""
        last = self.run_of.decoder.last_offset
        if not self._is_broken:
            run = self.runs[-1]
            self.runs[-1] = SoundRun(
                run.begin, end, run.first, last, run.head_bytes, run.head_last
            )
            return
        self._is_broken = False
        header = native.first_header(buffer.c, n, checks=0).headers[0]
        first = max(header.base_offset, -1)
        self.runs.append(
            SoundRun(pos, end, first, last, header.size, header.last_offset)
        )

    def _decode(
        self, buffer: native.Buffer, n: int, file_pos: int, check: native.IndexCheck
    ) -> tuple[int, native.NativeError | None, int]:
        """Check the batches at the start of a buffer, and compare the indexes with
        them: (end of the intact ones, error or None, native.STOP_*)."""
        run, decoder = self.run_of, self.run_of.decoder
        self._at = file_pos
        self.state.raw.size = file_pos
        check.begin()
        pos, records, before = 0, 0, decoder.last_offset
        error: native.NativeError | None = None
        while True:
            stop = decoder.verify(
                buffer.c, n, pos, self._checks, check, with_columns=self.is_deep
            )
            records += decoder.count
            pos, error = decoder.pos, decoder.error
            if self.is_deep and decoder.count:
                self._check_headers(Columns(decoder, buffer.c, buffer.raw, n))
            if error is not None or stop not in (
                native.STOP_FULL,
                native.STOP_COMPRESSED,
            ):
                break
            if stop == native.STOP_COMPRESSED:
                before_them = pos
                pos, more, error = self._compressed(buffer, n, pos)
                check.walk_over(buffer.c + before_them, pos - before_them)
                records += more
                if error is not None:
                    break
        run.records += records
        if self.is_deep and pos and decoder.last_offset - before != records:
            self._check_control(buffer, pos, file_pos)
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
            self.batches += batches
            if self.times is not None:
                self.times.follow()
        self.last_offset = self.run_of.decoder.last_offset

    def _compare(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Count the intact batches, and check each index entry on its own."""
        state, planner = self.state, native.Planner(0, None)
        done = 0
        while done < end:
            before = int(state.raw.last_offset) - self.base
            size, stop = planner.plan(state, buffer.c + done, end - done)
            if not size:
                self._beyond_relative(buffer, done, end, file_pos, stop)
                break
            index, times = planner.entries()
            planner.commit(state)
            done += size
            self.batches += len(index) // INDEX_ENTRY_BYTES
            if index and (self.index is not None or self.times is not None):
                table = numbers(index)
                run = Table(table[0::2], table[1::2], times, before)
                for companion in (self.index, self.times):
                    if companion is not None:
                        companion.hold(run)

    def _beyond_relative(
        self, buffer: native.Buffer, done: int, end: int, file_pos: int, stop: int
    ) -> None:
        """Batches whose offsets do not fit into an index of this segment."""
        _, last, batches, *_ = native.walk_batches(
            buffer.c, end, pos=done, last_offset=-1, checks=0
        )
        self.batches += batches
        self.is_skipped = True
        if last > self.base + _RELATIVE_MAX:
            self.bad_ranges.append((file_pos + done, file_pos + end))
        if not self.is_intact:
            return  # reported already: they lie below the base
        self.run_of.problem(
            OFFSETS,
            self.path,
            f"{self.path} has offsets up to {last} from byte {file_pos + done} on, "
            f"which are more than {_RELATIVE_MAX} beyond its base offset {self.base}",
            position=file_pos + done,
        )

    # -- damage

    def _damage(
        self,
        buffer: native.Buffer,
        n: int,
        pos: int,
        size: int,
        error: native.NativeError | None,
        stop: int,
    ) -> int:
        """Report the fault at `pos` and return where to continue: `size` at most."""
        decoder = self.run_of.decoder
        self._is_broken = True
        last = max(decoder.last_offset, self.last_offset)
        segment = RawSegment(
            self.directory, self.run_of.descriptors, self.name, self.base, size
        )
        # A compressed batch may contain bytes that look like a message after an invalid
        # offset: reject an offset that no segment can have.
        segment.next_offset = min(self.base + _RELATIVE_MAX + 1, native.OFFSET_MAX)
        batch = segment.first_header(pos, native.Buffer(LOOKUP_BYTES))
        if error is not None and error.status == native.E_OFFSET and batch is not None:
            is_known = batch[0].base_offset >= 0
            stored = batch[0].base_offset if is_known else batch[0].last_offset
            if self._forgiven != pos and stored >= 0:
                # An intact batch in the wrong place: report it, and continue from it.
                self._forgiven = pos
                self._out_of_order(pos, segment, last, batch[0])
                # The first offset of a wrapper is inside of it.
                decoder.begin(stored - 1 if is_known else native.OFFSET_UNKNOWN)
                return pos
        if error is not None and error.status == native.E_CODEC:
            return self._step_over(buffer, pos, last, error)
        next_batch = next_valid(segment, pos, last, self.next_offset)
        if next_batch is None and self._forgiven >= 0:
            # A batch before may have claimed an offset that is far too large.
            next_batch = next_valid(segment, pos, self.base - 1, self.next_offset)
        if next_batch is None:
            # So may the last one, and the batches after it may contradict it.
            before = self._before_last(segment, last)
            if before is not None:
                next_batch = next_valid(segment, pos, before, self.next_offset)
                last = last if next_batch is None else before
        kind, reason = _kind_of(error, stop)
        end = size if next_batch is None else next_batch.pos
        self.is_skipped = True
        self._gaps.append((pos, end))
        self.state.raw.bytes_since = 1
        following = self._following(next_batch)
        if kind == UNSUPPORTED:
            self.is_foreign |= self._is_framed(segment, pos, last)
        self.is_intact = False
        first = max(last, self.last_good) + 1
        has_offsets = following is None or following > first
        to = "" if following is None else f" to {following - 1}"
        what = f", offsets from {first}{to}," if has_offsets else " between offsets"
        self.run_of.problem(
            kind,
            self.path,
            f"{self.path} is damaged at byte {pos}: {reason}. {end - pos} bytes{what} "
            f"cannot be read",
            position=pos,
            first_offset=first if has_offsets else None,
            last_offset=following - 1
            if has_offsets and following is not None
            else None,
        )
        if next_batch is not None:
            base = next_batch.header.base_offset
            is_in_order = base > decoder.last_offset
            decoder.begin(base - 1 if is_in_order else native.OFFSET_UNKNOWN)
        return end

    def _following(self, next_batch: Sound | None) -> int | None:
        """The first offset after a damaged part: that of the next intact batch, else
        that of what follows the segment. None: unknown."""
        if next_batch is not None:
            first = next_batch.first_offset()
            return None if first < 0 else first
        row = self.context.row(self.base)
        return self.next_offset if row is None else row[2]

    def _before_last(self, segment: RawSegment, last: int) -> int | None:
        """The last offset before that of the last intact batch, if that batch jumps
        ahead: no checksum covers its offset. None if it does not."""
        if not self.runs or self.runs[-1].last != last:
            return None
        run, first = self.runs[-1], -1
        before = self.runs[-2].last if len(self.runs) > 1 else self.base - 1
        place = OffsetPosition(run.begin, native.OFFSET_UNKNOWN)
        for header, buffer, at in segment.headers(place, checks=0):
            first = header.base_offset
            if at + header.size >= run.end:
                if first < 0:
                    data = buffer.raw[header.pos : header.pos + header.size]
                    first = first_offset_of(header, data)
                break
            before = header.last_offset
        return before if first < 0 or before + 1 < first else None

    def _out_of_order(
        self, pos: int, segment: RawSegment, last: int, header: native.BatchHeader
    ) -> None:
        """Report an intact batch whose offsets are not the expected ones, by the first
        offset that is not read, from the last good one on."""
        self.is_intact, self.is_skipped = False, True
        first = header.base_offset if header.base_offset >= 0 else header.last_offset
        where = (
            f"the segment begins at {self.base}"
            if last < self.base
            else f"the batch before ends with {last}"
        )
        # After a gap, the offsets in the gap are those that cannot be read. Or the
        # batch before jumps ahead: then its offsets are wrong.
        before, is_gap = self._before_last(segment, last), first > last + 1
        self.last_good = max(self.last_good, last)
        if before is not None and not is_gap and before < first:
            begin, end = before + 1, max(first - 1, before + 1)
        else:
            begin = self.last_good + 1
            end = first - 1 if is_gap else header.last_offset
        self.run_of.problem(
            OFFSETS,
            self.path,
            f"{self.path} at byte {pos} has a batch of offsets {first} to "
            f"{header.last_offset}, but {where}"
            + (": the log was written without gaps" if is_gap else ""),
            position=pos,
            first_offset=begin,
            last_offset=end if end >= begin else None,
        )

    def _step_over(
        self, buffer: native.Buffer, pos: int, last: int, error: native.NativeError
    ) -> int:
        """Step over a batch with a valid checksum and an unknown codec."""
        length: int = FRAME.unpack_from(buffer.raw)[1]
        size = length + FRAME.size
        self.is_skipped = self.is_foreign = True
        self._gaps.append((pos, pos + size))
        self.state.raw.bytes_since = 1
        self.run_of.decoder.begin(native.OFFSET_UNKNOWN)
        self.run_of.problem(
            UNSUPPORTED,
            self.path,
            f"the batch of {self.path} at byte {pos} was not looked into: "
            f"{error.reason}",
            position=pos,
            first_offset=last + 1,
            last_offset=_last_offset_of(buffer),
        )
        return pos + size

    def _is_framed(self, segment: RawSegment, pos: int, last: int) -> bool:
        """Whether bytes that are not understood may still be a batch. They have an
        offset and length as a batch has, and end at the end of the file or at the next
        batch; and they do not lie past the durable point of a log that logstore wrote
        last, since logstore writes no magic above 2. Random bytes hardly ever match."""
        state = self.context.state
        if state is not None:
            row = self.context.row(self.base)
            durable = self.size if row is None else row[1]
            if self.base == state.active["base_offset"]:
                durable = state.active["size"]
            if pos >= durable:
                return False
        scratch = native.Buffer(FRAME.size)
        for _ in range(2):
            if segment.read(scratch.view, pos) < FRAME.size:
                return False
            offset, length = FRAME.unpack_from(scratch.raw)
            pos += length + FRAME.size
            if offset <= last or length < 14 or pos > self.size:
                return False
            if pos == self.size:
                return True
            last = offset
        return True


def _last_offset_of(buffer: native.Buffer) -> int:
    """The last offset of a batch from its head: below magic 2 that of a wrapper is its
    last message's."""
    offset: int
    offset, magic, last_delta = _HEAD.unpack_from(buffer.raw)
    return offset if magic < 2 else offset + int(last_delta)


def _kind_of(error: native.NativeError | None, stop: int) -> tuple[str, str]:
    """The kind of a `Problem`, and its reason, for the end of a walk."""
    if error is not None:
        kind = OFFSETS if error.status == native.E_OFFSET else DAMAGED_BATCH
        return (UNSUPPORTED if error.is_unsupported else kind), error.reason
    if stop == native.STOP_ZEROS:
        return ZEROS, "zeros instead of a batch"
    if stop == native.STOP_OFFSET:
        return OFFSETS, "its offset is impossible"
    return PARTIAL_BATCH, "a batch goes on past the end of the file"
