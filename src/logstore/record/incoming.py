"""Batches that a producer made: checking them and assigning their offsets.

`prepare` copies the caller's bytes, checks and decompresses them, which takes no lock;
`Prepared.place` assigns the offsets once they are known. Batches of transactions, and
the markers that end them, are refused unless the caller asks for them: a broker's log
has them, and no producer sends a marker.

Magic and codec of each batch stay. If the format allows it, only the offset is patched,
which no checksum covers; wrappers of magic 0, and of magic 1 whose inner offsets are
not 0, 1, 2, ..., are written again around their records. A header with a wrong largest
timestamp is corrected, as a broker does it.
"""

from __future__ import annotations

import array
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    UnsupportedError,
)
from logstore.record import compression
from logstore.record.batch import ABORT, COMMIT, ControlRecord, RecordBatch
from logstore.record.batch_search import MAGIC_POS
from logstore.record.decoder import Damage, damage_of, memoryview_slicer, open_payload
from logstore.record.encoder import keyless_error, wrap

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Prepared", "headers_of", "number_batches", "prepare"]

_OFFSET_AND_SIZE = struct.Struct(">qi")
_SCAN_COUNT: Final = 256
# Bytes that C reads in one piece, and bytes of one run that is passed on to it.
_WINDOW_BYTES: Final = (1 << 31) - 1
_RUN_BYTES: Final = 1 << 30
# In the header of a batch of magic 2: its CRC, the part it covers, largest timestamp.
_CRC: Final = struct.Struct(">I")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_CRC_POS: Final = 17
_ATTRIBUTES_POS: Final = 21
_MAX_TIMESTAMP_POS: Final = 35
# Producer id, epoch and first sequence, next to each other.
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_POS: Final = 43
_SEQUENCE_MAX: Final = (1 << 31) - 1
# `append` has the same lower bound; -1: no timestamp.
_TIMESTAMP_MIN: Final = -1
_ANY_TIME: Final = -(1 << 63)


class _Part:
    """Checked batches that are adjacent in a buffer.

    Attributes:
        data: the buffer; the batches are in it from `begin` to `end`.
        counts: number of records of each; of all, if they are plain.
        is_plain: C checked them, and assigns their offsets.
        payload: the decompressed messages of a single wrapper of magic 0: their offsets
            are absolute, so it is compressed again when they are known; else None.
    """

    __slots__ = ("begin", "counts", "data", "end", "is_plain", "payload")

    def __init__(
        self,
        data: bytearray,
        begin: int,
        payload: ReadableBuffer | None = None,
        *,
        is_plain: bool = False,
    ) -> None:
        self.is_plain = is_plain
        self.data = data
        self.begin = self.end = begin
        self.counts = array.array("q")
        self.payload = payload

    def headers(self) -> Iterator[native.BatchHeader]:
        """The headers of its batches, which are known to be valid."""
        return headers_of(self.data, self.begin, self.end)


def headers_of(
    data: ReadableBuffer, begin: int, end: int
) -> Iterator[native.BatchHeader]:
    """The headers of the batches in data[begin:end], which are known to be valid."""
    c, pos = native.pointer(data), begin
    while pos < end:
        # No `native.Headers`: it costs an append of one batch a hundredth more.
        size = min(end - pos, _WINDOW_BYTES)
        scan = native.scan_batches(c + pos, size, checks=0, count_max=_SCAN_COUNT)
        for header in scan.headers:
            yield header._replace(pos=pos + header.pos)
        pos += scan.pos


def number_batches(
    data: bytearray, producer_id: int, epoch: int, sequence: int
) -> list[native.BatchHeader]:
    """Turn valid batches of magic 2, which `data` consists of, into batches of a
    producer: the first one begins at a sequence. Returns their new headers."""
    numbered = []
    for header in headers_of(data, 0, len(data)):
        pos, end = header.pos, header.pos + header.size
        _PRODUCER.pack_into(data, pos + _PRODUCER_POS, producer_id, epoch, sequence)
        with memoryview(data) as whole, whole[pos + _ATTRIBUTES_POS : end] as covered:
            crc = native.crc32c(covered)
        _CRC.pack_into(data, pos + _CRC_POS, crc)
        numbered.append(
            header._replace(
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                crc=crc,
            )
        )
        count = header.last_offset - header.base_offset + 1
        sequence = (sequence + count) % (_SEQUENCE_MAX + 1)
    return numbered


