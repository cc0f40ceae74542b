"""Topic.configure with a shorter flush_ms has no effect while a sync of the old, longer
one is waiting: records appended then are not durable after the new time, but after the
old one.

Usage: python a32_configure_shorter_flush.py
"""

import tempfile
import time

import logstore

with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    topic = store.create_topic("t", config=logstore.TopicConfig(flush_ms=3_600_000))
    p = topic[0]
    p.append(b"under the old settings")
    topic.configure(logstore.TopicConfig(flush_ms=100))
    p.append(b"under the new settings")
    time.sleep(2)
    lag = p.end_offset - p.durable_offset
    print(f"flush_ms=100 since 2 s; {lag} records are not durable")
print("WRONG" if lag else "OK")
raise SystemExit(bool(lag))
