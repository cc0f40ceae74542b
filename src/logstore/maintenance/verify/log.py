"""One `.log` file, walked over from its first byte to its last, also after damage."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.index import INDEX_ENTRY_BYTES
from logstore.io.directory import Directory
from logstore.log.resync import Sound
from logstore.maintenance.verify.context import Context
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
    next_sound,
)
from logstore.maintenance.verify.report import (
    DAMAGED_BATCH,
    IN_USE,
    OFFSETS,
    PARTIAL_BATCH,
    TORN_TAIL,
    UNSUPPORTED,
    ZEROS,
    Run,
)
from logstore.record.batch import ABORT, RecordBatch
from logstore.record.decoder import (
    Columns,
    Damage,
    memoryview_slicer,
    open_payload,
    read_headers,
)
from logstore.segment import Place

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


class LogCheck:
    """One pass over a `.log` file, also after damage, with its indexes.

    Attributes:
        behind: first offset after it; None: unknown.
        last_before: last offset of the segments before.
        last_offset: last offset seen; ``base - 1`` while there is none.
        end: end of the intact log.
        is_sound: whether nothing in it was damaged.
        is_skipped: whether a part before the present run was damaged.
        is_gone: whether the file was deleted before it could be opened.
        index_names: the index files to be compared with it, if any.
        runs: the intact batches, run by run.
        bad_ranges: position ranges of intact batches whose contents are wrong, and
        bad_offsets: offsets of records that are wrong.
        jumps: position -> first offset of intact wrappers that do not follow the batch
            before them.
        is_deep: whether the contents of compressed batches are checked.
        is_foreign: whether it holds data that is not understood and must not be cut.
        is_unreadable: whether the system refused to read it.
    """

    def __init__(
        self,
        run: Run,
        directory: Directory,
        name: str,
        base: int,
        context: Context,
        following: int | None,
        *,
        aborted: set[tuple[int, int]] | None = None,
    ) -> None:
        self.run_of = run
        self.directory = directory
        self.name = name
        self.path = directory.path_of(name)
        self.base = base
        self.context = context
        self.is_last = following is None
        self.behind = context.closed_end if following is None else following
        self.aborted = aborted
        self.index: OffsetIndexCheck | None = None
        self.times: TimeIndexCheck | None = None
        self.last_before = -1
        self.last_offset = base - 1
        self.size = self.end = self.batches = 0
        self.is_sound, self.is_skipped, self.is_gone = True, False, False
        self.is_deep = run.deep
        self._at = 0  # file position of the buffer
        self._gaps: list[tuple[int, int]] = []
        self._forgiven = -1
        self._checks = native.CHECK_ALL
        if context.state is not None and context.state.is_gapless:
            self._checks |= native.CHECK_OWN
        self.index_names: tuple[str, str] | None = None
        self.runs: list[SoundRun] = []
        self.bad_ranges: list[tuple[int, int]] = []
        self.bad_offsets: list[int] = []
        self.jumps: dict[int, int] = {}
        self.is_foreign = self.is_unreadable = False
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
        self._planner = native.Planner(0, None)
        try:
            with self.directory.opened(self.name) as fd:
                self.size = self.directory.files.size(fd)
                self.is_deep = run.deep or self._is_other_size()
                self._walk(fd)
                grown = self.directory.files.size(fd) != self.size
        except FileNotFoundError:
            run.note(IN_USE, self.path, f"{self.path} went away meanwhile")
            self.is_gone = True
            return
        except OSError as error:
            run.unreadable(self.path, error)
            self.is_sound, self.is_unreadable = False, True
            return
        finally:
            del self._planner
        run.bytes += self.size
        run.batches += self.batches
        if grown:
            run.note(IN_USE, self.path, f"{self.path} is being written to")

    def _is_other_size(self) -> bool:
        """Whether the file's size differs from the one that logstore recorded. Then all
        faults are searched for, also inside compressed batches."""
        state, row = self.context.state, self.context.rows.get(self.base)
        if row is not None:
            return self.size != row[1]
        if state is None or self.base != state.active["base_offset"]:
            return False
        known = state.active["size"]
        return self.size < known or (self.context.clean and self.size > known)

    def conclude(self) -> None:
        """The other checks, when `last_before` is known. Releases the indexes."""
        if not self.is_gone and not self.is_unreadable:
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
                first=self.base,
                last=self.last_before,
            )

    # -- walking

    def _walk(self, fd: int) -> None:
        files, run = self.directory.files, self.run_of
        buffer = native.Buffer(max(min(BUFFER_BYTES, self.size), 1))
        pos = 0
        run.decoder.begin(self.last_offset)
        while pos < self.size:
            n = files.read(
                fd, buffer.view[: min(buffer.capacity, self.size - pos)], pos
            )
            if n == 0:
                run.note(IN_USE, self.path, f"{self.path} became shorter meanwhile")
                break
            end, error, stop = self._decode(buffer, n, pos)
            if end:
                self._note_run(buffer, n, pos, pos + end)
                self._tabulate(buffer, end, pos)
                run.meter.advance(end)
                pos = self.end = pos + end
                continue
            if error is None and stop == native.STOP_PARTIAL and n >= FRAME.size:
                length = FRAME.unpack_from(buffer.raw)[1] + FRAME.size
                if buffer.capacity < length <= self.size - pos:
                    buffer = native.Buffer(length)
                    continue
            after = self._damage(buffer, n, pos, error, stop)
            run.meter.advance(after - pos)
            pos = after

    def _note_run(self, buffer: native.Buffer, n: int, pos: int, end: int) -> None:
        """Record the intact batches of [pos, end)."""
        last = self.run_of.decoder.last_offset
        if not self._is_broken:
            self.runs[-1] = self.runs[-1]._replace(end=end, last=last)
            return
        self._is_broken = False
        header = native.first_header(buffer.c, n, checks=0).headers[0]
        first = max(header.base_offset, -1)
        self.runs.append(
            SoundRun(pos, end, first, last, header.size, header.last_offset)
        )

    def _decode(
        self, buffer: native.Buffer, n: int, file_pos: int
    ) -> tuple[int, native.NativeError | None, int]:
        """Check the batches at the start of a buffer: (end of the intact ones, error or
        None, native.STOP_*)."""
        run, decoder = self.run_of, self.run_of.decoder
        self._at = file_pos
        pos, records, before = 0, 0, decoder.last_offset
        error: native.NativeError | None = None
        while True:
            stop = decoder.decode(buffer.c, n, pos, 0, native.OFFSET_MAX, self._checks)
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
                pos, more, error = self._compressed(buffer, n, pos)
                records += more
                if error is not None:
                    break
        run.records += records
        if self.is_deep and pos and decoder.last_offset - before != records:
            self._check_control(buffer, pos, file_pos)
        return pos, error, stop

    def _check_headers(self, columns: Columns) -> None:
        """Decode the record headers of a run."""
        decoder = columns.decoder
        counts = decoder.unpack(decoder.header_count)
        if not any(counts):
            return
        places = decoder.unpack(decoder.header_pos)
        offsets = decoder.unpack(decoder.offset)
        for slot, count in enumerate(counts):
            if not count:
                continue
            try:
                read_headers(columns.c, columns.raw, columns.size, places[slot], count)
            except Damage as damage:
                self.bad_offsets.append(offsets[slot])
                self.run_of.problem(
                    DAMAGED_BATCH,
                    self.path,
                    f"record {offsets[slot]} of {self.path} has a bad header: "
                    f"{damage.reason}",
                    first=offsets[slot],
                    last=offsets[slot],
                )

    def _compressed(
        self, buffer: native.Buffer, n: int, pos: int
    ) -> tuple[int, int, native.NativeError | None]:
        """Walk over the compressed batches at `pos`: (end, records, error)."""
        decoder = self.run_of.decoder
        records, want = 0, 1
        while True:
            last = decoder.last_offset
            scan = native.scan_batches(
                buffer.c,
                n,
                pos=pos,
                last_offset=last,
                checks=self._checks,
                count_max=want,
            )
            for header in scan.headers:
                if header.codec == 0:
                    return pos, records, None
                if self.is_deep:
                    records += self._check_payload(header, buffer)
                elif header.record_count >= 0:
                    records += header.record_count
                elif decoder.last_offset == native.OFFSET_UNKNOWN:
                    records += 1  # or more: unknown
                else:
                    records += header.last_offset - decoder.last_offset
                decoder.begin(header.last_offset)
                pos = header.pos + header.size
            if scan.error is not None or scan.stop != native.STOP_FULL:
                error = scan.error
                if error is not None and error.pos > pos:
                    error = None
                return pos, records, error
            want = min(want * 2, 64)

    def _check_payload(self, header: native.BatchHeader, buffer: native.Buffer) -> int:
        """Decompress and decode a batch; returns its record count. Reports faults."""
        run, decoder = self.run_of, self.run_of.decoder
        last = decoder.last_offset
        position = self._at + header.pos
        first = header.base_offset if header.base_offset >= 0 else max(last + 1, 0)
        try:
            payload = open_payload(header, buffer.raw, run.limit)
        except Damage as damage:
            if damage.too_large is not None:
                run.note(
                    UNSUPPORTED,
                    self.path,
                    f"the batch of {self.path} at byte {position} was not looked into: "
                    f"{damage.too_large}",
                    position=position,
                    first=first,
                    last=header.last_offset,
                )
            else:
                self._bad_inside(position, first, header.last_offset, damage.reason)
            return 0
        c = native.pointer(payload)
        base = decoder.decode_payload(
            header, c, len(payload), 0, native.OFFSET_MAX, native.CHECK_ALL
        )
        reason = jump = ""
        if decoder.error is not None:
            reason = decoder.error.reason
        elif decoder.count and header.magic < 2:
            reason = self._wrapper_fault(header)
            jump = self._wrapper_jump(base, last)
        if reason or jump:
            if not reason:
                self.jumps[position] = base
            self._bad_inside(
                position, first, header.last_offset, reason or jump, is_bad=bool(reason)
            )
        else:
            self._check_headers(
                Columns(decoder, c, memoryview_slicer(payload), len(payload))
            )
        return decoder.count

    def _wrapper_fault(self, header: native.BatchHeader) -> str:
        """The fault of the offsets inside a wrapper; "" if there is none."""
        decoder = self.run_of.decoder
        inner = int(decoder.offset[decoder.count - 1])
        if inner != header.last_offset:
            return f"its own offset is {header.last_offset}, that of its last {inner}"
        return ""

    def _wrapper_jump(self, base: int, last: int) -> str:
        """Why a wrapper does not follow the batch before; "" if it does."""
        if base <= last:
            return f"it begins with offset {base}, the batch before ends with {last}"
        is_known = last != native.OFFSET_UNKNOWN
        if is_known and base > last + 1 and self._checks & native.CHECK_GAPLESS:
            return f"it begins with offset {base}, not {last + 1}: others are missing"
        return ""

    def _bad_inside(
        self,
        position: int,
        first: int,
        last: int,
        reason: str,
        *,
        is_bad: bool = True,
    ) -> None:
        self.is_sound = False
        if is_bad:
            self.bad_ranges.append((position, position + 1))
        self.run_of.problem(
            DAMAGED_BATCH,
            self.path,
            f"batch of {self.path} at byte {position}, offsets {first} to {last}: "
            f"{reason}",
            position=position,
            first=first,
            last=last,
        )

    def _check_control(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Check the control batches of a buffer."""
        pos, stop = 0, native.STOP_FULL
        while stop == native.STOP_FULL:
            scan = native.scan_batches(buffer.c, end, pos=pos, checks=0)
            for header in scan.headers:
                if not header.is_control:
                    continue
                data = buffer.raw[header.pos : header.pos + header.size]
                position = file_pos + header.pos
                try:
                    batch = RecordBatch(
                        header._replace(pos=0), data, position, self.run_of.limit, _same
                    )
                    control = batch.control_record()
                except Damage as damage:
                    self._bad_inside(
                        position, header.base_offset, header.last_offset, damage.reason
                    )
                    continue
                if control and control.type == ABORT and self.aborted is not None:
                    self.aborted.add((header.producer_id, control.offset))
            pos, stop = scan.pos, scan.stop

    # -- derived files

    def _tabulate(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Count the intact batches of a buffer, and compare the indexes with them."""
        state, planner = self.state, self._planner
        state.raw.size = file_pos
        done = 0
        while done < end:
            before = int(state.raw.last_offset) - self.base
            taken, stop = planner.plan(state, buffer.c + done, end - done)
            if not taken:
                self._beyond_relative(buffer, done, end, file_pos, stop)
                break
            index, times = planner.entries()
            planner.commit(state)
            done += taken
            self.batches += len(index) // INDEX_ENTRY_BYTES
            if index and (self.index is not None or self.times is not None):
                table = numbers(index)
                run = Table(table[0::2], table[1::2], times, before)
                for companion in (self.index, self.times):
                    if companion is not None:
                        companion.hold(run)
        self.last_offset = self.run_of.decoder.last_offset

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
        if not self.is_sound:
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
        error: native.NativeError | None,
        stop: int,
    ) -> int:
        """Report the fault at `pos` and return where to continue."""
        decoder = self.run_of.decoder
        self._is_broken = True
        last = max(decoder.last_offset, self.last_offset)
        segment = RawSegment(
            self.directory, self.run_of.descriptors, self.name, self.base, self.size
        )
        # A compressed batch may contain bytes that look like a message after an invalid
        # offset: reject an offset that no segment can have.
        segment.next_offset = min(self.base + _RELATIVE_MAX + 1, native.OFFSET_MAX)
        here = segment.first_header(pos, native.Buffer(LOOKUP_BYTES))
        if error is not None and error.status == native.E_OFFSET and here is not None:
            is_known = here[0].base_offset >= 0
            stored = here[0].base_offset if is_known else here[0].last_offset
            if self._forgiven != pos and stored >= 0:
                # An intact batch in the wrong place: report it, and continue from it.
                self._forgiven = pos
                self._out_of_order(pos, last, here[0])
                # The first offset of a wrapper is inside of it.
                decoder.begin(stored - 1 if is_known else native.OFFSET_UNKNOWN)
                return pos
        if error is not None and error.status == native.E_CODEC:
            return self._step_over(buffer, pos, last, error)
        found = next_sound(segment, pos, last, self.behind)
        if found is None and self._forgiven >= 0:
            # A batch before may have claimed an offset that is far too large.
            found = next_sound(segment, pos, self.base - 1, self.behind)
        if found is None:
            # So may the last one, and the batches after it may contradict it.
            before = self._before_last(segment, last)
            if before is not None:
                found = next_sound(segment, pos, before, self.behind)
                last = last if found is None else before
        kind, reason = _kind_of(error, stop)
        end = self.size if found is None else found.pos
        size = end - pos
        self.is_skipped = True
        self._gaps.append((pos, end))
        self.state.raw.bytes_since = 1
        following = self._following(found)
        is_torn = self._is_torn(pos, last, error, has_more=found is not None)
        if kind == UNSUPPORTED:
            self.is_foreign |= self._is_framed(segment, pos, last)
        if is_torn:
            self.run_of.note(
                TORN_TAIL,
                self.path,
                f"{self.path} ends with {size} torn bytes at byte {pos} ({reason}); "
                f"the log ends before offset {last + 1}",
                position=pos,
                first=last + 1,
                last=None if following is None else following - 1,
            )
        else:
            self.is_sound = False
            has_offsets = following is None or following > last + 1
            to = "" if following is None else f" to {following - 1}"
            what = (
                f", offsets from {last + 1}{to}," if has_offsets else " between offsets"
            )
            self.run_of.problem(
                kind,
                self.path,
                f"{self.path} is damaged at byte {pos}: {reason}. {size} bytes{what} "
                f"cannot be read",
                position=pos,
                first=last + 1 if has_offsets else None,
                last=following - 1 if has_offsets and following is not None else None,
            )
        if found is not None:
            base = found.header.base_offset
            known = base > decoder.last_offset
            decoder.begin(base - 1 if known else native.OFFSET_UNKNOWN)
        return end

    def _following(self, found: Sound | None) -> int | None:
        """The first offset after a damaged part: that of the next intact batch, else
        that of what follows the segment. None: unknown."""
        if found is not None:
            first = found.first_offset()
            return None if first < 0 else first
        row = self.context.rows.get(self.base)
        return self.behind if row is None else row[2]

    def _before_last(self, segment: RawSegment, last: int) -> int | None:
        """The last offset before that of the last intact batch, if that batch jumps
        ahead: no checksum covers its offset. None if it does not."""
        if not self.runs or self.runs[-1].last != last:
            return None
        run, first = self.runs[-1], -1
        before = self.runs[-2].last if len(self.runs) > 1 else self.base - 1
        place = Place(run.begin, native.OFFSET_UNKNOWN)
        for header, _, at in segment.headers(place, checks=0):
            first = header.base_offset
            if at + header.size >= run.end:
                break
            before = header.last_offset
        return before if first < 0 or before + 1 < first else None

    def _out_of_order(self, pos: int, last: int, header: native.BatchHeader) -> None:
        """Report an intact batch whose offsets are not the expected ones."""
        self.is_sound, self.is_skipped = False, True
        first = header.base_offset if header.base_offset >= 0 else header.last_offset
        where = (
            f"the segment begins at {self.base}"
            if last < self.base
            else f"the batch before ends with {last}"
        )
        # After a gap, the offsets in the gap are those that cannot be read.
        is_gap = first > last + 1
        self.run_of.problem(
            OFFSETS,
            self.path,
            f"{self.path} at byte {pos} has a batch of offsets {first} to "
            f"{header.last_offset}, but {where}"
            + (": the log was written without gaps" if is_gap else ""),
            position=pos,
            first=last + 1 if is_gap else first,
            last=first - 1 if is_gap else header.last_offset,
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
        self.run_of.note(
            UNSUPPORTED,
            self.path,
            f"the batch of {self.path} at byte {pos} was not looked into: "
            f"{error.reason}",
            position=pos,
            first=last + 1,
            last=_last_offset_of(buffer),
        )
        return pos + size

    def _is_framed(self, segment: RawSegment, pos: int, last: int) -> bool:
        """Whether bytes that are not understood may still be a batch. They have an
        offset and length as a batch has, and end at the end of the file or at the next
        batch; and they do not lie past the durable point of a log that logstore wrote
        last, since logstore writes no magic above 2. Random bytes hardly ever match."""
        state = self.context.state
        if state is not None:
            row = self.context.rows.get(self.base)
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

    def _is_torn(
        self,
        pos: int,
        last: int,
        error: native.NativeError | None,
        *,
        has_more: bool,
    ) -> bool:
        """Whether opening for writing would cut the log here as a torn tail. A file
        that is not a log from its first byte on does not count as torn, although it
        would be cut."""
        context = self.context
        if not self.is_last:
            return False
        state = context.state
        if state is not None:
            if context.clean:
                return False
            active = state.active["base_offset"]
            return self.base > active or (
                self.base == active and pos >= state.active["size"]
            )
        if context.clean or has_more:
            return False
        if error is not None:
            if error.is_unsupported and not context.is_own:
                return False
            if pos == 0 and error.status in (native.E_NO_MAGIC, native.E_LENGTH):
                return False
        return last + 1 >= context.recovery_point


def _same(damage: Damage) -> Exception:
    return damage


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
