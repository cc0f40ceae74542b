"""The format logstore-jvm silently leaves out the records at the end of a sealed
segment of a log with gaps if they have become zeros, and those after a batch whose base
offset has one flipped bit. Every reader of Python raises CorruptRecordError.

Needs pyspark and the jar of logstore.

Usage: python e03_jvm_leaves_out_zeroed_tail.py
"""

import functools
import pathlib
import tempfile

import sparkling

import logstore as ls

path = tempfile.mkdtemp()
with ls.open(path) as store:
    p = store.create_topic(
        "c", config=ls.TopicConfig(message_format=2, cleanup_policy="compact")
    )[0]
    for i in range(200):
        p.append(b"value %03d" % i, key=b"k%03d" % i)
    p.roll()
    p.append(b"newer", key=b"k000")
    p.roll()
    p.append(b"end", key=b"end")
    p.compact(force=True)
    whole = len(list(p.read()))
    batches = [
        (b.position, b.size_bytes, b.base_offset)
        for b in p.read_batches()
        if b.base_offset < 200
    ]
log = pathlib.Path(path, "c-0", f"{0:020}.log")
data = log.read_bytes()
a = batches[50][0]
cases = {
    "the last 9 batches are zeros": (
        data[: batches[-10][0]] + bytes(len(data) - batches[-10][0])
    ),
    "all of the segment is zeros": bytes(len(data)),
    "one bit of a base offset has flipped": (
        data[: a + 7] + bytes([data[a + 7] ^ 64]) + data[a + 8 :]
    ),
}
spark = sparkling.session()


def rows(name):
    frame = sparkling.load(spark, name, path).select("offset", "value")
    return len(frame.collect())


bad, told = [], []
for case, damaged in cases.items():
    log.write_bytes(damaged)
    python, jvm = (
        sparkling.outcome(functools.partial(rows, name))
        for name in ("logstore", "logstore-jvm")
    )
    by_python = "raises" if python[1] else python[0]
    by_jvm = "raises" if jvm[1] else f"returns {jvm[0]} of {whole} rows, no error"
    told.append(f"{case}: logstore {by_python}, logstore-jvm {by_jvm}")
    if jvm[0] is not None and python[1]:
        bad.append(case)
sparkling.end(bad, "; ".join(told))
