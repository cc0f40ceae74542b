"""A sealed segment has zeros after its last batch. `verify` reports damage; opening
takes appends, and reading returns all records: two answers to one question.

Usage: python k07_zeros_behind_sealed.py
"""

import glob
import logging
import os
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
wrong = 0
for magic in (1, 2):
    for foreign in (False, True):
        with tempfile.TemporaryDirectory() as d:
            store = os.path.join(d, "s")
            with ls.open(store) as s:
                p = s.create_topic(
                    "t", config=ls.TopicConfig(message_format=magic, segment_bytes=1000)
                )[0]
                for i in range(40):
                    p.append(b"%d" % i + b"." * 60)
            if foreign:
                for f in glob.glob(f"{store}/.logstore*") + glob.glob(
                    f"{store}/t-0/.logstore*"
                ):
                    os.unlink(f)
            with open(sorted(glob.glob(f"{store}/t-0/*.log"))[1], "ab") as f:
                f.write(bytes(100))
            v = ls.verify(store, deep=True)
            try:
                with ls.open(store) as s:
                    p = s.topic("t")[0]
                    got = [r.offset for r in p.read()]
                    said = (
                        f"append {p.append(b'more')}, read {len(got)} of"
                        f" {p.end_offset - 1}"
                    )
                    fine = got == list(range(40))
            except ls.LogStoreError as e:
                said, fine = type(e).__name__, False
            bad = v.ok != fine
            wrong += bad
            whose = "another program wrote last" if foreign else "logstore's own"
            found = sorted(p.kind for p in v.problems) or "ok"
            print(
                f"magic {magic}, {whose}: verify {found}; opening and reading: {said}"
                f"{'   <- disagree' if bad else ''}"
            )
print("WRONG" if wrong else "OK")
sys.exit(bool(wrong))
