"""An owner begins with 64 requests in its directory that it cannot read (of a later
version). It does not serve the request that comes after them by name: `submit` waits
until another process submits, too.

Usage: python s14_requests_behind_64_that_cannot_be_read.py
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time

import logstore as ls
from logstore.io.checkpoint.entries import first_entry

logging.disable(logging.CRITICAL)
CHILD = r"""
import sys, logging, logstore as ls
logging.disable(50)
with ls.open(sys.argv[1], read_only=True) as r:
    with r.stage("zz", 1) as st:
        st.append_many(r.topic("t")[0], [b"x"])
        staged = st.finish()
    try:
        print(r.submit([staged], identity="zz", sequence=1, timeout_ms=10000).records)
    except Exception as e:
        print(type(e).__name__)
"""
LATER = (
    b'{"identity":"q","logs":[],"metadata":"","note":"","pinned":null,"sequence":1,'
    b'"version":99}'
)
HOLD = """
import sys, time, logstore as ls
s = ls.open(sys.argv[1])
print(1, flush=True)
time.sleep(60)
"""


def started(program, path):
    command = [sys.executable, "-c", program, path]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def requests(path):
    names = [name for name in os.listdir(path) if not name.endswith("tmp")]
    return sum(name.startswith(".logstore-request") for name in names)


def case(n):
    path = tempfile.mkdtemp()
    with ls.open(path) as s:
        s.create_topic("t", config=ls.TopicConfig(message_format=2))
    later = first_entry(LATER)
    for i in range(n):
        with open(path + f"/.logstore-request-{0:016x}-{i:019d}-0-{i:016x}", "wb") as f:
            f.write(later)
    hold = started(HOLD, path)
    hold.stdout.readline()
    child = started(CHILD, path)
    while requests(path) <= n:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGSTOP)  # it does not become the owner itself
    hold.kill()
    hold.wait()
    owner = ls.open(path, config=ls.StoreConfig(publish_for_others=True))
    os.kill(child.pid, signal.SIGCONT)
    said = child.stdout.readline().strip()
    child.wait()
    owner.close()
    return said


few, many = case(10), case(64)
wrong = many != "1"
print("WRONG" if wrong else "OK", f"after 10: {few}; after 64: {many}")
raise SystemExit(wrong)
