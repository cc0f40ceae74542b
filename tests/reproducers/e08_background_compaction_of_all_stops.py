"""One damaged partition keeps all others from being compacted with `compaction_ms`, for
ever. Its failure is raised in the compaction of the next partition, which then counts
as failed too, and so on. The message names the wrong topics and grows in each round.

Usage: python e08_background_compaction_of_all_stops.py
"""

import logging
import os
import sys
import tempfile
import time

import logstore as ls

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as store:
    for name in "abc":
        p = store.create_topic(
            name,
            config=ls.TopicConfig(
                message_format=2,
                cleanup_policy="compact",
                min_cleanable_dirty_ratio=0.0,
            ),
        )[0]
        for i in range(50):
            p.append(b"v%d" % i, key=b"k%d" % (i % 5))
        p.roll()
        p.append(b"x", key=b"x")
logs = [os.path.join(path, f"{name}-0", f"{0:020d}.log") for name in "abc"]
with open(logs[0], "r+b") as f:
    f.seek(100)
    f.write(b"ZZ")
before = [os.path.getsize(log) for log in logs]
store = ls.open(path, config=ls.StoreConfig(compaction_ms=50))
time.sleep(5)  # a hundred rounds
after = [os.path.getsize(log) for log in logs]
said = ""
try:
    store.topic("c")
except ls.LogStoreError as error:
    said = str(error)
for _ in range(3):
    try:
        store.close()
        break
    except ls.LogStoreError:
        pass
bad = after[1:] == before[1:]
print(
    f"{'WRONG' if bad else 'OK'}: bytes of the first segments of a (damaged), b, c:"
    f" {before} before, {after} after 5 s; the error of topic('c') has {len(said)}"
    f" characters: {said[:130]}..."
)
sys.exit(bad)
