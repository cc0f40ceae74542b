"""Decision whether the last bytes of a file are an incomplete batch."""

from __future__ import annotations

import struct

import pytest

from logstore.maintenance.verify.frames import looks_torn

FRAME = struct.Struct(">qi4xb")


def frame(offset: int, length: int, magic: int) -> bytes:
    return FRAME.pack(offset, length, magic)


@pytest.mark.parametrize(
    ("data", "remaining", "expected"),
    [
        (frame(5, 100, 2), 111, True),  # a byte is missing: 12 come before the length
        (frame(5, 100, 2), 112, False),  # complete: it is not torn
        (frame(5, 100, 2), 500, False),
        (frame(5, 100, 3), 111, False),
        (frame(-1, 100, 2), 111, False),
        (frame(5, 100, 2)[:10], 10, True),
        (frame(5, 100, 2), 17, True),  # too few bytes to decide
        (b"\xff" * 17, 500, False),
        (bytes(17), 500, True),
        (b"", 0, True),
    ],
)
def test_bytes_at_the_end_look_torn_if_a_batch_begins_so(
    data: bytes, remaining: int, expected: bool
) -> None:
    assert looks_torn(data, remaining) is expected
