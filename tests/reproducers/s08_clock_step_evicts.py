"""A step of the wall clock removes a member from its group that has polled two seconds
ago, with max_poll_interval_ms=60000 and on_stuck="evict": its work is done twice. A
step back keeps a member that hangs. The clock is moved by a patch of Files.now_ms,
through which the library reads it.

Usage: python s08_clock_step_evicts.py
"""

import logging
import tempfile
import time

import logstore as ls
from logstore.io.files import Files

logging.disable(logging.CRITICAL)
real, jump = Files.now_ms, [0]
Files.now_ms = lambda self: real(self) + jump[0]
wrong = []


def members(interval):
    path = tempfile.mkdtemp()
    with ls.open(path) as s:
        s.create_topic("t", 2).append_many(
            [b"%d" % i for i in range(100)], durable=True
        )
    cs = [
        ls.Consumer(
            path,
            group="g",
            topics=["t"],
            reset="earliest",
            on_stuck="evict",
            max_poll_interval_ms=interval,
            max_poll_records=10,
        )
        for _ in "ab"
    ]
    while not all(len(c.assignment()) == 1 for c in cs):
        for c in cs:
            c.poll(timeout_ms=5)
    return cs


a, b = members(60000)
work = b.poll(timeout_ms=1000)  # b works on these for two seconds
jump[0] = 3600000
end = time.monotonic() + 2
while time.monotonic() < end:
    a.poll(timeout_ms=50)
try:
    b.commit()
except ls.errors.FencedError:
    wrong.append("an hour forward: thrown out 2 s after its poll, its interval is 60 s")
jump[0] = 0
a, b = members(200)
jump[0] = -3600000
a.poll(timeout_ms=5)
b.poll(timeout_ms=5)  # both have polled since
jump[0] = -7200000
end = time.monotonic() + 3
while time.monotonic() < end:  # b hangs
    a.poll(timeout_ms=50)
if len(a.assignment()) < 2:
    wrong.append(
        "an hour back: a member that hangs for 3 s, its interval is 0.2 s, keeps its"
        " partition"
    )
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
