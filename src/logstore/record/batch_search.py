"""Finds batches in bytes that may have anything before them.

A batch has no mark at its beginning. It is recognized by a plausible magic and length,
and then by its checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from logstore import _native as native

__all__ = ["BATCH_BYTES_MIN", "MAGIC_POS", "possible_batches"]

# A batch of any format has at least this many bytes.
BATCH_BYTES_MIN: Final = 26
_LENGTH_POS: Final = 8
_LENGTH_END: Final = 12
MAGIC_POS: Final = 16
_MAGICS: Final = re.compile(rb"[\0-\2]")
_NONZERO: Final = re.compile(rb"[^\0]")
# Zeros that are worth a jump: files have long runs of them after a crash.
_RUN: Final = bytes(64)


def possible_batches(data: bytes, c: Any) -> Iterator[tuple[int, bool]]:
    """Positions where batches may begin, in order: (position, whether the batch is
    complete, and its checksum correct). An incomplete one may be no batch.

    Args:
        c: pointer to the same bytes.
    """
    for position in _candidates(data):
        scan = native.first_header(c, len(data), pos=position, checks=native.CHECK_CRC)
        if scan.headers:
            yield position, True
        elif scan.stop == native.STOP_PARTIAL and not scan.error:
            yield position, False


def _candidates(data: bytes) -> Iterator[int]:
    """Positions of possible batch headers, in order: a plausible magic and length."""
    start: int | None = MAGIC_POS
    while start is not None:
        from_here, start = start, None
        for magic in _MAGICS.finditer(data, from_here):
            begin = magic.start() - MAGIC_POS
            end = begin + _LENGTH_END
            length = int.from_bytes(data[begin + _LENGTH_POS : end], "big")
            if 14 <= length < 1 << 31 and data[begin] < 0x80 and (
                length <= len(data) - end
                or int.from_bytes(data[begin : begin + 4], "big") == 0
            ):  # fmt: skip
                yield begin
            elif length == 0 and data.startswith(_RUN, end):
                # The next length that is not 0 ends with the next such byte, or later.
                other = _NONZERO.search(data, end + len(_RUN))
                if other is not None:
                    start = other.start() + 1 - _LENGTH_END + MAGIC_POS
                break
