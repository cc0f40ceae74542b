"""`compact` never ends, and uses a whole core, if the log is truncated in the segment
that it surveys: it waits for the size that the segment once had. The truncation is made
between two steps here (on_progress), as another thread would make it.

Usage: python e07_compact_never_ends_after_truncate.py [seconds, 20]
"""

import logging
import os
import sys
import tempfile
import threading

import logstore as ls

logging.disable(logging.CRITICAL)
config = ls.TopicConfig(
    message_format=2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
)
store = ls.open(tempfile.mkdtemp())
p = store.create_topic("c", config=config)[0]
for i in range(3000):
    p.append(b"x" * 1000, key=b"k%d" % (i % 7))
p.roll()
p.append(b"end", key=b"end")
calls, done = [], []


def progress(now):
    calls.append(now.bytes_read)
    if len(calls) == 1:  # the first of 3 MB is surveyed
        p.truncate_to(2500)


def work():
    try:
        done.append(p.compact(force=True, on_progress=progress))
    except ls.LogStoreError as error:
        done.append(error)


thread = threading.Thread(target=work, daemon=True)
thread.start()
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20
thread.join(seconds)
if done:
    print(f"OK: compact ended: {done!r}", flush=True)
else:
    print(
        f"WRONG: compact has not ended after {seconds:.0f} s; it has called on_progress"
        f" {len(calls)} times, at last with {calls[-1]} bytes read; the log ends at"
        f" {p.end_offset}",
        flush=True,
    )
os._exit(not done)
