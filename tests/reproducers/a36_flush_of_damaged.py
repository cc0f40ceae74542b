"""flush() of a partition that was found damaged at opening returns as if all were
durable ("Return when everything appended so far is on stable storage"), while
durable_offset stays below the end. So does close().

Usage: python a36_flush_of_damaged.py
"""

import errno
import os
import subprocess
import sys
import tempfile

import logstore
from logstore.io.files import Files

KILLED = """
import os, sys, logstore
store = logstore.open(sys.argv[1])
p = store.create_topic("t", config=logstore.TopicConfig(flush_ms=10**9))[0]
p.append(b"synced", durable=True)
p.append_many([b"not synced"] * 5)
os._exit(9)
"""


class Full(Files):
    """There is no room to put a torn tail aside."""

    def create(self, dir_fd, name, *, exclusive=True):
        if name.startswith(".logstore-torn"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return super().create(dir_fd, name, exclusive=exclusive)


with tempfile.TemporaryDirectory() as path:
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    with open(f"{path}/t-0/{0:020d}.log", "ab") as log:
        log.write(b"torn")
    store = logstore.open(path, _files=Full())
    p = store.topic("t")[0]
    said = "flush() returned"
    try:
        p.flush()
    except logstore.LogStoreError as error:
        said = f"flush() raised {type(error).__name__}"
    print(f"{said}; durable_offset {p.durable_offset}, end_offset {p.end_offset}")
    bad = said == "flush() returned" and p.durable_offset < p.end_offset
    try:
        store.close()
        print("close() returned")
    except logstore.LogStoreError as error:
        print("close() raised", type(error).__name__)
print("WRONG" if bad else "OK")
raise SystemExit(bad)
