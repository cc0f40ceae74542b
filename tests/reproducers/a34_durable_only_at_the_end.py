"""follow(p.end_offset, durable_only=True) ("p.end_offset follows only what is new")
raises OffsetOutOfRangeError while anything is not durable yet, and says "the next to be
written" of an offset that was written. The contract: outside [start_offset,
end_offset].

Usage: python a34_durable_only_at_the_end.py
"""

import tempfile

import logstore

wrong = False
with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    p = store.create_topic("t", config=logstore.TopicConfig(flush_ms=60_000))[0]
    p.append(b"durable", durable=True)
    p.append(b"not yet")
    for name, call in (
        ("follow", lambda: list(p.follow(p.end_offset, timeout=0, durable_only=True))),
        ("read", lambda: list(p.read(p.end_offset, durable_only=True))),
        ("fetch", lambda: p.fetch(p.end_offset, durable_only=True).next_offset),
    ):
        try:
            print("OK   ", name, call())
        except logstore.OffsetOutOfRangeError as error:
            print(f"WRONG {name}: end_offset is {p.end_offset}: {error}")
            wrong = True
raise SystemExit(wrong)
