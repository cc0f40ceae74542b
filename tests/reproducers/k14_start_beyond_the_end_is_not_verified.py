"""log-start-offset-checkpoint is beyond the end of the log. `verify` has no problem and
no note, a dry run of `repair` would remove every segment, and a broker deletes all
records.

Usage: python k14_start_beyond_the_end_is_not_verified.py
"""

import glob
import logging
import os
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "s")
with ls.open(path) as s:
    s.create_topic("t", config=ls.TopicConfig(message_format=2))[0].append_many(
        [b"value %d" % i for i in range(20)]
    )
for f in glob.glob(f"{path}/.logstore*") + glob.glob(f"{path}/t-0/.logstore*"):
    os.unlink(f)
with open(f"{path}/log-start-offset-checkpoint", "w") as f:
    f.write("0\n1\nt 0 100000\n")
v, r = ls.verify(path, deep=True), ls.repair(path, mode="cut", dry_run=True)
actions = [
    (a.label if hasattr(a, "label") else "", os.path.basename(a.path))
    for a in r.actions
]
print(
    f"verify: problems {[str(x.kind) for x in v.problems]}, notes"
    f" {[str(x.kind) for x in v.notes]}; repair would do {actions}"
)
wrong = v.ok and not v.notes and any(a[1].endswith(".log") for a in actions)
print("WRONG" if wrong else "OK")
sys.exit(wrong)
