"""A consumer reads a store that a broker has taken over and writes to. Each time the
broker writes its recovery points (once a minute; here by hand), the topics get other
ids: the consumer loses its partitions and begins again by `reset`, though it has
committed. With "earliest" each write delivers all records again.

Usage: python s20_group_beside_a_broker_starts_again.py
"""

import logging
import os
import tempfile
import time

import logstore as ls

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "s")
with ls.open(path) as s:
    s.create_topic("t").append_many([b"%d" % i for i in range(10)], durable=True)
os.unlink(f"{path}/.kafka_cleanshutdown")  # a broker that runs removes it
points = f"{path}/recovery-point-offset-checkpoint"


def broker_writes(n):
    with open(f"{points}.tmp", "w") as f:
        f.write(f"0\n1\nt 0 {n}\n")
    os.rename(f"{points}.tmp", points)


got, lost = [], []
broker_writes(1)
with ls.Consumer(
    path,
    group="g",
    topics=["t"],
    reset="earliest",
    durable_only=False,
    on_lost=lambda p: lost.append(p),
) as c:
    for minute in range(5):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            got += [r.offset for v in c.poll(timeout_ms=50).values() for r in v]
            c.commit()
        broker_writes(2 + minute)
wrong = got != list(range(10))
print(
    "WRONG" if wrong else "OK",
    f"{len(got)} records delivered, of 10; {len(lost)} times all partitions were lost;"
    " nothing was written to the log",
)
raise SystemExit(wrong)
