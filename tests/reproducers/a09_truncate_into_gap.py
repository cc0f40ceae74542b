"""truncate_to(an offset in a gap that compaction or repair left), then append: which
offset is returned, and which record is in the log?

Usage: python a09_truncate_into_gap.py
"""

import os
import struct
import tempfile
import time
import zlib

import logstore


def message(offset, value):
    ts = time.time_ns() // 1_000_000  # so that the next append does not roll
    body = struct.pack(">bbqi", 1, 0, ts, -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


wrong = False
for target in (3, 5, 7, 8):
    for settings in ({}, {"message_format": 2}):
        with tempfile.TemporaryDirectory() as path:
            os.chmod(path, 0o700)
            os.mkdir(f"{path}/t-0", 0o700)
            with open(f"{path}/t-0/{0:020d}.log", "wb") as file:
                for offset in (0, 1, 2, 7, 8):  # 3 to 6 were compacted away
                    file.write(message(offset, b"kafka %d" % offset))
            said = f"truncate_to({target}), {settings}:"
            try:
                with logstore.open(path) as store:
                    topic = store.topic("t")
                    topic.configure(logstore.TopicConfig(**settings))
                    p = topic[0]
                    end = p.truncate_to(target)
                    told = [p.append(b"new %d" % i) for i in range(3)]
                    seen = [(r.offset, r.value) for r in p.read()]
                    bad = told != [end, end + 1, end + 2] or seen[-3:] != [
                        (o, b"new %d" % i) for i, o in enumerate(told)
                    ]
                    said += f" end {end}, told {told}, read {seen[-3:]}"
                with logstore.open(path) as store:
                    p = store.topic("t")[0]
                    again = [(r.offset, r.value) for r in p.read()]
                    bad |= again != seen or bool(p.append(b"y") != end + 3)
                    if again != seen:
                        said += f"; after reopening {again}"
            except logstore.LogStoreError as error:
                bad, said = (
                    not isinstance(error, logstore.errors.UnsupportedError),
                    said + f" {type(error).__name__}: {str(error)[:150]}",
                )
        wrong |= bad
        print("WRONG" if bad else "OK   ", said)
raise SystemExit(wrong)
