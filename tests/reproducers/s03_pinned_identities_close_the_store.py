"""Pinned identities are never evicted, and no new one is refused. As soon as the file
of publications would exceed 64 MiB, each `publish` fails, `close()` is silent, and the
store can no longer be opened for writing. The first 1,950 are written to the file
directly, to save time.

Usage: python s03_pinned_identities_close_the_store.py [all: each by publish, 90 s]
"""

import logging
import os
import shutil
import sys
import tempfile

import logstore as ls
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ledger import LedgerEntry
from logstore.io.checkpoint.publications import remembered
from logstore.io.directory import Directory
from logstore.io.files import Files

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
pad = "\u0001" * 950
said = []
with ls.open(path) as s:
    s.create_topic("t", config=ls.TopicConfig(message_format=2))[0].append(
        b"a record", durable=True
    )
n = 0
if sys.argv[1:] != ["all"]:
    root = Directory.open_root(Files(), path)
    n = 1950
    entries = {
        f"{i:06d}" + pad: LedgerEntry(1, 0, 1, pad, True, os.urandom(4096))
        for i in range(n)
    }
    checkpoints.write_state(root, ".logstore-published", remembered(entries))
    root.close()
s = ls.open(path)
try:
    while n < 20000:
        s.publish(
            [],
            identity=f"{n:06d}" + pad,
            sequence=1,
            note=pad,
            metadata=os.urandom(4096),
            pinned=True,
        )
        n += 1
except ls.LogStoreError as e:
    said.append(f"after {n} pinned identities: {str(e).replace(path, 'store')[:60]}")
try:
    with s.stage("another", 1) as st:
        st.append_many(s["t"][0], [b"v"])
        done = st.finish()
    s.publish([done], identity="another", sequence=1)
except ls.LogStoreError as e:
    said.append(f"another publisher: {type(e).__name__}")
try:
    s.close()
    said.append("close() is silent")
except ls.LogStoreError as e:
    said.append(f"close: {type(e).__name__}")
wrong = False
try:
    ls.open(path).close()
    said.append("opens again")
except ls.LogStoreError as e:
    wrong = True
    said.append(f"open: {type(e).__name__} {str(e).replace(path, 'the store')[:60]}")
shutil.rmtree(path)
print(("WRONG " if wrong else "OK ") + "; ".join(said))
raise SystemExit(bool(wrong))
