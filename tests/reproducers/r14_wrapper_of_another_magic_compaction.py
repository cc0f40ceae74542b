"""Like r12, in a compacted topic: a compaction stops at the wrapper each time. Kafka
compacts it (it rewrites the batch).

Usage: python r14_wrapper_of_another_magic_compaction.py
"""

import gzip
import logging

from common import end
from kbatch import directory, message

import logstore

logging.disable(logging.CRITICAL)
inner = b"".join(message(i, b"k%d" % i, b"v%d" % i, magic=0) for i in range(5))
wrapper = message(14, None, gzip.compress(inner), magic=1, attributes=1)

path = directory(
    {
        0: message(0, b"k1", b"first") + wrapper + message(21, b"b", b"after"),
        22: message(22, b"c", b"last"),
    },
    clean_end=23,
)
with logstore.open(path) as store:
    store["t"].configure(logstore.TopicConfig(cleanup_policy="compact"))
    try:
        store["t"][0].compact(force=True)
        got = [r.offset for r in store["t"][0].read()]
        end("" if got == [10, 11, 12, 13, 14, 21, 22] else f"left: {got}")
    except logstore.CorruptRecordError as error:
        end(f"the log cannot be compacted: {str(error).split(':')[0]}")
