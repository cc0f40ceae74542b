"""append_batches takes a batch of magic 2 whose header has another largest timestamp
than its records (a broker corrects that, and so does logstore for magic 1): lookups by
time then miss records without an error, and retention and rolls by time go wrong.

Usage: python a11_lying_max_timestamp.py
"""

import struct
import tempfile
import time

import crc32c

import logstore


def lying(data, max_timestamp):
    data = bytearray(data)
    struct.pack_into(">q", data, 35, max_timestamp)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


wrong = False
with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    config = logstore.TopicConfig(message_format=2)
    a, b = store.create_topic("t", 2, config=config).partitions
    now = time.time_ns() // 1_000_000
    a.append_many([b"1", b"2"], timestamps_ms=[now, now + 1])
    true = bytes(next(a.read_batches()).buffer)
    for said in (now - 5_000_000, now + 10**12):
        p = store.create_topic(f"u{said}", config=config)[0]
        try:
            p.append_batches(lying(true, said))
        except logstore.LogStoreError as error:
            print(f"OK    refused: {error}")
            continue
        found = p.offset_for_time(now)
        late = [r.offset for r in p.read() if r.timestamp_ms >= now]
        largest = p.segments[-1].max_timestamp_ms
        bad = found != late[0] or largest != now + 1
        wrong |= bad
        print(
            "WRONG" if bad else "OK   ",
            f"records at or after {now}: {late}, offset_for_time says {found}; "
            f"largest timestamp {largest - now:+d} ms off",
        )
raise SystemExit(wrong)
