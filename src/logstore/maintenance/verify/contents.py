"""Contents of batches: compressed payloads, record headers, control records."""

from __future__ import annotations

from logstore import _native as native
from logstore.maintenance.finding import NOTE
from logstore.maintenance.verify.log_facts import (
    BadBatch,
    BadHeader,
    LogFacts,
    NotLookedInto,
)
from logstore.maintenance.verify.report import Run
from logstore.record.batch import ABORT, RecordBatch
from logstore.record.decoder import (
    Damage,
    memoryview_slicer,
    open_payload,
    read_headers,
)

__all__ = ["Contents"]


class Contents:
    """Looks into the batches of a `.log` file that is walked over.

    Args:
        log: receives the faults.
        checks: of the order of offsets, `native.CHECK_*`.
        aborted: receives (producer id, offset) of each ABORT marker.
    """

    def __init__(
        self,
        run: Run,
        log: LogFacts,
        checks: int,
        aborted: set[tuple[int, int]] | None,
    ) -> None:
        self._run = run
        self._log = log
        self._checks = checks
        self._aborted = aborted

    def headers(self, columns: native.Columns) -> None:
        """Decode the record headers of a run."""
        decoder = columns.decoder
        if not decoder.has_headers:
            return
        counts = decoder.unpack(decoder.arrays.header_count)
        places = decoder.unpack(decoder.arrays.header_pos)
        offsets = decoder.unpack(decoder.arrays.offset)
        for slot, count in enumerate(counts):
            if not count:
                continue
            try:
                read_headers(columns.c, columns.raw, columns.size, places[slot], count)
            except Damage as damage:
                log, offset = self._log, offsets[slot]
                log.bad_offsets.append(offset)
                log.faults.append(BadHeader(offset, damage.reason))

    def compressed(
        self, buffer: native.Buffer, n: int, pos: int, file_pos: int
    ) -> tuple[int, int, native.NativeError | None]:
        """Walk over the compressed batches at `pos` of a buffer, which is at byte
        `file_pos` of the file: (end, records, error)."""
        decoder = self._run.decoder
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
                if self._log.is_deep:
                    records += self._payload(header, buffer, file_pos)
                else:
                    self._run.unopened += 1
                    if header.record_count >= 0:
                        records += header.record_count
                    elif decoder.last_offset == native.OFFSET_UNKNOWN:
                        records += 1  # or more: unknown
                    else:
                        records += header.last_offset - decoder.last_offset
                decoder.last_offset = header.last_offset
                pos = header.pos + header.size
            if scan.error is not None or scan.stop != native.STOP_FULL:
                error = scan.error
                if error is not None and error.pos > pos:
                    error = None
                return pos, records, error
            want = min(want * 2, 64)

    def _payload(
        self, header: native.BatchHeader, buffer: native.Buffer, file_pos: int
    ) -> int:
        """Decompress and decode a batch; returns its record count."""
        run, decoder = self._run, self._run.decoder
        last = decoder.last_offset
        position, end = file_pos + header.pos, header.last_offset
        first = header.base_offset if header.base_offset >= 0 else max(last + 1, 0)
        try:
            payload = open_payload(header, buffer.raw, run.limit)
        except Damage as damage:
            if damage.too_large is None:
                self._bad(position, first, end, damage.reason)
            else:
                place = position, first, end
                self._log.faults.append(NotLookedInto(NOTE, *place, damage.too_large))
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
        if jump and not reason:
            self._log.jumps[position] = base
        if reason or jump:
            self._bad(position, first, end, reason or jump, is_bad=bool(reason))
        else:
            self.headers(
                native.Columns(decoder, c, memoryview_slicer(payload), len(payload))
            )
        return decoder.count

    def _wrapper_fault(self, header: native.BatchHeader) -> str:
        """The fault of the offsets inside a wrapper; "" without one."""
        decoder = self._run.decoder
        inner = int(decoder.arrays.offset[decoder.count - 1])
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

    def _bad(
        self, position: int, first: int, last: int, reason: str, *, is_bad: bool = True
    ) -> None:
        log = self._log
        log.is_intact = False
        if is_bad:
            log.bad_ranges.append((position, position + 1))
        log.faults.append(BadBatch(position, first, last, reason, log.last_good))

    def control(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Check the control batches of a buffer."""
        for header in native.Headers(buffer.c, end, checks=0):
            if not header.is_control:
                continue
            data = buffer.raw[header.pos : header.pos + header.size]
            position = file_pos + header.pos
            try:
                batch = RecordBatch(
                    header._replace(pos=0), data, position, self._run.limit, _same
                )
                control = batch.control_record()
            except Damage as damage:
                first, last = header.base_offset, header.last_offset
                self._bad(position, first, last, damage.reason)
                continue
            if control and control.type == ABORT and self._aborted is not None:
                self._aborted.add((header.producer_id, control.offset))


def _same(damage: Damage) -> Exception:
    return damage
