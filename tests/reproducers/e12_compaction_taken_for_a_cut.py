"""A reader raises OffsetOutOfRangeError ("the log was cut to offset 0") concurrently
with compactions, though the log was never cut. The thread that looks is held up twice,
as on a busy machine: while segments are replaced, and once more between two steps of
that look, while the log is compacted again. Without these pauses some 1 of 1,500 reads
showed it.

Usage: python e12_compaction_taken_for_a_cut.py
"""

import logging
import os
import tempfile
import threading

import logstore as ls
from logstore.io.directory import Directory
from logstore.log.follow import loading
from logstore.log.follow.loading import Loader

logging.disable(logging.CRITICAL)
config = ls.TopicConfig(
    message_format=2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
)  # the delay of deletions is 60 s
path = tempfile.mkdtemp()
threading.Timer(60, lambda: os._exit(2)).start()
with ls.open(path) as store:
    p = store.create_topic("c", config=config)[0]

    def fill(n):
        for _ in range(n):
            p.append(b"v%d" % p.end_offset, key=b"k%d" % (p.end_offset % 50))
        p.roll()

    for _ in range(3):
        fill(40)
    for _ in range(5):
        p.append(b"active", key=b"k%d" % p.end_offset)
    other = ls.open(path, read_only=True)
    q = other.topic("c")[0]
    assert q.end_offset > 0
    read = q.read()
    next(read)
    rename, load = Directory.rename, Loader.load
    compare, did = loading._compare, []
    at_load, go_on = threading.Event(), threading.Event()
    at_comparison, go_on_again = threading.Event(), threading.Event()
    looker = threading.Thread(target=lambda: list(q.read()), daemon=True)

    def renamed(self, a, b, *x, **kw):
        if a.endswith(".log") and not did:
            did.append("look")
            assert q.end_offset > 0  # a look while segments are replaced
        if a.endswith(".log.swap") and len(did) == 1:
            did.append("another look")
            looker.start()
            at_load.wait(10)
        return rename(self, a, b, *x, **kw)

    def loaded(self, *args):
        if threading.current_thread() is looker:
            at_load.set()
            go_on.wait(10)
        return load(self, *args)

    def compared(*args, **kw):
        if threading.current_thread() is looker:
            at_comparison.set()
            go_on_again.wait(10)
        return compare(*args, **kw)

    Directory.rename, Loader.load = renamed, loaded
    loading._compare = compared
    p.compact(force=True)
    go_on.set()
    at_comparison.wait(10)
    p.roll()
    fill(60)
    p.compact(force=True)  # the writer continues
    go_on_again.set()
    looker.join(10)
    Directory.rename, Loader.load = rename, load
    loading._compare = compare
    try:
        said, wrong = f"the read ends at {[r.offset for r in read][-1]}", False
    except ls.OffsetOutOfRangeError as error:
        said = f"the read raises {type(error).__name__}: {str(error)[:120]}"
        wrong = True
print(
    f"{'WRONG' if wrong else 'OK'}: nothing was cut ({', '.join(did)}); {said}",
    flush=True,
)
os._exit(wrong)
