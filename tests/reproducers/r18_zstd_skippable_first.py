"""A zstd batch begins with a skippable frame, which every decoder leaves out. Kafka
reads it; logstore reports damage.

Usage: python r18_zstd_skippable_first.py
"""

import logging
import struct

from common import end, offsets
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)


def zstd(data):
    """A frame of one raw block."""
    return (
        struct.pack("<IBI", 0xFD2FB528, 0xA0, len(data))
        + struct.pack("<I", len(data) << 3 | 1)[:3]
        + data
    )


SKIPPABLE = (
    struct.pack("<II", 0x184D2A50, 5) + b"hello"
)  # as pzstd and seekable formats write them


path = directory({0: rows(0, 40, 4, lambda rows: SKIPPABLE + zstd(rows))}, clean_end=40)
try:
    end("" if offsets(path) == list(range(40)) else "other records")
except logstore.CorruptRecordError as error:
    end(f"damage: {str(error).split(': /')[0]}")
