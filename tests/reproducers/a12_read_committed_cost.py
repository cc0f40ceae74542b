"""Every fetch with isolation="read_committed", every such read that does not begin at
the start of the log, and every look of a follower walks over the whole log first (for
the last stable offset), with checksums: a loop over fetch is quadratic, and an idle
follower reads the log again and again.

Usage: python a12_read_committed_cost.py [MiB, 200]
"""

import sys
import tempfile
import time

import logstore

mib = int(sys.argv[1]) if len(sys.argv) > 1 else 200
with tempfile.TemporaryDirectory() as path:
    with logstore.open(path) as store:
        p = store.create_topic("t", config=logstore.TopicConfig(message_format=2))[0]
        for _ in range(mib):
            p.append_many([b"x" * 1000] * 1048)
    with logstore.open(path, read_only=True) as store:
        p = store.topic("t")[0]

        def timed(count, isolation, begin):
            start, offset = time.perf_counter(), begin
            for _ in range(count):
                offset = p.fetch(offset, isolation=isolation).next_offset
            return (time.perf_counter() - start) / count * 1000

        end = p.end_offset
        plain = timed(20, "read_uncommitted", end // 2)
        committed = timed(10, "read_committed", end // 2)
        print(
            f"{mib} MiB of log, no transactions: fetch takes {plain:.2f} ms, with "
            f"read_committed {committed:.1f} ms"
        )
        cpu = time.process_time()
        list(p.follow(end, timeout=2, isolation="read_committed"))
        idle = (time.process_time() - cpu) / 2
        cpu = time.process_time()
        list(p.follow(end, timeout=2))
        plain_idle = (time.process_time() - cpu) / 2
        print(
            f"an idle follower takes {plain_idle:.1%} of a core, with read_committed "
            f"{idle:.0%}"
        )
bad = committed > 20 * plain or idle > 0.2
print("WRONG" if bad else "OK")
raise SystemExit(bad)
