"""append_many walks a lazy iterable under the lock of its partition. The one background
thread then waits for that lock, and with it the time-based syncs of all other
partitions of the store: their acknowledged records are not durable after flush_ms,
however long that takes.

Usage: python a08_slow_iterable.py
"""

import tempfile
import threading
import time

import logstore

with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    config = logstore.TopicConfig(flush_ms=200)
    a, b = store.create_topic("t", 2, config=config).partitions
    a.append(b"1")
    time.sleep(0.5)

    def slow():
        for _ in range(30):
            time.sleep(0.1)  # a socket, a queue, a query
            yield b"x"

    a.append(b"so that a sync of this partition is due")
    thread = threading.Thread(target=a.append_many, args=(slow(),))
    thread.start()
    time.sleep(0.3)
    b.append(b"another partition")
    begin = time.monotonic()
    while b.durable_offset < b.end_offset and time.monotonic() - begin < 10:
        time.sleep(0.01)
    took = time.monotonic() - begin
    thread.join()
print(f"flush_ms=200: the record of the other partition was durable after {took:.1f} s")
print("WRONG" if took > 1 else "OK")
raise SystemExit(took > 1)
