"""Records published into a topic with message_timestamp_type=LogAppendTime ("always the
time of the append") have the time of their staging, which may be hours before: times
fall along the log, and a consumer that continues by time misses those records.

Usage: python a31_published_log_append_time.py
"""

import tempfile
import time

import logstore

with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    config = logstore.TopicConfig(
        message_format=2, message_timestamp_type="LogAppendTime"
    )
    p = store.create_topic("t", config=config)[0]
    with store.stage() as stage:
        stage.append_many(p, [b"staged"])
        staged = stage.finish()
    time.sleep(0.5)
    p.append(b"appended")
    time.sleep(0.1)
    seen_up_to = time.time_ns() // 1_000_000
    time.sleep(0.1)
    store.publish([staged])
    records = list(p.read())
    times = [r.timestamp_ms for r in records]
    found = p.offset_for_time(seen_up_to)
    print(
        [
            (r.offset, r.value, r.timestamp_type.name, r.timestamp_ms - times[0])
            for r in records
        ]
    )
    print(f"what was appended since the last look, by time: {found}; by offset: 1")
bad = times != sorted(times) or found != 1
print("WRONG" if bad else "OK")
raise SystemExit(bad)