class Prepared:
    """Checked batches without offsets. `place` may be called once.

    Attributes:
        count: number of offsets that they take.
        markers: the contents of the control batches among them, each of which ends a
            transaction.
    """

    def __init__(
        self,
        parts: list[_Part],
        max_bytes: int,
        markers: Sequence[ControlRecord] = (),
    ) -> None:
        self._parts = parts
        self._max_bytes = max_bytes
        self.count = sum(sum(part.counts) for part in parts)
        self.markers = markers

    def has_producer(self) -> bool:
        """Whether a batch is of a producer that numbers its records."""
        return any(
            native.has_producer(
                native.pointer(part.data) + part.begin, part.end - part.begin
            )
            for part in self._parts
        )

    def headers(self) -> Iterator[native.BatchHeader]:
        """The headers of the batches, in order, with the offsets they came with."""
        for part in self._parts:
            yield from part.headers()

    def place(
        self, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> tuple[list[memoryview], int]:
        """Assign offsets from `base_offset` on.

        Args:
            append_time_ms: replaces the timestamps (magic 1 and 2); None: keep them.

        Returns (runs of whole batches, number of offsets taken). The runs point into
        the memory of this object.

        Raises:
            RecordTooLargeError: a wrapper of magic 0 exceeds the limit with its new
                offsets.
        """
        runs: list[memoryview] = []
        offset = base_offset
        for part in self._parts:
            c = native.pointer(part.data)
            if part.is_plain:
                stamp = -1 if append_time_ms is None else append_time_ms
                size = part.end - part.begin
                native.place_batches(c + part.begin, size, offset, leader_epoch, stamp)
                offset += part.counts[0]
                runs.append(memoryview(part.data)[part.begin : part.end])
                continue
            for header, count in zip(part.headers(), part.counts, strict=True):
                last = offset + count - 1
                if part.payload is not None:
                    batch = _rewrapped(
                        header, part.payload, offset, last, -1, self._max_bytes
                    )
                    runs.append(memoryview(batch))
                else:
                    first = offset if header.magic == 2 else last
                    native.assign_offset(c, header, first, leader_epoch)
                    if append_time_ms is not None:
                        native.restamp(c, header, append_time_ms)
                offset += count
            if part.payload is None:
                runs.append(memoryview(part.data)[part.begin : part.end])
        return runs, self.count


def prepare(
    buffer: ReadableBuffer,
    *,
    max_bytes: int,
    decompressed_max: int,
    is_append_time: bool,
    where: str,
    transactions: bool = False,
    needs_keys: bool = False,
) -> Prepared:
    """Check producer batches. The caller may change `buffer` afterwards.

    Args:
        is_append_time: their timestamps will be replaced.
        transactions: batches of transactions and their markers may be among them.
        where: the partition, for messages.
        needs_keys: refuse a record without a key.

    Raises:
        InvalidRecordError: a record has no key, and needs one.
        CorruptRecordError: a bad checksum or structure, a partial last batch, or a
            timestamp below -1.
        UnsupportedError: an unknown magic; a control batch that ends no transaction;
            without `transactions`, any control batch, or one of a transaction.
        RecordTooLargeError: a batch exceeds `max_bytes` or `decompressed_max`.
    """
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(
            f"buffer is {type(buffer).__name__}, not a bytes-like object; nothing was "
            f"written"
        ) from None
    data = bytearray(view.cast("B"))
    check = _Check(
        max_bytes,
        decompressed_max,
        is_append_time=is_append_time,
        transactions=transactions,
        needs_keys=needs_keys,
    )
    pos = 0
    while pos < len(data):
        pos += check.take_plain(data, pos)
        if pos < len(data):
            pos = _take_others(check, data, pos, max_bytes, where)
    check.end()
    return Prepared(check.parts, max_bytes, check.markers)


def _take_others(
    check: _Check, data: bytearray, pos: int, max_bytes: int, where: str
) -> int:
    """Take some batches of `data` from `pos` on, of which the first is not plain.
    Returns their end."""
    window = min(len(data) - pos, _WINDOW_BYTES)
    # As many as are compressed, most probably; then there may be plain ones again.
    scan = native.scan_batches(
        native.pointer(data) + pos,
        window,
        checks=native.CHECK_CRC,
        count_max=_SCAN_COUNT,
    )
    for relative in scan.headers:
        header = relative._replace(pos=pos + relative.pos)
        try:
            check.take(data, header)
        except Damage as damage:
            raise _refused(damage, header.pos, where) from damage
    is_rest = window == len(data) - pos
    pos += scan.pos
    if scan.error is not None:
        raise _refused(damage_of(scan.error), pos, where)
    if scan.stop != native.STOP_FULL and scan.pos != window:
        if is_rest or (not scan.pos and scan.stop != native.STOP_PARTIAL):
            raise _refused(Damage("the last batch is partial", pos), pos, where)
        if not scan.pos:
            raise _too_large(window, max_bytes)
    return pos  # what follows the window is left for the next call


def _refused(damage: Damage, pos: int, where: str) -> Exception:
    if damage.too_large is not None:
        return damage.too_large
    text = f"batch at byte {pos} of the buffer for {where}: {damage.reason}"
    if damage.unsupported:
        return UnsupportedError(f"{text}; nothing was written", position=pos)
    return CorruptRecordError(
        f"{text}; nothing was written",
        path=f"<append_batches to {where}>",
        position=pos,
        offset=max(damage.offset, 0),
    )


def _too_large(size: int, max_bytes: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a batch takes {size} bytes, more than max_message_bytes={max_bytes}; nothing "
        f"was written",
        limit_name="max_message_bytes",
        limit=max_bytes,
        size=size,
    )


# Making a decoder takes as long as checking five hundred records.
_DECODERS_MAX = 4
_CAPACITY = 1024
_spare_decoders: list[native.Decoder] = []


class _Check:
    """Checks batches, and corrects what a broker would correct.

    Attributes:
        parts: the batches taken.
        markers: as in `Prepared`.
    """

    def __init__(
        self,
        max_bytes: int,
        decompressed_max: int,
        *,
        is_append_time: bool,
        transactions: bool,
        needs_keys: bool,
    ) -> None:
        self._max_bytes = max_bytes
        self._decompressed_max = decompressed_max
        self._is_append_time = is_append_time
        self._transactions = transactions
        self._needs_keys = needs_keys
        self._count = 0
        self._decoder = _decoder()
        self.parts: list[_Part] = []
        self.markers: list[ControlRecord] = []

    def end(self) -> None:
        """Another check may have its decoder."""
        if (
            len(_spare_decoders) < _DECODERS_MAX
            and self._decoder.arrays.capacity == _CAPACITY
        ):
            _spare_decoders.append(self._decoder)

    def take_plain(self, data: bytearray, pos: int) -> int:
        """Take the batches from a position on that need no more than a check; returns
        their bytes."""
        if self._needs_keys:
            return 0  # each record has to be looked at
        least = _ANY_TIME if self._is_append_time else _TIMESTAMP_MIN
        size, count = self._decoder.check_producer(
            native.pointer(data) + pos,
            min(len(data) - pos, _RUN_BYTES),
            max_bytes=self._max_bytes,
            timestamp_min=least,
        )
        if size:
            part = _Part(data, pos, is_plain=True)
            part.end += size
            part.counts.append(count)
            self.parts.append(part)
        return size

    def take(self, data: bytearray, header: native.BatchHeader) -> None:
        """Take the batch with this header in `data`; may write into it.

        Raises:
            Damage: the batch is refused.
        """
        is_of_broker = header.is_control or header.is_transactional
        if is_of_broker and not self._transactions:
            kind = "a control batch" if header.is_control else "part of a transaction"
            raise Damage(
                f"it is {kind}, which is appended only with transactions=True: a copy "
                f"of a broker's log",
                header.pos,
                unsupported=True,
            )
        if header.size > self._max_bytes:
            raise Damage(
                "too large",
                header.pos,
                too_large=_too_large(header.size, self._max_bytes),
            )
        if header.magic < 2 and not header.codec:
            # One record, which the walk over the headers has checked.
            self._check_times(header, [header.max_timestamp])
            if self._needs_keys:
                self._check_keys(_message_key_len(data, header), 1)
            self._add(data, header, 1)
            return
        if header.last_offset == native.OFFSET_MAX:
            # No record may have it: one past it is not an offset; decoding skips it.
            raise Damage(f"its last offset is {header.last_offset}", header.pos)
        decoder = self._decoder
        payload = open_payload(header, memoryview_slicer(data), self._decompressed_max)
        decoder.decode_payload(
            header, native.pointer(payload), len(payload), 0, native.OFFSET_MAX
        )
        if decoder.error is not None:
            raise damage_of(decoder.error, header.pos)
        count = decoder.count
        times = decoder.unpack(decoder.arrays.timestamp)
        self._check_times(header, times)
        if self._needs_keys:
            self._check_keys(decoder.arrays.key_len, count)
        offsets = decoder.unpack(decoder.arrays.offset)
        is_dense = bool(count) and offsets == list(
            range(offsets[0], offsets[0] + count)
        )
        if header.magic < 2:
            _check_inner_magic(header, payload)
        if header.magic == 2:
            _check_header_names(decoder, payload, header.pos)
            _check_numbers(header, count, is_dense, offsets)
            if header.is_control:
                self._take_marker(data, header, count)
            _set_max_timestamp(data, header, max(times))
            self._add(data, header, count)
        elif header.magic == 0:
            self._add(data, header, count, payload)
        elif is_dense and header.max_timestamp == max(times):
            self._add(data, header, count)
        else:
            rewrapped = bytearray(
                _rewrapped(header, payload, 0, count - 1, max(times), self._max_bytes)
            )
            self._add(rewrapped, header._replace(pos=0, size=len(rewrapped)), count)

    def _take_marker(
        self, data: bytearray, header: native.BatchHeader, count: int
    ) -> None:
        """Keep the marker in a control batch, or refuse it."""
        batch = RecordBatch(
            header._replace(pos=0),
            bytes(data[header.pos : header.pos + header.size]),
            0,
            self._decompressed_max,
            _at(header.pos),
        )
        control = batch.control_record()
        is_end = control is not None and control.type in (ABORT, COMMIT)
        is_marker = header.is_transactional and header.producer_id >= 0 and count == 1
        if control is None or not (is_end and is_marker):
            raise Damage(
                "it is a control batch that ends no transaction; control batches "
                "of Kafka's own logs are not appended",
                header.pos,
                unsupported=True,
            )
        self.markers.append(control)

    def _add(
        self,
        data: bytearray,
        header: native.BatchHeader,
        count: int,
        payload: ReadableBuffer | None = None,
    ) -> None:
        part = self.parts[-1] if self.parts else None
        end = header.pos + header.size
        if (
            part is None
            or part.is_plain
            or payload is not None
            or part.payload is not None
            or part.data is not data
            or part.end != header.pos
            or end - part.begin > _RUN_BYTES
        ):
            part = _Part(data, header.pos, payload)
            self.parts.append(part)
        part.counts.append(count)
        part.end = end

    def _check_keys(self, lengths: Any, count: int) -> None:
        """Raise `InvalidRecordError` if one of the records has no key."""
        keyless = native.first_null(lengths, count)
        if keyless >= 0:
            raise keyless_error(self._count + keyless)
        self._count += count

    def _check_times(self, header: native.BatchHeader, times: list[int]) -> None:
        """Raise `Damage` for a timestamp that no append would store."""
        if self._is_append_time or header.magic == 0 or not times:
            return
        oldest = min(times)
        if oldest < _TIMESTAMP_MIN:
            raise Damage(
                f"a record has the timestamp {oldest}, below {_TIMESTAMP_MIN}",
                header.pos,
            )


def _at(pos: int) -> Callable[[Damage], Exception]:
    """Damage inside a batch, as damage of the batch at a position."""

    def moved(damage: Damage) -> Exception:
        damage.pos = pos
        return damage

    return moved


def _message_key_len(data: bytearray, header: native.BatchHeader) -> Any:
    """The length of the key of a plain message of magic 0 or 1, for C."""
    position = header.pos + (18 if header.magic == 0 else 26)
    (length,) = _INT32.unpack_from(data, position)
    return native.int32_array([length])


def _decoder() -> native.Decoder:
    """A decoder that is not in use, reused or new."""
    try:
        return _spare_decoders.pop()
    except IndexError:
        return native.Decoder(_CAPACITY)


def _set_max_timestamp(
    data: bytearray, header: native.BatchHeader, newest: int
) -> None:
    """Write the largest timestamp into the header of a batch of magic 2."""
    if header.max_timestamp == newest:
        return
    pos, end = header.pos, header.pos + header.size
    _INT64.pack_into(data, pos + _MAX_TIMESTAMP_POS, newest)
    with memoryview(data) as whole, whole[pos + _ATTRIBUTES_POS : end] as covered:
        crc = native.crc32c(covered)
    _CRC.pack_into(data, pos + _CRC_POS, crc)


def _check_numbers(
    header: native.BatchHeader, count: int, is_dense: bool, offsets: list[int]
) -> None:
    """Raise `Damage` if the records of a batch of magic 2 are not numbered 0, 1, 2,
    ..., or if their sequence number is invalid."""
    if not is_dense or offsets[0] != header.base_offset or (
        header.last_offset - header.base_offset + 1 != count
    ):  # fmt: skip
        raise Damage(
            f"its {count} records do not have the offsets 0, 1, 2, ...", header.pos
        )
    if header.is_transactional and header.producer_id < 0:
        raise Damage("it is part of a transaction of no producer", header.pos)
    if header.is_control:
        return
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise Damage(
            f"producer {header.producer_id} gave it the sequence number "
            f"{header.base_sequence}",
            header.pos,
        )


def _rewrapped(
    header: native.BatchHeader,
    payload: ReadableBuffer,
    first: int,
    last: int,
    newest: int,
    max_bytes: int,
) -> bytes:
    """A wrapper around the same messages, numbered from `first` on."""
    packed = compression.compress(
        header.codec,
        _renumber(payload, first),
        header.magic,
        compression.level_of(_DEFAULTS, header.codec),
    )
    attributes = header.attributes & (0x07 if header.magic == 0 else 0x0F)
    return wrap(packed, header.magic, attributes, last, newest, max_bytes)


_DEFAULTS = TopicConfig()


def _check_header_names(
    decoder: native.Decoder, payload: bytes | bytearray | memoryview, pos: int
) -> None:
    """Raise `Damage` for a header name that is not UTF-8: reading it would not give the
    written bytes."""
    counts = decoder.unpack(decoder.arrays.header_count)
    if not any(counts):
        return
    c = native.pointer(payload)
    view = memoryview(payload)
    places = decoder.unpack(decoder.arrays.header_pos)
    for place, count in zip(places, counts, strict=True):
        if not count:
            continue
        for name_pos, size, _, _ in native.decode_headers(
            c, len(payload), place, count
        ):
            try:
                str(view[name_pos : name_pos + size], "utf-8")
            except UnicodeDecodeError:
                # Without the cause, which contains the name.
                raise Damage("a header name is not UTF-8", pos) from None


def _check_inner_magic(header: native.BatchHeader, payload: ReadableBuffer) -> None:
    """Raise `Damage` if a wrapper has messages of another magic: only cleaners of Kafka
    0.10 have made some, no producer."""
    data, pos = memoryview(payload), 0
    while pos < len(data):
        _, size = _OFFSET_AND_SIZE.unpack_from(data, pos)
        magic = data[pos + MAGIC_POS]
        if magic != header.magic:
            raise Damage(
                f"a wrapper of magic {header.magic} holds a message of magic {magic}",
                header.pos,
            )
        pos += _OFFSET_AND_SIZE.size + size


def _renumber(payload: ReadableBuffer, first: int) -> bytes:
    """Inner messages with other offsets, from `first` on; no checksum covers them."""
    out = bytearray(payload)
    pos = 0
    while pos < len(out):
        _, size = _OFFSET_AND_SIZE.unpack_from(out, pos)
        _OFFSET_AND_SIZE.pack_into(out, pos, first, size)
        first += 1
        pos += _OFFSET_AND_SIZE.size + size
    return bytes(out)
