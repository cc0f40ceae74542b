"""A commit that is refused for want of space leaves the staged file of its transaction.
A worker that tries again uses up what min_free_bytes keeps free for others, and neither
a later commit, `close()` nor the next opening removes the files.

Usage: python s05_failed_transactions_leave_staged_files.py
"""

import collections
import logging
import os
import tempfile
import time

import logstore as ls

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as s:
    s.create_topic("t").append_many([b"%d" % i for i in range(500)], durable=True)
    s.create_topic("out")


def staged():
    found = [f for f in os.listdir(path) if "staged" in f]
    return len(found), sum(os.path.getsize(os.path.join(path, f)) for f in found)


def work(c):
    with c.transaction() as tx:
        for records in c.poll(timeout_ms=200).values():
            for r in records:
                tx.append("out", r.value * 100)


said = collections.Counter()
owner = ls.open(
    path, config=ls.StoreConfig(publish_for_others=True, min_free_bytes=1 << 50)
)
c = ls.Consumer(path, group="g", topics=["t"], reset="earliest")
for _ in range(100):
    try:
        work(c)
    except ls.LogStoreError as e:
        said[type(e).__name__] += 1
    time.sleep(0.01)
first = staged()
owner.close()
work(c)  # there is room again: published
c.close()
ls.open(path).close()
last = staged()
print(
    "WRONG" if last[0] else "OK",
    f"{sum(said.values())} x {'/'.join(said)} left {first[0]} staged files, {first[1]}"
    f" bytes; after a commit, close and opening: {last[0]} files, {last[1]} bytes",
)
raise SystemExit(bool(last[0]))
