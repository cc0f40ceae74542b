"""Another process deletes and creates a topic again under a Partition of a read-only
store. `fetch(next_offset)`, `get` and `read` of the same object return records of the
new topic at positions of the old one, without an error. In the writer's store they
raise PartitionNotFoundError.

Usage: python k12_fetch_by_an_old_partition_object.py
"""

import logging
import os
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
wrong = []


def fetch(p, at):
    return next(iter(p.fetch(at, max_bytes=200)))


def get(p, at):
    return p.get(at)


def read(p, at):
    return next(iter(p.read(at)))


for whose in ("read-only", "owner"):
    path = os.path.join(tempfile.mkdtemp(), "s")
    w = ls.open(path)
    w.create_topic("t").append_many([b"old %d" % i for i in range(20)], durable=True)
    r = ls.open(path, read_only=True) if whose == "read-only" else w
    p = r["t"][0]
    chunk = p.fetch(0, max_bytes=200)
    at = chunk.next_offset
    w.delete_topic("t")
    w.create_topic("t").append_many([b"new %d" % i for i in range(50)], durable=True)
    for call in (fetch, get, read):
        what = f"{whose}, {call.__name__}"
        try:
            got = bytes(call(p, at).value)
            print(f"{what} at {at}: {got!r}")
            wrong += [what] if got.startswith(b"new") else []
        except ls.LogStoreError as e:
            print(f"{what}: {type(e).__name__}")
print(
    f"WRONG goes on in the new topic by the object of the old: {'; '.join(wrong)}"
    if wrong
    else "OK"
)
sys.exit(bool(wrong))
