"""From bytes on disk to records: one decoder of runs of batches for all readers.

`ChunkReader` yields decoded columns, which become `Record` objects here and Arrow
columns in `logstore.record.arrow_batches`. A batch that cannot be read raises `Damage`,
which the caller converts when it knows the file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from logstore import _native as native
from logstore.errors import CorruptRecordError, RecordTooLargeError, UnsupportedError
from logstore.record import compression

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from logstore.record.record import Headers

__all__ = [
    "ChunkReader",
    "Damage",
    "StopReading",
    "BatchFilter",
]


class BatchFilter(Protocol):
    """Decides which batches of transactions to deliver (``read_committed``).

    Attributes:
        undecided: the damage because of which the last `StopReading` was raised; None:
            a transaction is still open.
    """

    undecided: CorruptRecordError | UnsupportedError | None

    def __call__(self, header: native.BatchHeader) -> bool:
        """Whether to deliver a batch. It may raise `StopReading`."""

    def begin_again(self, view: Any, offset: int) -> None:
        """Forget what was learned of the log, because the log was changed. From
        `offset` on, calls concern batches of another `logstore.log.read.view.View`."""


class Damage(Exception):
    """A batch cannot be read; the file is not known here.

    Attributes:
        reason: the contradiction.
        pos: where the batch begins in the buffer.
        offset: the first offset that is not delivered; -1 unknown.
        unsupported: the batch is of an unknown form, which is not damage.
        is_order: its offsets contradict the batch before, and either of the two may be
            wrong.
        too_large: the error to raise if the batch exceeds a limit.
    """

    def __init__(
        self,
        reason: str,
        pos: int,
        offset: int = -1,
        *,
        unsupported: bool = False,
        is_order: bool = False,
        too_large: RecordTooLargeError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pos = pos
        self.offset = offset
        self.unsupported = unsupported
        self.is_order = is_order
        self.too_large = too_large


def damage_of(
    error: native.NativeError,
    pos: int | None = None,
    *,
    offset: int = -1,
) -> Damage:
    """Damage that C found. The offset in the frame is not used: no checksum covers it,
    and a wrapper's is its last offset."""
    too_large = None
    if error.status == native.E_TOO_LARGE:
        too_large = RecordTooLargeError(
            f"a record has more than {native.HEADERS_MAX} headers",
            limit_name="headers",
            limit=native.HEADERS_MAX,
        )
    return Damage(
        error.reason,
        error.pos if pos is None else pos,
        offset,
        unsupported=error.is_unsupported,
        is_order=error.status == native.E_OFFSET,
        too_large=too_large,
    )


