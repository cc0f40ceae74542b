"""What is inside batches: compressed payloads, record headers, control records."""

from __future__ import annotations

from logstore import _native as native
from logstore.maintenance.finding import DAMAGED_BATCH, UNSUPPORTED
from logstore.maintenance.verify.report import Run
from logstore.record.batch import ABORT, RecordBatch
from logstore.record.decoder import (
    Columns,
    Damage,
    memoryview_slicer,
    open_payload,
    read_headers,
)

__all__ = ["ContentsCheck"]


class ContentsCheck:
    """The checks of what is inside the batches of a `.log` file.

    Attributes:
        run_of: receives the findings.
        path: of the file.
        is_deep: whether the contents of compressed batches are checked.
        is_intact: whether nothing in it was damaged.
        bad_ranges: position ranges of intact batches whose contents are wrong, and
        bad_offsets: offsets of records that are wrong.
        last_good: last offset before a batch that is out of order; before the segment
            while there is none.
        jumps: position -> first offset of intact wrappers that do not follow the batch
            before them.
        aborted: receives (producer id, offset) of each ABORT marker.
    """

    def __init__(
        self, run: Run, path: str, checks: int, aborted: set[tuple[int, int]] | None
    ) -> None:
        self.run_of = run
        self.path = path
        self.is_deep = run.deep
        self.is_intact = True
        self.bad_ranges: list[tuple[int, int]] = []
        self.bad_offsets: list[int] = []
        self.jumps: dict[int, int] = {}
        self.aborted = aborted
        self._checks = checks
        self.last_good = -1
        self._at = 0  # file position of the buffer

    def _check_headers(self, columns: Columns) -> None:
        """Decode the record headers of a run."""
        decoder = columns.decoder
        if not decoder.has_headers:
            return
        counts = decoder.unpack(decoder.header_count)
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
                    first_offset=offsets[slot],
                    last_offset=offsets[slot],
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
                else:
                    self.run_of.unopened += 1
                    if header.record_count >= 0:
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
                    first_offset=first,
                    last_offset=header.last_offset,
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
        self.is_intact = False
        # After a batch that is out of order, others have offsets that were read.
        begin = max(first, self.last_good + 1)
        if is_bad:
            self.bad_ranges.append((position, position + 1))
        self.run_of.problem(
            DAMAGED_BATCH,
            self.path,
            f"batch of {self.path} at byte {position}, offsets {first} to {last}: "
            f"{reason}",
            position=position,
            first_offset=begin,
            last_offset=last if last >= begin else None,
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


def _same(damage: Damage) -> Exception:
    return damage
