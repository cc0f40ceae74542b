"""A topic is deleted and created again under a consumer with `assign`. Each later
commit returns, and does not count: `committed()` returns None, and after a restart all
records come again. With transactions the output of all records of the new topic is
published twice, without an error.

Usage: python s12_commit_of_assigned_made_again.py
"""

import collections
import logging
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
wrong = []


def fresh():
    path = tempfile.mkdtemp()
    with ls.open(path) as s:
        s.create_topic("out")
        s.create_topic("t").append_many([b"old"] * 10, durable=True)
    return path


def make_again(path):
    with ls.open(path) as s:
        s.delete_topic("t")
        s.create_topic("t").append_many([b"new %d" % i for i in range(5)], durable=True)


path = fresh()
c = ls.Consumer(path, group="g", reset="earliest")
c.assign([("t", 0)])
assert len(c.poll(timeout_ms=500)[("t", 0)]) == 10
c.commit()
make_again(path)
got, said = [], []
for _ in range(3):
    try:
        got += [r.value for v in c.poll(timeout_ms=200).values() for r in v]
        c.commit()
        c.commit({("t", 0): 5})
    except ls.LogStoreError as e:
        said.append(type(e).__name__)
committed = c.committed(("t", 0))
c.close()
if not said and committed is None:
    wrong.append(f"{len(got)} new records, commits returned, committed() is None")

path, said = fresh(), []


def work(c):
    for _ in range(3):
        try:
            with c.transaction() as tx:
                for v in c.poll(timeout_ms=200).values():
                    for r in v:
                        tx.append("out", r.value)
        except ls.LogStoreError as e:
            said.append(type(e).__name__)


with ls.Consumer(path, group="tx", reset="earliest") as c:
    c.assign([("t", 0)])
    work(c)
    make_again(path)
    work(c)
with ls.Consumer(path, group="tx", topics=["t"], reset="earliest") as c:
    work(c)
with ls.open(path, read_only=True) as s:
    out = collections.Counter(r.value for r in s["out"][0].read() if r.value != b"old")
twice = [v for v in out if out[v] > 1]
if twice:
    wrong.append(
        f"{len(twice)} outputs twice by transactions, errors: {said or 'none'}"
    )
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
