"""A signal raises in the first call of a consumer, between the assignments of `member`
and `positions`. The consumer continues without the group's file for good: it begins by
`reset` and not at the committed offset, commits go back, and transactions publish all
output again. Here a trace function raises at the entry of Positions.__init__, where
Python delivers signals.

Usage: python s21_interrupted_join_forgets_what_was_committed.py
"""

import collections
import logging
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
wrong = []


def trace(frame, event, arg):
    if (
        event == "call"
        and frame.f_code.co_name == "__init__"
        and frame.f_code.co_filename.endswith("group/consumer/positions.py")
        and frame.f_locals["file"] is not None
    ):
        sys.settrace(None)
        raise KeyboardInterrupt


def interrupted(c):
    sys.settrace(trace)
    try:
        c.poll(timeout_ms=100)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


path = tempfile.mkdtemp()
with ls.open(path) as s:
    s.create_topic("out")
    s.create_topic("t").append_many([b"%d" % i for i in range(10)], durable=True)
with ls.Consumer(path, group="co", topics=["t"], reset="earliest") as c:
    assert len(c.poll(timeout_ms=500)[("t", 0)]) == 10
    c.commit()
with ls.Consumer(
    path, group="co", topics=["t"], reset="earliest", max_poll_records=3
) as c:
    assert interrupted(c)
    got = [r.offset for v in c.poll(timeout_ms=300).values() for r in v]
    c.commit()
with ls.Consumer(path, group="co", topics=["t"], reset="earliest") as c:
    committed = c.committed(("t", 0)).offset
if got or committed != 10:
    wrong.append(
        f"committed was 10: then {got} are delivered, and committed is {committed}"
    )


def work(c):
    for _ in range(4):
        try:
            with c.transaction() as tx:
                for v in c.poll(timeout_ms=200).values():
                    for r in v:
                        tx.append("out", r.value)
        except ls.errors.FencedError:
            pass


with ls.Consumer(path, group="tx", topics=["t"], reset="earliest") as c:
    work(c)
with ls.Consumer(path, group="tx", topics=["t"], reset="earliest") as c:
    assert interrupted(c)
    work(c)
with ls.open(path, read_only=True) as s:
    out = collections.Counter(r.value for r in s["out"][0].read())
if max(out.values()) > 1:
    wrong.append(
        f"transactions: {sum(n > 1 for n in out.values())} of {len(out)} outputs twice"
    )
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
