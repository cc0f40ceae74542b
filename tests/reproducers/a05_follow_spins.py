"""follow(durable_only=True) in the writer's process burns a whole core while any record
is not durable yet; follow(isolation="read_committed") while a transaction is open. It
waits for the end of the log to pass its offset, which has already happened.

Usage: python a05_follow_spins.py
"""

import tempfile
import time

import logstore

with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    config = logstore.TopicConfig(flush_ms=60_000, flush_messages=1_000_000)
    p = store.create_topic("t", config=config)[0]
    p.append(b"durable", durable=True)

    def cpu_of(**choice):
        begin = time.process_time()
        list(
            p.follow(
                p.end_offset if choice == {} else p.durable_offset, timeout=2, **choice
            )
        )
        return time.process_time() - begin

    idle = cpu_of(durable_only=True)
    p.append(b"not durable")
    busy = cpu_of(durable_only=True)
print(
    f"2 s of follow(durable_only=True): {idle:.2f} s of CPU with all durable, "
    f"{busy:.2f} s with one record that is not"
)
print("WRONG" if busy > 1 else "OK")
raise SystemExit(busy > 1)
