"""A store whose writer was killed has lost its last segment, of which 15 records were
durable. `verify` reports lost-segment and opening for writing takes no appends, but
every read ends after 28 of 43 records without an error, and `end_offset` is 28. After a
clean close the same loss raises.

Usage: python k11_killed_and_last_segment_gone_reads_silently.py
"""

import logging
import os
import signal
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)


def make(path, kill):
    pid = os.fork()
    if pid == 0:
        s = ls.open(path)
        p = s.create_topic("t")[0]
        for i in range(28):
            p.append(b"%d" % i)
        p.roll()
        for i in range(28, 43):
            p.append(b"%d" % i, durable=True)
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        s.close()
        os._exit(0)
    os.waitpid(pid, 0)
    with ls.open(path, read_only=True) as s:
        return s["t"][0].durable_offset


wrong = []
for kill in (False, True):
    path = os.path.join(tempfile.mkdtemp(), "s")
    durable = make(path, kill)
    os.unlink(os.path.join(path, "t-0", f"{28:020d}.log"))
    v = ls.verify(path)
    with ls.open(path, read_only=True) as s:
        p, got, e = s["t"][0], [], None
        end = p.end_offset
        try:
            for r in p.read():
                got.append(r.offset)
        except ls.LogStoreError as x:
            e = x
    line = (
        f"{('killed' if kill else 'closed')}: durable {durable}, verify"
        f" {sorted(str(x.kind) for x in v.problems)}, read {len(got)} records,"
        f" {(type(e).__name__ if e else 'no error')}, end_offset {end}"
    )
    print(line)
    if not v.ok and e is None and len(got) < durable:
        wrong.append(line)
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
sys.exit(bool(wrong))
