"""`fetch` (continued at next_offset) and `Consumer` silently skip records of a log with
gaps if one bit of a batch's base offset, which no checksum covers, has flipped; also if
two batches have changed places, or a copy of its neighbour has overwritten one. `read`,
Arrow and `verify` raise. A read never skips records silently.

Usage: python e01_fetch_and_consumer_skip_records.py
"""

import logging
import pathlib
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as store:
    p = store.create_topic(
        "c",
        config=ls.TopicConfig(
            message_format=2, cleanup_policy="compact", index_interval_bytes=500
        ),
    )[0]
    for i in range(200):
        p.append(b"value %03d" % i, key=b"k%03d" % i)
    p.roll()
    p.append(b"newer", key=b"k000")
    p.roll()
    p.append(b"end", key=b"end")
    p.compact(force=True)
    want = [r.offset for r in p.read()]
    batches = [
        (b.position, b.size_bytes, b.base_offset)
        for b in p.read_batches()
        if b.base_offset < 200
    ]
log = pathlib.Path(path, "c-0", f"{0:020}.log")
data = log.read_bytes()
(a, n, first), (b, m, second) = batches[50], batches[51]
assert n == m
assert b == a + n


def fetched(max_bytes):
    with ls.open(path, read_only=True) as store:
        p = store.topic("c")[0]
        offset, got = p.start_offset, []
        while offset < p.end_offset:
            chunk = p.fetch(offset, max_bytes=max_bytes)
            got += [r.offset for r in chunk]
            offset = chunk.next_offset
        return got


def consumed():
    got = []
    with ls.Consumer(
        path, group=f"g-{len(told)}", topics=["c"], reset="earliest"
    ) as consumer:
        for _ in range(12):
            for records in consumer.poll(timeout_ms=50).values():
                got += [r.offset for r in records]
    return got


def read():
    with ls.open(path, read_only=True) as store:
        return [r.offset for r in store.topic("c")[0].read()]


bad, told = 0, []
for case, damaged in (
    (
        "two batches have changed places",
        data[:a] + data[b : b + n] + data[a:b] + data[b + n :],
    ),
    ("a batch was overwritten by the next one", data[:a] + data[b : b + n] + data[b:]),
    (
        "one bit of a base offset has flipped",
        data[: a + 7] + bytes([data[a + 7] ^ 64]) + data[a + 8 :],
    ),
):
    with open(log, "r+b") as file:
        file.write(damaged)
    for name, way in (
        ("read", read),
        ("fetch", lambda: fetched(1 << 20)),
        ("fetch of 1 byte", lambda: fetched(1)),
        ("Consumer", consumed),
    ):
        try:
            lost = sorted(set(want) - set(way()))
            text = lost if len(lost) < 4 else f"{lost[0]} to {lost[-1]}"
            told.append(f"{name}: silently without {text}")
            bad += 1
        except ls.CorruptRecordError:
            told.append(f"{name} raises")
    told[-4] = f"{case}: {told[-4]}"
print(f"{'WRONG' if bad else 'OK'}: {'; '.join(told)}")
sys.exit(bool(bad))
