"""A writer that only appends keeps the descriptor of every segment it ever rolled:
max_open_files bounds files opened for reading, not those that a roll hands over. At the
limit of the process (1024 is the usual one) appends fail with "Too many open files".

Usage: python a16_rolls_leak_descriptors.py
"""

import os
import resource
import tempfile

import logstore

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
with tempfile.TemporaryDirectory() as path:
    store = logstore.open(path, config=logstore.StoreConfig(max_open_files=16))
    config = logstore.TopicConfig(segment_bytes=100)
    parts = store.create_topic("t", 4, config=config).partitions
    before, failed, most = len(os.listdir("/proc/self/fd")), None, 0
    for i in range(300):
        for p in parts:
            try:
                p.append(b"%050d" % i)
            except logstore.LogStoreError as error:
                failed = failed or f"append {i} to {p.name}: {error}"
        if failed:
            break
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    print(
        f"max_open_files=16, 4 partitions, {i + 1} rolls of each: {most} descriptors "
        "more"
    )
    if failed:
        print("  ", failed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    try:
        store.close()
    except logstore.LogStoreError as error:
        print("   close:", error)
bad = most > 64 or failed
print("WRONG" if bad else "OK")
raise SystemExit(bool(bad))