class ChunkReader:
    """Decodes a buffer of batches, compressed or not, into columns.

    After `columns` is exhausted, `pos` is its end and `stop` is the reason. `Damage` is
    raised after all records before the damage were yielded.

    Args:
        limit: most bytes that a batch may decompress to.
        wanted: None delivers all batches.
        capacity: records decoded at a time; more if one batch has more.
    """

    def __init__(
        self,
        limit: int,
        *,
        with_headers: bool = True,
        batch_filter: BatchFilter | None = None,
        capacity: int = 16384,
    ) -> None:
        self.limit = limit
        self.decoder = native.Decoder(capacity, with_headers=with_headers)
        self.batch_filter = batch_filter
        self.pos = 0
        self.stop = native.STOP_END
        self.ended = False
        # Of a read that had to continue in segments that were compacted since it began:
        # the end of the log then. 0: it had not.
        self.compacted_end = 0
        self.checks = native.CHECK_ALL

    def columns(
        self,
        c: Any,
        raw: Any,
        size: int,
        last_offset: int,
        checks: int,
        start: int = 0,
        stop: int = native.OFFSET_MAX,
        *,
        pos: int = 0,
        owner: Any = None,
    ) -> Iterator[native.Columns]:
        """Records with start <= offset < stop of the batches in c[pos, size).

        Args:
            last_offset: the first batch must lie after it; `checks` says how exactly.
            owner: keeps these bytes alive and unchanged; None: nothing does.
        """
        self.decoder.last_offset, self.checks = last_offset, checks
        self.ended = False
        if self.batch_filter is not None:
            yield from self._filtered_columns(c, raw, size, pos, start, stop, owner)
            return
        decoder = self.decoder
        while True:
            reason = decoder.decode(c, size, pos, start, stop, self.checks)
            pos = self.pos = decoder.pos
            self.stop = reason
            error = decoder.error
            if decoder.count:
                yield native.Columns(decoder, c, raw, size, owner)
            if error is not None:
                raise damage_of(error)
            if reason == native.STOP_FULL:
                continue
            if reason != native.STOP_COMPRESSED:
                return
            last_offset = decoder.last_offset
            scan = native.scan_batches(
                c,
                size,
                pos=pos,
                last_offset=last_offset,
                checks=self.checks,
                count_max=1,
            )
            if scan.error is not None:
                raise damage_of(scan.error)
            header = scan.headers[0]
            if not header.is_control:
                base = yield from self._one(header, raw, start, stop, last_offset)
                if base >= stop:
                    decoder.last_offset = last_offset
                    self.stop = native.STOP_OFFSET
                    return
            decoder.last_offset = header.last_offset
            pos = self.pos = header.pos + header.size

    def _one(
        self, header: native.BatchHeader, raw: Any, start: int, stop: int, before: int
    ) -> Generator[native.Columns, None, int]:
        """The records of one compressed batch; the one before ended at `before`. Its
        first offset."""
        decoder = self.decoder
        payload = open_payload(header, raw, self.limit)
        c = native.pointer(payload)
        checks = self.checks
        base = decoder.decode_payload(header, c, len(payload), start, stop, checks)
        error = decoder.error
        if error is None and before != native.OFFSET_UNKNOWN:
            # The first offset of a wrapper is known only after decoding.
            if checks & native.CHECK_GAPLESS and base != before + 1:
                raise Damage(
                    f"a batch begins at offset {base} where {before + 1} must follow",
                    header.pos,
                    before + 1,
                    is_order=True,
                )
            if header.magic < 2 and base <= before:
                raise Damage(
                    f"a batch begins at offset {base}, and the one before ends with "
                    f"{before}",
                    header.pos,
                    before + 1,
                    is_order=True,
                )
        if decoder.count:
            yield native.Columns(decoder, c, slicer_of(payload), len(payload), payload)
        if error is not None:
            raise damage_of(error, header.pos)
        return base

    def _plain(
        self,
        header: native.BatchHeader,
        c: Any,
        raw: Any,
        start: int,
        stop: int,
        owner: Any,
    ) -> Iterator[native.Columns]:
        """The records of one uncompressed batch."""
        decoder = self.decoder
        decoder.last_offset = native.OFFSET_UNKNOWN
        end = header.pos + header.size
        decoder.decode(c, end, header.pos, start, stop, self.checks)
        if decoder.count:
            yield native.Columns(decoder, c, raw, end, owner)
        if decoder.error is not None:
            raise damage_of(decoder.error)

    def _filtered_columns(
        self, c: Any, raw: Any, size: int, pos: int, start: int, stop: int, owner: Any
    ) -> Iterator[native.Columns]:
        batch_filter = self.batch_filter
        assert batch_filter is not None
        last_offset = self.decoder.last_offset
        headers = native.Headers(
            c, size, pos=pos, last_offset=last_offset, checks=self.checks
        )
        for header in headers:
            self.pos = header.pos
            if max(header.base_offset, last_offset + 1) >= stop:
                self.decoder.last_offset = last_offset
                self.stop = native.STOP_OFFSET
                return
            deliver = header.last_offset >= start and not header.is_control
            if deliver and header.is_transactional:
                # Not asked below `start`: the markers there have not been read.
                try:
                    deliver = batch_filter(header)
                except StopReading:
                    self.decoder.last_offset = last_offset
                    self.ended = True
                    self.stop = native.STOP_OFFSET
                    return
            if deliver and header.codec:
                base = yield from self._one(header, raw, start, stop, last_offset)
                if base >= stop:
                    self.decoder.last_offset = last_offset
                    self.stop = native.STOP_OFFSET
                    return
            elif deliver:
                yield from self._plain(header, c, raw, start, stop, owner)
            last_offset = header.last_offset
        self.pos, self.stop = headers.pos, headers.stop
        self.decoder.last_offset = last_offset
        if headers.error is not None:
            if last_offset + 1 < stop:
                raise damage_of(headers.error)
            self.stop = native.STOP_OFFSET  # all wanted records are before it


class StopReading(Exception):
    """No record from here on may be delivered (the last stable offset is reached)."""


def slicer_of(payload: bytes | bytearray | memoryview) -> Any:
    """An object whose slices are bytes."""
    return payload if isinstance(payload, bytes) else memoryview_slicer(payload)


class memoryview_slicer:
    """Slices of a buffer as bytes."""

    __slots__ = ("_view",)

    def __init__(self, data: ReadableBuffer) -> None:
        self._view = memoryview(data)

    def __getitem__(self, part: slice) -> bytes:
        return bytes(self._view[part])


def open_payload(
    header: native.BatchHeader, raw: Any, limit: int
) -> bytes | bytearray | memoryview:
    """The decompressed payload of a batch whose checksum was verified.

    Raises:
        Damage: the codec finds the stream damaged, or it exceeds `limit` bytes.
    """
    if header.payload_size < 0:
        raise Damage("a wrapper has a null value", header.pos)
    begin = header.pos + header.payload_pos
    payload: bytes = raw[begin : begin + header.payload_size]
    if header.codec == 0 or (header.magic == 2 and header.record_count == 0):
        return payload
    try:
        return compression.decompress(
            header.codec, memoryview(payload), header.magic, limit
        )
    except compression.CodecError as error:
        raise Damage(str(error), header.pos) from error
    except RecordTooLargeError as error:
        raise Damage(str(error), header.pos, too_large=error) from error


def read_headers(c: Any, raw: Any, size: int, pos: int, count: int) -> Headers:
    """The headers of one record."""
    try:
        return tuple(
            (
                # Names that are not UTF-8: as Kafka's consumer reads them.
                str(raw[kp : kp + kn], "utf-8", "replace"),
                raw[vp : vp + vn] if vn >= 0 else None,
            )
            for kp, kn, vp, vn in native.decode_headers(c, size, pos, count)
        )
    except native.NativeError as error:
        raise damage_of(error) from error
