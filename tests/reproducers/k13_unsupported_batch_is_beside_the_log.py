"""A batch of an unknown magic is in the middle of a log. `verify` has a problem and
reading ends there, but `report` says that the records are not concerned, and
`check_handover` to a broker, which stops there, is ok.

Usage: python k13_unsupported_batch_is_beside_the_log.py
"""

import logging
import os
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "s")
with ls.open(path) as s:
    p = s.create_topic("t", config=ls.TopicConfig(message_format=2))[0]
    for i in range(20):
        p.append(b"value %d" % i)
    p.roll()
    p.append(b"end")
    pos = next(b.position for b in p.read_batches(10, 11))
with open(os.path.join(path, "t-0", f"{0:020d}.log"), "r+b") as f:
    f.seek(pos + 16)
    f.write(b"\3")
v, r = ls.verify(path), ls.report(path)
h = ls.kafka.check_handover(path, release="2.8", retention_ms=-1)
with ls.open(path, read_only=True) as s:
    try:
        said = f"{len(list(s['t'][0].read()))} records"
    except ls.LogStoreError as e:
        said = type(e).__name__
findings = [(f.level, f.title, f.detail[:40]) for f in r.findings if f.kind == "damage"]
print(
    f"verify {[str(x.kind) for x in v.problems]}; reading: {said}; report {findings};"
    f" handover ok {h.ok}"
)
wrong = not v.ok and (
    not any(f.level == "critical" for f in r.findings if f.kind == "damage") or h.ok
)
print("WRONG" if wrong else "OK")
sys.exit(wrong)
