"""A snappy batch consists of two streams of Java's, one after the other. Kafka reads
it, because snappy-java reads concatenated streams; logstore reports damage.

Usage: python r16_two_xerial_streams.py
"""

import logging
import struct

from common import end, offsets
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)


def snappy(data):
    """One literal: a valid block of snappy."""
    out, n = bytearray(), len(data)
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n, 0xF4]) + struct.pack("<H", len(data) - 1) + data


def xerial(data):
    block = snappy(data)
    return b"\x82SNAPPY\0" + struct.pack(">III", 1, 1, len(block)) + block


path = directory(
    {0: rows(0, 40, 2, lambda rows: xerial(rows[:300]) + xerial(rows[300:]))},
    clean_end=40,
)
try:
    end("" if offsets(path) == list(range(40)) else "other records")
except logstore.CorruptRecordError as error:
    end(f"damage: {str(error).split(': /')[0]}")
