"""The cost of `publish()` grows with the number of identities that are remembered
(10,000, and the pinned ones): it exceeds its target of 1 ms. With metadata of 4,096
bytes, as a group of many partitions has, some 2,000 are enough.

Usage: python s10_publish_grows_with_identities.py
"""

import logging
import os
import statistics
import tempfile
import time

import logstore as ls

logging.disable(logging.CRITICAL)


def rate(s, p, seqs):
    took = []
    for seq in seqs:
        with s.stage("me", seq) as st:
            st.append_many(p, [b"x"] * 100)
            done = st.finish()
        a = time.perf_counter()
        s.publish([done], identity="me", sequence=seq)
        took.append(time.perf_counter() - a)
    return statistics.median(took) * 1e3


said, worst = [], 0
for count, size, pinned in ((9000, 0, None), (2600, 4096, True)):
    path = tempfile.mkdtemp()
    with ls.open(path) as s:
        p = s.create_topic("t", config=ls.TopicConfig(message_format=2))[0]
        first = rate(s, p, range(1, 40))
        for i in range(count):
            s.publish(
                [],
                identity=f"other-{i}",
                sequence=1,
                metadata=os.urandom(size) or b"0",
                pinned=pinned,
            )
        last = rate(s, p, range(40, 60))
    worst = max(worst, last / first)
    said.append(
        f"{count} other identities with {size} bytes: {last:.2f} ms instead of"
        f" {first:.2f}"
    )
print("WRONG" if worst > 4 else "OK", "; ".join(said))
raise SystemExit(worst > 4)
