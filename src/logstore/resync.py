"""Where a log goes on behind damage."""

from __future__ import annotations

from collections.abc import Iterator

from logstore import _binding as native
from logstore.segment import FRAME_BYTES, READ_BYTES, Segment

__all__ = ["next_sound_batch"]


def next_sound_batch(
    segment: Segment, bad_pos: int, offset: int
) -> tuple[int, int] | None:
    """(position, first offset known) of the first sound batch behind a damaged one.

    Batches are sought at every byte: a length that is damaged says nothing. None when
    there is none up to the end of the segment.
    """
    buffer = native.Buffer(READ_BYTES)
    n = segment.read(buffer.view, bad_pos)
    if n >= FRAME_BYTES:
        # The frame itself may be sound: then nothing inside the batch is mistaken for
        # the next one.
        at = bad_pos + 12 + int.from_bytes(buffer.raw[8:12], "big", signed=True)
        if at == segment.size:
            return None
        if bad_pos + 12 < at < segment.size:
            following = _sound_at(segment, at, offset)
            if following is not None:
                return following
    pos = bad_pos + 1
    while pos < segment.size:
        n = segment.read(buffer.view, pos)
        if n < 26:
            return None
        data = bytes(buffer.raw[:n])
        for at in _candidates(data):
            scan = native.first_header(buffer.c, n, pos=at, checks=native.CHECK_CRC)
            if scan.headers or (scan.stop == native.STOP_PARTIAL and not scan.error):
                following = _sound_at(segment, pos + at, offset)
                if following is not None:
                    return following
        if pos + n >= segment.size:
            return None
        pos += n - 25
    return None


def _sound_at(segment: Segment, pos: int, offset: int) -> tuple[int, int] | None:
    """(position, first offset known) of a sound batch at `pos` that may follow."""
    found = segment.first_header(pos, native.Buffer(READ_BYTES))
    if found is None or not offset <= found[0].last_offset < segment.next_offset:
        return None
    return pos, max(found[0].base_offset, offset)


def _candidates(data: bytes) -> Iterator[int]:
    """Bytes where a batch header may begin: a plausible magic and length."""
    for magic in (0, 1, 2):
        at = data.find(magic, 16)
        while at >= 0:
            begin = at - 16
            length = int.from_bytes(data[begin + 8 : begin + 12], "big")
            if 14 <= length < 1 << 31 and data[begin] < 0x80 and (
                length <= len(data) - begin - 12
                or int.from_bytes(data[begin : begin + 4], "big") == 0
            ):  # fmt: skip
                yield begin
            at = data.find(magic, at + 1)
