"""If the background thread cannot be started (a limit on threads, or on memory), the
first append raises RuntimeError although its record is in the log; a retry writes it a
second time; no time-based sync ever runs; and close() raises RuntimeError without
releasing the lock.

Usage: python a03_no_thread.py
"""

import pathlib
import resource
import tempfile
import time

import logstore

path = tempfile.mkdtemp()
store = logstore.open(path)
p = store.create_topic("t", config=logstore.TopicConfig(flush_ms=200))[0]

# Like a container with a small limit: no room for the stack of another thread.
pages = pathlib.Path("/proc/self/statm").read_text().split()[0]
used = int(pages) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), before[1]))

wrong = []
try:
    p.append(b"one")
except Exception as error:
    print("append raised", repr(error))
    if p.end_offset == 1:
        wrong.append(f"append raised {error!r} and its record is in the log")
        p.append(b"one")  # an ordinary retry
        wrong.append(f"after a retry: {[r.value for r in p.read()]}")
resource.setrlimit(resource.RLIMIT_AS, before)  # the shortage is over
p.append(b"later")
time.sleep(1.0)
if p.durable_offset < p.end_offset:
    wrong.append(
        f"durable_offset is {p.durable_offset} of {p.end_offset}, 1 s later, "
        f"with flush_ms=200"
    )
try:
    store.close()
except BaseException as error:
    wrong.append(f"close raised {error!r}")
    try:
        logstore.open(path).close()
    except logstore.LogStoreError as again:
        wrong.append(f"opening again in this process: {type(again).__name__}")
print("\n".join("WRONG " + one for one in wrong) or "OK")
raise SystemExit(bool(wrong))
