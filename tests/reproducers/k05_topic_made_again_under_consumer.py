"""A topic is deleted and created again between two polls of a consumer, within the 0.1
s for which it does not look at its group. The consumer continues in the new topic at
its old position, and then reads all of it from offset 0: the records come out of order
and twice. With `transaction()` their output is published twice. The retry after an
error begins again in the log that has the name now.

Usage: python k05_topic_made_again_under_consumer.py
"""

import logging
import os
import sys
import tempfile
import time

import logstore as ls

logging.disable(logging.CRITICAL)
CONFIG, wrong = ls.TopicConfig(message_format=2), 0


def drain(c, seconds, enough):
    got, until = [], time.time() + seconds
    while time.time() < until and len(got) < enough:
        for records in c.poll(timeout_ms=50).values():
            got += records
    return got


def again(store):
    with ls.open(store) as s:
        s.delete_topic("t")
        s.create_topic("t", config=CONFIG)[0].append_many(
            [b"new %d" % i for i in range(300)], durable=True
        )


for kw in ({"group": "g"}, {}):
    with tempfile.TemporaryDirectory() as d:
        store = os.path.join(d, "s")
        with ls.open(store) as s:
            s.create_topic("t", config=CONFIG)[0].append_many(
                [b"old %d" % i for i in range(100)]
            )
        with ls.Consumer(store, topics=["t"], reset="earliest", **kw) as c:
            drain(c, 3, 100)
            again(store)
            values = [r.value for r in drain(c, 1.5, 10**9)]
        bad = values != [b"new %d" % i for i in range(300)]
        wrong += bad
        print(
            f"{kw or 'no group'}: {len(values)} records of the new topic,"
            f" {len(set(values))} different, the first is {values[:1]}"
        )

with tempfile.TemporaryDirectory() as d:
    store = os.path.join(d, "s")
    with ls.open(store) as s:
        s.create_topic("out", config=CONFIG)
        s.create_topic("t", config=CONFIG)[0].append_many(
            [b"old %d" % i for i in range(100)]
        )
    with ls.Consumer(store, topics=["t"], group="x", reset="earliest") as c:
        done, until, made = 0, time.time() + 4, False
        while time.time() < until:
            with c.transaction() as tx:
                for records in c.poll(timeout_ms=20).values():
                    for r in records:
                        tx.append("out", r.value)
                        done += 1
            if done >= 100 and not made:
                made = True
                again(store)
    with ls.open(store, read_only=True) as s:
        out = [r.value for r in s["out"][0].read()]
    new = [v for v in out if v.startswith(b"new")]
    bad = len(new) != len(set(new))
    wrong += bad
    print(
        f"transaction(): {len(new)} outputs of {len(set(new))} records of the new topic"
    )
print("WRONG" if wrong else "OK")
sys.exit(bool(wrong))
