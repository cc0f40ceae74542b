"""A consumer has read to the end. The log is cut and grows again, or its topic is
deleted and created again: the consumer continues at the same number, without an error.
The records below that number are never delivered, and the commit goes past them.
`Partition.follow` raises. With a transaction their output is missing, or is there
twice.

Usage: python s01_consumer_goes_on_in_another_log.py
"""

import itertools
import logging
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
wrong = []


def change(path, how):
    with ls.open(path) as s:
        if how == "cut":
            p = s["t"][0]
            p.truncate_to(5)
            p.append_many([b"new %d" % i for i in range(5, 50)], durable=True)
        else:
            s.delete_topic("t")
            s.create_topic("t").append_many(
                [b"new %d" % i for i in range(50)], durable=True
            )


def fresh():
    path = tempfile.mkdtemp()
    with ls.open(path) as s:
        s.create_topic("out")
        p = s.create_topic("t")[0]
        for i in range(10):
            p.append(b"old %d" % i)
    return path


for how in ("cut", "made again"):
    for kind in ("follow", "assign", "group", "no group", "iterator"):
        path = fresh()
        if kind == "follow":
            r = ls.open(path, read_only=True)
            f = r["t"][0].follow(0, timeout=1)
            assert len(list(itertools.islice(f, 10))) == 10
        else:
            c = ls.Consumer(
                path, group=None if kind == "no group" else "g", reset="earliest"
            )
            c.assign([("t", 0)]) if kind == "assign" else c.subscribe(["t"])
            n = 0
            while n < 10:
                n += (
                    sum(map(len, c.poll(timeout_ms=50, max_records=10 - n).values()))
                    if kind != "iterator"
                    else bool(next(c))
                )
            c.poll()
        change(path, how)
        try:
            if kind == "follow":
                got = [x.value for x in f]
            elif kind == "iterator":
                got = [next(c).value for _ in range(40)]
            else:
                got = [x.value for v in c.poll(timeout_ms=100).values() for x in v]
            if got and got[0] not in (b"new 0", b"new 5"):
                wrong.append(f"{how}, {kind}: {got[0].decode()}")
        except ls.LogStoreError:
            pass
        if kind != "follow":
            c.close()

# Exactly once: the records 5 to 9 of the log that was cut have no output
path = fresh()
done = 0
with ls.Consumer(path, group="tx", topics=["t"], reset="earliest") as c:
    for rounds in range(8):
        with c.transaction() as tx:
            for v in c.poll(timeout_ms=200).values():
                for x in v:
                    tx.append("out", x.value)
        if rounds == 3:
            change(path, "cut")
with ls.open(path, read_only=True) as s:
    out = {x.value for x in s["out"][0].read()}
    lost = [x.value for x in s["t"][0].read(5) if x.value not in out]
    if lost:
        wrong.append(f"transaction: no output of {b', '.join(lost).decode()}")
print(f"WRONG goes on at: {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
