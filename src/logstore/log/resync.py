"""Finds where a log continues after damage.

The length of a damaged batch may be damaged, too. Usually it then leads to no batch.
But it may lead to the beginning of a later batch, or to the end of the file, as if the
batches between were part of the damaged one. So a length is trusted only after a check
of the offsets: `_inside`.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.config import StoreConfig
from logstore.errors import CorruptRecordError, LogStoreError, UnsupportedError
from logstore.record.batch import RecordBatch
from logstore.record.batch_search import BATCH_BYTES_MIN, MAGIC_POS, possible_batches
from logstore.record.decoder import Damage
from logstore.record.file_walk import FRAME_BYTES, LENGTH_END
from logstore.segment import READ_BYTES, OffsetPosition, Segment

__all__ = [
    "Sound",
    "first_at",
    "first_offset_of",
    "have_changed_places",
    "is_behind_torn",
    "is_contradicted",
    "is_unfinished",
    "may_end_transaction",
    "next_in_order",
    "next_valid",
    "next_valid_batch",
    "passed_over",
]

# Offset, length, magic; in magic 2 the last offset delta and the number of records
# (docs/format.md, "Record batch of magic 2").
_HEADER: Final = struct.Struct(">qi4xb6xi30xi")
_CODEC_POS: Final = 22
_CODEC_MASK: Final = 7
_COUNT_POS: Final = 57
_RECORDS_POS: Final = _HEADER.size
_KEY_POS: Final = (18, 26)
# Of a message: the attributes; the upper half of the timestamp, or the length of the
# key; the timestamp with the length of the key.
_FIELDS: Final = (((17, 18), (18, 22)), ((17, 18), (18, 22), (18, 30)))
# `_inside` tries at most this many runs of batches, which are separated by further
# damage: else many damaged batches would be walked over for each one of them.
_RUNS_MAX: Final = 8
# A control batch has 78 bytes, or fewer if its record was removed.
_CONTROL_BYTES_MAX: Final = 96
# The checksum of magic 2 follows the frame, and covers what follows it.
_MAGIC_2_COVERED: Final = FRAME_BYTES + 4


class Sound(NamedTuple):
    """A batch whose checksum is correct.

    Attributes:
        pos: of its first byte in the file.
        header: with its place in `buffer`.
    """

    pos: int
    header: native.BatchHeader
    buffer: native.Buffer

    @property
    def end(self) -> int:
        return self.pos + self.header.size

    def first_offset(self) -> int:
        """Its first offset, also for a wrapper; -1 if it is unknown."""
        header = self.header
        if header.base_offset >= 0:
            return header.base_offset
        return first_offset_of(header, self.data)

    def least_offset(self) -> int:
        """Its first offset; of a wrapper that cannot be opened, the last one."""
        first = self.first_offset()
        return self.header.last_offset if first < 0 else first

    def has(self, offset: int) -> bool:
        """Whether an offset belongs to it."""
        return self.least_offset() <= offset <= self.header.last_offset

    @property
    def offsets(self) -> tuple[int, int]:
        """The first one, -1 if it is unknown, and the last one."""
        return self.first_offset(), self.header.last_offset

    @property
    def data(self) -> bytes:
        header = self.header
        return bytes(self.buffer.raw[header.pos : header.pos + header.size])

    def ends_with_its_content(self) -> bool:
        """Whether its last offset, which no checksum covers, is that of its last
        record. Only the messages in a wrapper of magic 0 have absolute offsets."""
        if self.header.base_offset >= 0 or self.header.magic > 0:
            return True
        offsets = [record.offset for record in _opened(self.header, self.data)]
        return offsets[-1:] == [self.header.last_offset]


def first_offset_of(header: native.BatchHeader, data: bytes) -> int:
    """The first offset of a batch, from its content; -1 if it is unknown."""
    try:
        return _opened(header, data).base_offset
    except (Damage, LogStoreError):
        return -1


def _opened(header: native.BatchHeader, data: bytes) -> RecordBatch:
    limit = StoreConfig().max_batch_decompressed_bytes
    return RecordBatch(header._replace(pos=0), data, 0, limit, _same)


def _same(damage: Damage) -> Exception:
    return damage


def next_valid_batch(
    segment: Segment, bad_pos: int, offset: int, *, following: int | None = None
) -> Sound | None:
    """The first valid batch after a damaged one.

    It is sought at the end that the length of the damaged batch gives, if the offsets
    confirm it; else at the end of its content, likewise; else at every byte. None if
    there is no valid batch up to the end of the segment.

    Args:
        offset: the last offset of the valid batch is this or above, and in the segment.
        following: first offset after the segment; None: its `next_offset`.
    """
    following = segment.next_offset if following is None else following
    inside: Sound | None = None
    for size in _sizes(segment, bad_pos):
        end = bad_pos + size
        next_batch = _valid_at(segment, end, offset) if end < segment.size else None
        if next_batch is None and end != segment.size:
            continue
        after = following if next_batch is None else next_batch.first_offset()
        head = _inside(segment, bad_pos, end, offset, after, next_batch)
        if head is None:
            return next_batch
        inside = inside or head
    if inside is not None:
        return inside
    return next(_valid_between(segment, bad_pos + 1, segment.size, offset), None)


def next_valid(
    segment: Segment, pos: int, last: int, following: int | None = None
) -> Sound | None:
    """The next intact batch after a damaged one at `pos`; None if no batch up to the
    end of the file is. Its offsets lie after `last`, and in the segment.

    `following`: the first offset after the segment, if it is known.
    """
    begin = _skip_zeros(segment, pos)
    following = -1 if following is None else following
    return next_valid_batch(segment, begin, last + 1, following=following)


def next_in_order(segment: Segment, pos: int, offset: int) -> Sound | None:
    """`next_valid_batch` after damage at `pos`, except a batch with a wrong offset: the
    next batch contradicts it, or it has changed places with the damaged one."""
    wrong = _valid_at(segment, pos, 0)
    batch = next_valid_batch(segment, pos, offset)
    if wrong is not None and batch is not None:
        beyond = first_at(segment, batch.end)
        if have_changed_places(offset - 1, wrong.offsets, batch.offsets, beyond):
            return next_valid_batch(segment, batch.pos, batch.header.last_offset + 1)
    while batch is not None and is_contradicted(segment, batch, offset - 1):
        batch = next_valid_batch(segment, batch.pos, offset)
    return batch


def is_contradicted(segment: Segment, batch: Sound, before: int) -> bool:
    """Whether the offsets of a batch, which no checksum covers, are wrong: the batch
    after it begins in the gap that they leave after `before`, or below their end."""
    first = first_at(segment, batch.end)
    if first is None or not before < first <= batch.header.last_offset:
        return False
    return batch.first_offset() != before + 1 or not batch.ends_with_its_content()


def have_changed_places(
    before: int, ahead: tuple[int, int], behind: tuple[int, int], beyond: int | None
) -> bool:
    """Whether either of two batches may have a wrong offset, since the second has lower
    ones. If not, the first has: its offsets are not below the following ones.

    Args:
        before: the last offset before the two.
        ahead, behind: first and last offset of the first and the second.
        beyond: the first offset after them; None: unknown.
    """
    if behind[1] >= ahead[0]:
        return False
    return behind[0] == before + 1 or (beyond is not None and beyond > ahead[1])


def passed_over(
    segment: Segment, pos: int, end: int, last: int
) -> tuple[int, Sound] | None:
    """An intact batch among the damaged bytes [pos, end) of a log that may have gaps,
    whose offsets are in a gap before `pos`: it is not in its place, so the gap is
    none. It is given with the last offset before the gap.

    Bytes inside the damaged batch, by the length that it states, are content.

    Args:
        last: where the batch before `pos` ends.
    """
    data = _bytes_at(segment, pos, FRAME_BYTES)
    inside = pos + LENGTH_END + int.from_bytes(data[8:LENGTH_END], "big")
    batches = _valid_between(segment, pos + 1, end, segment.base_offset)
    for batch in itertools.islice(batches, _RUNS_MAX):
        if batch.header.last_offset <= last and batch.end > inside:
            before = _gap_of(segment, pos, *batch.offsets)
            if before is not None:
                return before, batch
    return None


def _gap_of(segment: Segment, end: int, first: int, last: int) -> int | None:
    """The last offset before the gap that has offsets `first` (-1: unknown) to `last`,
    between two batches before the position `end`; None without such a gap."""
    before, least = segment.base_offset - 1, last if first < 0 else first
    with contextlib.suppress(CorruptRecordError, UnsupportedError):
        for header, buffer, pos in segment.headers(checks=0):
            if pos >= end:
                return None
            if header.last_offset >= least:
                is_gap = last < Sound(pos, header, buffer).least_offset()
                return before if is_gap else None
            before = header.last_offset
    return None


def first_at(segment: Segment, pos: int) -> int | None:
    """The first offset of the batch at a position; at the end of the segment, the next
    offset. None: there is no intact batch."""
    if pos >= segment.size:
        return segment.next_offset
    checked_header = segment.first_header(pos)
    if checked_header is None:
        return None
    header, buffer, _ = checked_header
    return Sound(pos, header, buffer).least_offset()


def is_behind_torn(segment: Segment, pos: int, intact: Sound) -> bool:
    """Whether an intact batch can be the one after a batch at `pos` that extends past
    the end of the file. Otherwise it is part of the records of that batch, which hold
    another log: the offsets of the batch at `pos` show this, if two of its fields agree
    on them; in a log with gaps, the lengths of its records."""
    stated = _stated_offsets(segment, pos)
    if stated.last < 0:
        return True
    first = intact.first_offset()
    if first == stated.last + 1:
        return True
    if first < stated.last or segment.is_contiguous:
        return False
    data = _bytes_at(segment, pos, intact.pos - pos)
    return not _is_content(data, _magics(data))


def is_unfinished(segment: Segment, pos: int, last: int, intact: Sound) -> bool:
    """Whether a call of several batches was not finished at `pos`: its writer writes
    the frame of the first one last. The batch before it ends at the offset `last`.

    Zeros in its place are not enough, since they may be damage. The checksum of the
    batch, which does not cover the frame, must be that of the bytes up to a later
    intact batch; or the nearest one, `intact`, is part of its records. The checksum of
    a message of magic 0 or 1 is in the frame: its lengths must lead to that batch, and
    a field between the frame and the key may be zeros only if it is in that batch, too.
    """
    head = _bytes_at(segment, pos, _MAGIC_2_COVERED)
    if len(head) < _MAGIC_2_COVERED or any(head[:FRAME_BYTES]):
        return False
    stated = _stated_offsets(segment, pos, magic=2)
    data = _bytes_at(segment, pos, intact.pos - pos)
    stored = int.from_bytes(head[FRAME_BYTES:], "big")
    if stored and stated.last >= 0 and _is_content(data, b"\2"):
        return True
    position, crc = pos + _MAGIC_2_COVERED, 0
    for behind in _valid_between(segment, position, segment.size, last + 1):
        crc = native.crc32c(_bytes_at(segment, position, behind.pos - position), crc)
        position, magic = behind.pos, behind.header.magic
        if crc == stored:
            return True
        data = _bytes_at(segment, pos, min(position - pos, READ_BYTES))
        if magic < 2 and _message_end(data, magic) == position - pos:
            other = _bytes_at(segment, position, _KEY_POS[magic] + 4)
            return all(any(data[i:j]) or not any(other[i:j]) for i, j in _FIELDS[magic])
    return False


def may_end_transaction(segment: Segment, pos: int, end: int) -> bool:
    """Whether the damaged bytes from `pos` to the next intact batch, at `end`, may have
    been a control batch: they may, unless they are one batch that is larger."""
    length = int.from_bytes(_bytes_at(segment, pos, FRAME_BYTES)[8:LENGTH_END], "big")
    return end - pos != LENGTH_END + length or end - pos <= _CONTROL_BYTES_MAX


def _is_content(data: bytes, magics: bytes) -> bool:
    """Whether the records of a batch that begins with `data` extend past the end of
    `data`, by their lengths: the next bytes are content of a record."""
    for magic in magics:
        ends = _record_ends(data) if magic == 2 else [_message_end(data, magic)]
        if max(ends, default=0) > len(data):
            return True
    return False


def _skip_zeros(segment: Segment, pos: int) -> int:
    """The position at which a search can begin: zeros are not a batch, and a batch
    begins with at most eleven of them."""
    begin = native.Buffer(LENGTH_END)
    if any(begin.raw[: segment.read(begin.view, pos)]):
        return pos
    scratch = native.Buffer(READ_BYTES)  # no `FileWalk`: there is no batch
    position = pos
    while position < segment.size:
        n = segment.read(scratch.view, position)
        rest = len(scratch.raw[:n].lstrip(b"\0"))
        if rest or n == 0:
            return max(pos, position + n - rest - LENGTH_END)
        position += n
    return segment.size


def _sizes(segment: Segment, pos: int) -> Iterator[int]:
    """The possible sizes of a damaged batch: by its length field, by its content."""
    data = _bytes_at(segment, pos, FRAME_BYTES)
    if len(data) < FRAME_BYTES:
        return
    length = int.from_bytes(data[8:LENGTH_END], "big")
    if length:
        yield LENGTH_END + length
    data = _bytes_at(segment, pos, READ_BYTES)
    for magic in _magics(data):
        if magic < 2:
            size = _message_end(data, magic)
        else:
            count = max(int.from_bytes(data[_COUNT_POS:_RECORDS_POS], "big"), 1)
            size = next(itertools.islice(_record_ends(data), count - 1, None), 0)
        if size not in (0, LENGTH_END + length):
            yield size


def _bytes_at(segment: Segment, pos: int, size: int) -> bytes:
    buffer = native.Buffer(size)
    return bytes(buffer.raw[: segment.read(buffer.view, pos)])


def _inside(
    segment: Segment,
    pos: int,
    end: int,
    offset: int,
    after: int,
    next_batch: Sound | None,
) -> Sound | None:
    """The first valid batch in [pos, end), if the damaged one does not end at `end`;
    None if it does, as far as can be determined.

    Bytes that form a valid batch may also be the value of a record: in a copy of
    another log, for example. So their offsets must fit between those before and after.
    If the header of the damaged batch gives its last offset, this is enough; else the
    batches after `end` must continue their offsets. And if length and content agree on
    the end, it is the end.

    `after`: the first offset after `end`; -1 if it is unknown. In that case both
    conditions must hold, and the offsets must follow the damaged batch's offsets.
    """
    stated = _stated_offsets(segment, pos)
    if after >= 0 and after - 1 in stated.ends:
        return None
    limit = after
    if after < 0:
        limit = (
            segment.next_offset if next_batch is None else next_batch.header.last_offset
        )
    # The damaged batch had at least one offset.
    lowest = stated.first if offset <= stated.first < limit else offset
    is_known = offset <= stated.first <= stated.last < limit
    if is_known:
        lowest = stated.last
    elif after < 0:
        return None
    head: Sound | None = None
    position, is_contradicted = pos + 1, False
    for _ in range(_RUNS_MAX):
        run = _run_between(segment, position, end, lowest, limit)
        if run is None:
            break
        intact, position, last = run
        head = head or intact
        if after < 0:
            is_contradicted = position == end and head.first_offset() == lowest + 1
            break
        is_contradicted = is_known or (position == end and after == last + 1)
        if is_contradicted:
            break
        lowest = last
    return head if is_contradicted and not _is_filled(segment, pos, end) else None


class _Stated(NamedTuple):
    """The offsets in the header of a damaged batch.

    Attributes:
        first: the offset that it begins with; for magic 0 and 1, the last offset.
        last: the last offset; -1 if the fields that give it are damaged.
        ends: the possible last offsets.
    """

    first: int
    last: int
    ends: tuple[int, ...]


def _stated_offsets(segment: Segment, pos: int, *, magic: int | None = None) -> _Stated:
    """`magic`: of the batch, if its own field cannot be used."""
    data = _bytes_at(segment, pos, _HEADER.size)
    offset, _, own, delta, count = _HEADER.unpack(data.ljust(_HEADER.size, b"\0"))
    magic = own if magic is None else magic
    if magic in (0, 1):
        return _Stated(offset, offset, (offset,))
    ends = offset + delta, offset + count - 1
    if magic == 2:
        # If two fields agree, it is unlikely that both are damaged.
        return _Stated(offset, ends[0] if ends[0] == ends[1] else -1, ends)
    return _Stated(offset, -1, (offset, *ends))


def _run_between(
    segment: Segment, pos: int, end: int, lowest: int, limit: int
) -> tuple[Sound, int, int] | None:
    """The first valid batches in [pos, end), one directly after the other, whose
    offsets lie above `lowest` and below `limit`: (the first batch, their end, their
    last offset)."""
    for intact in _valid_between(segment, pos, end, lowest + 1):
        last, run_end = intact.header.last_offset, intact.end
        if last >= limit or run_end > end or intact.first_offset() <= lowest:
            continue
        if run_end < end:
            with contextlib.suppress(CorruptRecordError, UnsupportedError):
                place = OffsetPosition(run_end, last)
                for header, _, begin in segment.headers(place, checks=native.CHECK_ALL):
                    if begin + header.size > end or header.last_offset >= limit:
                        break
                    last, run_end = header.last_offset, begin + header.size
        return intact, run_end, last
    return None


def _is_filled(segment: Segment, pos: int, end: int) -> bool:
    """Whether length and content of a damaged batch agree that it ends at `end`. The
    content of a compressed batch of magic 2 does not show its end."""
    if segment.first_header(pos) is not None:
        return True
    data = _bytes_at(segment, pos, end - pos)
    if int.from_bytes(data[8:LENGTH_END], "big") != end - pos - LENGTH_END:
        return False
    return any(
        len(data) in _record_ends(data)
        if magic == 2
        else _message_end(data, magic) == len(data)
        for magic in _magics(data)
    )


def _magics(data: bytes) -> bytes:
    """The possible values of the magic of a damaged batch."""
    stored = data[MAGIC_POS : MAGIC_POS + 1]
    return stored if stored and stored[0] <= 2 else b"\0\1\2"


def _message_end(data: bytes, magic: int) -> int:
    """Where key and value of a message end; 0: no such place in `data`."""
    position = _KEY_POS[magic]
    for _ in range(2):
        if position + 4 > len(data):
            return 0
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        if length < -1:
            return 0
        position += 4 + max(length, 0)
    return position


def _record_ends(data: bytes) -> Iterator[int]:
    """Where the records of a batch of magic 2 end, one after the other, by their
    lengths, as long as these are possible."""
    if len(data) < _RECORDS_POS or data[_CODEC_POS] & _CODEC_MASK:
        return
    position = _RECORDS_POS
    while position < len(data):
        length = shift = 0
        while position < len(data) and shift < 35:
            byte = data[position]
            length |= (byte & 127) << shift
            position, shift = position + 1, shift + 7
            if byte < 128:
                break
        if length & 1 or not length:  # zigzag: odd is negative
            return
        position += length >> 1
        yield position


def _valid_between(
    segment: Segment, pos: int, end: int, offset: int
) -> Iterator[Sound]:
    """The valid batches that begin at any byte of [pos, end)."""
    buffer = native.Buffer(READ_BYTES)  # no `FileWalk`: a batch may begin anywhere
    while pos < end:
        n = segment.read(buffer.view, pos)
        if n < BATCH_BYTES_MIN:
            return
        data = bytes(buffer.raw[:n])
        for position, _ in possible_batches(data, buffer.c):
            if pos + position >= end:
                break
            intact = _valid_at(segment, pos + position, offset)
            if intact is not None:
                yield intact
        if pos + n >= segment.size:
            return
        pos += n - (BATCH_BYTES_MIN - 1)


def _valid_at(segment: Segment, pos: int, offset: int) -> Sound | None:
    """A valid batch at `pos` whose last offset is `offset` or above, and in the
    segment."""
    first = segment.first_header(pos)
    if first is None or not offset <= first[0].last_offset < segment.next_offset:
        return None
    return Sound(pos, *first[:2])
