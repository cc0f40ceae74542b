"""Anything in the writer's process that opens and closes the file `.lock`
(shutil.copytree, tarfile, a scan for viruses) drops the lock, as POSIX locks are
(docs/operations.md, Backup, warns of it): a second writer gets in, and each overwrites
what the other acknowledged as durable. A flock on the same descriptor, in addition to
Kafka's lock, would keep logstore out.

Usage: python a25_lock_dropped_by_copy.py
"""

import shutil
import subprocess
import sys
import tempfile

import logstore

OTHER = """
import sys, logstore
with logstore.open(sys.argv[1]) as store:
    p = store.topic("t")[0]
    print([p.append(b"of the other %d" % i, durable=True) for i in range(5)])
"""
with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as backup:
    store = logstore.open(path)
    p = store.create_topic("t")[0]
    p.append(b"first", durable=True)
    shutil.copytree(path, backup, dirs_exist_ok=True)
    other = subprocess.run(
        [sys.executable, "-c", OTHER, path], capture_output=True, text=True
    )
    if "StoreLockedError" in other.stderr:
        print("OK    the second writer was refused")
        raise SystemExit(0)
    print("   the second writer was told", other.stdout.strip())
    print(
        "   this one is told",
        [p.append(b"of this one %d" % i, durable=True) for i in range(5)],
    )
    try:
        store.close()
    except logstore.LogStoreError as error:
        print("   close:", type(error).__name__)
    with logstore.open(path) as store:
        print("   there are", [r.value for r in store.topic("t")[0].read()])
print("WRONG two writers, and durable records are gone without an error")
raise SystemExit(1)
