"""Deleting a topic whose partitions are still referenced takes nearly all descriptors
that the process may have, and keeps them.

Usage: python a15_limit_of_open_files.py
"""

import gc
import os
import resource
import tempfile
import time

import logstore

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
wrong = []
with tempfile.TemporaryDirectory() as path:
    config = logstore.TopicConfig(segment_bytes=100)
    with logstore.open(path) as store:
        for p in store.create_topic("t", 4, config=config):
            for i in range(60):
                p.append(b"%050d" % i)
    with logstore.open(path, config=logstore.StoreConfig(max_open_files=64)) as store:
        topic = store.topic("t")
        parts = topic.partitions
        for p in parts:
            p.append(b"one more")
        store.delete_topic("t")
        try:
            files = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
            print("OK    100 more files can be opened")
            for fd in files:
                os.close(fd)
        except OSError as error:
            wrong.append(f"max_open_files=64, limit 256; after delete_topic: {error}")
        del parts, p, topic
        gc.collect()
        time.sleep(6)  # tasks of the background refer to them, too
        try:
            files = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
            print(
                "OK    100 more files can be opened when nobody refers to the "
                "partitions"
            )
            for fd in files:
                os.close(fd)
        except OSError as error:
            wrong.append(f"also 6 s after the last reference went: {error}")
print("\n".join("WRONG " + one for one in wrong))
raise SystemExit(bool(wrong))
