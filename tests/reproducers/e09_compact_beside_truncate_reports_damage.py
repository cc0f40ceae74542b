"""`compact` of an intact log raises CorruptRecordError if the log is truncated
concurrently; in the background (compaction_ms) a call on another partition raises it.
The truncation is made between two steps here (on_progress), as another thread would
make it; with two threads some 3 of 1,000 compactions show it.

Usage: python e09_compact_beside_truncate_reports_damage.py
"""

import logging
import os
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
config = ls.TopicConfig(
    message_format=2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
)
path = tempfile.mkdtemp()
store = ls.open(path)
p = store.create_topic("c", config=config)[0]
for i in range(3000):
    p.append(b"x" * 1000, key=b"k%d" % (i % 7))
p.roll()
p.append(b"end", key=b"end")
calls = []


def progress(now):
    calls.append(now.bytes_read)
    if len(calls) == 2:  # two of 3 MB are surveyed
        p.truncate_to(100)
        p.roll()


try:
    said, wrong = repr(p.compact(force=True, on_progress=progress)), False
except ls.CorruptRecordError as error:
    said, wrong = f"CorruptRecordError: {error!s}", True
store.close()
print(
    f"{'WRONG' if wrong else 'OK'}: {said[:200]}; verify finds no problem:"
    f" {ls.verify(path, deep=True).ok}",
    flush=True,
)
os._exit(wrong)
