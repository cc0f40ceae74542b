"""A wrapper of magic 1 contains messages of magic 0 with relative offsets, as the
cleaner of Kafka 0.10.0 and 0.10.1.0 wrote it. Kafka 0.11 to 4.x reads it (its
DumpLogSegments prints offsets 10 to 14); logstore reports damage.

Usage: python r12_wrapper_of_another_magic.py
"""

import gzip
import logging

from common import end, offsets
from kbatch import directory, message

import logstore

logging.disable(logging.CRITICAL)
inner = b"".join(message(i, b"k%d" % i, b"v%d" % i, magic=0) for i in range(5))
wrapper = message(14, None, gzip.compress(inner), magic=1, attributes=1)

path = directory(
    {0: message(0, b"a", b"first") + wrapper + message(21, b"b", b"after")},
    clean_end=22,
)
try:
    got = offsets(path)
    end("" if got == [0, 10, 11, 12, 13, 14, 21] else f"got {got}")
except logstore.CorruptRecordError as error:
    end(
        f"damage, and {offsets(path, on_corruption='skip')} with on_corruption=skip:"
        f" {str(error).split(':')[0]}"
    )
